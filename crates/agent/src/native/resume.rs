//! What an execution wants back with an answer it waits for.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hooks::Decision;

/// What an execution wants back with an answer it waits for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Resume {
    /// How often more was granted.
    pub(super) granted: u32,
    /// How often the answer did not have its form.
    pub(super) asked_again: u32,
    /// What the question is about.
    pub(super) about: About,
}

/// What a question is about.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum About {
    /// Nothing is asked.
    #[default]
    Nothing,
    /// The run has used up a limit: may it go on?
    Limit,
    /// A tool call.
    Tool {
        /// What was decided of the calls before it.
        decided: Vec<Decision>,
        /// How this one is paused.
        pause: Decision,
    },
    /// Calls that the caller makes; all have been decided, and the others have run.
    Calls {
        /// What was decided of them all.
        decided: Vec<Decision>,
    },
}

impl Resume {
    /// As it is kept with a wait.
    pub(super) fn value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}
