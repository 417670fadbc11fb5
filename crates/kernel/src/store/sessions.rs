//! Sessions and runs as the store loads and lists them.

use mainspring_core::{
    Attempt, Cursor, Delegation, ExternalRef, GrantId, LegacyAlias, Line, Position, Run, RunId, RunStatus,
    Session, SessionId, SessionStatus, Time,
};

use super::{Chunk, InboxItem, OpenToolCall};

/// Everything that a session's actor needs, without the history.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The session.
    pub session: Session,
    /// Unfinished runs in order of acceptance, each with its latest attempt.
    pub runs: Vec<(Run, Option<Attempt>)>,
    /// The latest run, ended or not.
    pub latest: Option<Run>,
    /// The lines of the tip and of the runs' pens.
    pub lines: Vec<Line>,
    /// Streamed text that is not in a message, in order.
    pub chunks: Vec<Chunk>,
    /// Tool calls whose results no message holds yet.
    pub open_tool_calls: Vec<OpenToolCall>,
    /// The notes that other sessions left, in order.
    pub inbox: Vec<InboxItem>,
    /// Unsettled delegations whose parent or child is one of `runs`.
    pub delegations: Vec<Delegation>,
    /// Cursor of the session's last event.
    pub cursor: Cursor,
    /// Count of durable streamed bytes.
    pub pos: u64,
    /// Position up to which events are pruned.
    pub floor: Option<Position>,
}

/// The sessions that a starting kernel has to handle.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unfinished {
    /// Sessions with unfinished runs, or with notes in their inbox.
    pub live: Vec<SessionId>,
    /// Deleted sessions that are not purged completely.
    pub deleted: Vec<SessionId>,
    /// Sessions with pruned events that are not removed completely.
    pub compacted: Vec<SessionId>,
    /// Sessions with an active binding whose state ended with the process that opened it.
    pub bound: Vec<SessionId>,
}

/// A name of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SessionRef {
    /// Id.
    Id(SessionId),
    /// The caller's key.
    Key(String),
    /// Object in the caller's application that the session belongs to.
    External(ExternalRef),
    /// Compatibility alias.
    Legacy(LegacyAlias),
}

/// Selects sessions to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPage {
    /// An owner or an org.
    pub of: SessionsOf,
    /// Only sessions that a reader has pinned, or only the others.
    pub pinned: Option<PinnedBy>,
    /// Only sessions with this status.
    pub status: Option<SessionStatus>,
    /// Only sessions of this kind of surface.
    pub surface_kind: Option<String>,
    /// Only sessions before this one.
    pub before: Option<(Time, SessionId)>,
    /// Page size.
    pub limit: usize,
}

/// Selects sessions by the pins of a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedBy {
    /// The reader.
    pub owner: String,
    /// True for the sessions that the reader has pinned, false for the others.
    pub is_pinned: bool,
}

/// A change of a reader's pins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The reader.
    pub owner: String,
    /// The session.
    pub session: SessionId,
    /// When the reader pinned it; none to remove the pin. An existing pin keeps its time.
    pub at: Option<Time>,
}

/// The owner or org whose sessions are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionsOf {
    /// All sessions of this owner.
    Owner(String),
    /// The sessions that every member of this org may read.
    Org(String),
}

/// Selects grants to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantPage {
    /// Owner of the sessions.
    pub owner: String,
    /// Only grants of this session.
    pub session: Option<SessionId>,
    /// Only grants that hold at this time, without those of runs that have ended.
    pub in_force_at: Option<Time>,
    /// Only grants before this one.
    pub before: Option<(Time, GrantId)>,
    /// Page size.
    pub limit: usize,
}

/// Selects runs to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    /// Owner of the runs.
    pub owner: String,
    /// Only runs of this session.
    pub session: Option<SessionId>,
    /// Only runs with this status.
    pub status: Option<RunStatus>,
    /// Only runs before this one.
    pub before: Option<(Time, RunId)>,
    /// Page size.
    pub limit: usize,
}
