//! Messages: the nodes of a session's tree.
//!
//! Invariant: a stored message never holds thought text. [`Block::Thinking`] marks that the model
//! thought; what it thought is streamed to live subscribers and kept nowhere.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ArtifactId, MessageId, RunId, SessionId, Time, Usage};

/// A node of a session's tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// Its id.
    #[serde(rename = "messageId")]
    pub id: MessageId,
    /// The session that made it; a fork reads messages of the session it was forked from.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The run that made it.
    #[serde(rename = "runId", default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// Who speaks.
    pub role: Role,
    /// Where its making stands.
    pub status: MessageStatus,
    /// What is said.
    pub content: Vec<Block>,
    /// What it cost, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// When it was made.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
}

impl Message {
    /// The text of all its text blocks, in order.
    pub fn text(&self) -> String {
        text_of(&self.content)
    }

    /// True for what was said to the agent; false for what it says, and for what tools answered.
    pub fn is_prompt(&self) -> bool {
        let results = self.content.iter().any(|block| matches!(block, Block::ToolResult { .. }));
        self.role == Role::User && !results
    }

    /// The tool calls it asks for, id and name, in order: they have no results yet when it is written.
    pub fn unanswered(&self) -> Vec<(String, String)> {
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

/// Who speaks in a message. Tool results are the user's side of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The person, or the tools answering for them.
    User,
    /// The agent.
    Assistant,
}

/// Where the making of a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MessageStatus {
    /// Accepted with its run; the run has not started, so it has no place in the tree yet.
    NotStarted,
    /// Being streamed; never stored in this state.
    Generating,
    /// Whole.
    Completed,
    /// Its making failed; what there is of it is kept and not sent to the model.
    Failed,
    /// Its making was stopped; what there is of it is kept and not sent to the model.
    Cancelled,
}

/// One piece of a message's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// The model thought here. The thought itself is not kept.
    Thinking {},
    /// A file, by reference.
    #[serde(rename_all = "camelCase")]
    Attachment {
        /// Where its bytes are.
        artifact: ArtifactId,
        /// Its media type. A prompt may leave it out: the artifact knows it.
        #[serde(default)]
        mime_type: String,
        /// Its name for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// The agent calls a tool.
    ToolUse {
        /// The call's id: stable, and passed to the tool as its idempotency key.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Value,
    },
    /// What a tool answered.
    #[serde(rename_all = "camelCase")]
    ToolResult {
        /// The call it answers.
        tool_use_id: String,
        /// The tool.
        name: String,
        /// The answer.
        #[cfg_attr(feature = "schema", schema(no_recursion))]
        content: Vec<Block>,
        /// True when the call failed, was refused, or its outcome is not known.
        #[serde(default)]
        is_error: bool,
    },
    /// Something went wrong here.
    Error {
        /// A stable code.
        code: String,
        /// What happened, for people.
        message: String,
    },
}

impl Block {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

macro_rules! names {
    ($type:ident { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// The stable name, as in JSON and in the store.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Reads the stable name back.
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
    fn the_public_form_of_every_block() {
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
    fn a_thought_that_comes_in_is_dropped() {
        let block: Block = serde_json::from_str(r#"{"type":"thinking","text":"secret"}"#).unwrap();
        assert!(!serde_json::to_string(&block).unwrap().contains("secret"));
    }
}
