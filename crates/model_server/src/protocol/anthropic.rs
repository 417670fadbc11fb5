//! Anthropic Messages.

use serde_json::{Value, json};

use super::{Entry, Writer, content, event, halves, last_text, to_text};
use crate::reply::{Fault, Reply, StopReason, Tokens};

pub(super) fn entries(body: &Value) -> Vec<Entry> {
    let mut entries = vec![];
    for message in body["messages"].as_array().into_iter().flatten() {
        if message["role"] != "user" {
            entries.push(Entry::Model);
            continue;
        }
        for block in message["content"].as_array().into_iter().flatten() {
            if block["type"] == "tool_result" {
                let text = last_text(&block["content"], &["text"]);
                entries.push(Entry::Result(text.unwrap_or_else(|| to_text(&block["content"]))));
            }
        }
        entries.extend(last_text(&message["content"], &["text"]).map(Entry::Prompt));
    }
    entries
}

pub(super) fn fault(fault: &Fault) -> (u16, Value) {
    let (status, kind, message) = match fault {
        Fault::RateLimited { .. } => (429, "rate_limit_error", "This request would exceed your rate limit"),
        Fault::Overloaded => (529, "overloaded_error", "Overloaded"),
        Fault::Internal => (500, "api_error", "Internal server error"),
        Fault::Unauthorized => (401, "authentication_error", "invalid x-api-key"),
        Fault::Invalid => (400, "invalid_request_error", "messages: unexpected value"),
        Fault::ContextTooLong => {
            (400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum")
        }
    };
    (status, json!({"type": "error", "error": {"type": kind, "message": message}}))
}

const fn reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::End => "end_turn",
        StopReason::Tools => "tool_use",
        StopReason::Length => "max_tokens",
        StopReason::Refusal => "refusal",
    }
}

fn usage(tokens: Tokens) -> Value {
    json!({
        "input_tokens": tokens.input, "cache_read_input_tokens": tokens.cache_read,
        "cache_creation_input_tokens": tokens.cache_write, "output_tokens": tokens.output,
    })
}

pub(super) fn complete(model: &str, no: u64, reply: &Reply) -> Value {
    let content = content(reply);
    let mut blocks: Vec<Value> = content
        .thinking
        .iter()
        .map(|(text, signature)| json!({"type": "thinking", "thinking": text, "signature": signature}))
        .collect();
    if !content.text.is_empty() {
        blocks.push(json!({"type": "text", "text": content.text}));
    }
    blocks.extend(
        content
            .calls
            .iter()
            .map(|call| json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.input})),
    );
    json!({
        "id": format!("msg_{no}"), "type": "message", "role": "assistant", "model": model, "content": blocks,
        "stop_reason": reason(reply.stop_reason()), "stop_sequence": null, "usage": usage(reply.tokens),
    })
}

/// Streams `message_start`, content blocks, `message_stop`.
pub(super) struct Messages {
    model: String,
    no: u64,
    index: usize,
    in_text: bool,
}

impl Messages {
    pub(super) fn new(model: &str, no: u64) -> Self {
        Self { model: model.into(), no, index: 0, in_text: false }
    }

    fn delta(&self, delta: &Value) -> String {
        event(
            "content_block_delta",
            &json!({"type": "content_block_delta", "index": self.index, "delta": delta}),
        )
    }

    fn start(&self, block: &Value) -> String {
        event(
            "content_block_start",
            &json!({"type": "content_block_start", "index": self.index, "content_block": block}),
        )
    }

    fn stop(&mut self) -> String {
        let stop = json!({"type": "content_block_stop", "index": self.index});
        self.index += 1;
        event("content_block_stop", &stop)
    }

    fn end_text(&mut self) -> String {
        if std::mem::take(&mut self.in_text) { self.stop() } else { String::new() }
    }
}

impl Writer for Messages {
    fn open(&mut self) -> String {
        let message = json!({
            "id": format!("msg_{}", self.no), "type": "message", "role": "assistant", "model": self.model,
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        });
        event("message_start", &json!({"type": "message_start", "message": message}))
            + &event("ping", &json!({"type": "ping"}))
    }

    fn text(&mut self, text: &str) -> String {
        let mut out = String::new();
        if !std::mem::replace(&mut self.in_text, true) {
            out += &self.start(&json!({"type": "text", "text": ""}));
        }
        out + &self.delta(&json!({"type": "text_delta", "text": text}))
    }

    fn think(&mut self, text: &str, signature: &str) -> String {
        let mut out = self.end_text();
        out += &self.start(&json!({"type": "thinking", "thinking": "", "signature": ""}));
        for piece in halves(text) {
            out += &self.delta(&json!({"type": "thinking_delta", "thinking": piece}));
        }
        out += &self.delta(&json!({"type": "signature_delta", "signature": signature}));
        out + &self.stop()
    }

    fn tool(&mut self, id: &str, name: &str, input: &Value) -> String {
        let mut out = self.end_text();
        out += &self.start(&json!({"type": "tool_use", "id": id, "name": name, "input": {}}));
        for piece in halves(&input.to_string()) {
            out += &self.delta(&json!({"type": "input_json_delta", "partial_json": piece}));
        }
        out + &self.stop()
    }

    fn fail(&mut self, fault: &Fault) -> String {
        event("error", &self::fault(fault).1)
    }

    fn close(&mut self, tokens: Tokens, stop: StopReason) -> String {
        let mut out = self.end_text();
        let delta = json!({"stop_reason": reason(stop), "stop_sequence": null});
        out += &event(
            "message_delta",
            &json!({"type": "message_delta", "delta": delta, "usage": usage(tokens)}),
        );
        out + &event("message_stop", &json!({"type": "message_stop"}))
    }
}
