//! State and artifacts as the store reads and writes them.

use mainspring_core::{
    ArtifactId, Expect, MessageId, Point, RunId, SessionId, StateChange, StateWriter, Time,
};
use serde_json::Value;

/// Selects the state to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateAt {
    /// State that a session sees at a point of its tree: of each key, the entry nearest on the path to the root.
    ///
    /// A line that has branched off at a point does not see the entries that are written at that point later. So neither
    /// a branch nor a fork sees later changes of the path it came from.
    Session {
        /// The session.
        session: SessionId,
        /// The point; none for before the first message.
        at: Option<Point>,
    },
    /// State of a run.
    Run(RunId),
    /// State of an owner.
    Owner(String),
}

/// A state entry of a session or run.
#[derive(Debug, Clone, PartialEq)]
pub struct StateRow {
    /// Place of the entry.
    pub place: StatePlace,
    /// Key of the entry.
    pub key: String,
    /// Version, higher than every version the session or run has given to this key.
    pub version: u64,
    /// Value from this place on; none if the key was removed.
    pub value: Option<Value>,
    /// When the entry was written.
    pub at: Time,
}

/// The place of a state entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatePlace {
    /// At a point of the session being written.
    Session {
        /// The point; none for before the first message.
        at: Option<Point>,
        /// True if the line already continues after the point. Those later messages do not see the entry.
        aside: bool,
    },
    /// At a run of the session being written.
    Run(RunId),
}

/// An entry of a session's state at its place in the tree, on any branch.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeState {
    /// Key of the entry.
    pub key: String,
    /// Version of the entry.
    pub version: u64,
    /// Value from this place on; none if the key was removed.
    pub value: Option<Value>,
    /// When the entry was written.
    pub at: Time,
    /// The message after which the entry was written; none for before the first message.
    pub message: Option<MessageId>,
    /// True if messages that follow on the same line do not see the entry.
    pub aside: bool,
    /// The order of the write relative to the lines of the tree: a line that was opened at a lower order does not see
    /// the entry.
    pub order: i64,
}

/// A change of an owner's state.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnerState {
    /// The owner.
    pub owner: String,
    /// The key.
    pub key: String,
    /// New value; none to remove the key.
    pub value: Option<Value>,
    /// Expected present entry.
    pub expect: Expect,
    /// When the change is made.
    pub at: Time,
    /// The party that makes the change.
    pub by: StateWriter,
}

/// Selects the state whose changes are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateHistoryOf {
    /// The state of a session, on every branch.
    Session(SessionId),
    /// The state of a run.
    Run(RunId),
    /// The state of an owner.
    Owner(String),
}

impl StateHistoryOf {
    /// The name under which the store keeps the changes. Names of two states differ.
    pub fn place(&self) -> String {
        match self {
            Self::Session(session) => session.to_string(),
            Self::Run(run) => run.to_string(),
            Self::Owner(owner) => format!("owner:{owner}"),
        }
    }
}

/// A change of state of the session being written, or of one of its runs, for the history of its key.
#[derive(Debug, Clone, PartialEq)]
pub struct StateChangeRow {
    /// The state.
    pub of: StateHistoryOf,
    /// The change.
    pub change: StateChange,
}

/// Selects artifacts to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactPage {
    /// Session of the artifacts.
    pub session: SessionId,
    /// Only artifacts of this run.
    pub run: Option<RunId>,
    /// Only artifacts before this one.
    pub before: Option<(Time, ArtifactId)>,
    /// Page size.
    pub limit: usize,
}
