//! Limits of runs whose adapter does not enforce them: the kernel stops a run that has reached a limit.
//!
//! A limit on usage that the agent does not report in time cannot be enforced. A run with such a limit is refused,
//! unless it accepts best effort: then it records at its end that the limit was exceeded. An unknown cost stops no run.

use mainspring_core::run::Outcome;
use mainspring_core::{Body, Budget, Failure, FailureCode, Limit, RunLimits, RunStatus};

use super::{Active, Actor, AttemptDraft};
use crate::clock::Moment;
use crate::error::Error;

impl Actor {
    /// Stops the active run if it has reached a limit.
    pub(super) fn enforce_limits(&mut self) {
        let Some(active) = self.active.as_ref().filter(|active| !active.stop.is_killing()) else { return };
        if active.status() == RunStatus::Cancelling {
            return;
        }
        let Some(limits) = self.limits(active) else { return };
        let time_used_ms = active.time_used_ms(self.shared.clock.moment());
        let Some(limit) = limits.limit_reached(1, 0, &active.run().usage, time_used_ms) else { return };
        let status = if matches!(limit, Limit::Time(_)) { RunStatus::TimedOut } else { RunStatus::Failed };
        let message = format!("the run has used up its limit of {limit}; raise it and retry");
        let error = Failure::new(FailureCode::LimitReached, message);
        if let Some(active) = &mut self.active {
            active.stop_at_limit();
        }
        self.kill(Outcome::Failed { status, error, retryable: false, retry: None });
    }

    /// Stops the active run if the runs of its key have reached the key's spend per day.
    pub(super) async fn enforce_spend(&mut self) {
        let Some(active) = self.active.as_ref().filter(|active| !active.stop.is_killing()) else { return };
        if active.status() == RunStatus::Cancelling || !active.is_executing() {
            return;
        }
        let spent = match self.shared.check_spend(active.run().options.key.as_deref()).await {
            Err(error @ Error::SpendLimit { .. }) => error,
            // Usage that cannot be read now is read with the next report.
            Ok(()) | Err(_) => return,
        };
        let error = Failure::new(spent.code(), spent.to_string());
        self.kill(Outcome::Failed { status: RunStatus::Failed, error, retryable: false, retry: None });
    }

    /// Records that the run has exceeded a limit that its adapter could not keep. An adapter that keeps limits reports its
    /// budget itself, and the failure of a run that was stopped at a limit names the limit.
    pub(super) fn record_exceeded_limits(
        &self,
        draft: &mut AttemptDraft,
        active: &Active,
        outcome: &Outcome,
    ) {
        let run = &draft.subject.run;
        let adapter = self.shared.adapters.get(&run.adapter);
        let is_kept = adapter.is_some_and(|adapter| adapter.capabilities().keeps_limits);
        // The stop may have had another outcome: a cancellation, or a death that is unproven.
        let is_reported = active.is_stopped_at_limit()
            && matches!(outcome, Outcome::Failed { error, .. } if error.code == FailureCode::LimitReached);
        if is_kept || is_reported || run.options.limits.has_no_amount() {
            return;
        }
        let budget = Budget::of(&run.options.limits, 1, 0, &run.usage, run.limited_since());
        if let Some(budget) = budget.filter(|budget| budget.exceeded) {
            // The number of model calls is not known.
            let budget = Budget { max_steps: None, steps_left: None, ..budget };
            draft.emit(Body::LimitExceeded { budget });
        }
    }

    /// The moment at which the active run reaches its time limit.
    pub(super) fn time_limit(&self) -> Option<Moment> {
        let active = self.active.as_ref().filter(|active| !active.stop.is_killing())?;
        if active.status() == RunStatus::Cancelling {
            return None;
        }
        self.limits(active)?.max_time.map(|max| active.time_limit(max))
    }

    /// The limits that the kernel enforces; `None` if the adapter enforces them, or if nothing is executed.
    fn limits(&self, active: &Active) -> Option<RunLimits> {
        let limits = active.run().options.limits;
        if limits.is_empty() || !active.is_executing() {
            return None;
        }
        let adapter = self.shared.adapters.get(&active.run().adapter)?;
        let known = active.run().usage.cost.is_known();
        let max_cost = limits.max_cost.filter(|_| known);
        // The steps of an external agent are not known.
        let held = RunLimits { max_cost, max_steps: None, ..limits };
        (!adapter.capabilities().keeps_limits).then_some(held)
    }
}
