//! All that the reference store knows.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::{
    ApiKey, Artifact, ArtifactId, Attempt, Binding, BindingId, Delegation, DelegationId, Digest, Event,
    Grant, GrantId, KeyId, Line, LineId, MessageId, Point, Position, Run, RunId, Session, SessionId,
    StateEntry, StateSlot, Step, StepId,
};
use mainspring_kernel::store::{AgentRow, Chunk, InboxItem, OpenToolCall, PlacedMessage, Request};

use super::data::{Kept, Opened};

/// A version of an agent: its hash, and what it says unless it was deleted.
pub(super) type AgentKept = ([u8; 32], Option<AgentRow>);

/// Maps by key, and lists where the order of arrival matters.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// The last cursor that was given out.
    pub(super) seq: u64,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) runs: BTreeMap<RunId, Run>,
    /// The last cursor that was given out before each run.
    pub(super) created: BTreeMap<RunId, u64>,
    /// Up to where the events of sessions are gone, and whether they are removed.
    pub(super) floors: BTreeMap<SessionId, (Position, bool)>,
    pub(super) attempts: BTreeMap<(RunId, u32), Attempt>,
    pub(super) steps: BTreeMap<(RunId, u32, StepId), Step>,
    pub(super) digests: BTreeMap<(Point, SessionId), Digest>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) messages: BTreeMap<MessageId, PlacedMessage>,
    /// When each message came, as a number that grows.
    pub(super) arrivals: BTreeMap<MessageId, u64>,
    /// Each with the session that opened it, oldest first.
    pub(super) lines: Vec<(SessionId, Line)>,
    pub(super) cursors: BTreeMap<(SessionId, Point), LineId>,
    pub(super) chunks: BTreeMap<(SessionId, u64), Chunk>,
    pub(super) effects: Vec<(SessionId, OpenToolCall)>,
    pub(super) requests: BTreeMap<(String, String, String), Request>,
    pub(super) inbox: Vec<(SessionId, InboxItem)>,
    pub(super) bindings: BTreeMap<BindingId, Binding>,
    pub(super) grants: BTreeMap<GrantId, Grant>,
    pub(super) artifacts: BTreeMap<ArtifactId, Artifact>,
    pub(super) delegations: BTreeMap<DelegationId, Delegation>,
    /// Who opened a line, and when.
    pub(super) opened: BTreeMap<LineId, Opened>,
    pub(super) session_states: Vec<Kept>,
    pub(super) run_states: BTreeMap<(RunId, String), StateSlot>,
    pub(super) owner_states: BTreeMap<(String, String), StateEntry>,
    /// The last version that was given to state of an owner.
    pub(super) owner_version: u64,
    /// Hashes of artifacts that are gone.
    pub(super) loose: BTreeSet<String>,
    pub(super) keys: BTreeMap<KeyId, ApiKey>,
    /// By owner, id and version.
    pub(super) agents: BTreeMap<(String, String, u32), AgentKept>,
}

impl State {
    pub(super) fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.iter().map(|(_, line)| line).find(|line| line.id == id)
    }

    /// Up to where the events of a session are gone.
    pub(super) fn floor(&self, id: SessionId) -> Option<Position> {
        self.floors.get(&id).map(|(floor, _)| *floor)
    }

    /// The line, if this session opened it.
    pub(super) fn line_own(&self, session: SessionId, id: LineId) -> Option<Line> {
        self.lines.iter().find(|(of, line)| *of == session && line.id == id).map(|(_, line)| *line)
    }

    /// The session, unless it is deleted.
    pub(super) fn session(&self, id: SessionId) -> Option<&Session> {
        use mainspring_core::SessionStatus::Deleted;
        self.sessions.get(&id).filter(|session| session.status != Deleted)
    }
}
