//! Converts a path into the messages of a request.
//!
//! Failed and cancelled answers are left out. Every tool call gets a result, also one whose result was lost. A result
//! without a call is left out.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::{Block, Message, MessageId, MessageStatus, Role};
use serde_json::Value;

use super::files::Files;
use crate::provider::{Part, RequestMessage, ToolUse};

/// Converts `path` into the messages of a request.
pub(super) fn messages(
    path: &[Arc<Message>],
    private: &HashMap<MessageId, Value>,
    files: &Files,
) -> Vec<RequestMessage> {
    let mut messages: Vec<RequestMessage> = vec![];
    let mut unanswered: Vec<ToolUse> = vec![];
    for message in path {
        if message.role == Role::Assistant && message.status != MessageStatus::Completed {
            continue;
        }
        let parts = message.content.iter().filter_map(|block| part(block, files));
        let mut parts: Vec<Part> = parts.collect();
        match message.role {
            Role::User => {
                parts.retain(|part| match part {
                    Part::ToolResult { id, .. } => take(&mut unanswered, id),
                    _ => true,
                });
                // Results for lost calls come first: providers require them right after the calls.
                let mut lost: Vec<Part> =
                    std::mem::take(&mut unanswered).into_iter().map(lost_result).collect();
                lost.extend(parts);
                parts = lost;
            }
            Role::Assistant => {
                if !unanswered.is_empty() {
                    let parts = std::mem::take(&mut unanswered).into_iter().map(lost_result).collect();
                    messages.push(RequestMessage { role: Role::User, parts, private: None });
                }
                unanswered = tool_uses(message);
            }
        }
        if !parts.is_empty() {
            let private = private.get(&message.id).cloned();
            messages.push(RequestMessage { role: message.role, parts, private });
        }
    }
    messages
}

/// Returns the tool calls of a message, in order.
pub(super) fn tool_uses(message: &Message) -> Vec<ToolUse> {
    let tool_use = |block: &Block| match block {
        Block::ToolUse { id, name, input } => {
            Some(ToolUse { id: id.clone(), name: name.clone(), input: input.clone() })
        }
        _ => None,
    };
    message.content.iter().filter_map(tool_use).collect()
}

/// Removes the call `id` from `unanswered`; returns false if it is not there.
fn take(unanswered: &mut Vec<ToolUse>, id: &str) -> bool {
    let at = unanswered.iter().position(|call| call.id == id);
    at.map(|at| unanswered.remove(at)).is_some()
}

fn lost_result(call: ToolUse) -> Part {
    Part::ToolResult {
        id: call.id,
        name: call.name,
        text: "outcome unknown: the result was lost".into(),
        is_error: true,
    }
}

fn part(block: &Block, files: &Files) -> Option<Part> {
    match block {
        Block::Text { text } if text.is_empty() => None,
        Block::Text { text } => Some(Part::Text(text.clone())),
        Block::Attachment { artifact, .. } => Some(files.part(*artifact)),
        Block::ToolUse { id, name, input } => {
            Some(Part::ToolUse(ToolUse { id: id.clone(), name: name.clone(), input: input.clone() }))
        }
        Block::ToolResult { tool_use_id, name, content, is_error } => Some(Part::ToolResult {
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
    fn failed_answers_are_left_out_and_every_call_gets_a_result() {
        use MessageStatus::{Cancelled, Completed, Failed};
        let path = [
            message(Role::User, Completed, vec![Block::text("one")]),
            message(Role::Assistant, Failed, vec![Block::text("half")]),
            message(Role::User, Completed, vec![Block::text("two")]),
            message(Role::Assistant, Completed, vec![Block::Thinking {}, call("a"), call("b")]),
            message(Role::User, Completed, vec![result("b"), result("unknown")]),
            message(Role::Assistant, Completed, vec![call("c")]),
            message(Role::Assistant, Completed, vec![Block::text("")]),
            message(Role::User, Completed, vec![Block::text("three")]),
            message(Role::Assistant, Cancelled, vec![call("d")]),
        ];
        let converted: String = messages(&path, &HashMap::new(), &Files::default())
            .iter()
            .map(|message| {
                let parts: Vec<String> = message
                    .parts
                    .iter()
                    .map(|part| match part {
                        Part::Text(text) => text.clone(),
                        Part::ToolUse(call) => format!("call {}", call.id),
                        Part::ToolResult { id, is_error, .. } => format!("result {id} {is_error}"),
                        Part::File { .. } => "file".into(),
                    })
                    .collect();
                format!("{}: {}\n", message.role, parts.join(", "))
            })
            .collect();
        insta::assert_snapshot!(converted, @r"
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
