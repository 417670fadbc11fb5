//! A session as one file: JSON Lines, as docs/export.md describes them.
//!
//! ```text
//! session ─▶ message… ─▶ run… ─▶ (artifact ─▶ bytes…)… ─▶ state… ─▶ event… ─▶ end
//! ```
//!
//! Messages come line by line of the tree, parents before children, so that whoever reads the file never has to look
//! ahead. Both ways hold a page at a time, not the session.

use std::sync::Arc;

use mainspring_core::{Artifact, Attempt, Event, Message, MessageId, Run, Session, StateEntry, Step};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

mod data;
mod export;
mod import;
pub use export::Export;
pub use import::Import;

/// What the first line calls the file.
const FORMAT: &str = "mainspring.session";
/// The version of the form that is written and read.
const VERSION: u32 = 1;

/// One line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "camelCase")]
enum Line {
    /// The first: the session itself.
    Session { format: String, version: u32, session: Box<Session> },
    /// A message of the tree.
    Message(Box<MessageLine>),
    /// A run that has ended, and its attempts.
    Run(Box<RunLine>),
    /// An artifact of the session.
    Artifact { artifact: Box<Artifact> },
    /// The next bytes of the artifact above, in base64.
    Bytes { data: String },
    /// What a key holds where the active path ends.
    State { entry: StateEntry },
    /// An event, in order; a completed message is named and not told again.
    Event { event: Value },
    /// The last: how many lines stand above.
    End { lines: u64 },
}

/// A message of the tree.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageLine {
    /// The number of its line of the tree: 0 for the first, and one more for each line opened after it.
    line: u64,
    /// The message above.
    parent_id: Option<MessageId>,
    /// Its line was rolled back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    abandoned: bool,
    /// The cursor of the message above leads here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    followed: bool,
    message: Arc<Message>,
}

/// A run and its attempts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunLine {
    run: Run,
    /// The hash of what was asked: 32 hexadecimal digits.
    fingerprint: String,
    attempts: Vec<Attempt>,
    /// Its model calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<Step>,
    /// Its own state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    state: Vec<StateEntry>,
    /// The prompt, if the run never began and it has no place in the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<Arc<Message>>,
}

impl Line {
    /// The line that an event is, without what only its store knows.
    fn event(event: &Event) -> Self {
        let mut value = json!(event);
        if let Some(fields) = value.as_object_mut() {
            for known in ["cursor", "protocolVersion", "sessionId", "requestId"] {
                fields.remove(known);
            }
            if let Some(payload) = fields.get_mut("payload").and_then(Value::as_object_mut)
                && let Some(message) = payload.remove("message")
            {
                payload.insert("messageId".into(), message["messageId"].clone());
            }
        }
        Self::Event { event: value }
    }
}
