//! Limits of runs whose adapter does not keep them itself: the kernel stops what has used up what it may.
//!
//! What an agent does not report cannot be kept to: a cost that nobody knows stops nobody.

use mainspring_core::run::Outcome;
use mainspring_core::{Failure, Limit, RunLimits, RunStatus, Time};

use super::{Active, Actor};

impl Actor {
    /// Stops the active run if it has used up what it may.
    pub(super) fn hold_to_limits(&mut self) {
        let now = self.shared.clock.now();
        let Some(active) = self.active.as_ref().filter(|active| active.killing.is_none()) else { return };
        if active.run.state.status() == RunStatus::Cancelling {
            return;
        }
        let Some(limits) = self.limits(active) else { return };
        let since = active.run.started_at.unwrap_or(active.run.created_at);
        let Some(limit) = limits.limit_reached(1, 0, &active.run.usage, now.since(since)) else { return };
        let status = if matches!(limit, Limit::Time(_)) { RunStatus::TimedOut } else { RunStatus::Failed };
        let message = format!("the run has used up its limit of {limit}; raise it and retry");
        let error = Failure::new("limit_reached", message);
        self.kill(Outcome::Failed { status, error, retryable: false, retry_at: None });
    }

    /// When the active run has worked as long as it may.
    pub(super) fn time_is_up(&self) -> Option<Time> {
        let active = self.active.as_ref().filter(|active| active.killing.is_none())?;
        if active.run.state.status() == RunStatus::Cancelling {
            return None;
        }
        let since = active.run.started_at.unwrap_or(active.run.created_at);
        self.limits(active)?.max_time.map(|max| since.plus(max))
    }

    /// What the kernel holds the run to; nothing where its adapter does, or where nothing executes.
    fn limits(&self, active: &Active) -> Option<RunLimits> {
        let limits = active.run.options.limits;
        if limits.is_empty() || active.task.is_none() {
            return None;
        }
        let adapter = self.shared.adapters.get(&active.run.adapter)?;
        let known = active.run.usage.cost.is_known();
        let max_cost = limits.max_cost.filter(|_| known);
        // How often an agent of another make asks its model is not known.
        let held = RunLimits { max_cost, max_steps: None, ..limits };
        (!adapter.capabilities().keeps_limits).then_some(held)
    }
}
