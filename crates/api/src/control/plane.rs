//! The operations that the control tools need, as a trait. `mainspring-kernel` implements them itself,
//! `mainspring-host` by requests to a server.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::{
    Artifact, ArtifactId, Attempt, AttemptId, Binding, DelegationId, Event, Message, MessageId, Position,
    Rows, Run, RunId, Session, SessionId, SessionStatus, Time,
};

use crate::{
    CancelOutcome, Delegate, Delegated, DelegationView, ListedSession, Page, Prompt, RunDelegations,
};

/// Operations of the API on behalf of one owner.
///
/// Prompts and delegations carry a client and request id, so that repeating them has no second effect. The server chooses
/// the size of pages: it refuses a size beyond its limit.
#[async_trait]
pub trait ControlPlane: Send + Sync {
    /// Returns the owner that the operations act for.
    fn owner(&self) -> &str;

    /// Lists the owner's sessions, latest activity first. `before`: only sessions that come after this session in
    /// that order.
    async fn session_list(
        &self,
        status: Option<SessionStatus>,
        surface_kind: Option<&str>,
        before: Option<(Time, SessionId)>,
        limit: usize,
    ) -> Result<Rows<ListedSession>, ControlError>;

    /// Reads a session.
    async fn session_get(&self, session: SessionId) -> Result<Session, ControlError>;

    /// Reads the session's run that is executing or waiting.
    async fn session_active_run(&self, session: SessionId) -> Result<Option<Run>, ControlError>;

    /// Reads a message of a session.
    async fn session_message(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Arc<Message>, ControlError>;

    /// Lists the bindings of a session, by adapter, newest generation first.
    async fn session_bindings(&self, session: SessionId) -> Result<Vec<Binding>, ControlError>;

    /// Reads a page of the artifacts of a session, newest first. `before`: only artifacts older than this artifact.
    async fn session_artifacts(
        &self,
        session: SessionId,
        before: Option<(Time, ArtifactId)>,
    ) -> Result<Page<Artifact>, ControlError>;

    /// Sends a prompt and returns the accepted run.
    async fn run_create(&self, prompt: &Prompt) -> Result<Run, ControlError>;

    /// Reads a run.
    async fn run_get(&self, run: RunId) -> Result<Run, ControlError>;

    /// Waits until a run has ended, and returns it.
    async fn run_ended(&self, run: RunId) -> Result<Run, ControlError>;

    /// Cancels a run.
    async fn run_cancel(&self, run: RunId) -> Result<CancelOutcome, ControlError>;

    /// Lists the attempts of a run, oldest first.
    async fn run_attempts(&self, run: RunId) -> Result<Rows<Attempt>, ControlError>;

    /// Reads an attempt.
    async fn attempt_get(&self, attempt: AttemptId) -> Result<Attempt, ControlError>;

    /// Reads a page of the artifacts of a run, newest first. `before`: only artifacts older than this artifact.
    async fn run_artifacts(
        &self,
        run: RunId,
        before: Option<(Time, ArtifactId)>,
    ) -> Result<Page<Artifact>, ControlError>;

    /// Reads a page of a run's events after a position, oldest first.
    async fn run_events(&self, run: RunId, after: Position) -> Result<Page<Event>, ControlError>;

    /// Delegates work of a run that is executing.
    async fn run_delegate(&self, run: RunId, work: &Delegate) -> Result<Delegated, ControlError>;

    /// Returns the delegation that created a run, and the delegations that the run made.
    async fn run_delegations(&self, run: RunId) -> Result<RunDelegations, ControlError>;

    /// Reads a delegation with its result.
    async fn delegation_get(&self, delegation: DelegationId) -> Result<DelegationView, ControlError>;
}

/// Why an operation or a control tool failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlError {
    /// A stable error code of mainspring.
    pub code: Cow<'static, str>,
    /// A sentence for people.
    pub message: String,
}

impl ControlError {
    const NOT_FOUND: &str = "not_found";
    const CORRUPT: &str = "corrupt";
    const CURSOR_EXPIRED: &str = "cursor_expired";

    /// Builds an error.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }

    /// Builds the error for an object that does not exist, or that the caller may not see.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Self::NOT_FOUND, message)
    }

    /// Builds the error for damaged data that the operation needs.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Self::CORRUPT, message)
    }

    /// True when the object does not exist, or the caller may not see it.
    pub fn is_not_found(&self) -> bool {
        self.code == Self::NOT_FOUND
    }

    /// True when data that the operation needs is damaged.
    pub fn is_corrupt(&self) -> bool {
        self.code == Self::CORRUPT
    }

    /// True when the requested events were pruned.
    pub fn is_cursor_expired(&self) -> bool {
        self.code == Self::CURSOR_EXPIRED
    }
}
