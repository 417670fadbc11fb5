//! Operations on the processes that turns left running.

use mainspring_core::{AttemptId, LeftProcess, RunId};

use super::{Caller, Kernel};
use crate::error::Error;

impl Kernel {
    /// Lists the processes that the turns of a run left running and that still run.
    pub async fn run_processes(&self, caller: &Caller, run: RunId) -> Result<Vec<LeftProcess>, Error> {
        self.run_readable(caller, run).await?;
        self.left_running(run).await
    }

    /// Ends the processes that the turns of a run left running. Returns those that could not be ended.
    pub async fn run_processes_end(&self, caller: &Caller, run: RunId) -> Result<Vec<LeftProcess>, Error> {
        self.run_for_change(caller, run).await?;
        for (adapter, attempt) in self.attempts_of(run).await? {
            if let Some(adapter) = self.shared.adapters.get(&adapter) {
                adapter.end_left_running(attempt).await;
            }
        }
        self.left_running(run).await
    }

    async fn left_running(&self, run: RunId) -> Result<Vec<LeftProcess>, Error> {
        let attempts = self.attempts_of(run).await?;
        let of_attempt = |(adapter, attempt): (String, AttemptId)| {
            self.shared.adapters.get(&adapter).map(|adapter| adapter.left_running(attempt))
        };
        Ok(attempts.into_iter().filter_map(of_attempt).flatten().collect())
    }

    /// The attempts of a run, each with its adapter.
    async fn attempts_of(&self, run: RunId) -> Result<Vec<(String, AttemptId)>, Error> {
        let attempts = self.shared.store.attempts(run).await?.intact()?;
        Ok(attempts.into_iter().map(|attempt| (attempt.adapter, attempt.id)).collect())
    }
}
