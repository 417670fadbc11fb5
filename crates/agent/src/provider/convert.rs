//! Conversion between our request types and those of the `genai` client.

use std::collections::{HashMap, HashSet};

use genai::chat::{
    CacheControl, ChatMessage, ChatRequest, ContentPart, CustomPart, MessageContent, MessageOptions,
    StreamEnd, Tool, ToolCall, ToolResponse,
};
use mainspring_core::{Role, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Kind, Part, Request, RequestMessage, ToolSpec, ToolUse};

/// Data that a provider requires back with a message that calls tools. It is stored as JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Private {
    /// Signed, encrypted or plain thinking, in order.
    thoughts: Vec<ContentPart>,
    /// The signatures of calls, by their id.
    signatures: HashMap<String, Vec<String>>,
}

/// Converts a request.
pub(super) fn request(kind: Kind, request: &Request) -> ChatRequest {
    let mut messages: Vec<ChatMessage> =
        request.messages.iter().flat_map(|message| messages(kind, message)).collect();
    if let Some(last) = messages.last_mut().filter(|_| kind == Kind::Anthropic) {
        // The next step repeats everything up to here, so the provider is asked to cache it.
        last.options = Some(MessageOptions::default().with_cache_control(CacheControl::Ephemeral));
    }
    let mut out = ChatRequest::from_messages(messages);
    out.system.clone_from(&request.system);
    if request.tools.is_empty() { out } else { out.with_tools(request.tools.iter().map(tool)) }
}

fn tool(spec: &ToolSpec) -> Tool {
    Tool::new(spec.name.clone()).with_description(spec.description.clone()).with_schema(spec.schema.clone())
}

/// Converts a message. Tool results become a message of their own.
fn messages(kind: Kind, message: &RequestMessage) -> Vec<ChatMessage> {
    if message.role == Role::Assistant {
        return vec![ChatMessage::assistant(assistant(message))];
    }
    let (results, others): (Vec<&Part>, Vec<&Part>) =
        message.parts.iter().partition(|part| matches!(part, Part::ToolResult { .. }));
    let mut out = vec![];
    if !results.is_empty() {
        let parts: Vec<ContentPart> = results.into_iter().filter_map(|part| result(kind, part)).collect();
        out.push(ChatMessage::tool(MessageContent::from_parts(parts)));
    }
    if !others.is_empty() {
        let parts: Vec<ContentPart> = others.into_iter().filter_map(user).collect();
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
        Part::ToolUse(_) | Part::ToolResult { .. } => None,
    }
}

fn result(kind: Kind, part: &Part) -> Option<ContentPart> {
    let Part::ToolResult { id, name, text, is_error } = part else { return None };
    if kind == Kind::Anthropic && *is_error {
        // The client has no type for failed results, but the protocol has.
        let data = json!({"type": "tool_result", "tool_use_id": id, "content": text, "is_error": true});
        return Some(ContentPart::Custom(CustomPart { model_iden: None, data }));
    }
    Some(ContentPart::ToolResponse(ToolResponse::new(id.clone(), text.clone()).with_fn_name(name.clone())))
}

fn assistant(message: &RequestMessage) -> MessageContent {
    let mut private: Private =
        message.private.as_ref().and_then(|private| Private::deserialize(private).ok()).unwrap_or_default();
    let mut parts = std::mem::take(&mut private.thoughts);
    for part in &message.parts {
        match part {
            Part::Text(text) => parts.push(ContentPart::Text(text.clone())),
            Part::ToolUse(call) => parts.push(ContentPart::ToolCall(ToolCall {
                call_id: call.id.clone(),
                fn_name: call.name.clone(),
                // Invalid arguments cannot be sent as an object; the result of the call reports the error.
                fn_arguments: if call.input.is_object() { call.input.clone() } else { json!({}) },
                thought_signatures: private.signatures.remove(&call.id),
            })),
            Part::File { .. } | Part::ToolResult { .. } => {}
        }
    }
    MessageContent::from_parts(parts)
}

/// Assigns unique ids that every provider accepts to tool calls.
#[derive(Debug)]
pub(super) struct CallIds {
    prefix: String,
    used: HashSet<String>,
}

impl CallIds {
    /// Creates an assigner of ids that `request` does not use.
    pub(super) fn of(request: &Request) -> Self {
        let parts = request.messages.iter().flat_map(|message| &message.parts);
        let used = parts.filter_map(|part| match part {
            Part::ToolUse(call) => Some(call.id.clone()),
            _ => None,
        });
        Self { prefix: request.call_prefix.clone(), used: used.collect() }
    }

    /// Returns the call's own id if it is valid and new, else a generated one.
    fn assign(&mut self, id: &str, at: usize) -> String {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let valid = !id.is_empty() && id.len() <= 64 && id.bytes().all(allowed);
        let own = valid.then(|| id.to_owned());
        // The model may have used a generated id as its own.
        let generated = (at..).map(|no| format!("{}_{no}", self.prefix));
        let id = own.into_iter().chain(generated).find(|id| !self.used.contains(id)).unwrap_or_default();
        self.used.insert(id.clone());
        id
    }
}

/// Returns the tool calls of a response and the data that its provider requires back with them.
pub(super) fn tool_uses(end: &StreamEnd, ids: &mut CallIds) -> (Vec<ToolUse>, Option<Value>) {
    let mut private = Private::default();
    let mut calls: Vec<ToolUse> = vec![];
    for part in end.captured_content.iter().flat_map(MessageContent::parts) {
        match part {
            ContentPart::ToolCall(call) => {
                let id = ids.assign(&call.call_id, calls.len());
                if let Some(signatures) = &call.thought_signatures {
                    private.signatures.insert(id.clone(), signatures.clone());
                }
                calls.push(ToolUse { id, name: call.fn_name.clone(), input: input(&call.fn_arguments) });
            }
            ContentPart::ThoughtSignature(_) | ContentPart::ReasoningContent(_) | ContentPart::Custom(_) => {
                private.thoughts.push(part.clone());
            }
            ContentPart::Text(_) | ContentPart::Binary(_) | ContentPart::ToolResponse(_) => {}
        }
    }
    if private.thoughts.is_empty() {
        // Some providers require their plain thinking back with the calls.
        let plain = end.captured_reasoning_content.clone().filter(|text| !text.is_empty());
        private.thoughts.extend(plain.map(ContentPart::ReasoningContent));
    }
    let none = private.thoughts.is_empty() && private.signatures.is_empty();
    let private = (!calls.is_empty() && !none).then(|| serde_json::to_value(private).unwrap_or_default());
    (calls, private)
}

/// Returns the arguments of a call: an empty object if there are none, and the parsed value of a text that is JSON.
fn input(arguments: &Value) -> Value {
    match arguments {
        Value::Null => json!({}),
        Value::String(text) if text.trim().is_empty() => json!({}),
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| arguments.clone()),
        other => other.clone(),
    }
}

/// Converts token counts. Cached tokens are not counted as input. Without any count the usage is unknown.
pub(super) fn usage(usage: &genai::chat::Usage) -> Usage {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(0);
    let details = usage.prompt_tokens_details.as_ref();
    let cache_read_tokens = count(details.and_then(|details| details.cached_tokens));
    let cache_write_tokens = count(details.and_then(|details| details.cache_creation_tokens));
    Usage {
        input_tokens: count(usage.prompt_tokens).saturating_sub(cache_read_tokens + cache_write_tokens),
        output_tokens: count(usage.completion_tokens),
        cache_read_tokens,
        cache_write_tokens,
        at_least: usage.prompt_tokens.is_none() && usage.completion_tokens.is_none(),
        ..Usage::default()
    }
}
