//! Authority of agents over other sessions: each delegation, message and cancellation by an agent is decided by the policy
//! and recorded in the agent's own session.

use mainspring_core::{
    Answer, Approval, ApprovalAnswer, Attempt, Decider, Mode, Run, RunId, Session, WaitRequest,
};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::{AgentCaller, Caller, Kernel, Shared};
use crate::actor::{self, Report};
use crate::adapter::{Ask, AskReply, HandleError, Record};
use crate::error::Error;
use crate::policy::{
    Action, Layers, Question, Verdict, control_action, control_question, control_record, control_verdict,
    granted_by_person,
};
use crate::store::SessionRef;

/// Delegates work to a new session.
pub(super) const DELEGATE: &str = "delegate_agent";
/// Sends work to a session that exists.
pub(super) const SEND: &str = "send_agent_message";
/// Cancels a run.
pub(super) const CANCEL: &str = "cancel_agent_run";

impl Shared {
    /// The rules of a run of `session` that `adapter` executes.
    pub(crate) fn layers(&self, session: &Session, run: &Run, adapter: &str) -> Layers {
        match self.adapters.get(adapter) {
            Some(adapter) => {
                let (rules, otherwise) = (adapter.rules(), adapter.otherwise());
                Layers::of(&self.options.rules, rules, &otherwise, session, run)
            }
            None => Layers::of(&self.options.rules, &[], &[], session, run),
        }
    }
}

/// A call of an agent that the policy decides.
struct ControlCall {
    agent: AgentCaller,
    session: Session,
    run: Run,
    attempt: Attempt,
    action: Action,
}

impl Kernel {
    /// Refuses an operation of an agent that the policy denies, and waits for a person where a rule asks. The decision
    /// is recorded before this returns. Calls of other callers pass.
    pub(super) async fn authorize(
        &self,
        caller: &Caller,
        operation: &'static str,
        resource: &str,
    ) -> Result<(), Error> {
        let Some(agent) = caller.agent else { return Ok(()) };
        let store = &self.shared.store;
        let run = store.run_get(agent.run).await?.ok_or(Error::NoLiveAttempt)?;
        let session = store.session_find(&caller.owner, &SessionRef::Id(agent.session)).await?;
        let session = session.ok_or(Error::NoLiveAttempt)?;
        let attempt = store.attempts(run.id).await?.intact()?.pop().ok_or(Error::NoLiveAttempt)?;
        let layers = self.shared.layers(&session, &run, &attempt.adapter);
        let action = control_action(operation, resource);
        let call = ControlCall { agent, session, run, attempt, action };
        if operation == CANCEL && call.run.mode == Mode::Ask && !self.is_child(resource, call.run.id).await? {
            self.record_control(&call, Approval::Denied, Decider::policy("mode_ask")).await?;
            return Err(Error::Forbidden(
                "a run in the mode `ask` may cancel only the runs that it delegated".into(),
            ));
        }
        match control_verdict(&layers, &call.action) {
            (Verdict::Allow, by) => self.record_control(&call, Approval::Allowed, by).await,
            (Verdict::Deny, by) => {
                self.record_control(&call, Approval::Denied, by).await?;
                Err(Error::Forbidden(format!("a rule denies {operation} {resource} to the agent")))
            }
            (Verdict::Ask, _) if agent.is_call_approved => {
                self.record_control(&call, Approval::Allowed, Decider::policy("approved_call")).await
            }
            (Verdict::Ask, _) => Box::pin(self.ask_control(&call)).await,
        }
    }

    /// True if `run` was delegated by `parent`.
    async fn is_child(&self, run: &str, parent: RunId) -> Result<bool, Error> {
        let Ok(run) = run.parse::<RunId>() else { return Ok(false) };
        let run = self.shared.store.run_get(run).await?;
        Ok(run.is_some_and(|run| run.parent == Some(parent)))
    }

    async fn record_control(&self, call: &ControlCall, decision: Approval, by: Decider) -> Result<(), Error> {
        self.record_decision(call.agent, control_record(&call.action, decision, by)).await
    }

    async fn record_decision(&self, agent: AgentCaller, record: Record) -> Result<(), Error> {
        let (reply, recorded) = oneshot::channel();
        self.report(agent, Report::Record { by: agent.attempt, records: vec![record], reply })?;
        received(recorded.await)
    }

    /// Sends a report of an agent's attempt to the actor of its session. Without the actor, the attempt is not live.
    fn report(&self, agent: AgentCaller, report: Report) -> Result<actor::Sender, Error> {
        let actor = self.shared.actor(agent.session).ok_or(Error::NoLiveAttempt)?;
        actor.send(report.into()).map_err(|_| Error::NoLiveAttempt)?;
        Ok(actor)
    }

    /// Asks a person about a call, unless one has allowed the same call for the session.
    async fn ask_control(&self, call: &ControlCall) -> Result<(), Error> {
        let question = control_question(&call.action);
        let in_force = self.shared.grants_in_force(call.session.id, call.run.id).await?;
        if let Some(record) = granted_by_person(&call.session, &call.run, &call.attempt, &in_force, &question)
        {
            return self.record_decision(call.agent, record).await;
        }
        let Action { operation, resource, .. } = &call.action;
        let refused = |why: String| Err(Error::Forbidden(format!("{operation} {resource}: {why}")));
        match self.ask_person(call.agent, question).await? {
            Answer::Approval(ApprovalAnswer { decision: Approval::Allowed, .. }) => Ok(()),
            Answer::Approval(ApprovalAnswer { decision: Approval::Expired, .. }) => {
                refused("nobody allowed it in time".into())
            }
            Answer::Approval(ApprovalAnswer { reason: Some(reason), .. }) => {
                refused(format!("a person denied it: {reason}"))
            }
            _ => refused("a person denied it".into()),
        }
    }

    /// Asks a person for the attempt of an agent. The question is withdrawn when this is dropped.
    async fn ask_person(&self, agent: AgentCaller, question: Question) -> Result<Answer, Error> {
        let Question { text, replies, request: approval, .. } = question;
        let ask = Ask { replies, approval, ..Ask::new(WaitRequest::Approval, text) };
        let (reply, answer) = oneshot::channel();
        let holder = AskReply { reply, lapses: true, ended: None };
        let actor = self.report(agent, Report::Ask { by: agent.attempt, ask, holder })?;
        let answer = Withdrawal { actor, agent, answer };
        answer.receive().await
    }
}

/// An open question. Dropping it withdraws the question.
struct Withdrawal {
    actor: actor::Sender,
    agent: AgentCaller,
    answer: oneshot::Receiver<Result<Answer, HandleError>>,
}

impl Withdrawal {
    async fn receive(mut self) -> Result<Answer, Error> {
        received((&mut self.answer).await)
    }
}

/// Converts the answer to a report. An attempt without authority, or whose actor has stopped, is not live.
fn received<T>(answer: Result<Result<T, HandleError>, RecvError>) -> Result<T, Error> {
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(HandleError::Kernel(error))) => Err(error),
        Ok(Err(HandleError::Revoked)) | Err(_) => Err(Error::NoLiveAttempt),
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        self.answer.close();
        // The actor finds that the question is closed. If the actor has stopped, there is no question.
        let _ = self.actor.send(Report::Withdraw { by: self.agent.attempt }.into());
    }
}
