//! The path as a model is shown it.
//!
//! What failed or was cancelled is left out. Every tool call is answered, also one whose answer was lost; an answer
//! without a call is left out.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::{Block, Message, MessageId, MessageStatus, Role};
use serde_json::Value;

use super::files::Files;
use crate::provider::{Call, Part, Turn};

/// The conversation that `path` is.
pub(super) fn turns(path: &[Arc<Message>], private: &HashMap<MessageId, Value>, files: &Files) -> Vec<Turn> {
    let mut turns: Vec<Turn> = vec![];
    let mut open: Vec<Call> = vec![];
    for message in path {
        if message.role == Role::Assistant && message.status != MessageStatus::Completed {
            continue;
        }
        let parts = message.content.iter().filter_map(|block| part(block, files));
        let mut parts: Vec<Part> = parts.collect();
        match message.role {
            Role::User => {
                parts.retain(|part| match part {
                    Part::Result { id, .. } => take(&mut open, id),
                    _ => true,
                });
                // Before anything else is said, what is missing is said to be missing.
                let mut missing: Vec<Part> = std::mem::take(&mut open).into_iter().map(lost).collect();
                missing.extend(parts);
                parts = missing;
            }
            Role::Assistant => {
                if !open.is_empty() {
                    let parts = std::mem::take(&mut open).into_iter().map(lost).collect();
                    turns.push(Turn { role: Role::User, parts, private: None });
                }
                open = calls(message);
            }
        }
        if !parts.is_empty() {
            turns.push(Turn { role: message.role, parts, private: private.get(&message.id).cloned() });
        }
    }
    turns
}

/// What the model is told instead of what it is not shown.
pub(super) fn note(text: String) -> Turn {
    Turn { role: Role::User, parts: vec![Part::Text(text)], private: None }
}

/// The tool calls of a message, in order.
pub(super) fn calls(message: &Message) -> Vec<Call> {
    let call = |block: &Block| match block {
        Block::ToolUse { id, name, input } => {
            Some(Call { id: id.clone(), name: name.clone(), input: input.clone() })
        }
        _ => None,
    };
    message.content.iter().filter_map(call).collect()
}

/// Takes the call `id` out of those that are open; false if it is not among them.
fn take(open: &mut Vec<Call>, id: &str) -> bool {
    let at = open.iter().position(|call| call.id == id);
    at.map(|at| open.remove(at)).is_some()
}

fn lost(call: Call) -> Part {
    Part::Result {
        id: call.id,
        name: call.name,
        text: "outcome unknown: its answer was lost".into(),
        is_error: true,
    }
}

fn part(block: &Block, files: &Files) -> Option<Part> {
    match block {
        Block::Text { text } if text.is_empty() => None,
        Block::Text { text } => Some(Part::Text(text.clone())),
        Block::Attachment { artifact, .. } => Some(files.part(*artifact)),
        Block::ToolUse { id, name, input } => {
            Some(Part::Call(Call { id: id.clone(), name: name.clone(), input: input.clone() }))
        }
        Block::ToolResult { tool_use_id, name, content, is_error } => Some(Part::Result {
            id: tool_use_id.clone(),
            name: name.clone(),
            text: mainspring_core::message::text_of(content),
            is_error: *is_error,
        }),
        Block::Thinking {} | Block::Error { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use mainspring_core::{SessionId, Time};
    use serde_json::json;

    use super::*;

    fn message(role: Role, status: MessageStatus, content: Vec<Block>) -> Arc<Message> {
        Arc::new(Message {
            id: MessageId::from_random([1; 16]),
            session: SessionId::from_random([2; 16]),
            run: None,
            role,
            status,
            content,
            usage: None,
            created_at: Time(1),
        })
    }

    fn call(id: &str) -> Block {
        Block::ToolUse { id: id.into(), name: "add".into(), input: json!({}) }
    }

    fn result(id: &str) -> Block {
        let content = vec![Block::text("3")];
        Block::ToolResult { tool_use_id: id.into(), name: "add".into(), content, is_error: false }
    }

    #[test]
    fn what_failed_is_left_out_and_every_call_is_answered() {
        use MessageStatus::{Cancelled, Completed, Failed};
        let path = [
            message(Role::User, Completed, vec![Block::text("one")]),
            message(Role::Assistant, Failed, vec![Block::text("half")]),
            message(Role::User, Completed, vec![Block::text("two")]),
            message(Role::Assistant, Completed, vec![Block::Thinking {}, call("a"), call("b")]),
            message(Role::User, Completed, vec![result("b"), result("nobody's")]),
            message(Role::Assistant, Completed, vec![call("c")]),
            message(Role::Assistant, Completed, vec![Block::text("")]),
            message(Role::User, Completed, vec![Block::text("three")]),
            message(Role::Assistant, Cancelled, vec![call("d")]),
        ];
        let shown: String = turns(&path, &HashMap::new(), &Files::default())
            .iter()
            .map(|turn| {
                let parts: Vec<String> = turn
                    .parts
                    .iter()
                    .map(|part| match part {
                        Part::Text(text) => text.clone(),
                        Part::Call(call) => format!("call {}", call.id),
                        Part::Result { id, is_error, .. } => format!("result {id} {is_error}"),
                        Part::File { .. } => "file".into(),
                    })
                    .collect();
                format!("{}: {}\n", turn.role, parts.join(", "))
            })
            .collect();
        insta::assert_snapshot!(shown, @r"
        user: one
        user: two
        assistant: call a, call b
        user: result a true, result b false
        assistant: call c
        user: result c true
        user: three
        ");
    }
}
