//! Steps: the model calls of a run.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::names;
use crate::{AttemptId, Failure, MessageId, RunId, StepId, Time, Usage};

/// One model call of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The step's id.
    #[serde(rename = "stepId")]
    pub id: StepId,
    /// The run the step belongs to.
    #[serde(rename = "runId")]
    pub run: RunId,
    /// The attempt that made the call.
    #[serde(rename = "attemptId")]
    pub attempt: AttemptId,
    /// The number of the step within its run, from 1.
    #[serde(rename = "stepNo")]
    pub no: u32,
    /// The agent definition in use, as `id@version`.
    pub agent: String,
    /// The provider of the model.
    pub provider: String,
    /// The provider's name for the model.
    pub model: String,
    /// The model profile that selected the model.
    #[serde(rename = "modelProfile", skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The messages that were sent to the model, by reference.
    pub prompt: PromptRef,
    /// The message the model produced. Absent if the call failed.
    #[serde(rename = "outputMessageId", skip_serializing_if = "Option::is_none")]
    pub output: Option<MessageId>,
    /// The ids of the tool calls in the message, in order.
    pub tool_calls: Vec<String>,
    /// Why the model stopped.
    pub stop_reason: StopReason,
    /// The error of a failed call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Tokens and cost of the call; null if they are unknown, because the call was interrupted or its connection broke.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub usage: Option<Usage>,
    /// The usage as reported by the provider.
    pub raw_usage: Value,
    /// When the request was sent.
    #[serde(rename = "startedAtMs")]
    pub started_at: Time,
    /// When the first piece of the answer arrived.
    #[serde(rename = "firstPieceAtMs", skip_serializing_if = "Option::is_none")]
    pub first_piece_at: Option<Time>,
    /// When the call ended.
    #[serde(rename = "completedAtMs")]
    pub completed_at: Time,
    /// The hash of the system prompt, tools and options that the model was given: 64 hexadecimal digits. Absent in steps
    /// of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_hash: Option<String>,
    /// The response as the provider reported it, without its text; null if the provider reports nothing more.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub raw: Value,
    /// Opaque data that the provider needs back with the message, kept until the run ends. Never public.
    #[serde(skip)]
    pub private: Option<Value>,
}

impl Step {
    /// True when the message is a final answer: it calls no tools, so the turn ends.
    pub fn ends_turn(&self) -> bool {
        self.output.is_some() && self.tool_calls.is_empty()
    }
}

/// A reference to the messages that were sent to a model: the end of a path and the number of messages up to it.
/// Messages never change, so the reference identifies them exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct PromptRef {
    /// The last message of the path.
    #[serde(rename = "lastMessageId", skip_serializing_if = "Option::is_none")]
    pub last: Option<MessageId>,
    /// How many messages were sent, counted back from the last.
    pub messages: u32,
    /// The last message that a digest replaces. The digest was sent in place of the messages up to it.
    #[serde(rename = "digestMessageId", default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<MessageId>,
}

/// The input of a model besides messages. Stored once per session, under its hash.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct StepInput {
    /// The system prompt, rendered. Absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The tools that the model could call.
    #[serde(default)]
    pub tools: Vec<OfferedTool>,
    /// The options of the request that were set, such as a temperature.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub model_options: Map<String, Value>,
}

/// A tool as it is described to a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct OfferedTool {
    /// The name.
    pub name: String,
    /// The description.
    pub description: String,
    /// The JSON Schema of the arguments.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub input_schema: Value,
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The answer is complete.
    Stop,
    /// The answer reached the maximum length.
    Length,
    /// The model calls tools.
    ToolUse,
    /// The model refused to answer.
    Refusal,
    /// An error occurred.
    Error,
    /// The call was cancelled.
    Cancelled,
}
names!(StopReason {
    Stop => "stop", Length => "length", ToolUse => "tool_use", Refusal => "refusal", Error => "error",
    Cancelled => "cancelled",
});
