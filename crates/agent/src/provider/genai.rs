//! The provider that speaks four protocols through the `genai` client.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use genai::adapter::AdapterKind;
use genai::chat::{ChatOptions, ChatStream, ChatStreamEvent, ReasoningEffort, StopReason, StreamEnd};
use genai::resolver::{AuthData, Endpoint};
use genai::{Client, ModelIden, ServiceTarget};
use mainspring_core::KeyPresence;
use serde_json::json;

use super::error::seconds;
use super::peek::Peek;
use super::{Answer, ErrorKind, Key, KeySource, ModelError, ModelOptions, Piece, Provider, Request, convert};

/// Which protocol a provider speaks.
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

    /// Where its own company serves it.
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

    /// Whether an answer that only stops, without a reason, was broken off: these two protocols always give one, and
    /// the library makes an end of every stream.
    const fn gives_reason(self) -> bool {
        matches!(self, Self::OpenAiResponses | Self::Gemini)
    }
}

/// A provider: a protocol, a place and a key.
#[derive(Debug, Clone)]
pub struct GenaiProvider {
    name: String,
    kind: Kind,
    endpoint: Endpoint,
    key: KeySource,
    connections: Connections,
}

/// Chooses the one TLS of the process: rustls with ring. Whoever builds an HTTP client calls this first, also one that
/// never uses TLS; if somebody has chosen already, theirs it is.
pub fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// What providers share: connections. They cost nothing until the first request.
#[derive(Debug, Clone, Default)]
pub struct Connections {
    open: Arc<OnceLock<Result<Client, ModelError>>>,
    direct: bool,
}

impl Connections {
    /// Connections that no proxy stands in the way of: to this very machine.
    pub fn direct() -> Self {
        Self { direct: true, ..Self::default() }
    }

    fn client(&self) -> Result<Client, ModelError> {
        let wrong = |error: String| ModelError::new(ErrorKind::Invalid, error);
        let make = || {
            install_tls();
            let http = reqwest::Client::builder().tcp_nodelay(true).connect_timeout(Duration::from_secs(20));
            let http = if self.direct { http.no_proxy() } else { http };
            let http = http.build().map_err(|error| wrong(error.to_string()))?;
            Client::builder().with_reqwest(http).build().map_err(|error| wrong(error.to_string()))
        };
        self.open.get_or_init(make).clone()
    }
}

impl GenaiProvider {
    /// The provider `name` at `base_url`.
    pub fn new(name: &str, kind: Kind, base_url: &str, key: KeySource, connections: &Connections) -> Self {
        let endpoint = Endpoint::from_owned(format!("{}/", base_url.trim_end_matches('/')));
        Self { name: name.into(), kind, endpoint, key, connections: connections.clone() }
    }

    async fn open(&self, request: &Request) -> Result<Answering, ModelError> {
        let key = self.key.read(&self.name)?;
        let peek = Peek::default();
        let options = self.options(&request.model, &request.options).with_raw_frame_fn(peek.sink());
        let target = ServiceTarget {
            endpoint: self.endpoint.clone(),
            auth: AuthData::Key(key.reveal().to_owned()),
            model: ModelIden::new(self.kind.adapter(), request.model.clone()),
        };
        let chat = convert::request(self.kind, request);
        let opened = self.connections.client()?.exec_chat_stream(target, chat, Some(&options)).await;
        let answering =
            Answering { kind: self.kind, key, peek, names: convert::Names::of(request), stream: None };
        match opened {
            Ok(opened) => Ok(Answering { stream: Some(opened.stream), ..answering }),
            Err(error) => Err(answering.error(&error)),
        }
    }

    fn options(&self, model: &str, given: &ModelOptions) -> ChatOptions {
        // To ask for its reasoning is refused by models that have none.
        let reasons = self.kind != Kind::OpenAiResponses || given.reasoning.is_some();
        let mut options = ChatOptions::default()
            .with_capture_usage(true)
            .with_capture_tool_calls(true)
            .with_capture_reasoning_content(reasons)
            .with_stream_header_timeout(Duration::from_millis(given.silence_ms.unwrap_or(SILENCE)))
            .with_stream_read_timeout(Duration::from_millis(given.silence_ms.unwrap_or(SILENCE)));
        options.temperature = given.temperature;
        options.max_tokens = given.max_tokens;
        options.reasoning_effort = given.reasoning.as_deref().and_then(|effort| effort.parse().ok());
        let misread =
            ReasoningEffort::from_model_name(model).0.is_some() && options.reasoning_effort.is_none();
        if misread && self.kind == Kind::OpenAi {
            // The library takes the end of a name such as `qwen-max` for a wish.
            options.extra_body = Some(json!({"model": model, "reasoning_effort": null}));
        }
        options
    }
}

/// How long a model may be silent, in milliseconds.
const SILENCE: u64 = 300_000;

#[async_trait]
impl Provider for GenaiProvider {
    fn kind(&self) -> &'static str {
        let named = Kind::ALL.iter().find(|(_, kind)| *kind == self.kind);
        named.map_or("unknown", |(name, _)| name)
    }

    fn key(&self) -> KeyPresence {
        self.key.presence()
    }

    async fn ask(&self, request: Request) -> BoxStream<'static, Result<Piece, ModelError>> {
        match self.open(&request).await {
            Ok(answering) => stream::unfold(Some(answering), |answering| async move {
                let mut answering = answering?;
                let piece = answering.next().await;
                let over = !matches!(piece, Ok(Piece::Text(_) | Piece::Thought(_)));
                Some((piece, (!over).then_some(answering)))
            })
            .boxed(),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }
}

/// An answer that is coming.
struct Answering {
    kind: Kind,
    key: Key,
    peek: Peek,
    names: convert::Names,
    stream: Option<ChatStream>,
}

impl Answering {
    async fn next(&mut self) -> Result<Piece, ModelError> {
        let broken = || ModelError::new(ErrorKind::Broken, "the provider's answer broke off");
        let stream = self.stream.as_mut().ok_or_else(broken)?;
        loop {
            match stream.next().await {
                Some(Ok(ChatStreamEvent::Chunk(chunk))) => return Ok(Piece::Text(chunk.content)),
                Some(Ok(ChatStreamEvent::ReasoningChunk(chunk))) => return Ok(Piece::Thought(chunk.content)),
                Some(Ok(ChatStreamEvent::End(end))) => return self.whole(&end),
                Some(Ok(
                    ChatStreamEvent::Start
                    | ChatStreamEvent::Heartbeat
                    | ChatStreamEvent::ThoughtSignatureChunk(_)
                    | ChatStreamEvent::ToolCallChunk(_),
                )) => {}
                Some(Err(error)) => return Err(self.error(&error)),
                None => return Err(broken()),
            }
        }
    }

    fn whole(&mut self, end: &StreamEnd) -> Result<Piece, ModelError> {
        let stop = end.captured_stop_reason.as_ref();
        if self.peek.refused() || matches!(stop, Some(StopReason::ContentFilter(_))) {
            return Err(ModelError::new(
                ErrorKind::Refused,
                "the model refused to answer; ask in another way",
            ));
        }
        if stop.is_none() && self.kind.gives_reason() {
            return Err(ModelError::new(ErrorKind::Broken, "the provider's answer broke off"));
        }
        let (calls, private) = convert::calls(end, &mut self.names);
        Ok(Piece::Done(Box::new(Answer {
            calls,
            cut_off: stop.is_some_and(StopReason::is_max_tokens),
            private,
            usage: end.captured_usage.as_ref().map(convert::usage).unwrap_or_default(),
            raw_usage: self.peek.usage(),
        })))
    }

    /// What went wrong, without the key in it.
    fn error(&self, error: &genai::Error) -> ModelError {
        let mut known = match self.peek.failed() {
            Some(failed) => ModelError::of_answer(None, &failed),
            None => told(error),
        };
        known.message = self.key.redact(&known.message);
        known
    }
}

fn told(error: &genai::Error) -> ModelError {
    use genai::Error;
    match error {
        // A stream's error wraps what its connection said.
        Error::WebStream { error, cause, .. } => match error.downcast_ref::<Error>() {
            Some(inner) => told(inner),
            None => {
                ModelError::new(ErrorKind::Broken, format!("the connection to the provider failed: {cause}"))
            }
        },
        Error::HttpError { status, body, headers, .. } => {
            let mut known = ModelError::of_answer(Some(status.as_u16()), body);
            let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let millis = header("retry-after-ms").and_then(|text| text.trim().parse().ok());
            known.retry_after =
                millis.or_else(|| header("retry-after").and_then(seconds)).or(known.retry_after);
            known
        }
        Error::ChatResponse { body, .. } => ModelError::of_answer(None, &body.to_string()),
        Error::StreamParse { .. } | Error::WebModelCall { .. } | Error::WebAdapterCall { .. } => {
            ModelError::new(ErrorKind::Broken, "the provider's answer cannot be understood")
        }
        other => {
            let shown: String = other.to_string().chars().take(300).collect();
            ModelError::new(ErrorKind::Invalid, format!("the request cannot be made: {shown}"))
        }
    }
}
