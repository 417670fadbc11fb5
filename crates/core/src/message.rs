//! Messages: the nodes of a session's tree.
//!
//! Invariant: a stored message never contains the model's thoughts. [`Block::Thinking`] marks that the model thought;
//! the text itself is streamed to live subscribers and not stored.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ArtifactId, MessageId, RunId, SessionId, Time, Usage};

/// A message: a node of a session's tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// The message's id.
    #[serde(rename = "messageId")]
    pub id: MessageId,
    /// The session that created the message. In a fork this may be the session it was forked from.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The run that created the message.
    #[serde(rename = "runId", default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The author's side of the conversation.
    pub role: Role,
    /// The status of the message.
    pub status: MessageStatus,
    /// The content.
    pub content: Vec<Block>,
    /// Tokens and cost of the message, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// When the message was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
}

impl Message {
    /// The text of all text blocks, in order.
    pub fn text(&self) -> String {
        text_of(&self.content)
    }

    /// True for a user's prompt; false for the agent's messages and for tool results.
    pub fn is_prompt(&self) -> bool {
        let results = self.content.iter().any(|block| matches!(block, Block::ToolResult { .. }));
        self.role == Role::User && !results
    }

    /// The tool calls in this message as pairs of id and name, in order.
    pub fn tool_calls(&self) -> Vec<(String, String)> {
        let call = |block: &Block| match block {
            Block::ToolUse { id, name, .. } => Some((id.clone(), name.clone())),
            _ => None,
        };
        self.content.iter().filter_map(call).collect()
    }
}

/// The text of all text blocks of `content`, in order.
pub fn text_of(content: &[Block]) -> String {
    content
        .iter()
        .filter_map(|block| match block {
            Block::Text { text } => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

/// The author's side of the conversation. Tool results belong to the user's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The user, or tools that answer on their behalf.
    User,
    /// The agent.
    Assistant,
}

/// The status of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MessageStatus {
    /// Accepted with its run, which has not started yet: the message has no position in the tree.
    NotStarted,
    /// Being streamed. Never stored in this status.
    Generating,
    /// Complete.
    Completed,
    /// Generation failed. The partial message is kept but not sent to the model.
    Failed,
    /// Generation was cancelled. The partial message is kept but not sent to the model.
    Cancelled,
}

/// A block of a message's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// Marks that the model thought here. The thought itself is not stored.
    Thinking {},
    /// A file, by reference to an artifact.
    #[serde(rename_all = "camelCase")]
    Attachment {
        /// The artifact that holds the file.
        artifact: ArtifactId,
        /// The media type. A prompt may omit it; the artifact's media type is used then.
        #[serde(default)]
        mime_type: String,
        /// A display name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A tool call by the agent.
    ToolUse {
        /// The id of the call: stable, and passed to the tool as its idempotency key.
        id: String,
        /// The name of the tool.
        name: String,
        /// The arguments.
        input: Value,
    },
    /// The result of a tool call.
    #[serde(rename_all = "camelCase")]
    ToolResult {
        /// The id of the tool call.
        tool_use_id: String,
        /// The name of the tool.
        name: String,
        /// The content of the result.
        #[cfg_attr(feature = "schema", schema(no_recursion))]
        content: Vec<Block>,
        /// True when the call failed or was refused, or its outcome is unknown.
        #[serde(default)]
        is_error: bool,
    },
    /// An error.
    Error {
        /// A stable code.
        code: String,
        /// A message for people.
        message: String,
    },
}

impl Block {
    /// Creates a text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

macro_rules! names {
    ($type:ident { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// The stable name, as used in JSON and in the store.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Parses a stable name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use names;

names!(Role { User => "user", Assistant => "assistant" });
names!(MessageStatus {
    NotStarted => "not_started",
    Generating => "generating",
    Completed => "completed",
    Failed => "failed",
    Cancelled => "cancelled",
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_its_public_form() {
        let blocks = vec![
            Block::text("hi"),
            Block::Thinking {},
            Block::Attachment {
                artifact: ArtifactId::from_random([1; 16]),
                mime_type: "image/png".into(),
                name: None,
            },
            Block::ToolUse { id: "t1".into(), name: "add".into(), input: serde_json::json!({"a": 1}) },
            Block::ToolResult {
                tool_use_id: "t1".into(),
                name: "add".into(),
                content: vec![Block::text("2")],
                is_error: false,
            },
            Block::Error { code: "timeout".into(), message: "took too long".into() },
        ];
        let json = serde_json::to_string(&blocks).unwrap();
        insta::assert_snapshot!(json, @r#"[{"type":"text","text":"hi"},{"type":"thinking"},{"type":"attachment","artifact":"art_01010101010141018101010101010101","mimeType":"image/png"},{"type":"tool_use","id":"t1","name":"add","input":{"a":1}},{"type":"tool_result","toolUseId":"t1","name":"add","content":[{"type":"text","text":"2"}],"isError":false},{"type":"error","code":"timeout","message":"took too long"}]"#);
        assert_eq!(serde_json::from_str::<Vec<Block>>(&json).unwrap(), blocks);
    }

    #[test]
    fn thought_text_in_a_request_is_dropped() {
        let block: Block = serde_json::from_str(r#"{"type":"thinking","text":"secret"}"#).unwrap();
        assert!(!serde_json::to_string(&block).unwrap().contains("secret"));
    }
}
