//! Export and import of a session as one JSON Lines file. docs/export.md describes the format.
//!
//! ```text
//! session ─▶ message… ─▶ run… ─▶ (artifact ─▶ bytes…)… ─▶ state_at… ─▶ state_change… ─▶ event… ─▶ end
//! ```
//!
//! Messages come line by line of the tree, parents before children, so that a reader never has to look ahead. Export
//! and import hold one page in memory at a time, not the session.

use std::sync::Arc;

use mainspring_core::{
    Artifact, Attempt, Event, Message, MessageId, Run, Session, StateChange, StateEntry, Step, StepInput,
    Time,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

mod check;
mod data;
mod export;
mod import;
mod partial;
mod state;
pub use export::Export;
pub use import::Import;

/// Format name in the first line.
const FORMAT: &str = "mainspring.session";
/// Version of the file of a session without state. A file of this version that an earlier program wrote may hold the state
/// at the tip.
const VERSION_TIP: u32 = 1;
/// Version of the file of a session with state, on all branches and with its history.
const VERSION: u32 = 2;

/// One line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "camelCase")]
enum FileLine {
    /// First line: the session itself.
    Session { format: String, version: u32, session: Box<Session> },
    /// A message of the tree.
    Message(Box<MessageLine>),
    /// An ended run and its attempts.
    Run(Box<RunLine>),
    /// An artifact of the session.
    Artifact { artifact: Box<Artifact> },
    /// The next bytes of the artifact above, in base64.
    Bytes { data: String },
    /// An entry of the session's state at the tip, in version 1.
    State { entry: StateEntry },
    /// An entry of the session's state at its place in the tree.
    StateAt(Box<StateLine>),
    /// A change of the session's state, for the history of its key.
    StateChange { change: StateChange },
    /// An event, in order. A completed message is referenced by id, since it has its own line.
    Event { event: Value },
    /// Last line: the number of lines before it.
    End { lines: u64 },
}

/// A message of the tree.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageLine {
    /// Number of the message's line of the tree: 0 for the first line opened, then counting up.
    line: u64,
    /// The parent message.
    parent_id: Option<MessageId>,
    /// The line was rolled back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    abandoned: bool,
    /// The parent's cursor leads to this message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    followed: bool,
    /// The number of lines that were opened before this line. Only at the first message of a line, in version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opened: Option<u64>,
    message: Arc<Message>,
}

/// An entry of the session's state at its place in the tree.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateLine {
    key: String,
    version: u64,
    /// The value; absent if the key was removed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "state::present")]
    value: Option<Value>,
    #[serde(rename = "updatedAtMs")]
    updated_at: Time,
    /// The message at whose point the entry is; absent if the entry is before the first message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message_id: Option<MessageId>,
    /// The messages that follow on the same line do not see the entry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    aside: bool,
    /// The number of lines that were opened before the entry was written. A line that was opened earlier does not see
    /// the entry.
    seq: u64,
}

/// A run and its attempts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunLine {
    run: Run,
    /// Hash of the request: 32 hexadecimal digits.
    fingerprint: String,
    attempts: Vec<Attempt>,
    /// Model calls of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<Step>,
    /// The inputs of the steps, except those that an earlier run in the file already has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<StepInput>,
    /// State of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    state: Vec<StateEntry>,
    /// The changes of the run's state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    state_changes: Vec<StateChange>,
    /// The prompt, if the run never began and the prompt is not in the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<Arc<Message>>,
}

impl FileLine {
    /// The line of an event, without the fields that depend on the store.
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
