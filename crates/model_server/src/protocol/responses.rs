//! OpenAI Responses.

use serde_json::{Value, json};

use super::{Entry, Writer, content, event, halves, last_text, openai_fault, to_text};
use crate::reply::{Fault, Reply, StopReason, Tokens};

pub(super) fn entries(body: &Value) -> Vec<Entry> {
    if let Value::String(prompt) = &body["input"] {
        return vec![Entry::Prompt(prompt.clone())];
    }
    let items = body["input"].as_array().into_iter().flatten();
    let entry = |item: &Value| match (item["type"].as_str(), item["role"].as_str()) {
        (Some("function_call_output"), _) => Some(Entry::Result(to_text(&item["output"]))),
        (_, Some("user")) => last_text(&item["content"], &["input_text", "text"]).map(Entry::Prompt),
        (Some("function_call"), _) | (_, Some("assistant")) => Some(Entry::Model),
        _ => None,
    };
    items.filter_map(entry).collect()
}

fn usage(tokens: Tokens) -> Value {
    let input = tokens.input + tokens.cache_read + tokens.cache_write;
    json!({
        "input_tokens": input, "output_tokens": tokens.output, "total_tokens": input + tokens.output,
        "input_tokens_details": {"cached_tokens": tokens.cache_read, "cache_write_tokens": tokens.cache_write},
        "output_tokens_details": {"reasoning_tokens": 0},
    })
}

fn message_item(no: u64, text: &str) -> Value {
    let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
    json!({"type": "message", "id": format!("item_{no}"), "status": "completed", "role": "assistant", "content": content})
}

fn refusal_item(no: u64) -> Value {
    let content = json!([{"type": "refusal", "refusal": "I will not."}]);
    json!({"type": "message", "id": format!("item_{no}"), "status": "completed", "role": "assistant", "content": content})
}

fn call_item(id: &str, name: &str, arguments: &str) -> Value {
    json!({
        "type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name, "arguments": arguments,
        "status": "completed",
    })
}

fn reasoning_item(text: &str, signature: &str) -> Value {
    json!({
        "type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}],
        "encrypted_content": signature,
    })
}

fn response(model: &str, no: u64, stop: StopReason, output: &[Value], tokens: Tokens) -> Value {
    let (status, details) = match stop {
        StopReason::Length => ("incomplete", json!({"reason": "max_output_tokens"})),
        StopReason::End | StopReason::Tools | StopReason::Refusal => ("completed", Value::Null),
    };
    json!({
        "id": format!("resp_{no}"), "object": "response", "created_at": 1, "status": status, "model": model,
        "error": null, "incomplete_details": details, "output": output, "usage": usage(tokens),
    })
}

pub(super) fn complete(model: &str, no: u64, reply: &Reply) -> Value {
    let content = content(reply);
    let mut output: Vec<Value> =
        content.thinking.iter().map(|(text, signature)| reasoning_item(text, signature)).collect();
    if !content.text.is_empty() {
        output.push(message_item(no, &content.text));
    }
    output.extend(content.calls.iter().map(|call| call_item(call.id, call.name, &call.input.to_string())));
    if reply.stop_reason() == StopReason::Refusal {
        output.push(refusal_item(no));
    }
    response(model, no, reply.stop_reason(), &output, reply.tokens)
}

/// Streams items as events, then `response.completed`.
pub(super) struct Events {
    model: String,
    no: u64,
    text: Option<String>,
    output: Vec<Value>,
}

impl Events {
    pub(super) fn new(model: &str, no: u64) -> Self {
        Self { model: model.into(), no, text: None, output: vec![] }
    }

    fn event(&self, kind: &str, mut fields: Value) -> String {
        fields["type"] = json!(kind);
        if fields.get("output_index").is_none() {
            fields["output_index"] = json!(self.output.len());
        }
        event(kind, &fields)
    }

    fn done(&mut self, item: Value) -> String {
        let out = self.event("response.output_item.done", json!({"item": item}));
        self.output.push(item);
        out
    }

    fn end_text(&mut self) -> String {
        match self.text.take() {
            Some(text) => self.done(message_item(self.no, &text)),
            None => String::new(),
        }
    }
}

impl Writer for Events {
    fn open(&mut self) -> String {
        let created =
            json!({"id": format!("resp_{}", self.no), "status": "in_progress", "model": self.model});
        event("response.created", &json!({"type": "response.created", "response": created}))
    }

    fn text(&mut self, text: &str) -> String {
        let mut out = String::new();
        if self.text.is_none() {
            let item = json!({"type": "message", "id": format!("item_{}", self.no), "role": "assistant", "content": []});
            out += &self.event("response.output_item.added", json!({"item": item}));
        }
        self.text.get_or_insert_default().push_str(text);
        out + &self.event("response.output_text.delta", json!({"content_index": 0, "delta": text}))
    }

    fn think(&mut self, text: &str, signature: &str) -> String {
        let mut out = self.end_text();
        let item = json!({"type": "reasoning", "id": "rs_1", "summary": []});
        out += &self.event("response.output_item.added", json!({"item": item}));
        for piece in halves(text) {
            let delta = json!({"summary_index": 0, "delta": piece});
            out += &self.event("response.reasoning_summary_text.delta", delta);
        }
        out + &self.done(reasoning_item(text, signature))
    }

    fn tool(&mut self, id: &str, name: &str, input: &Value) -> String {
        let mut out = self.end_text();
        out += &self.event("response.output_item.added", json!({"item": call_item(id, name, "")}));
        let arguments = input.to_string();
        for piece in halves(&arguments) {
            out += &self.event("response.function_call_arguments.delta", json!({"delta": piece}));
        }
        out + &self.done(call_item(id, name, &arguments))
    }

    fn fail(&mut self, fault: &Fault) -> String {
        let error = openai_fault(fault).1["error"].take();
        let code = if error["code"].is_null() { json!("server_error") } else { error["code"].clone() };
        let mut failed = response(&self.model, self.no, StopReason::End, &self.output, Tokens::default());
        failed["status"] = json!("failed");
        failed["error"] = json!({"code": code, "message": error["message"]});
        event("response.failed", &json!({"type": "response.failed", "response": failed}))
    }

    fn close(&mut self, tokens: Tokens, stop: StopReason) -> String {
        let mut out = self.end_text();
        if stop == StopReason::Refusal {
            out += &self.event("response.refusal.delta", json!({"content_index": 0, "delta": "I will not."}));
            out += &self.done(refusal_item(self.no));
        }
        let kind = if stop == StopReason::Length { "response.incomplete" } else { "response.completed" };
        let last = response(&self.model, self.no, stop, &self.output, tokens);
        out + &event(kind, &json!({"type": kind, "response": last}))
    }
}
