//! What a store is asked about state and artifacts.

use mainspring_core::{ArtifactId, Expect, Point, RunId, SessionId, Time};
use serde_json::Value;

/// Where state is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateAt {
    /// What a session sees from a point of its tree: what lies nearest on the path from there to the root counts.
    ///
    /// What was written at a point after a line was opened beneath it is not seen from that line, so neither a branch
    /// nor a fork sees what happened later to where it came from.
    Session {
        /// Who looks.
        session: SessionId,
        /// From where; none before every message.
        at: Option<Point>,
    },
    /// That of a run.
    Run(RunId),
    /// That of an owner.
    Owner(String),
}

/// A piece of state of a session or of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct StateRow {
    /// Where it is.
    pub place: StatePlace,
    /// Its key.
    pub key: String,
    /// Higher than every version the session or run has given to this key.
    pub version: u64,
    /// What the key holds from here on; none for nothing.
    pub value: Option<Value>,
    /// When.
    pub at: Time,
}

/// Where a piece of state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatePlace {
    /// With a point of the session that is written.
    Session {
        /// The point; none before every message.
        at: Option<Point>,
        /// True where the line went on from there before: those later messages do not see it.
        aside: bool,
    },
    /// With a run of the session that is written.
    Run(RunId),
}

/// A change of an owner's state.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnerState {
    /// Whose.
    pub owner: String,
    /// The key.
    pub key: String,
    /// What it is to hold; none for nothing.
    pub value: Option<Value>,
    /// What must be there.
    pub expect: Expect,
    /// When.
    pub at: Time,
}

/// Which artifacts to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactPage {
    /// Whose.
    pub session: SessionId,
    /// Only this run's.
    pub run: Option<RunId>,
    /// Only those before this one in the order.
    pub before: Option<(Time, ArtifactId)>,
    /// How many.
    pub limit: usize,
}
