//! The live feed: the activity of the sessions on the board, which are in memory or wait for a person.

use mainspring_core::SessionId;
use serde::{Deserialize, Serialize};

/// The activity of a session: a projection of its latest run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LiveStatus {
    /// No run is active or queued.
    #[default]
    Idle,
    /// A run is being executed or queued.
    Busy,
    /// A run waits for a person.
    Paused,
}

/// A session on the board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveSession {
    /// The session's id.
    pub session_id: SessionId,
    /// The caller's own key of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The title, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The session's activity.
    pub status: LiveStatus,
}

/// The first event of a feed: all sessions on the board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedSnapshot {
    /// The sessions.
    pub sessions: Vec<LiveSession>,
}

impl FeedSnapshot {
    /// The name of the server-sent event.
    pub const KIND: &str = "snapshot";
}

/// A change of a session, or of the store's availability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum LiveChange {
    /// The session came onto the board.
    Opened(LiveSession),
    /// The session's status changed.
    Status {
        /// The session.
        session_id: SessionId,
        /// The new status.
        status: LiveStatus,
    },
    /// The session's title changed.
    Title {
        /// The session.
        session_id: SessionId,
        /// The new title.
        title: Option<String>,
    },
    /// The session left the board.
    Closed {
        /// The session.
        session_id: SessionId,
    },
    /// The session was deleted.
    Deleted {
        /// The session.
        session_id: SessionId,
    },
    /// The store cannot be written.
    #[serde(rename = "store.failed")]
    StoreFailed {
        /// The code.
        code: String,
        /// The error, for people.
        message: String,
    },
    /// The store can be written again.
    #[serde(rename = "store.recovered")]
    StoreRecovered {},
}

impl LiveChange {
    /// The names of all types.
    pub const KINDS: [&str; 7] =
        ["opened", "status", "title", "closed", "deleted", "store.failed", "store.recovered"];

    /// Returns the name of the type, as `type` and the server-sent event name it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Opened(_) => "opened",
            Self::Status { .. } => "status",
            Self::Title { .. } => "title",
            Self::Closed { .. } => "closed",
            Self::Deleted { .. } => "deleted",
            Self::StoreFailed { .. } => "store.failed",
            Self::StoreRecovered {} => "store.recovered",
        }
    }
}

/// One item of a feed as a reader gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedItem {
    /// The sessions on the board at one instant.
    Snapshot(FeedSnapshot),
    /// One change.
    Change(LiveChange),
    /// An event of a newer server that this client does not know.
    Unknown,
}
