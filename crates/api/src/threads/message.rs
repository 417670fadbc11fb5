//! Messages of threads and their blocks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Timestamp;

/// The sender of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRole {
    /// A person.
    User,
    /// The agent.
    Assistant,
    /// The server: results of tools.
    Roboto,
}

/// How far a message is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentMessageStatus {
    /// Generation has not begun.
    #[default]
    NotStarted,
    /// The content grows.
    Generating,
    /// The content is complete.
    Completed,
    /// Generation failed.
    Failed,
    /// Generation was cancelled.
    Cancelled,
}

impl AgentMessageStatus {
    /// True when the message does not change any more.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// The kind of a block: the value of `content_type`, which a block of text does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentType {
    /// Text.
    Text,
    /// A call of a tool.
    ToolUse,
    /// The result of a call.
    ToolResult,
    /// An error.
    Error,
}

/// A block of text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTextContent {
    /// The text.
    pub text: String,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentToolUseContent {
    /// Always `tool_use`.
    pub content_type: ContentType,
    /// The name of the tool.
    pub tool_name: String,
    /// The id of the call, which its result names.
    pub tool_use_id: String,
    /// The arguments; null if they are not an object.
    #[serde(default)]
    pub input: Option<Map<String, Value>>,
    /// An object whose field `input` holds the arguments, if they are not an object themselves; else null.
    #[serde(default)]
    pub raw_request: Option<Map<String, Value>>,
    /// True if the server refused a call of a client tool and answers it itself.
    #[serde(default)]
    pub answered_by_server: bool,
}

/// The result of a call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentToolResultContent {
    /// Always `tool_result`.
    pub content_type: ContentType,
    /// The name of the tool.
    pub tool_name: String,
    /// The id of the call.
    pub tool_use_id: String,
    /// The milliseconds that the tool worked.
    pub runtime_ms: u64,
    /// `success`, `error` or `declined`.
    pub status: String,
    /// The result: a text, an object or an array.
    #[serde(default)]
    pub payload: Option<Value>,
    /// The result as an object; a result that is not an object is the value of its field `result`.
    #[serde(default)]
    pub raw_response: Option<Map<String, Value>>,
}

/// Why a message was not completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentErrorContent {
    /// Always `error`.
    pub content_type: ContentType,
    /// A sentence for people.
    pub error_message: String,
    /// A stable code.
    #[serde(default)]
    pub error_code: Option<String>,
}

/// A block of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a block has a `text`, or is a `tool_use`, a `tool_result` or an `error` with its fields"
)]
pub enum AgentContent {
    /// Text.
    Text(AgentTextContent),
    // Must come before `ToolUse`, which requires fewer fields: a result would be parsed as a call.
    /// The result of a call.
    ToolResult(AgentToolResultContent),
    /// A call of a tool.
    ToolUse(AgentToolUseContent),
    /// An error.
    Error(AgentErrorContent),
}

impl AgentContent {
    /// Builds a block of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(AgentTextContent { text: text.into() })
    }

    /// The kind of the block.
    pub const fn content_type(&self) -> ContentType {
        match self {
            Self::Text(_) => ContentType::Text,
            Self::ToolUse(_) => ContentType::ToolUse,
            Self::ToolResult(_) => ContentType::ToolResult,
            Self::Error(_) => ContentType::Error,
        }
    }
}

/// A message of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentMessage {
    /// The sender.
    pub role: AgentRole,
    /// The blocks.
    pub content: Vec<AgentContent>,
    /// How far the message is generated.
    #[serde(default)]
    pub status: AgentMessageStatus,
    /// When the message was created. Absent in requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
}

impl AgentMessage {
    /// Builds a message of a person.
    pub fn text(text: impl Into<String>) -> Self {
        Self::text_by(AgentRole::User, text)
    }

    /// Builds a message of text.
    pub fn text_by(role: AgentRole, text: impl Into<String>) -> Self {
        let content = vec![AgentContent::text(text)];
        Self { role, content, status: AgentMessageStatus::NotStarted, created: None }
    }

    /// True when the message was generated to its end.
    pub fn is_complete(&self) -> bool {
        self.status == AgentMessageStatus::Completed
    }

    /// True when generation failed or was cancelled. Never true of a message of a person.
    pub fn is_unsuccessful(&self) -> bool {
        self.role != AgentRole::User
            && matches!(self.status, AgentMessageStatus::Failed | AgentMessageStatus::Cancelled)
    }

    /// Returns all text of the message.
    pub fn all_text(&self) -> String {
        let texts = self.content.iter().filter_map(|content| match content {
            AgentContent::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}
