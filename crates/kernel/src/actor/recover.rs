//! Recovery: a session is loaded after its process has died.

use mainspring_core::run::Outcome;
use mainspring_core::tree::before;
use mainspring_core::{
    Attempt, Failure, FailureCode, NextAttempt, RetryReason, Run, RunId, RunStatus, Usage,
};

use super::binding::LatestBinding;
use super::{Active, Actor};
use crate::error::Error;
use crate::kernel::OnOrphan;

impl Actor {
    /// Recovers a run that was active. A wait that the store alone holds continues; any other run has lost its
    /// executor.
    pub(crate) async fn recover(&mut self, run: Run, attempt: Attempt) -> Result<(), Error> {
        let survives = run.state.wait().is_some_and(|wait| !wait.held);
        self.restore_path_end(&run).await?;
        if !run.usage.is_zero() {
            let steps = self.shared.store.steps(run.id).await?.intact()?;
            self.hot.answer.restore_usage(&steps);
        }
        let prompt = self.prompt_of(&run).await?;
        if attempt.binding.is_some() {
            let latest = self.binding_latest(&run.adapter).await?;
            self.hot.binding = LatestBinding::restore(latest);
        }
        self.active = Some(Active::new(run.into(), attempt, prompt, &self.shared.clock));
        if survives {
            // The session need not stay in memory until the answer.
            self.arm();
            return Ok(());
        }
        let options = &self.shared.options;
        let left = self.active.as_ref().is_some_and(|active| active.run().attempts < options.limits.attempts);
        let retry = left && options.on_orphan == OnOrphan::Retry;
        let outcome = Outcome::Failed {
            status: RunStatus::Orphaned,
            error: Failure::new(FailureCode::ExecutorLost, "the process that executed it has ended"),
            retryable: true,
            retry: retry.then(|| Box::new(NextAttempt::new(RetryReason::Crash, self.shared.clock.now()))),
        };
        // The run is over, so the session need not stay in memory.
        self.arm();
        // The agent may have used more than it had reported.
        let used = self.active.as_ref().is_some_and(|active| active.attempt().started_at.is_some());
        let usage = if used { Usage::UNKNOWN } else { Usage::default() };
        // Tried once, unlike the end of a run that this process has executed: if it fails, so does the load of the session.
        Box::pin(self.try_finish(outcome, usage)).await
    }

    /// Reads the end of a started run's path: the role of its last message, and that message's tool calls.
    pub(super) async fn restore_path_end(&mut self, run: &Run) -> Result<(), Error> {
        let Some(tip) = run.pen.and_then(before) else { return Ok(()) };
        let path = self.shared.store.path(tip, None, 1).await?.intact()?;
        let of_run = |by: RunId| by == run.id || self.hot.merged.iter().any(|merged| merged.id == by);
        let last =
            path.last().map(|placed| &placed.message).filter(|message| message.run.is_some_and(of_run));
        let unanswered = match last {
            Some(_) => self.unanswered_at(tip).await?,
            None => vec![],
        };
        self.hot.path.restore(last.map(|message| message.role), unanswered);
        Ok(())
    }

    /// A run of this session, as it is stored.
    pub(super) async fn run_known(&self, run: RunId) -> Result<Run, Error> {
        let found = self.shared.store.run_get(run).await?;
        found.filter(|run| run.session == self.fence.session).ok_or_else(|| Error::not_found("run", run))
    }
}
