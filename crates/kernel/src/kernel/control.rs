//! The operations of the control tools on the kernel itself, for one caller.
//!
//! Requests and answers are those of the API, so that a tool cannot tell this from a client of the kernel.

use std::sync::Arc;

use async_trait::async_trait;
use mainspring_api::control::{ControlError, ControlPlane};
use mainspring_api::{
    CancelOutcome, Delegate, Delegated, DelegationView, ListedSession, Page, Prompt, RunDelegations,
};
use mainspring_core::{
    Artifact, ArtifactId, Attempt, AttemptId, Binding, DelegationId, Event, Message, MessageId, Position,
    Rows, Run, RunId, Session, SessionId, SessionStatus, Time,
};

use super::{ArtifactQuery, ArtifactsOf, Caller, DelegationRequest, Kernel, RunRequest, SessionQuery};
use crate::error::Error;
use crate::store::SessionRef;

/// The operations of the control tools for one caller.
#[derive(Clone)]
pub struct KernelPlane {
    kernel: Kernel,
    caller: Caller,
}

impl KernelPlane {
    /// Acts on `kernel` for `caller`.
    pub fn new(kernel: Kernel, caller: Caller) -> Self {
        Self { kernel, caller }
    }

    async fn artifacts(
        &self,
        of: ArtifactsOf,
        before: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Rows<Artifact>, ControlError> {
        let query = ArtifactQuery { of, before, limit: Some(limit) };
        Ok(self.kernel.artifact_list(&self.caller, query).await?)
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
        Ok(sessions.map(|(session, latest_run)| ListedSession { session, latest_run }))
    }

    async fn session_get(&self, session: SessionId) -> Result<Session, ControlError> {
        Ok(self.kernel.session_get(&self.caller, &SessionRef::Id(session)).await?)
    }

    async fn session_active_run(&self, session: SessionId) -> Result<Option<Run>, ControlError> {
        Ok(self.kernel.session_snapshot(&self.caller, &SessionRef::Id(session)).await?.active_run)
    }

    async fn session_message(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Arc<Message>, ControlError> {
        let found = self.kernel.session_message(&self.caller, &SessionRef::Id(session), message).await?;
        Ok(found.node.message)
    }

    async fn session_bindings(&self, session: SessionId) -> Result<Vec<Binding>, ControlError> {
        let (mut bindings, limit): (Vec<Binding>, _) = (vec![], self.kernel.limits().page);
        loop {
            let after = bindings.last().map(|last| (last.adapter.as_str(), last.generation));
            let by = SessionRef::Id(session);
            let page = self.kernel.binding_list(&self.caller, &by, after, Some(limit)).await?;
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
        limit: usize,
    ) -> Result<Rows<Artifact>, ControlError> {
        self.artifacts(ArtifactsOf::Session(SessionRef::Id(session)), before, limit).await
    }

    async fn run_create(&self, prompt: &Prompt) -> Result<Run, ControlError> {
        let request = RunRequest::try_from(prompt.clone())?;
        Ok(self.kernel.run_create(&self.caller, request).await?.run)
    }

    async fn run_get(&self, run: RunId) -> Result<Run, ControlError> {
        Ok(self.kernel.run_get(&self.caller, run).await?)
    }

    async fn run_ended(&self, run: RunId) -> Result<Run, ControlError> {
        Ok(self.kernel.run_wait_ended(&self.caller, run).await?)
    }

    async fn run_cancel(&self, run: RunId) -> Result<CancelOutcome, ControlError> {
        Ok(self.kernel.run_cancel(&self.caller, run).await?)
    }

    async fn run_attempts(&self, run: RunId) -> Result<Rows<Attempt>, ControlError> {
        Ok(self.kernel.run_attempts(&self.caller, run).await?)
    }

    async fn attempt_get(&self, attempt: AttemptId) -> Result<Attempt, ControlError> {
        Ok(self.kernel.attempt_get(&self.caller, attempt).await?)
    }

    async fn run_artifacts(
        &self,
        run: RunId,
        before: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Rows<Artifact>, ControlError> {
        self.artifacts(ArtifactsOf::Run(run), before, limit).await
    }

    async fn run_events(
        &self,
        run: RunId,
        after: Position,
        limit: Option<usize>,
    ) -> Result<Page<Event>, ControlError> {
        let events = self.kernel.run_events(&self.caller, run, after.cursor, limit).await?;
        Ok(self.kernel.page_of(events, limit, |event| event.position().to_string()))
    }

    async fn run_delegate(&self, run: RunId, work: &Delegate) -> Result<Delegated, ControlError> {
        let request = DelegationRequest::try_from(work.clone())?;
        let made = self.kernel.run_delegate(&self.caller, run, request).await?;
        let (delegation, outcome) = self.kernel.delegation_get(&self.caller, made.delegation.id).await?;
        Ok(Delegated { delegation, run: made.run, replayed: made.replayed, outcome })
    }

    async fn run_delegations(&self, run: RunId) -> Result<RunDelegations, ControlError> {
        Ok(self.kernel.run_delegations(&self.caller, run).await?)
    }

    async fn delegation_get(&self, delegation: DelegationId) -> Result<DelegationView, ControlError> {
        let (delegation, outcome) = self.kernel.delegation_get(&self.caller, delegation).await?;
        Ok(DelegationView { delegation, outcome })
    }
}
