//! Providers: who runs a model, behind one small trait.
//!
//! A request holds the whole conversation; the answer is a stream of pieces that ends with [`Piece::Done`] or an
//! error. To drop the stream is to give the request up: its connection is closed.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use mainspring_core::{KeyPresence, Role, Usage};
use serde_json::{Map, Value};

mod convert;
mod error;
mod genai;
mod key;
mod peek;

pub use error::{ErrorKind, ModelError};
pub use genai::{Connections, GenaiProvider, Kind, install_tls};
pub use key::{Key, KeySource};

/// Runs models.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Asks a model. What goes wrong before or while it answers is the stream's last item.
    async fn ask(&self, request: Request) -> BoxStream<'static, Result<Piece, ModelError>>;

    /// The name of its protocol.
    fn kind(&self) -> &'static str;

    /// Whether its key is there now.
    fn key(&self) -> KeyPresence;
}

/// All that a model is told.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// The model, by its provider's name.
    pub model: String,
    /// What it is told beforehand.
    pub system: Option<String>,
    /// The conversation, first to last.
    pub turns: Vec<Turn>,
    /// The tools it may call.
    pub tools: Vec<ToolSpec>,
    /// How it answers.
    pub options: ModelOptions,
    /// What the ids of calls start with whose own are not fit to be kept: unique among all requests of a session.
    pub call_prefix: String,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub parts: Vec<Part>,
    /// What the provider gave with the message and demands back.
    pub private: Option<Value>,
}

/// One piece of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// A file.
    File {
        /// Its media type.
        mime_type: String,
        /// Its bytes, as base64.
        data: Arc<str>,
        /// Its name.
        name: Option<String>,
    },
    /// The model calls a tool.
    Call(Call),
    /// What a tool answered.
    Result {
        /// The call.
        id: String,
        /// The tool.
        name: String,
        /// The answer.
        text: String,
        /// True when it went wrong.
        is_error: bool,
    },
}

/// A tool call of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Its id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments: an object, or the text that could not be read as one.
    pub input: Value,
}

/// What a model is told of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub schema: Value,
}

/// How a model answers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelOptions {
    /// How much chance there is.
    pub temperature: Option<f64>,
    /// How long an answer may be, in tokens.
    pub max_tokens: Option<u32>,
    /// How much it thinks: a word such as `low`, `medium`, `high`, or a number of tokens.
    pub reasoning: Option<String>,
    /// How long it may be silent, in milliseconds.
    pub silence_ms: Option<u64>,
}

impl ModelOptions {
    /// These, with what `given` says instead: `temperature`, `maxTokens`, `reasoning`, `silenceMs`.
    pub fn with(&self, given: &Map<String, Value>) -> Result<Self, String> {
        let mut options = self.clone();
        for (name, value) in given {
            let bad = |must: &str| format!("modelOptions.{name}: {value} must be {must}");
            match name.as_str() {
                "temperature" => {
                    options.temperature = Some(value.as_f64().ok_or_else(|| bad("a number"))?);
                }
                "maxTokens" => {
                    let tokens = value.as_u64().and_then(|tokens| u32::try_from(tokens).ok());
                    options.max_tokens =
                        Some(tokens.filter(|many| *many > 0).ok_or_else(|| bad("a number of tokens"))?);
                }
                "reasoning" => {
                    let wish =
                        value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|n| n.to_string()));
                    options.reasoning = Some(wish.ok_or_else(|| bad("a word or a number of tokens"))?);
                }
                "silenceMs" => {
                    options.silence_ms = Some(value.as_u64().ok_or_else(|| bad("a number of milliseconds"))?);
                }
                _ => {
                    return Err(format!(
                        "modelOptions.{name} is unknown; there is temperature, maxTokens, reasoning, silenceMs"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text.
    Text(String),
    /// A thought.
    Thought(String),
    /// The answer is whole.
    Done(Box<Answer>),
}

/// What is known of an answer once it is whole; its text was streamed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The tools it calls, in order.
    pub calls: Vec<Call>,
    /// True when its length ended it.
    pub cut_off: bool,
    /// What the provider demands back with this message, as long as the run goes on.
    pub private: Option<Value>,
    /// What it used; its cost is not known here.
    pub usage: Usage,
    /// The same in the provider's own words.
    pub raw_usage: Value,
}
