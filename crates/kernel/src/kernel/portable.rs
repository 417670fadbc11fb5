//! Export and import of a session as one JSON Lines file. docs/export.md describes the format.
//!
//! ```text
//! session ─▶ message… ─▶ run… ─▶ (artifact ─▶ bytes…)… ─▶ state… ─▶ event… ─▶ end
//! ```
//!
//! Messages come line by line of the tree, parents before children, so that a reader never has to look ahead. Export
//! and import hold one page in memory at a time, not the session.

use std::sync::Arc;

use mainspring_core::{
    Artifact, Attempt, Event, Message, MessageId, Run, Session, StateEntry, Step, StepInput,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

mod check;
mod data;
mod export;
mod import;
mod partial;
pub use export::Export;
pub use import::Import;

/// Format name in the first line.
const FORMAT: &str = "mainspring.session";
/// Version of the format that is written and read.
const VERSION: u32 = 1;

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
    /// An entry of the session's state at the tip.
    State { entry: StateEntry },
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
    message: Arc<Message>,
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
    /// The inputs of the steps, unless it stands with an earlier run in the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<StepInput>,
    /// State of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    state: Vec<StateEntry>,
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
