//! Steps: one model call each; together the history of a run's inference.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::names;
use crate::{AttemptId, Failure, MessageId, RunId, StepId, Time, Usage};

/// One model call of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Its id.
    #[serde(rename = "stepId")]
    pub id: StepId,
    /// The run.
    #[serde(rename = "runId")]
    pub run: RunId,
    /// The attempt that made it.
    #[serde(rename = "attemptId")]
    pub attempt: AttemptId,
    /// Its number within its run, from 1.
    #[serde(rename = "stepNo")]
    pub no: u32,
    /// The agent definition it followed, as `id@version`.
    pub agent: String,
    /// Who ran the model.
    pub provider: String,
    /// The model, by its provider's name.
    pub model: String,
    /// The profile that named the model.
    #[serde(rename = "modelProfile", skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What the model was shown, by reference.
    pub prompt: PromptRef,
    /// The message it made; none when it failed.
    #[serde(rename = "outputMessageId", skip_serializing_if = "Option::is_none")]
    pub output: Option<MessageId>,
    /// The ids of the tool calls it made, in order.
    pub tool_calls: Vec<String>,
    /// Why it stopped.
    pub stop_reason: StopReason,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// What it used.
    pub usage: Usage,
    /// The same in the provider's own words.
    pub raw_usage: Value,
    /// When it was asked.
    #[serde(rename = "startedAtMs")]
    pub started_at: Time,
    /// When its first piece came.
    #[serde(rename = "firstPieceAtMs", skip_serializing_if = "Option::is_none")]
    pub first_piece_at: Option<Time>,
    /// When it ended.
    #[serde(rename = "completedAtMs")]
    pub completed_at: Time,
    /// What the provider demands back with the message, until the run ends. Never shown.
    #[serde(skip)]
    pub private: Option<Value>,
}

impl Step {
    /// True when its message is an answer: no tool is called, and the turn is over.
    pub fn ends_turn(&self) -> bool {
        self.output.is_some() && self.tool_calls.is_empty()
    }
}

/// The messages a model was shown: the path that ends with one, and how much of it. Messages never change, so this
/// says exactly which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct PromptRef {
    /// The last message of the path.
    #[serde(rename = "lastMessageId", skip_serializing_if = "Option::is_none")]
    pub last: Option<MessageId>,
    /// How many of its messages were shown, counted from the last.
    pub messages: u32,
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Its answer is whole.
    Stop,
    /// Its answer was too long.
    Length,
    /// It calls tools.
    ToolUse,
    /// It would not answer.
    Refusal,
    /// Something went wrong.
    Error,
    /// It was stopped.
    Cancelled,
}
names!(StopReason {
    Stop => "stop", Length => "length", ToolUse => "tool_use", Refusal => "refusal", Error => "error",
    Cancelled => "cancelled",
});
