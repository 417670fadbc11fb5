//! Recovery: what a session finds when it is loaded after its process ended without saying goodbye.

use mainspring_core::run::{Command as RunCommand, Outcome};
use mainspring_core::{Attempt, Failure, MessageStatus, Role, Run, RunId, RunStatus, Usage};
use tokio_util::sync::CancellationToken;

use super::{Active, Actor, before};
use crate::error::Error;
use crate::kernel::OnOrphan;
use crate::store::RunPage;

impl Actor {
    /// Takes up a run that was active: a wait that the store holds goes on, everything else has lost its executor.
    pub(crate) async fn recover(&mut self, run: Run, attempt: Attempt) -> Result<(), Error> {
        let survives = run.state.wait().is_some_and(|wait| !wait.held);
        let by = attempt.id;
        if let Some(tip) = run.pen.and_then(before) {
            let path = self.shared.store.path(tip, None, 1).await?;
            let of_run = |by: RunId| by == run.id || self.hot.merged.iter().any(|merged| merged.id == by);
            let last =
                path.last().map(|placed| &placed.message).filter(|message| message.run.is_some_and(of_run));
            self.hot.unanswered = last.map(|message| message.tool_calls()).unwrap_or_default();
            self.hot.last_role = last.map(|message| message.role);
        }
        if !run.usage.is_zero() {
            let steps = self.shared.store.steps(run.id).await?;
            self.hot.turn_usage = steps.iter().fold(Usage::default(), |used, step| match step.ends_turn() {
                true => Usage::default(),
                false => used + step.usage,
            });
        }
        let prompt = self.prompt_of(&run).await?;
        if attempt.binding.is_some() {
            self.hot.binding = self.binding_latest(&run.adapter).await?;
        }
        self.active = Some(Active {
            run,
            attempt,
            permit: None,
            task: None,
            cancel: CancellationToken::new(),
            prompt,
            held: None,
            cancelling: vec![],
            telling: false,
            kill_at: None,
            killing: None,
            at_end: vec![],
            steering: tokio::sync::watch::Sender::new(false),
        });
        if survives {
            return Ok(());
        }
        let retry = self.shared.options.on_orphan == OnOrphan::Retry
            && self
                .active
                .as_ref()
                .is_some_and(|active| active.run.attempts < self.shared.options.limits.attempts);
        let outcome = Outcome::Failed {
            status: RunStatus::Orphaned,
            error: Failure::new("executor_lost", "the process that executed it has ended"),
            retryable: true,
            retry_at: retry.then(|| self.shared.clock.now()),
        };
        // Its turn is over, so the session need not stay.
        self.arm();
        // Not tried for ever as at a run's own end: a start that cannot record what was left says so and ends.
        self.try_finish(by, outcome, Usage::default()).await
    }

    /// A run of this session, from memory or from the store.
    pub(super) async fn run_known(&self, run: RunId) -> Result<Run, Error> {
        let found = self.shared.store.run_get(run).await?;
        found.filter(|run| run.session == self.fence.session).ok_or_else(|| Error::not_found("run", run))
    }

    /// Refuses a run that others have come after. What was cancelled before it began has not, and what became part of
    /// it has not: that is given back.
    async fn check_latest(&self, run: &Run) -> Result<Vec<Run>, Error> {
        let mut merged = vec![];
        let mut page = RunPage {
            owner: run.owner.clone(),
            session: Some(run.session),
            status: None,
            before: None,
            limit: 20,
        };
        loop {
            let runs = self.shared.store.run_page(&page).await?;
            if runs.iter().any(|later| later.no > run.no && later.attempts > 0) {
                return Err(Error::NotLatest(run.id));
            }
            merged.extend(runs.iter().filter(|later| later.merged_into == Some(run.id)).cloned());
            let Some(last) = runs.last().filter(|last| last.created_at >= run.created_at) else {
                merged.sort_by_key(|run| run.no);
                return Ok(merged);
            };
            page.before = Some((last.created_at, last.id));
        }
    }

    /// Tries an ended run again, beneath the last message that was not part of its failure.
    pub(super) async fn retry(&mut self, id: RunId) -> Result<Run, Error> {
        if let Some(status) = self.busy() {
            return Err(Error::Busy { status });
        }
        let run = self.run_known(id).await?;
        let merged = self.check_latest(&run).await?;
        let failed = |placed: &crate::store::PlacedMessage| {
            let message = &placed.message;
            message.run == Some(id)
                && message.role == Role::Assistant
                && message.status == MessageStatus::Failed
        };
        // What a failure leaves is a message, or one for each stretch that was streamed between two questions.
        let (mut base, mut from) = (None, run.pen.and_then(before));
        while let (None, Some(tip)) = (&base, from) {
            let path = self.shared.store.path(tip, None, 8).await?;
            from = path.first().and_then(|placed| placed.point).and_then(before);
            base = path.into_iter().rfind(|placed| !failed(placed));
        }
        let (draft, _) = self.draft(false);
        let mut draft = draft.with_run(run, None);
        draft.hot.merged = merged;
        if let Err(refusal) = draft.command(RunCommand::Retry) {
            self.give_up();
            return Err(refusal.into());
        }
        draft.reopen(base.as_ref().and_then(|placed| placed.point), base.map(|placed| placed.message.id));
        let (run, _) = self.commit(draft).await?;
        let run = run.ok_or_else(|| Error::not_found("run", id))?;
        self.queue.push_front(run.clone());
        Ok(run)
    }
}
