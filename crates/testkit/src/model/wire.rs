//! The four protocols: how a conversation is read from a request, and how an answer is written.

use serde_json::{Value, json};

use super::reply::{Act, Fault, Reply, Stop, Tokens};
use super::script::Turn;

mod anthropic;
mod chat;
mod gemini;
mod responses;

/// A provider's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions, which many others speak too.
    Chat,
    /// OpenAI Responses.
    Responses,
    /// Gemini.
    Gemini,
}

impl Wire {
    /// Every protocol.
    pub const ALL: [Self; 4] = [Self::Anthropic, Self::Chat, Self::Responses, Self::Gemini];

    /// The first folder of its paths.
    pub(super) const fn version(self) -> &'static str {
        match self {
            Self::Anthropic | Self::Chat | Self::Responses => "v1",
            Self::Gemini => "v1beta",
        }
    }

    /// The conversation that a request holds.
    pub(super) fn turns(self, body: &Value) -> Vec<Turn> {
        match self {
            Self::Anthropic => anthropic::turns(body),
            Self::Chat => chat::turns(body),
            Self::Responses => responses::turns(body),
            Self::Gemini => gemini::turns(body),
        }
    }

    /// What writes an answer, piece by piece.
    pub(super) fn writer(self, model: &str, no: u64) -> Box<dyn Writer> {
        match self {
            Self::Anthropic => Box::new(anthropic::Messages::new(model, no)),
            Self::Chat => Box::new(chat::Chunks::new(model, no)),
            Self::Responses => Box::new(responses::Events::new(model, no)),
            Self::Gemini => Box::new(gemini::Candidates::new(model)),
        }
    }

    /// The whole answer at once.
    pub(super) fn whole(self, model: &str, no: u64, reply: &Reply) -> Value {
        match self {
            Self::Anthropic => anthropic::whole(model, no, reply),
            Self::Chat => chat::whole(model, no, reply),
            Self::Responses => responses::whole(model, no, reply),
            Self::Gemini => gemini::whole(model, reply),
        }
    }

    /// What goes wrong: status and body.
    pub(super) fn fault(self, fault: &Fault) -> (u16, Value) {
        match self {
            Self::Anthropic => anthropic::fault(fault),
            Self::Chat | Self::Responses => openai_fault(fault),
            Self::Gemini => gemini::fault(fault),
        }
    }
}

/// Writes an answer piece by piece, as server-sent events.
pub(super) trait Writer: Send + Sync {
    /// What comes first.
    fn open(&mut self) -> String;
    /// A piece of text.
    fn text(&mut self, text: &str) -> String;
    /// A thought.
    fn think(&mut self, text: &str, signature: &str) -> String;
    /// A tool call.
    fn tool(&mut self, id: &str, name: &str, input: &Value) -> String;
    /// Something goes wrong in the middle.
    fn fail(&mut self, fault: &Fault) -> String;
    /// What comes last.
    fn close(&mut self, tokens: Tokens, stop: Stop) -> String;
}

/// A tool call that has its id.
struct Call<'a> {
    id: &'a str,
    name: &'a str,
    input: &'a Value,
}

/// The text, the thoughts and the calls of a reply.
struct Said<'a> {
    text: String,
    thoughts: Vec<(&'a str, &'a str)>,
    calls: Vec<Call<'a>>,
}

fn said(reply: &Reply) -> Said<'_> {
    let mut said = Said { text: String::new(), thoughts: vec![], calls: vec![] };
    for act in &reply.acts {
        match act {
            Act::Text(text) => said.text.push_str(text),
            Act::Think { text, signature } => said.thoughts.push((text, signature)),
            Act::Tool { id, name, input } => {
                said.calls.push(Call { id: id.as_deref().unwrap_or_default(), name, input });
            }
            Act::Hold(_) | Act::Rest(_) | Act::Fail(_) | Act::Break | Act::Garbage | Act::Hang => {}
        }
    }
    said
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn data(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// The text that ends `content`: a string, or its last block of one of these types.
fn last_text(content: &Value, types: &[&str]) -> Option<String> {
    if let Value::String(text) = content {
        return Some(text.clone());
    }
    let blocks = content.as_array()?;
    let is_text = |block: &&Value| types.iter().any(|kind| block["type"] == **kind);
    blocks.iter().rfind(is_text).and_then(|block| Some(block["text"].as_str()?.to_owned()))
}

/// Text as it is, anything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `text` in two pieces, as a provider would cut it.
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
