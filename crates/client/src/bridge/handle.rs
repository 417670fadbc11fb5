//! Handles: whoever asks, and the stream of what it is answered.

use std::fmt;
use std::sync::Arc;

use mainspring_api::jsonl::{self, Authenticate, InvalidateSession, RefreshToken, Request, RequestLine};
use mainspring_core::{Mode, SessionId};

use super::process::RuntimeProcess;
use super::route::{Route, Tools};
use super::{BridgeError, CancelAck, QueryEvent, QueryIds, QueryResult, Surface, Warmup};

/// How a handle asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BridgeOptions {
    /// Its name: requests are unique within it, also later and in another process. A fresh one if none.
    pub client_id: Option<String>,
    /// For whom it asks; the process's default if none.
    pub owner: Option<String>,
    /// The adapter of its queries that name none; the process's default if none.
    pub adapter: Option<String>,
}

/// A query.
#[derive(Clone, Default)]
pub struct Query {
    /// What is said.
    pub prompt: String,
    /// The instructions.
    pub system_prompt: Option<String>,
    /// The canonical session, if it is known.
    pub session_id: Option<SessionId>,
    /// Where the conversation is shown: the same surface leads to the same session.
    pub surface: Option<Surface>,
    /// A compatibility alias of the session, and its scope; for callers that have no surface.
    pub legacy_key: Option<String>,
    /// The scope of the alias.
    pub legacy_scope: Option<String>,
    /// What the agent's runtime calls a session of its own that is to be gone on with, if this session is tied to none yet.
    pub legacy_adapter_session_id: Option<String>,
    /// The adapter; the handle's if none.
    pub adapter: Option<String>,
    /// The folder.
    pub cwd: Option<String>,
    /// Whether the agent may act.
    pub mode: Mode,
    /// The model.
    pub model: Option<String>,
    /// An image, in base64.
    pub image_base64: Option<String>,
    /// Its name: the same again is the same run. A fresh one if none.
    pub request_id: Option<String>,
    /// What answers calls of the host's tools; if none, they come as [`QueryEvent::ToolCall`].
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
    /// A prompt on a surface.
    pub fn new(surface: Surface, prompt: impl Into<String>) -> Self {
        Self { prompt: prompt.into(), surface: Some(surface), ..Self::default() }
    }
}

/// A handle that asks one thing at a time. Different handles ask side by side through one process.
pub struct AgentBridge {
    process: RuntimeProcess,
    client: String,
    options: BridgeOptions,
}

impl AgentBridge {
    pub(super) fn new(process: RuntimeProcess, options: BridgeOptions) -> Self {
        let client = options.client_id.clone().unwrap_or_else(|| fresh("bridge"));
        Self { process, client, options }
    }

    /// Its name, for as long as it lives.
    pub fn client_id(&self) -> &str {
        &self.client
    }

    /// The process that answers it.
    pub fn process(&self) -> &RuntimeProcess {
        &self.process
    }

    /// Asks. Refused while the handle has something under way.
    pub fn query(&self, query: Query) -> Result<QueryStream, BridgeError> {
        let request = query.request_id.clone().unwrap_or_else(|| fresh("query"));
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
            ..query.surface.as_ref().map(Surface::query).unwrap_or_default()
        };
        let line = self.line(Some(&request), Request::Query(Box::new(line)));
        let route = Arc::new(Route::new(self.client.clone(), request, line, query.tools));
        self.process.shared().ask(route.clone())?;
        Ok(QueryStream { route, _process: self.process.clone() })
    }

    /// Wishes what is under way to stop. Its end follows, as what it is: cancelled, or what it became before.
    pub async fn interrupt(&self) -> Result<CancelAck, BridgeError> {
        let shared = self.process.shared();
        let answer = shared.interrupt(&self.client)?;
        answer.await.map_err(|_| shared.unanswered())
    }

    /// What is under way: its request id and what it became so far.
    pub fn active(&self) -> Option<(String, QueryIds)> {
        let route = self.process.shared().active(&self.client)?;
        Some((route.request.clone(), route.ids()))
    }

    /// Hints what later queries of some session keys want. Makes nothing.
    pub fn warmup(&self, warmup: Warmup) {
        self.process.shared().warm(self.options.owner.as_deref(), warmup);
    }

    /// Has the agent's own session of a key not used again by later queries; the session stays. Gives the request's name: if
    /// it is refused, a [`super::Notice`] names it.
    pub fn invalidate_session(&self, session_key: &str) -> String {
        let request = fresh("invalidate");
        let line = self.line(
            Some(&request),
            Request::InvalidateSession(InvalidateSession { session_key: session_key.to_owned() }),
        );
        self.process.shared().invalidate(self.options.owner.as_deref(), session_key, line);
        request
    }

    /// Hands over a newer token of the owner's.
    pub fn refresh_token(&self, token: &str) {
        self.process
            .shared()
            .token(self.line(None, Request::RefreshToken(RefreshToken { token: token.to_owned() })));
    }

    /// Says how the user wants to authenticate. Resolves once the user has.
    pub async fn authenticate(&self, method_id: &str) -> Result<(), BridgeError> {
        let shared = self.process.shared();
        let request = fresh("login");
        let line = self
            .line(Some(&request), Request::Authenticate(Authenticate { method_id: method_id.to_owned() }));
        let answer = shared.log_in(request, line)?;
        answer.await.map_err(|_| shared.unanswered())?
    }

    fn line(&self, name: Option<&str>, request: Request) -> Vec<u8> {
        let line = RequestLine {
            request_id: name.map(str::to_owned),
            client_id: Some(self.client.to_string()),
            owner_id: self.options.owner.clone(),
            ..request.into()
        };
        line.encode()
    }
}

/// What a query is answered. Dropping it is not stopping the query: its run goes on.
pub struct QueryStream {
    route: Arc<Route>,
    _process: RuntimeProcess,
}

impl QueryStream {
    /// The name of the request.
    pub fn request_id(&self) -> &str {
        &self.route.request
    }

    /// What it became, as far as it is known.
    pub fn ids(&self) -> QueryIds {
        self.route.ids()
    }

    /// What happens next; none once the query has its end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<QueryEvent> {
        self.route.next().await
    }

    /// How it ended, once it has. What is still unread is passed over; calls of tools among it are told that nobody answers.
    pub async fn result(mut self) -> Result<QueryResult, BridgeError> {
        while self.next().await.is_some() {}
        self.route.take_end().unwrap_or(Err(BridgeError::Stopped))
    }
}

impl Drop for QueryStream {
    fn drop(&mut self) {
        self.route.leave();
    }
}

/// A name that nobody else has.
#[expect(
    clippy::disallowed_methods,
    reason = "a client has no kernel's ids; a name that came twice would be taken for the same request"
)]
fn fresh(kind: &str) -> String {
    let mut bytes = [0; 16];
    // Where the system has no random numbers, nothing at all runs.
    #[expect(clippy::expect_used, reason = "see above")]
    getrandom::fill(&mut bytes).expect("the operating system gives random numbers");
    format!("{kind}-{:032x}", u128::from_ne_bytes(bytes))
}
