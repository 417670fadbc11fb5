//! Providers: access to models behind one small trait.
//!
//! A request holds the whole conversation. The response is a stream of pieces that ends with [`Piece::Done`] or an
//! error. Dropping the stream cancels the request and closes its connection.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use mainspring_core::{KeyPresence, Role, Usage};
use serde_json::{Map, Value};

mod convert;
mod error;
mod frames;
mod genai;
mod key;

pub use error::{ErrorKind, ModelError};
pub use genai::{Connections, GenaiProvider, Kind, install_tls};
pub use key::{Key, KeySource};

/// Gives access to models.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Sends a request. An error before or during the response is the stream's last item.
    async fn stream(&self, request: Request) -> BoxStream<'static, Result<Piece, ModelError>>;

    /// Returns the name of the protocol.
    fn kind(&self) -> &'static str;

    /// Returns whether the key is present now.
    fn key(&self) -> KeyPresence;
}

/// A request to a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// The provider's name of the model.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The messages, in order.
    pub messages: Vec<RequestMessage>,
    /// The tools that the model may call.
    pub tools: Vec<ToolSpec>,
    /// The options.
    pub options: ModelOptions,
    /// The prefix of ids for tool calls whose own id cannot be used. Each step of a session has its own
    /// prefix, which the retries of the step share.
    pub call_prefix: String,
}

/// One message of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestMessage {
    /// The author.
    pub role: Role,
    /// The content.
    pub parts: Vec<Part>,
    /// Data of the provider that must be sent back with the message.
    pub private: Option<Value>,
}

impl RequestMessage {
    /// Creates a message of the user with one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, parts: vec![Part::Text(text.into())], private: None }
    }
}

/// One part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// A file.
    File {
        /// The media type.
        mime_type: String,
        /// The content, as base64.
        data: Arc<str>,
        /// The name.
        name: Option<String>,
    },
    /// A tool call of the model.
    ToolUse(ToolUse),
    /// The result of a tool call.
    ToolResult {
        /// The id of the call.
        id: String,
        /// The name of the tool.
        name: String,
        /// The result.
        text: String,
        /// True if the call failed.
        is_error: bool,
    },
}

/// A tool call of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    /// The id of the call.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments: an object, or the text that could not be parsed as one.
    pub input: Value,
}

/// The description of a tool for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// The name.
    pub name: String,
    /// The description.
    pub description: String,
    /// The JSON Schema of the arguments.
    pub schema: Value,
}

/// The options of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelOptions {
    /// The sampling temperature.
    pub temperature: Option<f64>,
    /// The maximum length of an answer, in tokens.
    pub max_tokens: Option<u32>,
    /// The reasoning effort: a word such as `low`, `medium`, `high`, or a number of tokens.
    pub reasoning: Option<String>,
    /// The maximum time without data from the provider, in milliseconds.
    pub silence_ms: Option<u64>,
}

impl ModelOptions {
    /// Overrides options with `given`: `temperature`, `maxTokens`, `reasoning`, `silenceMs`.
    pub fn merge(&self, given: &Map<String, Value>) -> Result<Self, String> {
        let mut options = self.clone();
        for (name, value) in given {
            let invalid = |expected: &str| format!("modelOptions.{name}: {value} must be {expected}");
            match name.as_str() {
                "temperature" => {
                    options.temperature = Some(value.as_f64().ok_or_else(|| invalid("a number"))?);
                }
                "maxTokens" => {
                    let tokens = value.as_u64().and_then(|tokens| u32::try_from(tokens).ok());
                    options.max_tokens = Some(
                        tokens.filter(|tokens| *tokens > 0).ok_or_else(|| invalid("a number of tokens"))?,
                    );
                }
                "reasoning" => {
                    let effort =
                        value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|n| n.to_string()));
                    options.reasoning = Some(effort.ok_or_else(|| invalid("a word or a number of tokens"))?);
                }
                "silenceMs" => {
                    options.silence_ms =
                        Some(value.as_u64().ok_or_else(|| invalid("a number of milliseconds"))?);
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

/// A piece of a streamed response.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text.
    Text(String),
    /// Thinking.
    Thinking(String),
    /// The response is complete.
    Done(Box<Completion>),
}

/// A complete response. Its text has been streamed before.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    /// The tool calls, in order.
    pub calls: Vec<ToolUse>,
    /// True if the maximum length ended the response.
    pub cut_off: bool,
    /// Data of the provider that must be sent back with this message until the run ends.
    pub private: Option<Value>,
    /// The token counts, without the cost.
    pub usage: Usage,
    /// The usage as the provider reported it.
    pub raw_usage: Value,
    /// Further facts that the provider reported about the response, without its text; null if there are none.
    pub raw: Value,
}
