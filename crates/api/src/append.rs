//! Messages that another program appends to a session, after it has run the turn itself.

use std::sync::Arc;

use mainspring_core::{Message, Role, Time, Usage};
use serde::{Deserialize, Serialize};

use crate::PromptContent;

/// A message of a person, to be appended at the end of the active path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageAppend {
    /// The program's own id of the message: the same id again gives the same message.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub id: String,
    /// The content: a text, or blocks of text and attachments.
    pub content: PromptContent,
    /// When the message was written; now if not given. A time in the future counts as now.
    #[serde(default, rename = "createdAtMs", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub created_at: Option<Time>,
}

impl MessageAppend {
    /// Builds a message of plain text.
    pub fn text(id: impl Into<String>, text: impl Into<String>) -> Self {
        Self { id: id.into(), content: PromptContent::Text(text.into()), created_at: None }
    }
}

/// The finished results of a turn, to be appended beneath the message of a person.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResultsAppend {
    /// The program's own id of the turn: the same id again gives the same messages.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub id: String,
    /// The message that the turn answers: the id that the program gave it, or its `messageId`. Refused if the path no
    /// longer ends with this message. If not given, the end of the path is not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beneath: Option<String>,
    /// The messages, in order. Each tool call is followed by its result.
    pub messages: Vec<ResultMessage>,
    /// The name of the agent, for messages that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Tokens and cost of the turn beside those of its messages. Counted with the last message.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::request::usage")]
    pub usage: Option<Usage>,
}

/// A message of a finished turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResultMessage {
    /// `assistant` for a message of the agent, `user` for the results of its tool calls.
    pub role: Role,
    /// The content: a text, or blocks.
    pub content: PromptContent,
    /// The program's own id of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The name of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Tokens and cost of the message.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::request::usage")]
    pub usage: Option<Usage>,
    /// When the message was written; now if not given. A time in the future counts as now.
    #[serde(default, rename = "createdAtMs", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub created_at: Option<Time>,
}

impl ResultMessage {
    /// Builds a message without an id, an agent and usage.
    pub fn new(role: Role, content: PromptContent) -> Self {
        Self { role, content, id: None, agent: None, usage: None, created_at: None }
    }
}

/// The messages that were appended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Appended {
    /// The messages, in order.
    pub messages: Vec<Arc<Message>>,
}
