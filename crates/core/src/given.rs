//! Given messages: a history that a caller gives to a session, and the rule which of them may rest.
//!
//! A history may rest, so that the next prompt can follow it, if it is empty or ends with an answer of the agent that calls
//! no tools. Within it, every tool call is answered by the next message: a model accepts no other history.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Block, Role};

/// A message that a caller gives to a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GivenMessage {
    /// The author's side of the conversation.
    pub role: Role,
    /// The content.
    pub content: Vec<Block>,
}

impl GivenMessage {
    fn calls(&self) -> impl Iterator<Item = &str> {
        self.content.iter().filter_map(|block| match block {
            Block::ToolUse { id, .. } => Some(id.as_str()),
            _ => None,
        })
    }

    fn results(&self) -> impl Iterator<Item = &str> {
        self.content.iter().filter_map(|block| match block {
            Block::ToolResult { tool_use_id, .. } => Some(tool_use_id.as_str()),
            _ => None,
        })
    }
}

/// Why a history may not rest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMessages {
    /// A message has no content.
    #[error("messages[{0}] has no content")]
    Empty(usize),
    /// A message holds a block that its side does not write.
    #[error("messages[{at}] is of the {role} and holds a block of the type {kind}: {expected}")]
    Block {
        /// The index of the message.
        at: usize,
        /// Its role.
        role: Role,
        /// The type of the block.
        kind: &'static str,
        /// What the side writes.
        expected: &'static str,
    },
    /// Two calls of a message have the same id.
    #[error("messages[{0}] has two tool calls with the id {1:?}")]
    Duplicate(usize, String),
    /// A call has no result.
    #[error("messages[{0}] calls a tool by {1:?}, and the next message holds no result of it")]
    Unanswered(usize, String),
    /// A result has no call.
    #[error("messages[{0}] holds a result of {1:?}, which the message before does not call")]
    Uncalled(usize, String),
    /// The last message is not an answer.
    #[error(
        "the last message must be an answer of the assistant that calls no tools, so that a prompt can follow it"
    )]
    Unfinished,
}

/// Checks that a history may rest.
pub fn validate_messages(messages: &[GivenMessage]) -> Result<(), InvalidMessages> {
    let mut open = BTreeSet::new();
    for (at, message) in messages.iter().enumerate() {
        check_content(at, message)?;
        let results: BTreeSet<&str> = message.results().collect();
        if let Some(id) = open.difference(&results).next() {
            return Err(InvalidMessages::Unanswered(at - 1, (*id).to_owned()));
        }
        if let Some(id) = results.difference(&open).next() {
            return Err(InvalidMessages::Uncalled(at, (*id).to_owned()));
        }
        open = BTreeSet::new();
        for id in message.calls() {
            if !open.insert(id) {
                return Err(InvalidMessages::Duplicate(at, id.to_owned()));
            }
        }
    }
    match messages.last() {
        Some(last) if last.role == Role::User || !open.is_empty() => Err(InvalidMessages::Unfinished),
        _ => Ok(()),
    }
}

fn check_content(at: usize, message: &GivenMessage) -> Result<(), InvalidMessages> {
    let role = message.role;
    if message.content.is_empty() {
        return Err(InvalidMessages::Empty(at));
    }
    for block in &message.content {
        let (kind, is_allowed) = match block {
            Block::Text { .. } => ("text", true),
            Block::Thinking {} => ("thinking", role == Role::Assistant),
            Block::ToolUse { .. } => ("tool_use", role == Role::Assistant),
            Block::Attachment { .. } => ("attachment", role == Role::User),
            Block::ToolResult { .. } => ("tool_result", role == Role::User),
            Block::Diff { .. } => ("diff", false),
            Block::Error { .. } => ("error", false),
        };
        if !is_allowed {
            let expected = match role {
                Role::User => "a user writes text, attachments and tool results",
                Role::Assistant => "an assistant writes text and tool calls",
            };
            return Err(InvalidMessages::Block { at, role, kind, expected });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(messages: Value) -> String {
        let messages: Vec<GivenMessage> = serde_json::from_value(messages).unwrap();
        validate_messages(&messages).map_or_else(|invalid| invalid.to_string(), |()| "rests".into())
    }

    #[test]
    fn a_history_rests_if_it_is_empty_or_ends_with_an_answer_without_calls() {
        let text = |text| json!([{"type": "text", "text": text}]);
        let user = || json!({"role": "user", "content": text("hi")});
        let answer = || json!({"role": "assistant", "content": text("ho")});
        let call = |ids: &[&str]| {
            let calls =
                ids.iter().map(|id| json!({"type": "tool_use", "id": id, "name": "add", "input": {}}));
            json!({"role": "assistant", "content": calls.collect::<Vec<_>>()})
        };
        let result = |id| {
            let result = json!({"type": "tool_result", "toolUseId": id, "name": "add", "content": []});
            json!({"role": "user", "content": [result]})
        };
        let both = json!({"role": "user", "content": [result("a")["content"][0], result("b")["content"][0]]});
        let unfinished = "the last message must be an answer of the assistant that calls no tools, so that a prompt can follow it";
        for (messages, wanted) in [
            (json!([]), "rests"),
            (json!([user(), answer()]), "rests"),
            (json!([answer()]), "rests"),
            (json!([user(), call(&["a"]), result("a"), answer()]), "rests"),
            (json!([user(), call(&["a", "b"]), both, answer()]), "rests"),
            (json!([user()]), unfinished),
            (json!([user(), call(&["a"])]), unfinished),
            (json!([user(), call(&["a"]), result("a")]), unfinished),
            (
                json!([user(), call(&["a", "b"]), result("a"), answer()]),
                "messages[1] calls a tool by \"b\", and the next message holds no result of it",
            ),
            (
                json!([user(), call(&["a"]), user(), answer()]),
                "messages[1] calls a tool by \"a\", and the next message holds no result of it",
            ),
            (
                json!([result("a"), answer()]),
                "messages[0] holds a result of \"a\", which the message before does not call",
            ),
            (
                json!([call(&["a", "a"]), result("a"), answer()]),
                "messages[0] has two tool calls with the id \"a\"",
            ),
            (json!([{"role": "user", "content": []}, answer()]), "messages[0] has no content"),
            (
                json!([{"role": "user", "content": call(&["a"])["content"]}, answer()]),
                "messages[0] is of the user and holds a block of the type tool_use: a user writes text, attachments and \
                 tool results",
            ),
        ] {
            assert_eq!(check(messages.clone()), wanted, "{messages}");
        }
    }
}
