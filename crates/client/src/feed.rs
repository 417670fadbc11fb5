//! The live feed: what all of the caller's sessions do.

use mainspring_core::SessionId;
use serde::{Deserialize, Serialize};

use crate::stream::Frames;
use crate::{Client, Error};

/// What all of the caller's sessions in memory do. After a connection that broke it begins again with a snapshot.
pub struct Feed(Frames);

/// What a feed tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum FeedItem {
    /// The sessions in memory at one instant.
    Snapshot {
        /// Which.
        sessions: Vec<LiveSession>,
    },
    /// One came into memory.
    Opened(LiveSession),
    /// One does something else.
    Status {
        /// Which.
        session_id: SessionId,
        /// What it does now.
        status: LiveStatus,
    },
    /// One is called something else.
    Title {
        /// Which.
        session_id: SessionId,
        /// Its title now.
        title: Option<String>,
    },
    /// One left memory.
    Closed {
        /// Which.
        session_id: SessionId,
    },
    /// One was deleted.
    Deleted {
        /// Which.
        session_id: SessionId,
    },
    /// Something that a newer server says and this client does not know.
    #[serde(other)]
    Unknown,
}

/// A session in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveSession {
    /// Its id.
    pub session_id: SessionId,
    /// The caller's own name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it is doing.
    pub status: LiveStatus,
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveStatus {
    /// Nothing.
    Idle,
    /// A run is being executed or waits its turn.
    Busy,
    /// A run waits for a person.
    Paused,
}

impl Feed {
    pub(crate) fn of(client: Client) -> Self {
        Self(Frames::of(client, &["v1", "feed"]))
    }

    /// Gives up after `tries` failed tries in a row to come back; without this, never.
    pub fn give_up_after(mut self, tries: u32) -> Self {
        self.0.tries = tries;
        self
    }

    /// The next thing that happened. May be dropped and called again.
    pub async fn next(&mut self) -> Result<FeedItem, Error> {
        loop {
            let frame = self.0.next(None).await?;
            let (Some(kind), Some(data)) = (frame.event, frame.data) else { continue };
            let read = serde_json::from_str::<serde_json::Value>(&data).and_then(|mut item| {
                item["type"] = kind.into();
                serde_json::from_value(item)
            });
            return read.map_err(|error| self.0.client.protocol(format!("{error} in {data:?}")));
        }
    }
}
