//! Recovery: a session is loaded after its process has died, and runs are retried.

use mainspring_core::run::{Command as RunCommand, Outcome};
use mainspring_core::tree::before;
use mainspring_core::{Attempt, Failure, MessageStatus, Role, Run, RunId, RunStatus, Usage};

use super::{Active, Actor};
use crate::error::Error;
use crate::kernel::OnOrphan;
use crate::store::RunPage;

impl Actor {
    /// Takes up a run that was active. A wait that the store alone holds continues; any other run has lost its executor.
    pub(crate) async fn recover(&mut self, run: Run, attempt: Attempt) -> Result<(), Error> {
        let survives = run.state.wait().is_some_and(|wait| !wait.held);
        self.restore_path_end(&run).await?;
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
        self.active = Some(Active::new(run, attempt, prompt));
        if survives {
            return Ok(());
        }
        let options = &self.shared.options;
        let left = self.active.as_ref().is_some_and(|active| active.run.attempts < options.limits.attempts);
        let retry = left && options.on_orphan == OnOrphan::Retry;
        let outcome = Outcome::Failed {
            status: RunStatus::Orphaned,
            error: Failure::new("executor_lost", "the process that executed it has ended"),
            retryable: true,
            retry_at: retry.then(|| self.shared.clock.now()),
        };
        // The run is over, so the session need not stay in memory.
        self.arm();
        // Tried once, unlike the end of a run that this process has executed: a start that cannot record it fails.
        self.try_finish(outcome, Usage::default()).await
    }

    /// Reads the end of a started run's path: the role of its last message, and that message's tool calls.
    pub(super) async fn restore_path_end(&mut self, run: &Run) -> Result<(), Error> {
        let Some(tip) = run.pen.and_then(before) else { return Ok(()) };
        let path = self.shared.store.path(tip, None, 1).await?;
        let of_run = |by: RunId| by == run.id || self.hot.merged.iter().any(|merged| merged.id == by);
        let last =
            path.last().map(|placed| &placed.message).filter(|message| message.run.is_some_and(of_run));
        self.hot.unanswered = last.map(|message| message.tool_calls()).unwrap_or_default();
        self.hot.last_role = last.map(|message| message.role);
        Ok(())
    }

    /// A run of this session, as it is stored.
    pub(super) async fn run_known(&self, run: RunId) -> Result<Run, Error> {
        let found = self.shared.store.run_get(run).await?;
        found.filter(|run| run.session == self.fence.session).ok_or_else(|| Error::not_found("run", run))
    }

    /// Refuses a run that a later run has started after. Returns the runs that were merged into it; these, and runs that
    /// were cancelled before they started, do not count as later.
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

    /// Tries an ended run again, beneath the last message before its failure.
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
        // A failure leaves one message, or one for each stretch of text between two questions.
        let (mut base, mut from) = (None, run.pen.and_then(before));
        while let (None, Some(tip)) = (&base, from) {
            let path = self.shared.store.path(tip, None, 8).await?;
            from = path.first().and_then(|placed| placed.point).and_then(before);
            base = path.into_iter().rfind(|placed| !failed(placed));
        }
        let mut draft = self.draft().of_run(run);
        draft.hot.merged = merged;
        self.give_up_on_error(draft.command(RunCommand::Retry))?;
        draft.reopen(base.as_ref().and_then(|placed| placed.point), base.map(|placed| placed.message.id));
        let run = self.commit(draft).await?.run;
        self.queue.push_first(run.clone());
        Ok(run)
    }
}
