//! Live items of a session's stream. They are never stored.

use serde::{Deserialize, Serialize};

use super::{Body, Cursor, PROTOCOL_VERSION, Position};
use crate::{RunId, SessionId};

/// A live item of a session's stream, never stored. Its envelope is an event's envelope without the ids of
/// the event, the attempt and the request, and without the time.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "ReadLiveEnvelope")]
pub struct LiveEvent {
    /// The resume point right after the item.
    pub position: Position,
    /// The session the item belongs to.
    pub session: SessionId,
    /// The run, if known.
    pub run: Option<RunId>,
    /// `message.delta`, `message.truncated`, `store.failed` or `store.recovered`.
    pub body: Body,
}

impl Serialize for LiveEvent {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Envelope<'a> {
            protocol_version: u8,
            cursor: Cursor,
            pos: u64,
            session_id: SessionId,
            #[serde(skip_serializing_if = "Option::is_none")]
            run_id: Option<RunId>,
            #[serde(flatten)]
            body: &'a Body,
        }
        Envelope {
            protocol_version: PROTOCOL_VERSION,
            cursor: self.position.cursor,
            pos: self.position.pos,
            session_id: self.session,
            run_id: self.run,
            body: &self.body,
        }
        .serialize(serializer)
    }
}

/// The public form of a live item, for reading.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadLiveEnvelope {
    cursor: Cursor,
    pos: u64,
    session_id: SessionId,
    run_id: Option<RunId>,
    #[serde(flatten)]
    body: Body,
}

impl From<ReadLiveEnvelope> for LiveEvent {
    fn from(envelope: ReadLiveEnvelope) -> Self {
        let ReadLiveEnvelope { cursor, pos, session_id: session, run_id: run, body } = envelope;
        Self { position: Position { cursor, pos }, session, run, body }
    }
}
