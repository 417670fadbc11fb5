//! The result of a step: the input of the model, its answer, and the results of the tools that it called.

use std::sync::Arc;

use mainspring_core::{Block, Message, Step, StepInput};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A model call with its input, its answer and the results of the tools that it called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct StepResult {
    /// The step. Its `prompt` names the messages that were sent.
    #[serde(flatten)]
    pub step: Step,
    /// The system prompt, the tools and the options that the model was given. Absent for a step of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<StepInput>,
    /// The message that the model produced. Absent if the call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Message>))]
    pub output: Option<Arc<Message>>,
    /// The tool calls of the message, each with its result, in order.
    pub answered_calls: Vec<AnsweredCall>,
    /// The hash of the agent, the content of the output, the tool calls with their results, and the time: BLAKE3 of the
    /// canonical JSON of `[agent, output.content, answeredCalls, completedAtMs]`, 64 hexadecimal digits. Absent while a
    /// result is missing, and if the call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

/// A tool call and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AnsweredCall {
    /// The id of the call.
    pub tool_use_id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments.
    pub input: Value,
    /// The content of the result. Absent while no message holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Vec<Block>>,
    /// True when the call failed or was refused, or its outcome is unknown.
    #[serde(default)]
    pub is_error: bool,
}
