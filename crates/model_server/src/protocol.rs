//! The four protocols: reading the conversation of a request and writing a reply.

use serde_json::{Value, json};

use super::reply::{Action, Fault, Reply, StopReason, Tokens};
use super::script::Entry;

mod anthropic;
mod chat;
mod gemini;
mod responses;

/// A provider's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions, which many other servers speak too.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// Gemini.
    Gemini,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Self; 4] = [Self::Anthropic, Self::Chat, Self::Responses, Self::Gemini];

    /// Returns the protocol's name: a provider's `kind` in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Chat => "openai",
            Self::Responses => "openai-responses",
            Self::Gemini => "gemini",
        }
    }

    /// Returns the first segment of the protocol's paths.
    pub(super) const fn version(self) -> &'static str {
        match self {
            Self::Anthropic | Self::Chat | Self::Responses => "v1",
            Self::Gemini => "v1beta",
        }
    }

    /// Reads the conversation of a request.
    pub(super) fn entries(self, body: &Value) -> Vec<Entry> {
        match self {
            Self::Anthropic => anthropic::entries(body),
            Self::Chat => chat::entries(body),
            Self::Responses => responses::entries(body),
            Self::Gemini => gemini::entries(body),
        }
    }

    /// Returns a writer for a streamed reply.
    pub(super) fn writer(self, model: &str, no: u64) -> Box<dyn Writer> {
        match self {
            Self::Anthropic => Box::new(anthropic::Messages::new(model, no)),
            Self::Chat => Box::new(chat::Chunks::new(model, no)),
            Self::Responses => Box::new(responses::Events::new(model, no)),
            Self::Gemini => Box::new(gemini::Candidates::new(model)),
        }
    }

    /// Writes the complete reply for a request that does not stream.
    pub(super) fn complete(self, model: &str, no: u64, reply: &Reply) -> Value {
        match self {
            Self::Anthropic => anthropic::complete(model, no, reply),
            Self::Chat => chat::complete(model, no, reply),
            Self::Responses => responses::complete(model, no, reply),
            Self::Gemini => gemini::complete(model, reply),
        }
    }

    /// Writes a fault: HTTP status and body.
    pub(super) fn fault(self, fault: &Fault) -> (u16, Value) {
        match self {
            Self::Anthropic => anthropic::fault(fault),
            Self::Chat | Self::Responses => openai_fault(fault),
            Self::Gemini => gemini::fault(fault),
        }
    }
}

/// Returns the system prompt of a request, from the fields of all protocols.
pub(super) fn system_text(body: &Value) -> String {
    let is_system = |message: &&Value| ["system", "developer"].iter().any(|role| message["role"] == *role);
    let lists = [&body["messages"], &body["input"]];
    let messages = lists.into_iter().flat_map(|list| list.as_array().into_iter().flatten()).filter(is_system);
    let places = [&body["system"], &body["instructions"], &body["systemInstruction"]["parts"]];
    places
        .into_iter()
        .chain(messages.map(|message| &message["content"]))
        .filter_map(|place| last_text(place, &["text", "input_text"]).or_else(|| gemini_text(place)))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Joins the texts of Gemini's parts, which have no type. `None` if `parts` is no list.
fn gemini_text(parts: &Value) -> Option<String> {
    let texts = parts.as_array()?.iter().filter_map(|part| part["text"].as_str());
    Some(texts.collect::<Vec<_>>().join("\n"))
}

/// Writes a reply piece by piece, as server-sent events.
pub(super) trait Writer: Send + Sync {
    /// Begins the stream.
    fn open(&mut self) -> String;
    /// Writes a piece of text.
    fn text(&mut self, text: &str) -> String;
    /// Writes thinking.
    fn think(&mut self, text: &str, signature: &str) -> String;
    /// Writes a tool call.
    fn tool(&mut self, id: &str, name: &str, input: &Value) -> String;
    /// Writes a fault in the middle of the stream.
    fn fail(&mut self, fault: &Fault) -> String;
    /// Ends the stream.
    fn close(&mut self, tokens: Tokens, stop: StopReason) -> String;
}

/// A tool call with its id.
struct Call<'a> {
    id: &'a str,
    name: &'a str,
    input: &'a Value,
}

/// The text, the thinking and the tool calls of a reply.
struct Content<'a> {
    text: String,
    thinking: Vec<(&'a str, &'a str)>,
    calls: Vec<Call<'a>>,
}

fn content(reply: &Reply) -> Content<'_> {
    let mut content = Content { text: String::new(), thinking: vec![], calls: vec![] };
    for action in &reply.actions {
        match action {
            Action::Text(text) => content.text.push_str(text),
            Action::Think { text, signature } => content.thinking.push((text, signature)),
            Action::Tool { id, name, input } => {
                content.calls.push(Call { id: id.as_deref().unwrap_or_default(), name, input });
            }
            Action::Hold(_)
            | Action::Pause(_)
            | Action::Fail(_)
            | Action::Disconnect
            | Action::Garbage
            | Action::Hang => {}
        }
    }
    content
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn data(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// Returns the last text of `content`: the string, or the last block of one of `types`.
fn last_text(content: &Value, types: &[&str]) -> Option<String> {
    if let Value::String(text) = content {
        return Some(text.clone());
    }
    let blocks = content.as_array()?;
    let is_text = |block: &&Value| types.iter().any(|kind| block["type"] == **kind);
    blocks.iter().rfind(is_text).and_then(|block| Some(block["text"].as_str()?.to_owned()))
}

/// Returns a string as it is and any other value as JSON.
fn to_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Splits `text` into two pieces, as a provider would.
fn halves(text: &str) -> [&str; 2] {
    let middle = (text.len() / 2..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    [&text[..middle], &text[middle..]]
}

fn openai_fault(fault: &Fault) -> (u16, Value) {
    let (status, kind, code, message) = match fault {
        Fault::RateLimited { .. } => (429, "requests", Some("rate_limit_exceeded"), "Rate limit reached"),
        Fault::Overloaded => (503, "server_error", None, "The engine is currently overloaded"),
        Fault::Internal => (500, "server_error", None, "The server had an error"),
        Fault::Unauthorized => {
            (401, "invalid_request_error", Some("invalid_api_key"), "Incorrect API key provided")
        }
        Fault::Invalid => (400, "invalid_request_error", Some("invalid_value"), "Invalid value: 'x'"),
        Fault::ContextTooLong => (
            400,
            "invalid_request_error",
            Some("context_length_exceeded"),
            "This model's maximum context length is 1000 tokens",
        ),
    };
    (status, json!({"error": {"message": message, "type": kind, "param": null, "code": code}}))
}
