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
    for message in results_first(path) {
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
                let calls = tool_uses(message);
                // A round of calls may span several messages of the agent; their results follow the last one.
                let last = messages.last_mut().filter(|last| last.role == Role::Assistant);
                if let Some(last) = last.filter(|_| !unanswered.is_empty() && !calls.is_empty()) {
                    last.parts.append(&mut parts);
                    unanswered.extend(calls);
                    continue;
                }
                if !unanswered.is_empty() {
                    let parts = std::mem::take(&mut unanswered).into_iter().map(lost_result).collect();
                    messages.push(RequestMessage { role: Role::User, parts, private: None });
                }
                unanswered = calls;
            }
        }
        if !parts.is_empty() {
            let private = private.get(&message.id).cloned();
            messages.push(RequestMessage { role: message.role, parts, private });
        }
    }
    messages
}

/// Moves tool results before prompts that joined the run while the tools worked: providers require results right after
/// the calls.
fn results_first(path: &[Arc<Message>]) -> impl Iterator<Item = &Arc<Message>> {
    path.chunk_by(|before, after| before.role == Role::User && after.role == Role::User).flat_map(
        |messages| {
            let is_prompt = |message: &&Arc<Message>| message.is_prompt();
            messages
                .iter()
                .filter(move |message| !is_prompt(message))
                .chain(messages.iter().filter(is_prompt))
        },
    )
}

/// Returns the tool calls of a message, in order.
pub(super) fn tool_uses(message: &Message) -> Vec<ToolUse> {
    let tool_use = |block: &Block| match block {
        Block::ToolUse { id, name, input, .. } => {
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
        Block::ToolUse { id, name, input, .. } => {
            Some(Part::ToolUse(ToolUse { id: id.clone(), name: name.clone(), input: input.clone() }))
        }
        Block::ToolResult { tool_use_id, name, content, is_error, .. } => Some(Part::ToolResult {
            id: tool_use_id.clone(),
            name: name.clone(),
            text: mainspring_core::message::result_text(content),
            is_error: *is_error,
        }),
        Block::Thinking {} | Block::Diff { .. } | Block::Error { .. } => None,
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
            agent: None,
            external_id: None,
        })
    }

    fn call(id: &str) -> Block {
        Block::tool_use(id, "add", json!({}))
    }

    fn result(id: &str) -> Block {
        let content = vec![Block::text("3")];
        Block::tool_result(id, "add", content, false)
    }

    fn converted(path: &[Arc<Message>]) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::ToolUse(call) => format!("call {}", call.id),
            Part::ToolResult { id, is_error, .. } => format!("result {id} {is_error}"),
            Part::File { .. } => "file".into(),
        };
        let line = |message: &RequestMessage| {
            let parts: Vec<String> = message.parts.iter().map(part).collect();
            format!("{}: {}\n", message.role, parts.join(", "))
        };
        messages(path, &HashMap::new(), &Files::default()).iter().map(line).collect()
    }

    #[test]
    fn a_round_over_several_messages_becomes_one_message_with_its_results_next() {
        use MessageStatus::Completed;
        let path = [
            message(Role::User, Completed, vec![Block::text("one")]),
            message(Role::Assistant, Completed, vec![Block::text("first"), call("a")]),
            message(Role::Assistant, Completed, vec![Block::text("second"), call("b")]),
            message(Role::User, Completed, vec![Block::text("joined meanwhile")]),
            message(Role::User, Completed, vec![result("a"), result("b")]),
            message(Role::Assistant, Completed, vec![Block::text("done")]),
        ];
        insta::assert_snapshot!(converted(&path), @r"
        user: one
        assistant: first, call a, second, call b
        user: result a false, result b false
        user: joined meanwhile
        assistant: done
        ");
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
        insta::assert_snapshot!(converted(&path), @r"
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
