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
    /// The agent that wrote the message, if it is known: `ID@VERSION` of its definition, or the name that another
    /// program gave with the message it appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The id that another program gave to the message when it appended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
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
        /// The media type of the artifact. Ignored in requests.
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
        /// The arguments. Empty if the agent does not report them.
        input: Value,
        /// A description of the call for people, if the agent gives one besides the name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        /// The kind of the call, as the agent reports it: `read`, `edit`, `delete`, `move`, `search`, `execute`,
        /// `think`, `fetch`, `other` …
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// The files that the call works on.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        locations: Vec<FileLocation>,
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
        /// True when the caller of the run refused to execute the call. Such a result is an error, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        declined: bool,
        /// How long the call took, in milliseconds. Absent if that is not known, or if nothing was executed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runtime_ms: Option<u64>,
    },
    /// A change of a file by a tool. A text that is too long for a message is stored as an artifact.
    #[serde(rename_all = "camelCase")]
    Diff {
        /// The path of the file, as the agent reports it.
        path: String,
        /// The text before the change. Absent for a new file, and if the agent does not report it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<String>,
        /// The text after the change.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// The artifact that holds the text before the change.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before_artifact: Option<ArtifactId>,
        /// The artifact that holds the text after the change.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_artifact: Option<ArtifactId>,
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

    /// Creates a tool call without details.
    pub fn tool_use(id: impl Into<String>, name: impl Into<String>, input: Value) -> Self {
        let (id, name) = (id.into(), name.into());
        Self::ToolUse { id, name, input, title: None, kind: None, locations: vec![] }
    }

    /// Creates the result of a tool call. How long the call took is added when the result is written.
    pub fn tool_result(
        tool_use_id: impl Into<String>,
        name: impl Into<String>,
        content: Vec<Self>,
        is_error: bool,
    ) -> Self {
        let (tool_use_id, name) = (tool_use_id.into(), name.into());
        Self::ToolResult { tool_use_id, name, content, is_error, declined: false, runtime_ms: None }
    }
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileLocation {
    /// The path, as the agent reports it.
    pub path: String,
    /// The line, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// The content of a tool result as one text. Files and changes of files are only named.
pub fn result_text(content: &[Block]) -> String {
    let mut text = String::new();
    for block in content {
        let part = match block {
            Block::Text { text } => text.clone(),
            Block::Attachment { artifact, mime_type, name } => {
                format!("[file {}: {mime_type}, {artifact}]", name.as_deref().unwrap_or("without a name"))
            }
            Block::Diff { path, before, before_artifact, .. } => {
                let is_new = before.is_none() && before_artifact.is_none();
                format!("[{} {path}]", if is_new { "wrote" } else { "changed" })
            }
            Block::Error { message, .. } => message.clone(),
            Block::ToolResult { content, .. } => result_text(content),
            Block::Thinking {} | Block::ToolUse { .. } => continue,
        };
        if !text.is_empty() && !text.ends_with('\n') && !part.is_empty() {
            text.push('\n');
        }
        text.push_str(&part);
    }
    text
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
            Block::tool_use("t1", "add", serde_json::json!({"a": 1})),
            Block::tool_result("t1", "add", vec![Block::text("2")], false),
            Block::Error { code: "timeout".into(), message: "took too long".into() },
        ];
        let json = serde_json::to_string(&blocks).unwrap();
        insta::assert_snapshot!(json, @r#"[{"type":"text","text":"hi"},{"type":"thinking"},{"type":"attachment","artifact":"art_01010101010141018101010101010101","mimeType":"image/png"},{"type":"tool_use","id":"t1","name":"add","input":{"a":1}},{"type":"tool_result","toolUseId":"t1","name":"add","content":[{"type":"text","text":"2"}],"isError":false},{"type":"error","code":"timeout","message":"took too long"}]"#);
        assert_eq!(serde_json::from_str::<Vec<Block>>(&json).unwrap(), blocks);
    }

    #[test]
    fn details_of_a_tool_call_have_their_public_form() {
        let diff = Block::Diff {
            path: "/a".into(),
            before: None,
            after: Some("x".into()),
            before_artifact: None,
            after_artifact: None,
        };
        let blocks = vec![
            Block::ToolUse {
                id: "t1".into(),
                name: "Write".into(),
                input: serde_json::json!({}),
                title: Some("Write /a".into()),
                kind: Some("edit".into()),
                locations: vec![FileLocation { path: "/a".into(), line: Some(3) }],
            },
            diff.clone(),
        ];
        let json = serde_json::to_string(&blocks).unwrap();
        insta::assert_snapshot!(json, @r#"[{"type":"tool_use","id":"t1","name":"Write","input":{},"title":"Write /a","kind":"edit","locations":[{"path":"/a","line":3}]},{"type":"diff","path":"/a","after":"x"}]"#);
        assert_eq!(serde_json::from_str::<Vec<Block>>(&json).unwrap(), blocks);
        let file = Block::Attachment {
            artifact: ArtifactId::from_random([1; 16]),
            mime_type: "image/png".into(),
            name: None,
        };
        insta::assert_snapshot!(result_text(&[Block::text("done"), diff, file]), @r"
        done
        [wrote /a]
        [file without a name: image/png, art_01010101010141018101010101010101]
        ");
    }

    #[test]
    fn thought_text_in_a_request_is_dropped() {
        let block: Block = serde_json::from_str(r#"{"type":"thinking","text":"secret"}"#).unwrap();
        assert!(!serde_json::to_string(&block).unwrap().contains("secret"));
    }
}
