//! Handles: they send queries and stream the replies.

use std::fmt;
use std::sync::Arc;

use mainspring_api::jsonl::{
    self, AnswerLine, Authenticate, InvalidateSession, RefreshToken, Request, RequestLine,
};
use mainspring_core::{Answer, Mode, SessionId, WaitId};

use super::process::RuntimeProcess;
use super::route::{Route, Tools};
use super::{BridgeError, CancelAck, QueryEvent, QueryIds, QueryResult, Surface, Warmup};

/// The options of a handle.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BridgeOptions {
    /// The client id. A request id names one query per client id, across processes and restarts. Generated if `None`.
    pub client_id: Option<String>,
    /// The owner of the queries; the process's default if `None`.
    pub owner: Option<String>,
    /// The adapter of queries that name none; the process's default if `None`.
    pub adapter: Option<String>,
}

/// A prompt and the session it belongs to.
#[derive(Clone, Default)]
pub struct Query {
    /// The text of the prompt.
    pub prompt: String,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The canonical session, if the caller knows it.
    pub session_id: Option<SessionId>,
    /// The place where the conversation is shown: the same surface always gives the same session.
    pub surface: Option<Surface>,
    /// A compatibility alias of the session, for callers without a surface.
    pub legacy_key: Option<String>,
    /// The scope of the alias.
    pub legacy_scope: Option<String>,
    /// The id of an existing native session to continue with, if the session has no binding yet.
    pub legacy_adapter_session_id: Option<String>,
    /// The adapter; the handle's if `None`.
    pub adapter: Option<String>,
    /// The working folder.
    pub cwd: Option<String>,
    /// The mode: the agent may act, or only answer.
    pub mode: Mode,
    /// The model; the adapter's default if `None`.
    pub model: Option<String>,
    /// An image, in base64.
    pub image_base64: Option<String>,
    /// The request id: a repeated id gives the same run. Generated if `None`.
    pub request_id: Option<String>,
    /// True to get the questions of the agent as [`QueryEvent::Question`] and answer them.
    pub questions: bool,
    /// The function that answers calls of the host's tools; if `None`, calls arrive as [`QueryEvent::ToolCall`].
    pub tools: Option<Tools>,
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query")
            .field("surface", &self.surface)
            .field("prompt", &self.prompt)
            .finish_non_exhaustive()
    }
}

impl Query {
    /// Creates a query with a prompt on a surface.
    pub fn new(surface: Surface, prompt: impl Into<String>) -> Self {
        Self { prompt: prompt.into(), surface: Some(surface), ..Self::default() }
    }
}

/// A handle with at most one active query. Different handles of one process work in parallel.
pub struct AgentBridge {
    process: RuntimeProcess,
    client: String,
    options: BridgeOptions,
}

impl AgentBridge {
    pub(super) fn new(process: RuntimeProcess, options: BridgeOptions) -> Self {
        let client = options.client_id.clone().unwrap_or_else(|| generate_id("bridge"));
        Self { process, client, options }
    }

    /// Returns the client id, which is the same for the lifetime of the handle.
    pub fn client_id(&self) -> &str {
        &self.client
    }

    /// Returns the process that serves the handle.
    pub fn process(&self) -> &RuntimeProcess {
        &self.process
    }

    /// Sends a query. Refused while the handle has an active query.
    pub fn query(&self, query: Query) -> Result<QueryStream, BridgeError> {
        let request = query.request_id.clone().unwrap_or_else(|| generate_id("query"));
        let line = jsonl::Query {
            prompt: query.prompt,
            system_prompt: Some(query.system_prompt.unwrap_or_default()),
            mode: Some(query.mode),
            adapter_id: query.adapter.or_else(|| self.options.adapter.clone()),
            session_id: query.session_id.map(|id| id.to_string()),
            legacy_client_scope: query.legacy_scope,
            legacy_session_key: query.legacy_key,
            legacy_adapter_session_id: query.legacy_adapter_session_id,
            cwd: query.cwd,
            model: query.model,
            image_base64: query.image_base64,
            questions: query.questions.then_some(true),
            ..query.surface.as_ref().map(Surface::query).unwrap_or_default()
        };
        let line = self.encode_line(Some(&request), Request::Query(Box::new(line)));
        let route = Arc::new(Route::new(self.client.clone(), request, line, query.tools));
        self.process.shared().send_query(route.clone())?;
        Ok(QueryStream { route, _process: self.process.clone() })
    }

    /// Asks the active query to stop. The query's actual end follows: cancelled, or its outcome if it ended before.
    pub async fn interrupt(&self) -> Result<CancelAck, BridgeError> {
        let shared = self.process.shared();
        let answer = shared.interrupt(&self.client)?;
        answer.await.map_err(|_| shared.unanswered_error())
    }

    /// Answers a question of the active query. Acceptance or refusal follows as [`QueryEvent::AnswerAck`].
    pub fn answer(&self, wait_id: WaitId, answer: Answer) -> Result<(), BridgeError> {
        let shared = self.process.shared();
        let route = shared.active(&self.client).ok_or(BridgeError::Idle)?;
        let line = Request::Answer(AnswerLine { wait_id, answer });
        shared.send_line(&self.encode_line(Some(&route.request), line))
    }

    /// Returns the request id of the active query and the ids known so far.
    pub fn active(&self) -> Option<(String, QueryIds)> {
        let route = self.process.shared().active(&self.client)?;
        Some((route.request.clone(), route.ids()))
    }

    /// Announces the settings of later queries by session key. Creates nothing.
    pub fn warmup(&self, warmup: Warmup) {
        self.process.shared().send_warmup(self.options.owner.as_deref(), warmup);
    }

    /// Invalidates the binding of a session key; the session stays. Returns the request id: a refusal arrives as a
    /// [`super::Notice`] with this id.
    pub fn invalidate_session(&self, session_key: &str) -> String {
        let request = generate_id("invalidate");
        let line = self.encode_line(
            Some(&request),
            Request::InvalidateSession(InvalidateSession { session_key: session_key.to_owned() }),
        );
        self.process.shared().invalidate(self.options.owner.as_deref(), session_key, line);
        request
    }

    /// Passes on a newer token of the owner.
    pub fn refresh_token(&self, token: &str) {
        self.process.shared().refresh_token(
            self.encode_line(None, Request::RefreshToken(RefreshToken { token: token.to_owned() })),
        );
    }

    /// Chooses the user's authentication method. Resolves once the user has authenticated.
    pub async fn authenticate(&self, method_id: &str) -> Result<(), BridgeError> {
        let shared = self.process.shared();
        let request = generate_id("login");
        let line = self.encode_line(
            Some(&request),
            Request::Authenticate(Authenticate { method_id: method_id.to_owned() }),
        );
        let answer = shared.authenticate(request, line)?;
        answer.await.map_err(|_| shared.unanswered_error())?
    }

    fn encode_line(&self, request_id: Option<&str>, request: Request) -> Vec<u8> {
        let line = RequestLine {
            request_id: request_id.map(str::to_owned),
            client_id: Some(self.client.to_string()),
            owner_id: self.options.owner.clone(),
            ..request.into()
        };
        line.encode()
    }
}

/// The events of a query. Dropping the stream does not stop the query: its run continues.
pub struct QueryStream {
    route: Arc<Route>,
    _process: RuntimeProcess,
}

impl QueryStream {
    /// Returns the request id.
    pub fn request_id(&self) -> &str {
        &self.route.request
    }

    /// Returns the ids of the query, as far as they are known.
    pub fn ids(&self) -> QueryIds {
        self.route.ids()
    }

    /// Waits for the next event; `None` once the query has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<QueryEvent> {
        self.route.next().await
    }

    /// Waits for the end of the query. Unread events are discarded; a discarded tool call is answered with an
    /// error.
    pub async fn result(mut self) -> Result<QueryResult, BridgeError> {
        while self.next().await.is_some() {}
        self.route.take_end().unwrap_or(Err(BridgeError::Stopped))
    }
}

impl Drop for QueryStream {
    fn drop(&mut self) {
        self.route.discard_events();
    }
}

/// Generates a unique id.
#[expect(clippy::disallowed_methods, reason = "a client does not have the kernel's source of ids")]
fn generate_id(kind: &str) -> String {
    let mut bytes = [0; 16];
    // A system without random numbers cannot run anything.
    #[expect(clippy::expect_used, reason = "see above")]
    getrandom::fill(&mut bytes).expect("the operating system provides random numbers");
    format!("{kind}-{:032x}", u128::from_ne_bytes(bytes))
}
