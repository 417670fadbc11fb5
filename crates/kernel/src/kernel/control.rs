//! The operations of the control tools on the kernel itself, for one caller.
//!
//! Requests and answers are those of the API, so that a tool works on the kernel and on a client of it alike. Operations
//! on sessions of other kernels that share the store are carried out there (`reach.rs`).

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_api::control::{ControlError, ControlPlane};
use mainspring_api::{
    AuditKind, AuditOrigin, AuditRecord, CancelOutcome, Delegate, Delegated, DelegationView, ListedSession,
    LiveStatus, Page, Prompt, RunDelegations,
};
use mainspring_core::{
    Artifact, ArtifactId, Attempt, AttemptId, Binding, DelegationId, Event, Message, MessageId, Position,
    Rows, Run, RunId, Session, SessionId, SessionStatus, Time,
};

use super::{ArtifactQuery, ArtifactsOf, Caller, Kernel, RunRequest, SessionQuery};
use crate::error::Error;
use crate::store::SessionRef;

/// The operations of the control tools for one caller.
#[derive(Clone)]
pub struct KernelPlane {
    kernel: Kernel,
    caller: Caller,
    from: AuditOrigin,
}

impl KernelPlane {
    /// Acts on `kernel` for `caller`.
    pub fn new(kernel: Kernel, caller: Caller) -> Self {
        Self { kernel, caller, from: AuditOrigin::Inside {} }
    }

    /// Sets the origin of the calls, for the audit log.
    pub fn with_origin(self, from: AuditOrigin) -> Self {
        Self { from, ..self }
    }

    /// Records a call that changes something: its subject and its outcome.
    fn audit<T>(
        &self,
        operation: &str,
        about: Vec<String>,
        outcome: Result<T, Error>,
        made: impl Fn(&T) -> Vec<String>,
    ) -> Result<T, ControlError> {
        if let Some(audit) = self.kernel.audit() {
            let kind = match &outcome {
                Ok(_) => AuditKind::Change,
                Err(_) => AuditKind::Refusal,
            };
            let record = AuditRecord {
                about: about.into_iter().chain(outcome.as_ref().map(made).unwrap_or_default()).collect(),
                from: Some(self.from),
                org_id: self.caller.org.clone(),
                code: outcome.as_ref().err().map(|error| error.code().to_owned()),
                ..AuditRecord::new(kind, operation, (&self.caller).into())
            };
            match kind {
                AuditKind::Refusal => audit.append_refusal(record),
                _ => audit.append(record),
            }
        }
        Ok(outcome?)
    }

    /// Records a read that is refused, as the HTTP API does: the object may belong to another owner.
    fn audit_read<T>(
        &self,
        operation: &str,
        about: &impl ToString,
        outcome: Result<T, Error>,
    ) -> Result<T, ControlError> {
        match outcome {
            Err(error) if matches!(error, Error::NotFound { .. } | Error::Forbidden(_)) => {
                self.audit(operation, vec![about.to_string()], Err(error), |_| vec![])
            }
            outcome => Ok(outcome?),
        }
    }

    /// Refuses a change that could not be recorded.
    fn check_audit(&self) -> Result<(), Error> {
        self.kernel.audit().map_or(Ok(()), |audit| audit.check_change())
    }

    async fn artifacts(
        &self,
        of: ArtifactsOf,
        before: Option<(Time, ArtifactId)>,
    ) -> Result<Page<Artifact>, Error> {
        let query = ArtifactQuery { of, before, limit: None };
        let found = self.kernel.artifact_list(&self.caller, query).await?;
        let position = |artifact: &Artifact| format!("{}.{}", artifact.created_at.0, artifact.id);
        Ok(self.kernel.page_of(found, None, position))
    }
}

impl From<Error> for ControlError {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[async_trait]
impl ControlPlane for KernelPlane {
    fn owner(&self) -> &str {
        &self.caller.owner
    }

    async fn session_list(
        &self,
        status: Option<SessionStatus>,
        surface_kind: Option<&str>,
        before: Option<(Time, SessionId)>,
        limit: usize,
    ) -> Result<Rows<ListedSession>, ControlError> {
        let query = SessionQuery {
            status,
            surface_kind: surface_kind.map(str::to_owned),
            before,
            limit: Some(limit),
            ..SessionQuery::default()
        };
        let sessions = self.kernel.session_list(&self.caller, query).await?;
        // The control tools do not report the activity.
        Ok(sessions.map(|listed| ListedSession::plain(listed, LiveStatus::default())))
    }

    async fn session_get(&self, session: SessionId) -> Result<Session, ControlError> {
        let found = self.kernel.session_get(&self.caller, &SessionRef::Id(session)).await;
        self.audit_read("session_get", &session, found)
    }

    async fn session_active_run(&self, session: SessionId) -> Result<Option<Run>, ControlError> {
        let active = self.kernel.session_active_run(&self.caller, session).await;
        self.audit_read("session_snapshot", &session, active)
    }

    async fn session_message(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Arc<Message>, ControlError> {
        let found = self.kernel.session_message(&self.caller, &SessionRef::Id(session), message).await;
        Ok(self.audit_read("session_message", &session, found)?.node.message)
    }

    async fn session_bindings(&self, session: SessionId) -> Result<Vec<Binding>, ControlError> {
        let (mut bindings, limit): (Vec<Binding>, _) = (vec![], self.kernel.limits().page);
        loop {
            let after = bindings.last().map(|last| (last.adapter.as_str(), last.generation));
            let by = SessionRef::Id(session);
            let page = self.kernel.binding_list(&self.caller, &by, after, Some(limit)).await;
            let page = self.audit_read("binding_list", &session, page)?;
            let is_last = page.len() < limit;
            bindings.extend(page);
            if is_last {
                return Ok(bindings);
            }
        }
    }

    async fn session_artifacts(
        &self,
        session: SessionId,
        before: Option<(Time, ArtifactId)>,
    ) -> Result<Page<Artifact>, ControlError> {
        let found = self.artifacts(ArtifactsOf::Session(SessionRef::Id(session)), before).await;
        self.audit_read("session_artifacts", &session, found)
    }

    async fn run_create(&self, prompt: &Prompt) -> Result<Run, ControlError> {
        let request = RunRequest::try_from(prompt.clone())?;
        self.check_audit()?;
        let created = Box::pin(self.kernel.run_create_anywhere(&self.caller, request)).await;
        // A created run names its session. A refused prompt is recorded with the session that it was sent to, if any.
        let sent_to = prompt.session.session_id.filter(|_| created.is_err());
        let sent_to = sent_to.iter().map(ToString::to_string).collect();
        let about = |run: &Run| vec![run.session.to_string(), run.id.to_string()];
        self.audit("run_create", sent_to, created.map(|accepted| accepted.run), about)
    }

    async fn run_get(&self, run: RunId) -> Result<Run, ControlError> {
        self.audit_read("run_get", &run, self.kernel.run_get(&self.caller, run).await)
    }

    async fn run_ended(&self, run: RunId) -> Result<Run, ControlError> {
        self.audit_read("run_get", &run, self.kernel.run_wait_ended(&self.caller, run).await)
    }

    async fn run_cancel(&self, run: RunId) -> Result<CancelOutcome, ControlError> {
        self.check_audit()?;
        let outcome = self.kernel.run_cancel_anywhere(&self.caller, run).await;
        self.audit("run_cancel", vec![run.to_string()], outcome, |_| vec![])
    }

    async fn run_attempts(&self, run: RunId) -> Result<Rows<Attempt>, ControlError> {
        self.audit_read("run_attempts", &run, self.kernel.run_attempts(&self.caller, run).await)
    }

    async fn attempt_get(&self, attempt: AttemptId) -> Result<Attempt, ControlError> {
        self.audit_read("attempt_get", &attempt, self.kernel.attempt_get(&self.caller, attempt).await)
    }

    async fn run_artifacts(
        &self,
        run: RunId,
        before: Option<(Time, ArtifactId)>,
    ) -> Result<Page<Artifact>, ControlError> {
        let found = self.artifacts(ArtifactsOf::Run(run), before).await;
        self.audit_read("run_artifacts", &run, found)
    }

    async fn run_events(&self, run: RunId, after: Position) -> Result<Page<Event>, ControlError> {
        let events = self.kernel.run_events(&self.caller, run, after.cursor, None).await;
        let events = self.audit_read("run_events", &run, events)?;
        Ok(self.kernel.page_of(events, None, |event| event.position().to_string()))
    }

    async fn run_delegate(&self, run: RunId, work: &Delegate) -> Result<Delegated, ControlError> {
        self.check_audit()?;
        let made = Box::pin(self.kernel.run_delegate_anywhere(&self.caller, run, work)).await;
        let about = |made: &super::Delegated| vec![made.delegation.id.to_string(), made.run.id.to_string()];
        let sent_to = work.session.session_id.iter().map(ToString::to_string);
        let parties = [run.to_string()].into_iter().chain(sent_to).collect();
        let made = self.audit("run_delegate", parties, made, about)?;
        let (delegation, outcome) = self.kernel.delegation_get(&self.caller, made.delegation.id).await?;
        Ok(Delegated { delegation, run: made.run, replayed: made.replayed, outcome })
    }

    async fn run_delegations(&self, run: RunId) -> Result<RunDelegations, ControlError> {
        self.audit_read("run_delegations", &run, self.kernel.run_delegations(&self.caller, run).await)
    }

    async fn delegation_get(&self, delegation: DelegationId) -> Result<DelegationView, ControlError> {
        let found = self.kernel.delegation_get(&self.caller, delegation).await;
        let (delegation, outcome) = self.audit_read("delegation_get", &delegation, found)?;
        Ok(DelegationView { delegation, outcome })
    }
}
