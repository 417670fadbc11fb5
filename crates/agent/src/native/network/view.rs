//! The conversation as one member of a network sees it.
//!
//! The member's own messages have the role of the assistant. Messages and tool calls of other members become texts of
//! the user: a provider accepts only calls of tools that the request declares, and only signed thinking of its own
//! model.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mainspring_core::message::result_text;
use mainspring_core::{Block, Message, MessageId, Role, Step};

use super::super::execution::Execution;
use crate::provider::{Part, RequestMessage};

/// The prompt of a member that is called again right after its own answer.
const CONTINUE: &str = "Continue.";

impl Execution<'_> {
    /// Turns the messages of other members into messages of the user's side.
    pub(in super::super) fn as_seen(&self, path: Vec<Arc<Message>>) -> Vec<Arc<Message>> {
        match &self.network {
            None => path,
            Some(network) => {
                let viewer = network.current().map(|member| member.name());
                seen_by(viewer, &network.authors, path)
            }
        }
    }

    /// Completes the messages of a member's request: the last one must be of the user's side, followed only by the
    /// member's prefill.
    pub(in super::super) fn finish_request(&self, messages: &mut Vec<RequestMessage>) {
        let Some(member) = self.network.as_ref().and_then(|network| network.current()) else { return };
        if messages.last().is_some_and(|last| last.role == Role::Assistant) {
            messages.push(RequestMessage::user(CONTINUE));
        }
        if let Some(prefill) = &member.prefill {
            let parts = vec![Part::Text(prefill.clone())];
            messages.push(RequestMessage { role: Role::Assistant, parts, private: None });
        }
    }

    /// Reads which member wrote which message of the run.
    pub(in super::super) fn note_authors(&mut self, steps: &[Step]) {
        let Some(network) = &mut self.network else { return };
        let author = |step: &Step| Some((step.output?, network.author_of(step.no)?.to_owned()));
        let authors: HashMap<MessageId, String> = steps.iter().filter_map(author).collect();
        let stages = network.stages.iter().map(|id| (*id, String::new()));
        network.authors = authors.into_iter().chain(stages).collect();
    }
}

/// Turns messages that members other than `viewer` wrote, and the results of their calls, into texts. Without a viewer,
/// for the routing model, these are the messages of all members and the results of parallel stages.
pub(super) fn seen_by(
    viewer: Option<&str>,
    authors: &HashMap<MessageId, String>,
    path: Vec<Arc<Message>>,
) -> Vec<Arc<Message>> {
    let mut foreign_calls: HashSet<String> = HashSet::new();
    let as_seen = |message: Arc<Message>| -> Arc<Message> {
        let author = authors.get(&message.id).filter(|author| viewer != Some(author.as_str()));
        if let Some(author) = author {
            foreign_calls.extend(message.tool_calls().into_iter().map(|(id, _)| id));
            let content = message.content.iter().filter_map(|block| block_as_text(author, block)).collect();
            // The copy gets another id, so that signed thinking, which is stored by message id, is not sent to another
            // model.
            let id = MessageId::from_random([0; 16]);
            return Arc::new(Message { id, role: Role::User, content, ..Message::clone(&message) });
        }
        if message.role != Role::User || message.is_prompt() {
            return message;
        }
        let content = message.content.iter().map(|block| result_as_text(block, &foreign_calls)).collect();
        Arc::new(Message { content, ..Message::clone(&message) })
    };
    path.into_iter().map(as_seen).collect()
}

/// Turns a block of another member into a text for the viewer.
fn block_as_text(author: &str, block: &Block) -> Option<Block> {
    match block {
        Block::Text { text } if text.trim().is_empty() => None,
        Block::Text { text } if author.is_empty() => Some(Block::text(text)),
        Block::Text { text } => Some(Block::text(format!("{author} said:\n{text}"))),
        Block::ToolUse { name, input, .. } => {
            Some(Block::text(format!("{author} called {name} with {input}")))
        }
        _ => None,
    }
}

/// The result of another member's call, as a text.
fn result_as_text(block: &Block, foreign: &HashSet<String>) -> Block {
    match block {
        Block::ToolResult { tool_use_id, name, content, is_error, .. } if foreign.contains(tool_use_id) => {
            let verb = if *is_error { "failed" } else { "returned" };
            Block::text(format!("{name} {verb}:\n{}", result_text(content)))
        }
        block => block.clone(),
    }
}

/// The messages and tool calls of the members since the prompt, as one text.
pub(super) fn as_text(messages: &[Arc<Message>], authors: &HashMap<MessageId, String>) -> String {
    let seen = seen_by(None, authors, messages.to_vec());
    let texts = seen.iter().flat_map(|message| &message.content).filter_map(|block| match block {
        Block::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use mainspring_core::{MessageStatus, SessionId, Time};
    use serde_json::json;

    use super::*;

    fn message(id: u8, role: Role, content: Vec<Block>) -> Arc<Message> {
        Arc::new(Message {
            id: MessageId::from_random([id; 16]),
            session: SessionId::from_random([2; 16]),
            run: None,
            role,
            status: MessageStatus::Completed,
            content,
            usage: None,
            created_at: Time(1),
            agent: None,
            external_id: None,
        })
    }

    fn result(id: &str) -> Block {
        let content = vec![Block::text("3")];
        Block::tool_result(id, "add", content, false)
    }

    #[test]
    fn a_member_sees_its_own_messages_and_the_others_as_text() {
        let path = vec![
            message(1, Role::User, vec![Block::text("count")]),
            message(
                2,
                Role::Assistant,
                vec![Block::text("I plan"), Block::tool_use("a", "add", json!({"n": 1}))],
            ),
            message(3, Role::User, vec![result("a")]),
            message(4, Role::Assistant, vec![Block::tool_use("b", "add", json!({}))]),
            message(5, Role::User, vec![result("b")]),
        ];
        let id = |id: u8| MessageId::from_random([id; 16]);
        let authors = HashMap::from([(id(2), "planner".to_owned()), (id(4), "worker".to_owned())]);
        let seen = seen_by(Some("worker"), &authors, path);
        let lines: Vec<String> = seen
            .iter()
            .map(|message| format!("{}: {}", message.role, serde_json::to_string(&message.content).unwrap()))
            .collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        user: [{"type":"text","text":"count"}]
        user: [{"type":"text","text":"planner said:\nI plan"},{"type":"text","text":"planner called add with {\"n\":1}"}]
        user: [{"type":"text","text":"add returned:\n3"}]
        assistant: [{"type":"tool_use","id":"b","name":"add","input":{}}]
        user: [{"type":"tool_result","toolUseId":"b","name":"add","content":[{"type":"text","text":"3"}],"isError":false}]
        "#);
    }
}
