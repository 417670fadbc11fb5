//! All that the reference store knows.

use std::collections::BTreeMap;

use mainspring_core::{
    Artifact, ArtifactId, Attempt, Binding, BindingId, Delegation, DelegationId, Event, Grant, GrantId, Line,
    LineId, MessageId, Point, Run, RunId, Session, SessionId, Step, StepId,
};
use mainspring_kernel::store::{Chunk, Effect, InboxItem, PlacedMessage, Request};

/// Maps by key, and lists where the order of arrival matters.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// The last cursor that was given out.
    pub(super) seq: u64,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) runs: BTreeMap<RunId, Run>,
    pub(super) attempts: BTreeMap<(RunId, u32), Attempt>,
    pub(super) steps: BTreeMap<(RunId, u32, StepId), Step>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) messages: BTreeMap<MessageId, PlacedMessage>,
    /// Each with the session that opened it, oldest first.
    pub(super) lines: Vec<(SessionId, Line)>,
    pub(super) cursors: BTreeMap<(SessionId, Point), LineId>,
    pub(super) chunks: BTreeMap<(SessionId, u64), Chunk>,
    pub(super) effects: Vec<(SessionId, Effect)>,
    pub(super) requests: BTreeMap<(String, String, String), Request>,
    pub(super) inbox: Vec<(SessionId, InboxItem)>,
    pub(super) bindings: BTreeMap<BindingId, Binding>,
    pub(super) grants: BTreeMap<GrantId, Grant>,
    pub(super) artifacts: BTreeMap<ArtifactId, Artifact>,
    pub(super) delegations: BTreeMap<DelegationId, Delegation>,
}

impl State {
    pub(super) fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.iter().map(|(_, line)| line).find(|line| line.id == id)
    }

    /// The session, unless it is deleted.
    pub(super) fn session(&self, id: SessionId) -> Option<&Session> {
        use mainspring_core::SessionStatus::Deleted;
        self.sessions.get(&id).filter(|session| session.status != Deleted)
    }
}
