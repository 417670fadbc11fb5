//! The limit of model calls: if a run may make no further model call, the tools of its last one do not run.

use mainspring_core::Limit;

use super::Exit;
use super::execution::{Execution, ToolRound};

impl Execution<'_> {
    /// Returns the round if the model may be called again after it. Otherwise either the run ends and the calls of the
    /// round get error results, or a person is asked before the round runs.
    pub(super) async fn allowed_round(&mut self, mut round: ToolRound) -> Result<ToolRound, Exit> {
        let limits = self.plan.limits;
        let Some(steps) = limits.max_steps else { return Ok(round) };
        let allowed = steps.saturating_mul(self.resume.granted + 1);
        if self.steps < allowed {
            return Ok(round);
        }
        let limit = Limit::Steps(allowed);
        if limits.ask == Some(true) {
            self.attempt.record(std::mem::take(&mut round.records)).await?;
        } else {
            let reason = format!("not executed: the run has used up its limit of {limit}");
            self.reject_round(round, &reason).await?;
        }
        Err(self.limit_reached(limit))
    }
}
