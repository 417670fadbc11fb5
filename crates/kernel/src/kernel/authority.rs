//! Authority of agents over other sessions: each delegation, message and cancellation by an agent is decided by the policy
//! and recorded in the agent's own session.

use mainspring_core::{Approval, Run};

use super::{AgentCaller, Caller, Kernel, Shared};
use crate::actor::Command;
use crate::error::Error;
use crate::policy::{Rule, decide_control};

/// Delegates work to a new session.
pub(super) const DELEGATE: &str = "delegate_agent";
/// Sends work to a session that exists.
pub(super) const SEND: &str = "send_agent_message";
/// Cancels a run.
pub(super) const CANCEL: &str = "cancel_agent_run";

impl Shared {
    /// The rules of a run: the rules of its parent that deny, then the rules of its adapter.
    fn rules_of(&self, run: &Run) -> Result<Vec<Rule>, Error> {
        let inherited = run.options.denied.iter().filter_map(|rule| rule.parse().ok());
        Ok(inherited.chain(self.adapter(&run.adapter)?.rules().iter().cloned()).collect())
    }
}

impl Kernel {
    /// Refuses an operation of an agent that a rule denies. The decision is recorded before this returns. Has no
    /// effect for callers that are not agents.
    pub(super) async fn authorize(
        &self,
        caller: &Caller,
        operation: &'static str,
        resource: &str,
    ) -> Result<(), Error> {
        let Some(AgentCaller { session, run, attempt }) = caller.agent else { return Ok(()) };
        let run = self.shared.store.run_get(run).await?.ok_or(Error::NoLiveAttempt)?;
        let (decision, record) = decide_control(&self.shared.rules_of(&run)?, operation, resource);
        let decide = |reply| Command::Decide(attempt, Box::new(record), reply);
        self.shared.call(session, decide).await?;
        match decision {
            Approval::Allowed => Ok(()),
            _ => Err(Error::Forbidden(format!("a rule denies {operation} {resource} to the agent"))),
        }
    }
}
