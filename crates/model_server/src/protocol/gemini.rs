//! Gemini `generateContent`.

use serde_json::{Value, json};

use super::{Entry, Writer, content, data, to_text};
use crate::reply::{Fault, Reply, StopReason, Tokens};

pub(super) fn entries(body: &Value) -> Vec<Entry> {
    let mut entries = vec![];
    for content in body["contents"].as_array().into_iter().flatten() {
        if content["role"] == "model" {
            entries.push(Entry::Model);
            continue;
        }
        let parts = content["parts"].as_array().into_iter().flatten();
        let mut prompt = None;
        for part in parts {
            if let Some(answer) = part.get("functionResponse") {
                entries.push(Entry::Result(to_text(&answer["response"])));
            } else if let Some(text) = part["text"].as_str() {
                prompt = Some(text.to_owned());
            }
        }
        entries.extend(prompt.map(Entry::Prompt));
    }
    entries
}

pub(super) fn fault(fault: &Fault) -> (u16, Value) {
    let (code, status, message) = match fault {
        Fault::RateLimited { .. } => (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota"),
        Fault::Overloaded => (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
        Fault::Internal => (500, "INTERNAL", "An internal error has occurred"),
        Fault::Unauthorized => (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
        Fault::Invalid => (400, "INVALID_ARGUMENT", "Invalid JSON payload received"),
        Fault::ContextTooLong => (
            400,
            "INVALID_ARGUMENT",
            "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).",
        ),
    };
    let mut error = json!({"code": code, "message": message, "status": status});
    match fault {
        Fault::RateLimited { retry_after: Some(seconds) } => {
            let delay = json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{seconds}s")});
            error["details"] = json!([delay]);
        }
        Fault::Unauthorized => {
            let info =
                json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"});
            error["details"] = json!([info]);
        }
        _ => {}
    }
    (code, json!({"error": error}))
}

const fn reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::End | StopReason::Tools => "STOP",
        StopReason::Length => "MAX_TOKENS",
        StopReason::Refusal => "SAFETY",
    }
}

fn usage(tokens: Tokens) -> Value {
    let input = tokens.input + tokens.cache_read + tokens.cache_write;
    json!({
        "promptTokenCount": input, "candidatesTokenCount": tokens.output,
        "cachedContentTokenCount": tokens.cache_read, "totalTokenCount": input + tokens.output,
    })
}

fn thought(text: &str) -> Value {
    json!({"text": text, "thought": true})
}

fn call(id: &str, name: &str, input: &Value, signature: Option<&str>) -> Value {
    let mut part = json!({"functionCall": {"id": id, "name": name, "args": input}});
    if let Some(signature) = signature {
        part["thoughtSignature"] = json!(signature);
    }
    part
}

fn candidate(model: &str, parts: &[Value], finish: Option<StopReason>, tokens: Option<Tokens>) -> Value {
    let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
    if let Some(stop) = finish {
        candidate["finishReason"] = json!(reason(stop));
    }
    let usage = tokens.map_or_else(|| json!({"promptTokenCount": 1}), usage);
    json!({"candidates": [candidate], "usageMetadata": usage, "modelVersion": model})
}

pub(super) fn complete(model: &str, reply: &Reply) -> Value {
    let content = content(reply);
    let mut parts: Vec<Value> = content.thinking.iter().map(|(text, _)| thought(text)).collect();
    if !content.text.is_empty() {
        parts.push(json!({"text": content.text}));
    }
    let mut signature = content.thinking.last().map(|(_, signature)| *signature);
    parts.extend(content.calls.iter().map(|one| call(one.id, one.name, one.input, signature.take())));
    candidate(model, &parts, Some(reply.stop_reason()), Some(reply.tokens))
}

/// Streams one candidate, a part at a time.
pub(super) struct Candidates {
    model: String,
    /// The signature of the last thinking: Gemini attaches it to the next call.
    signature: Option<String>,
}

impl Candidates {
    pub(super) fn new(model: &str) -> Self {
        Self { model: model.into(), signature: None }
    }

    fn part(&self, part: Value) -> String {
        data(&candidate(&self.model, &[part], None, None))
    }
}

impl Writer for Candidates {
    fn open(&mut self) -> String {
        String::new()
    }

    fn text(&mut self, text: &str) -> String {
        self.part(json!({"text": text}))
    }

    fn think(&mut self, text: &str, signature: &str) -> String {
        self.signature = Some(signature.to_owned());
        self.part(thought(text))
    }

    fn tool(&mut self, id: &str, name: &str, input: &Value) -> String {
        let signature = self.signature.take();
        self.part(call(id, name, input, signature.as_deref()))
    }

    fn fail(&mut self, fault: &Fault) -> String {
        data(&self::fault(fault).1)
    }

    fn close(&mut self, tokens: Tokens, stop: StopReason) -> String {
        data(&candidate(&self.model, &[json!({"text": ""})], Some(stop), Some(tokens)))
    }
}
