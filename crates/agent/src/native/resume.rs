//! The state of an execution that waits, stored with the wait.

use mainspring_core::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hooks::ToolDecision;

/// The state of an execution that waits. It is stored as JSON, so field and variant names must not change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Resume {
    /// How often the run's limits were granted again.
    pub(super) granted: u32,
    /// How often the model was asked again for an answer that violated the output schema.
    pub(super) asked_again: u32,
    /// The subject of the question that the run waits for.
    pub(super) about: Question,
}

/// The subject of the question that the run waits for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Question {
    /// No question is open.
    #[default]
    Nothing,
    /// Whether a run that has used up a limit may continue.
    Limit,
    /// A tool call that needs a person.
    Tool {
        /// The decisions for the calls before it.
        decided: Vec<ToolDecision>,
        /// The pause of this call.
        pause: ToolDecision,
    },
    /// Tool calls that the client executes. All calls of the message are decided; the calls of other tools
    /// have run.
    Calls {
        /// The decisions for all calls.
        decided: Vec<ToolDecision>,
        /// When the client was asked. Earlier versions did not store it.
        #[serde(default)]
        asked_at: Option<Time>,
    },
}

impl Resume {
    /// Returns the form that is stored with a wait.
    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}
