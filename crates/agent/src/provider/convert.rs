//! Our conversation in the words of the client library.

use std::collections::{HashMap, HashSet};

use genai::chat::{
    CacheControl, ChatMessage, ChatRequest, ContentPart, CustomPart, MessageContent, MessageOptions,
    StreamEnd, Tool, ToolCall, ToolResponse,
};
use mainspring_core::{Role, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Call, Kind, Part, Request, ToolSpec, Turn};

/// What a provider demands back with a message that calls tools.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Private {
    /// Signed, encrypted or plain thinking, in its order.
    thoughts: Vec<ContentPart>,
    /// The signatures of single calls.
    signatures: HashMap<String, Vec<String>>,
}

/// The request in the library's words.
pub(super) fn request(kind: Kind, request: &Request) -> ChatRequest {
    let mut messages: Vec<ChatMessage> = request.turns.iter().flat_map(|turn| messages(kind, turn)).collect();
    if let Some(last) = messages.last_mut().filter(|_| kind == Kind::Anthropic) {
        // All up to here is the same in the next step, and need not be paid for again.
        last.options = Some(MessageOptions::default().with_cache_control(CacheControl::Ephemeral));
    }
    let mut out = ChatRequest::from_messages(messages);
    out.system.clone_from(&request.system);
    if request.tools.is_empty() { out } else { out.with_tools(request.tools.iter().map(tool)) }
}

fn tool(spec: &ToolSpec) -> Tool {
    Tool::new(spec.name.clone()).with_description(spec.description.clone()).with_schema(spec.schema.clone())
}

/// One of our messages; what tools answered is one of its own there.
fn messages(kind: Kind, turn: &Turn) -> Vec<ChatMessage> {
    if turn.role == Role::Assistant {
        return vec![ChatMessage::assistant(assistant(turn))];
    }
    let (results, said): (Vec<&Part>, Vec<&Part>) =
        turn.parts.iter().partition(|part| matches!(part, Part::Result { .. }));
    let mut out = vec![];
    if !results.is_empty() {
        let parts: Vec<ContentPart> = results.into_iter().filter_map(|part| result(kind, part)).collect();
        out.push(ChatMessage::tool(MessageContent::from_parts(parts)));
    }
    if !said.is_empty() {
        let parts: Vec<ContentPart> = said.into_iter().filter_map(user).collect();
        out.push(ChatMessage::user(MessageContent::from_parts(parts)));
    }
    out
}

fn user(part: &Part) -> Option<ContentPart> {
    match part {
        Part::Text(text) => Some(ContentPart::Text(text.clone())),
        Part::File { mime_type, data, name } => {
            Some(ContentPart::from_binary_base64(mime_type.clone(), data.clone(), name.clone()))
        }
        Part::Call(_) | Part::Result { .. } => None,
    }
}

fn result(kind: Kind, part: &Part) -> Option<ContentPart> {
    let Part::Result { id, name, text, is_error } = part else { return None };
    if kind == Kind::Anthropic && *is_error {
        // The library has no word for it, the protocol has.
        let data = json!({"type": "tool_result", "tool_use_id": id, "content": text, "is_error": true});
        return Some(ContentPart::Custom(CustomPart { model_iden: None, data }));
    }
    Some(ContentPart::ToolResponse(ToolResponse::new(id.clone(), text.clone()).with_fn_name(name.clone())))
}

fn assistant(turn: &Turn) -> MessageContent {
    let mut private: Private =
        turn.private.as_ref().and_then(|private| Private::deserialize(private).ok()).unwrap_or_default();
    let mut parts = std::mem::take(&mut private.thoughts);
    for part in &turn.parts {
        match part {
            Part::Text(text) => parts.push(ContentPart::Text(text.clone())),
            Part::Call(call) => parts.push(ContentPart::ToolCall(ToolCall {
                call_id: call.id.clone(),
                fn_name: call.name.clone(),
                // What was not an object cannot be sent as one; that it was wrong is said in its result.
                fn_arguments: if call.input.is_object() { call.input.clone() } else { json!({}) },
                thought_signatures: private.signatures.remove(&call.id),
            })),
            Part::File { .. } | Part::Result { .. } => {}
        }
    }
    MessageContent::from_parts(parts)
}

/// Names calls so that every provider takes the names and no two are the same.
#[derive(Debug)]
pub(super) struct Names {
    prefix: String,
    used: HashSet<String>,
}

impl Names {
    /// Names that are not among those of `request`.
    pub(super) fn of(request: &Request) -> Self {
        let parts = request.turns.iter().flat_map(|turn| &turn.parts);
        let used = parts.filter_map(|part| match part {
            Part::Call(call) => Some(call.id.clone()),
            _ => None,
        });
        Self { prefix: request.call_prefix.clone(), used: used.collect() }
    }

    /// The call's own id, if it is plain and new; else one of ours.
    fn name(&mut self, id: &str, at: usize) -> String {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let fit = !id.is_empty() && id.len() <= 64 && id.bytes().all(plain) && !self.used.contains(id);
        let name = if fit { id.to_owned() } else { format!("{}_{at}", self.prefix) };
        self.used.insert(name.clone());
        name
    }
}

/// The calls of a whole answer, and what its provider demands back with them.
pub(super) fn calls(end: &StreamEnd, names: &mut Names) -> (Vec<Call>, Option<Value>) {
    let mut private = Private::default();
    let mut calls: Vec<Call> = vec![];
    for part in end.captured_content.iter().flat_map(MessageContent::parts) {
        match part {
            ContentPart::ToolCall(call) => {
                let id = names.name(&call.call_id, calls.len());
                if let Some(signatures) = &call.thought_signatures {
                    private.signatures.insert(id.clone(), signatures.clone());
                }
                calls.push(Call { id, name: call.fn_name.clone(), input: input(&call.fn_arguments) });
            }
            ContentPart::ThoughtSignature(_) | ContentPart::ReasoningContent(_) | ContentPart::Custom(_) => {
                private.thoughts.push(part.clone());
            }
            ContentPart::Text(_) | ContentPart::Binary(_) | ContentPart::ToolResponse(_) => {}
        }
    }
    if private.thoughts.is_empty() {
        // Some want their plain thinking back beside the calls it led to.
        let plain = end.captured_reasoning_content.clone().filter(|text| !text.is_empty());
        private.thoughts.extend(plain.map(ContentPart::ReasoningContent));
    }
    let none = private.thoughts.is_empty() && private.signatures.is_empty();
    let private = (!calls.is_empty() && !none).then(|| serde_json::to_value(private).unwrap_or_default());
    (calls, private)
}

/// Arguments: an object; nothing is an empty one, and text may hold one.
fn input(arguments: &Value) -> Value {
    match arguments {
        Value::Null => json!({}),
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| arguments.clone()),
        other => other.clone(),
    }
}

/// What was used: what was cached is not counted twice.
pub(super) fn usage(used: &genai::chat::Usage) -> Usage {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(0);
    let details = used.prompt_tokens_details.as_ref();
    let cache_read_tokens = count(details.and_then(|details| details.cached_tokens));
    let cache_write_tokens = count(details.and_then(|details| details.cache_creation_tokens));
    Usage {
        input_tokens: count(used.prompt_tokens).saturating_sub(cache_read_tokens + cache_write_tokens),
        output_tokens: count(used.completion_tokens),
        cache_read_tokens,
        cache_write_tokens,
        ..Usage::default()
    }
}
