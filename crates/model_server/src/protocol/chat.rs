//! OpenAI Chat Completions.

use serde_json::{Value, json};

use super::{Entry, Writer, content, data, halves, last_text, openai_fault, to_text};
use crate::reply::{Fault, Reply, StopReason, Tokens};

pub(super) fn entries(body: &Value) -> Vec<Entry> {
    let messages = body["messages"].as_array().into_iter().flatten();
    let entry = |message: &Value| match message["role"].as_str()? {
        "user" => last_text(&message["content"], &["text"]).map(Entry::Prompt),
        "tool" => Some(Entry::Result(to_text(&message["content"]))),
        "assistant" => Some(Entry::Model),
        _ => None,
    };
    messages.filter_map(entry).collect()
}

const fn reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::End => "stop",
        StopReason::Tools => "tool_calls",
        StopReason::Length => "length",
        StopReason::Refusal => "content_filter",
    }
}

/// Counts as OpenAI does: cached tokens are part of the input.
fn usage(tokens: Tokens) -> Value {
    let input = tokens.input + tokens.cache_read + tokens.cache_write;
    json!({
        "prompt_tokens": input, "completion_tokens": tokens.output, "total_tokens": input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read, "cache_write_tokens": tokens.cache_write},
    })
}

pub(super) fn complete(model: &str, no: u64, reply: &Reply) -> Value {
    let content = content(reply);
    let mut message = json!({"role": "assistant", "content": content.text});
    if !content.thinking.is_empty() {
        let thoughts: String = content.thinking.iter().map(|(text, _)| *text).collect();
        message["reasoning_content"] = json!(thoughts);
    }
    if !content.calls.is_empty() {
        let calls = content.calls.iter().map(|call| {
            let function = json!({"name": call.name, "arguments": call.input.to_string()});
            json!({"id": call.id, "type": "function", "function": function})
        });
        message["tool_calls"] = calls.collect();
    }
    let choice = json!({"index": 0, "message": message, "finish_reason": reason(reply.stop_reason())});
    json!({
        "id": format!("chatcmpl-{no}"), "object": "chat.completion", "created": 1, "model": model,
        "choices": [choice], "usage": usage(reply.tokens),
    })
}

/// Streams chunks, then `[DONE]`.
pub(super) struct Chunks {
    model: String,
    no: u64,
    calls: usize,
}

impl Chunks {
    pub(super) fn new(model: &str, no: u64) -> Self {
        Self { model: model.into(), no, calls: 0 }
    }

    fn chunk(&self, choices: &Value, usage: &Value) -> String {
        data(&json!({
            "id": format!("chatcmpl-{}", self.no), "object": "chat.completion.chunk", "created": 1,
            "model": self.model, "choices": choices, "usage": usage,
        }))
    }

    fn delta(&self, delta: &Value) -> String {
        self.chunk(&json!([{"index": 0, "delta": delta, "finish_reason": null}]), &Value::Null)
    }
}

impl Writer for Chunks {
    fn open(&mut self) -> String {
        self.delta(&json!({"role": "assistant", "content": ""}))
    }

    fn text(&mut self, text: &str) -> String {
        self.delta(&json!({"content": text}))
    }

    fn think(&mut self, text: &str, _signature: &str) -> String {
        halves(text).map(|piece| self.delta(&json!({"reasoning_content": piece}))).concat()
    }

    fn tool(&mut self, id: &str, name: &str, input: &Value) -> String {
        let index = self.calls;
        self.calls += 1;
        let first = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        let mut out = self.delta(&json!({"tool_calls": [first]}));
        for piece in halves(&input.to_string()) {
            out += &self.delta(&json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}));
        }
        out
    }

    fn fail(&mut self, fault: &Fault) -> String {
        data(&openai_fault(fault).1)
    }

    fn close(&mut self, tokens: Tokens, stop: StopReason) -> String {
        let last = json!([{"index": 0, "delta": {}, "finish_reason": reason(stop)}]);
        self.chunk(&last, &Value::Null) + &self.chunk(&json!([]), &usage(tokens)) + "data: [DONE]\n\n"
    }
}
