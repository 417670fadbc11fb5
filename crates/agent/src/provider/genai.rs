//! The provider that speaks four protocols through the `genai` client.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use genai::adapter::AdapterKind;
use genai::chat::{ChatOptions, ChatStream, ChatStreamEvent, ReasoningEffort, StopReason, StreamEnd};
use genai::resolver::{AuthData, Endpoint};
use genai::{Client, ModelIden, ServiceTarget};
use mainspring_core::{KeyPresence, Usage};
use serde_json::{Map, Value, json};

use super::error::parse_seconds;
use super::frames::FrameObserver;
use super::{
    Completion, ErrorKind, Key, KeySource, ModelError, ModelOptions, Piece, Provider, Request, convert,
};

/// The protocol of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions, or any server that speaks it.
    OpenAi,
    /// OpenAI Responses.
    OpenAiResponses,
    /// Gemini.
    Gemini,
}

impl Kind {
    /// Every kind and its name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("anthropic", Self::Anthropic),
        ("openai", Self::OpenAi),
        ("openai-responses", Self::OpenAiResponses),
        ("gemini", Self::Gemini),
    ];

    /// Returns the official base URL.
    pub const fn base_url(self) -> &'static str {
        match self {
            Self::Anthropic => "https://api.anthropic.com/v1/",
            Self::OpenAi | Self::OpenAiResponses => "https://api.openai.com/v1/",
            Self::Gemini => "https://generativelanguage.googleapis.com/v1beta/",
        }
    }

    const fn adapter(self) -> AdapterKind {
        match self {
            Self::Anthropic => AdapterKind::Anthropic,
            Self::OpenAi => AdapterKind::OpenAI,
            Self::OpenAiResponses => AdapterKind::OpenAIResp,
            Self::Gemini => AdapterKind::Gemini,
        }
    }

    /// Returns true if a response without a stop reason is incomplete: these two protocols always send one, and the
    /// client reports an end for every stream, also for an interrupted one.
    const fn always_sends_stop_reason(self) -> bool {
        matches!(self, Self::OpenAiResponses | Self::Gemini)
    }
}

/// A provider: a protocol, a base URL and a key.
#[derive(Debug, Clone)]
pub struct GenaiProvider {
    name: String,
    kind: Kind,
    endpoint: Endpoint,
    key: KeySource,
    connections: Connections,
}

/// Installs the TLS provider of the process, rustls with ring, unless one is installed already. Call it before building
/// any HTTP client, also one that never uses TLS.
pub fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The HTTP connections that providers share. The client is built for the first request.
#[derive(Debug, Clone, Default)]
pub struct Connections {
    client: Arc<OnceLock<Result<Client, ModelError>>>,
    direct: bool,
}

impl Connections {
    /// Connections without a proxy, for servers on this machine.
    pub fn direct() -> Self {
        Self { direct: true, ..Self::default() }
    }

    fn client(&self) -> Result<Client, ModelError> {
        let invalid = |error: String| ModelError::new(ErrorKind::Invalid, error);
        let make = || {
            install_tls();
            let http = reqwest::Client::builder().tcp_nodelay(true).connect_timeout(Duration::from_secs(20));
            let http = if self.direct { http.no_proxy() } else { http };
            let http = http.build().map_err(|error| invalid(error.to_string()))?;
            Client::builder().with_reqwest(http).build().map_err(|error| invalid(error.to_string()))
        };
        self.client.get_or_init(make).clone()
    }
}

impl GenaiProvider {
    /// The provider `name` at `base_url`.
    pub fn new(name: &str, kind: Kind, base_url: &str, key: KeySource, connections: &Connections) -> Self {
        let endpoint = Endpoint::from_owned(format!("{}/", base_url.trim_end_matches('/')));
        Self { name: name.into(), kind, endpoint, key, connections: connections.clone() }
    }

    async fn open(&self, request: &Request) -> Result<ResponseStream, ModelError> {
        let key = self.key.read(&self.name)?;
        let frames = FrameObserver::default();
        let options = self.options(&request.model, &request.options).with_raw_frame_fn(frames.callback());
        let target = ServiceTarget {
            endpoint: self.endpoint.clone(),
            auth: AuthData::Key(key.reveal().to_owned()),
            model: ModelIden::new(self.kind.adapter(), request.model.clone()),
        };
        let chat = convert::request(self.kind, request);
        let opened = self.connections.client()?.exec_chat_stream(target, chat, Some(&options)).await;
        let response =
            ResponseStream { kind: self.kind, key, frames, ids: convert::CallIds::of(request), stream: None };
        match opened {
            Ok(opened) => Ok(ResponseStream { stream: Some(opened.stream), ..response }),
            Err(error) => Err(response.error(&error)),
        }
    }

    fn options(&self, model: &str, given: &ModelOptions) -> ChatOptions {
        // Models without reasoning reject a request that asks for it.
        let capture_reasoning = self.kind != Kind::OpenAiResponses || given.reasoning.is_some();
        let silence = Duration::from_millis(given.silence_ms.unwrap_or(DEFAULT_SILENCE_MS));
        let mut options = ChatOptions::default()
            .with_capture_usage(true)
            .with_capture_tool_calls(true)
            .with_capture_reasoning_content(capture_reasoning)
            .with_stream_header_timeout(silence)
            .with_stream_read_timeout(silence);
        options.temperature = given.temperature;
        options.max_tokens = given.max_tokens;
        options.reasoning_effort = given.reasoning.as_deref().and_then(|effort| effort.parse().ok());
        let misread =
            ReasoningEffort::from_model_name(model).0.is_some() && options.reasoning_effort.is_none();
        if misread && self.kind == Kind::OpenAi {
            // The client takes the suffix of a name such as `qwen-max` for a reasoning effort.
            options.extra_body = Some(json!({"model": model, "reasoning_effort": null}));
        }
        options
    }
}

/// The default of [`ModelOptions::silence_ms`].
const DEFAULT_SILENCE_MS: u64 = 300_000;

#[async_trait]
impl Provider for GenaiProvider {
    fn kind(&self) -> &'static str {
        let known = Kind::ALL.iter().find(|(_, kind)| *kind == self.kind);
        known.map_or("unknown", |(name, _)| name)
    }

    fn key(&self) -> KeyPresence {
        self.key.presence()
    }

    async fn stream(&self, request: Request) -> BoxStream<'static, Result<Piece, ModelError>> {
        match self.open(&request).await {
            Ok(response) => stream::unfold(Some(response), |response| async move {
                let mut response = response?;
                let piece = response.next().await;
                let is_last = !matches!(piece, Ok(Piece::Text(_) | Piece::Thinking(_)));
                Some((piece, (!is_last).then_some(response)))
            })
            .boxed(),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }
}

/// A response that is being received.
struct ResponseStream {
    kind: Kind,
    key: Key,
    frames: FrameObserver,
    ids: convert::CallIds,
    stream: Option<ChatStream>,
}

impl ResponseStream {
    async fn next(&mut self) -> Result<Piece, ModelError> {
        let stream = self.stream.as_mut().ok_or_else(ModelError::connection_closed)?;
        loop {
            match stream.next().await {
                Some(Ok(ChatStreamEvent::Chunk(chunk))) => return Ok(Piece::Text(chunk.content)),
                Some(Ok(ChatStreamEvent::ReasoningChunk(chunk))) => {
                    return Ok(Piece::Thinking(chunk.content));
                }
                Some(Ok(ChatStreamEvent::End(end))) => return self.complete(&end),
                Some(Ok(
                    ChatStreamEvent::Start
                    | ChatStreamEvent::Heartbeat
                    | ChatStreamEvent::ThoughtSignatureChunk(_)
                    | ChatStreamEvent::ToolCallChunk(_),
                )) => {}
                Some(Err(error)) => return Err(self.error(&error)),
                None => return Err(ModelError::connection_closed()),
            }
        }
    }

    fn complete(&mut self, end: &StreamEnd) -> Result<Piece, ModelError> {
        let stop = end.captured_stop_reason.as_ref();
        if self.frames.refused() || matches!(stop, Some(StopReason::ContentFilter(_))) {
            return Err(ModelError::new(
                ErrorKind::Refused,
                "the model refused to answer; rephrase the prompt",
            ));
        }
        if stop.is_none() && self.kind.always_sends_stop_reason() {
            return Err(ModelError::connection_closed());
        }
        let (calls, private) = convert::tool_uses(end, &mut self.ids);
        Ok(Piece::Done(Box::new(Completion {
            calls,
            cut_off: stop.is_some_and(StopReason::is_max_tokens),
            private,
            // Some servers that speak Chat Completions send no usage with a stream.
            usage: end.captured_usage.as_ref().map_or(Usage::UNKNOWN, convert::usage),
            raw_usage: self.frames.usage(),
            raw: raw(end),
        })))
    }

    /// Converts an error and removes the key from it.
    fn error(&self, error: &genai::Error) -> ModelError {
        let mut error = match self.frames.failed() {
            Some(failed) => ModelError::from_response(None, &failed),
            None => classify(error),
        };
        error.message = self.key.redact(&error.message);
        error
    }
}

/// The facts about the end of a response, in the provider's words.
fn raw(end: &StreamEnd) -> Value {
    let stop = end.captured_stop_reason.as_ref().map(|stop| stop.raw().to_owned());
    let facts = [("stopReason", stop), ("responseId", end.captured_response_id.clone())];
    let facts: Map<String, Value> =
        facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), Value::from(fact?)))).collect();
    if facts.is_empty() { Value::Null } else { Value::Object(facts) }
}

fn classify(error: &genai::Error) -> ModelError {
    use genai::Error;
    match error {
        // An error of the stream wraps the error of its connection.
        Error::WebStream { error, cause, .. } => match error.downcast_ref::<Error>() {
            Some(inner) => classify(inner),
            None => {
                ModelError::new(ErrorKind::Broken, format!("the connection to the provider failed: {cause}"))
            }
        },
        Error::HttpError { status, body, headers, .. } => {
            let mut error = ModelError::from_response(Some(status.as_u16()), body);
            let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let millis = header("retry-after-ms").and_then(|text| text.trim().parse().ok());
            error.retry_after_ms =
                millis.or_else(|| header("retry-after").and_then(parse_seconds)).or(error.retry_after_ms);
            error
        }
        Error::ChatResponse { body, .. } => ModelError::from_response(None, &body.to_string()),
        Error::StreamParse { .. } | Error::WebModelCall { .. } | Error::WebAdapterCall { .. } => {
            ModelError::new(ErrorKind::Broken, "the provider's response cannot be parsed")
        }
        other => {
            let excerpt: String = other.to_string().chars().take(300).collect();
            ModelError::new(ErrorKind::Invalid, format!("the request cannot be made: {excerpt}"))
        }
    }
}
