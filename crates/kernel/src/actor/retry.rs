//! Retries: the attempt that follows a failure, and runs that a caller tries again.

use std::sync::Arc;

use mainspring_core::run::{Command as RunCommand, Outcome};
use mainspring_core::tree::before;
use mainspring_core::{
    Attempt, Failure, Fallback, KeyLists, NextAttempt, RetryReason, Run, RunChange, RunId, RunOptions,
    RunStatus, retry, session,
};

use super::hot::MergedRuns;
use super::{Active, Actor};
use crate::error::Error;
use crate::store::{PlacedMessage, RunPage};

/// A retry that a caller asks for.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// The changed options.
    pub(crate) change: RunChange,
    /// The lists of the caller's key; the run keeps its own if the caller has none.
    pub(crate) key: Option<Box<KeyLists>>,
}

impl Actor {
    /// Builds the failure of the active attempt, with the attempt that follows it.
    pub(super) async fn failed_outcome(&self, error: Failure, retryable: bool) -> Outcome {
        let retry = match &self.active {
            Some(active) => self.next_attempt(active, &error, retryable).await,
            None => None,
        };
        Outcome::Failed { status: RunStatus::Failed, error, retryable, retry }
    }

    /// Decides which attempt follows the failure of the active one: another one on the same adapter while attempts are
    /// left, then one on a fallback of the adapter.
    async fn next_attempt(
        &self,
        active: &Active,
        error: &Failure,
        retryable: bool,
    ) -> Option<Box<NextAttempt>> {
        let (attempts, now) = (active.run().attempts, self.shared.clock.now());
        let options = &self.shared.options;
        if retryable && attempts < options.limits.attempts {
            let reason = RetryReason::after_failure(&error.code);
            return Some(Box::new(NextAttempt::new(reason, now.plus(options.retry.delay(attempts)))));
        }
        if options.fallbacks.is_empty()
            || !retry::another_adapter_helps(&error.code)
            || self.has_output(active)
        {
            return None;
        }
        // Boxed to keep the future of other ends small.
        let fallback = Box::pin(self.next_fallback(active.run())).await?;
        let Fallback { adapter, model } = fallback;
        let change = RunChange { adapter: Some(adapter), model, ..RunChange::default() };
        Some(Box::new(NextAttempt { change, ..NextAttempt::new(RetryReason::Failover, now) }))
    }

    /// True when the active attempt has produced text, a message or a tool call, or has asked a question.
    fn has_output(&self, active: &Active) -> bool {
        active.has_output() || !self.feed.snapshot().1.is_empty()
    }

    /// Finds the next fallback of the adapter that the run was requested for: one that was not tried and that can execute
    /// the run.
    async fn next_fallback(&self, run: &Run) -> Option<Fallback> {
        let read = self.shared.store.attempts(run.id).await;
        let attempts = match read.and_then(|attempts| Ok(attempts.intact()?)) {
            Ok(attempts) => attempts,
            Err(error) => {
                tracing::warn!(%error, run = %run.id, "cannot read the attempts of a run: it is not failed over");
                return None;
            }
        };
        // A caller who retries the run, or logs in, chooses the adapter anew.
        let asked = |attempt: &Attempt| {
            matches!(attempt.retry_reason, None | Some(RetryReason::User | RetryReason::Authentication))
        };
        let first = attempts.iter().rposition(asked).unwrap_or(0);
        let mut tried: Vec<&str> = attempts[first..].iter().map(|attempt| attempt.adapter.as_str()).collect();
        let requested = tried.first().copied().unwrap_or(&run.adapter);
        let fallbacks = self.shared.options.fallbacks.get(requested)?;
        while let Some(next) = retry::next_fallback(fallbacks, &tried) {
            let Fallback { adapter, model } = next.clone();
            let change = RunChange { adapter: Some(adapter), model, ..RunChange::default() };
            match self.check_change(run, &change) {
                Ok(()) => return Some(next.clone()),
                Err(error) => {
                    tracing::warn!(%error, run = %run.id, adapter = next.adapter, "a fallback cannot execute the run");
                    tried.push(&next.adapter);
                }
            }
        }
        None
    }

    /// Reduces the limits of `change` to those that the run may have, or refuses the change: the adapter must
    /// be able to execute the run, and a delegated run gets no more than the rest of its parent's limits.
    async fn allowed_change(&self, run: &Run, mut change: RunChange) -> Result<RunChange, Error> {
        if !change.limits.is_empty()
            && let Some(parent) = run.parent
            && let Some(parent) = self.shared.store.run_get(parent).await?
        {
            change.limits = self.shared.retried_child_limits(&parent, run, change.limits).await?;
        }
        self.check_change(run, &change)?;
        Ok(change)
    }

    /// Checks that the adapter of the changed run can execute it and uses the options that the change gives.
    fn check_change(&self, run: &Run, change: &RunChange) -> Result<(), Error> {
        let mut changed = run.clone();
        change.apply(&mut changed);
        let folder = run.options.cwd.as_deref().or(self.hot.session.cwd.as_deref());
        self.check_fits_adapter(&changed.adapter, &changed.options, folder)?;
        self.shared.check_lists(changed.options.key.as_deref(), &changed.adapter, &changed.options)?;
        if changed.adapter != run.adapter || !change.limits.is_empty() {
            self.shared.check_limits_kept(&changed.adapter, &changed.options.limits)?;
        }
        let given = RunOptions {
            model: change.model.clone(),
            model_profile: change.model_profile.clone(),
            output_schema: changed.options.output_schema.filter(|_| changed.adapter != run.adapter),
            ..RunOptions::default()
        };
        self.shared.check_used(&changed.adapter, &given)?;
        self.shared.check_profile(&changed.adapter, change.model_profile.as_deref())
    }

    /// Refuses a run if a later run has started. Returns the runs that were merged into it; these, and runs that were
    /// cancelled before they started, do not count as later.
    async fn check_latest(&self, run: &Run) -> Result<Vec<Run>, Error> {
        let mut merged = vec![];
        // Counted by their numbers: a later run has an earlier time if the clock was set back.
        let mut later_left = self.queue.next_no().saturating_sub(run.no + 1);
        let mut page = RunPage {
            owner: run.owner.clone(),
            session: Some(run.session),
            status: None,
            before: None,
            limit: 20,
        };
        loop {
            let runs = self.shared.store.run_page(&page).await?.intact()?;
            if runs.iter().any(|later| later.no > run.no && later.attempts > 0) {
                return Err(Error::NotLatest(run.id));
            }
            merged.extend(runs.iter().filter(|later| later.merged_into == Some(run.id)).cloned());
            let later = runs.iter().filter(|later| later.no > run.no).count();
            later_left = later_left.saturating_sub(u32::try_from(later).unwrap_or(u32::MAX));
            let Some(last) = runs.last().filter(|_| later_left > 0) else {
                merged.sort_by_key(|run| run.no);
                return Ok(merged);
            };
            page.before = Some((last.created_at, last.id));
        }
    }

    /// Reads the message beneath which an ended run is tried again (see [`retry::retry_base`]).
    async fn retry_base(&self, run: &Run) -> Result<Option<PlacedMessage>, Error> {
        let mut from = run.pen.and_then(before);
        while let Some(tip) = from {
            let mut path = self.shared.store.path(tip, None, 8).await?.intact()?;
            from = path.first().and_then(|placed| placed.point).and_then(before);
            if let Some(base) = retry::retry_base(run.id, path.iter().map(|placed| &*placed.message)) {
                return Ok(Some(path.swap_remove(base)));
            }
        }
        Ok(None)
    }

    /// Tries an ended run again with the changed options, beneath the last message before its failure.
    pub(super) async fn retry(&mut self, id: RunId, retry: Retry) -> Result<Run, Error> {
        let Retry { change, key } = retry;
        if let Some(status) = self.busy() {
            return Err(Error::Busy { status });
        }
        session::check_takes_work(&self.hot.session)?;
        let mut run = self.run_known(id).await?;
        if key.is_some() {
            // The run is limited and charged to the key that retries it.
            run.options.key = key;
        } else {
            self.shared.check_spend(run.options.key.as_deref()).await?;
        }
        let merged = self.check_latest(&run).await?;
        let change = self.allowed_change(&run, change).await?;
        let base = self.retry_base(&run).await?;
        let reason = match self.shared.logins.continues(&run, &change) {
            true => RetryReason::Authentication,
            false => RetryReason::User,
        };
        let mut draft = self.draft().of_run(run);
        draft.hot.merged = MergedRuns::restore(merged);
        self.give_up_on_error(draft.command(RunCommand::Retry { reason, change }))?;
        draft.reopen(base.as_ref().and_then(|placed| placed.point), base.map(|placed| placed.message.id));
        let run = Arc::unwrap_or_clone(self.commit(draft).await?.run);
        self.queue.push_first(run.clone());
        Ok(run)
    }
}
