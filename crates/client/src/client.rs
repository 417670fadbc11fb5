//! The verbs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use mainspring_core::limits::check_text;
use mainspring_core::{
    AgentDefinition, Answer, ApiKey, Artifact, Attempt, AuthMethod, Binding, DelegationId, Event, Grant,
    KeyId, Message, MessageId, ModelList, Position, Run, RunId, RunStatus, Session, WaitId,
};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    Accepted, Adoption, Agent, Cancellation, Delegate, Delegated, Error, Events, Feed, Fork, Hit, Kin,
    Listed, MadeKey, NewArtifact, NewKey, OwnerEvents, Page, Problem, Prompt, RunList, SessionAdopted,
    SessionChanges, SessionList, Settled, Snapshot, Socket, Start, Started, TOKEN, Target, TreeNode,
};

/// How long it may take until somebody answers at all.
const CONNECT: Duration = Duration::from_secs(5);

/// A server and the right to talk to it. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    at: Arc<str>,
    secret: Arc<str>,
    owner: Option<Arc<str>>,
    /// What it talks to has an address for as long as this lives.
    _socket: Option<Arc<Socket>>,
}

impl Client {
    /// A server at an address such as `http://127.0.0.1:7433`, for whom `secret` (a token or a key) stands.
    pub fn over_tcp(url: &str, secret: &str) -> Result<Self, Error> {
        let base = Url::parse(url)
            .ok()
            .filter(|base| base.has_host() && matches!(base.scheme(), "http" | "https"))
            .ok_or_else(|| {
                Error::Invalid(format!("{url:?} is not the address of a server: http://HOST:PORT"))
            })?;
        Self::new(reqwest::Client::builder(), base, url.into(), secret)
    }

    /// The server of a state directory, on its socket.
    pub fn over_socket(socket: &Path, secret: &str) -> Result<Self, Error> {
        let base = Url::parse("http://localhost").map_err(|error| Error::Invalid(error.to_string()))?;
        let at = socket.display().to_string();
        Self::new(reqwest::Client::builder().unix_socket(socket), base, at.into(), secret)
    }

    /// The server of a state directory, on its socket, with its token. Somebody must serve there, or have served.
    pub fn of_state_dir(state_dir: &Path) -> Result<Self, Error> {
        let token = state_dir.join(TOKEN);
        let secret = std::fs::read_to_string(&token)
            .map_err(|error| Error::Invalid(format!("{} cannot be read: {error}", token.display())))?;
        let socket = Socket::of(state_dir);
        let client = Self::over_socket(socket.address(), secret.trim())?;
        Ok(Self { at: socket.path().display().to_string().into(), _socket: Some(Arc::new(socket)), ..client })
    }

    fn new(builder: reqwest::ClientBuilder, base: Url, at: Arc<str>, secret: &str) -> Result<Self, Error> {
        // The one TLS of the process; if somebody has chosen already, theirs it is.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // No proxy: a server on this machine or one that was named is meant.
        let http = builder.connect_timeout(CONNECT).no_proxy().build();
        let http = http.map_err(|error| Error::Invalid(format!("no HTTP client: {error}")))?;
        Ok(Self { http, base, at, secret: secret.into(), owner: None, _socket: None })
    }

    /// Acts for `owner`. Only the state directory's token may.
    pub fn for_owner(self, owner: &str) -> Self {
        Self { owner: Some(owner.into()), ..self }
    }

    /// Fails if the server cannot do its work.
    pub async fn ready(&self) -> Result<(), Error> {
        self.send(self.request(Method::GET, &["ready"])).await.map(drop)
    }

    /// The session that `target` names; a new one if there is none. Says whether it was made.
    pub async fn session_open(&self, target: &Target) -> Result<(Session, bool), Error> {
        let response = self.send(self.request(Method::POST, &["v1", "sessions"]).json(target)).await?;
        let made = response.status() == StatusCode::CREATED;
        Ok((self.read(response).await?, made))
    }

    /// The same, and the same `name` again gives the same session.
    pub async fn session_open_once(&self, target: &Target, name: &str) -> Result<Session, Error> {
        let request = self.request(Method::POST, &["v1", "sessions"]).json(target);
        self.read(self.send(request.header("idempotency-key", name)).await?).await
    }

    /// Starts a session: makes one whose name must be free, or loads one that must be there. Loading writes nothing.
    pub async fn session_start(&self, start: &Start) -> Result<Started, Error> {
        self.post(&["v1", "sessions"], start).await
    }

    /// One session, by id or key.
    pub async fn session_get(&self, session: &str) -> Result<Session, Error> {
        self.get(&["v1", "sessions", session], &()).await
    }

    /// Sessions, the latest activity first.
    pub async fn session_list(&self, list: &SessionList) -> Result<Page<Listed>, Error> {
        self.get(&["v1", "sessions"], list).await
    }

    /// The session at one instant.
    pub async fn session_snapshot(&self, session: &str) -> Result<Snapshot, Error> {
        self.get(&["v1", "sessions", session, "snapshot"], &()).await
    }

    /// Changes a session; with `version` only if nobody else has meanwhile.
    pub async fn session_patch(
        &self,
        session: &str,
        changes: &SessionChanges,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        let mut request = self.request(Method::PATCH, &["v1", "sessions", session]).json(changes);
        if let Some(version) = version {
            request = request.header("if-match", format!("\"{version}\""));
        }
        self.read(self.send(request).await?).await
    }

    /// Deletes a session and everything of it.
    pub async fn session_delete(&self, session: &str) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, &["v1", "sessions", session])).await.map(drop)
    }

    /// The last `limit` messages of the active path above depth `before`, root first.
    pub async fn session_messages(
        &self,
        session: &str,
        before: Option<u32>,
        limit: Option<usize>,
    ) -> Result<Vec<Message>, Error> {
        let query = [("before", before.map(|depth| depth.to_string())), ("limit", text(limit))];
        let page: Page<Message> = self.get(&["v1", "sessions", session, "messages"], &given(query)).await?;
        Ok(page.items)
    }

    /// A page of a session's tree: messages with their places, parents before children.
    pub async fn session_tree(
        &self,
        session: &str,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Page<TreeNode>, Error> {
        let query = [("after", after.map(str::to_owned)), ("limit", text(limit))];
        self.get(&["v1", "sessions", session, "tree"], &given(query)).await
    }

    /// One message and its place.
    pub async fn session_message(&self, session: &str, message: MessageId) -> Result<TreeNode, Error> {
        self.get(&["v1", "sessions", session, "messages", &message.to_string()], &()).await
    }

    /// Moves the active path to end at `message`, or to be empty.
    pub async fn session_navigate(
        &self,
        session: &str,
        message: Option<MessageId>,
    ) -> Result<Session, Error> {
        self.post(&["v1", "sessions", session, "navigate"], &json!({"messageId": message})).await
    }

    /// A new session that goes on from a message of this one. The same `name` again gives the same fork.
    pub async fn session_fork(&self, session: &str, fork: &Fork, name: &str) -> Result<Session, Error> {
        let request = self.request(Method::POST, &["v1", "sessions", session, "fork"]).json(fork);
        self.read(self.send(request.header("idempotency-key", name)).await?).await
    }

    /// Sessions and messages that hold the words of `query`.
    pub async fn session_search(
        &self,
        query: &str,
        before: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Page<Hit>, Error> {
        let query =
            [("q", Some(query.to_owned())), ("before", before.map(str::to_owned)), ("limit", text(limit))];
        self.get(&["v1", "search"], &given(query)).await
    }

    /// A session as a file of JSON Lines, piece by piece. A file without its last line is not whole.
    pub async fn session_export(
        &self,
        session: &str,
    ) -> Result<impl Stream<Item = Result<Vec<u8>, Error>> + Send + use<>, Error> {
        let response = self.send(self.request(Method::GET, &["v1", "sessions", session, "export"])).await?;
        let client = self.clone();
        Ok(response.bytes_stream().map(move |piece| match piece {
            Ok(piece) => Ok(piece.to_vec()),
            Err(error) => Err(client.failed(error)),
        }))
    }

    /// Makes a session of a file, all of it or nothing.
    pub async fn session_import(&self, file: Vec<u8>) -> Result<Session, Error> {
        let request = self.request(Method::POST, &["v1", "import"]).header(CONTENT_TYPE, "application/jsonl");
        self.read(self.send(request.body(file)).await?).await
    }

    /// A page of a session's events.
    pub async fn session_history(
        &self,
        session: &str,
        after: Position,
        limit: Option<usize>,
    ) -> Result<Page<Event>, Error> {
        let query = [("after", Some(after.to_string())), ("limit", text(limit))];
        self.get(&["v1", "sessions", session, "events"], &given(query)).await
    }

    /// Everything that happens in a session after `from`, streamed text included.
    pub fn session_events(&self, session: &str, from: Position) -> Events {
        Events::of_session(self.clone(), session, from)
    }

    /// Accepts a prompt: exactly one run for it, however often it is sent under the same name.
    pub async fn run_create(&self, prompt: &Prompt) -> Result<Accepted, Error> {
        let mut request = self.request(Method::POST, &["v1", "runs"]).json(prompt);
        if let Some(key) = &prompt.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        self.read(self.send(request).await?).await
    }

    /// One run.
    pub async fn run_get(&self, run: RunId) -> Result<Run, Error> {
        self.get(&["v1", "runs", &run.to_string()], &()).await
    }

    /// Runs, the newest first; of one session or status if given.
    pub async fn run_list(
        &self,
        session: Option<&str>,
        status: Option<RunStatus>,
        limit: Option<usize>,
    ) -> Result<Page<Run>, Error> {
        let list = RunList { session: session.map(str::to_owned), status, limit, before: None };
        self.run_page(&list).await
    }

    /// A page of runs, the newest first.
    pub async fn run_page(&self, list: &RunList) -> Result<Page<Run>, Error> {
        self.get(&["v1", "runs"], list).await
    }

    /// What a run may do, as far as it was decided beforehand.
    pub async fn run_grants(&self, run: RunId) -> Result<Vec<Grant>, Error> {
        let page: Page<Grant> = self.get(&["v1", "runs", &run.to_string(), "grants"], &()).await?;
        Ok(page.items)
    }

    /// Hands work of a run that is at work to a session of its own.
    pub async fn run_delegate(&self, run: RunId, delegate: &Delegate) -> Result<Delegated, Error> {
        let path = ["v1", "runs", &run.to_string(), "delegations"];
        let mut request = self.request(Method::POST, &path).json(delegate);
        if let Some(key) = &delegate.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        self.read(self.send(request).await?).await
    }

    /// The delegations around a run: the one that made it, and those it has made.
    pub async fn run_delegations(&self, run: RunId) -> Result<Kin, Error> {
        self.get(&["v1", "runs", &run.to_string(), "delegations"], &()).await
    }

    /// A delegation, and what came of it.
    pub async fn delegation_get(&self, delegation: DelegationId) -> Result<Settled, Error> {
        self.get(&["v1", "delegations", &delegation.to_string()], &()).await
    }

    /// The attempts of a run, the first first.
    pub async fn run_attempts(&self, run: RunId) -> Result<Vec<Attempt>, Error> {
        let page: Page<Attempt> = self.get(&["v1", "runs", &run.to_string(), "attempts"], &()).await?;
        Ok(page.items)
    }

    /// A page of a run's events.
    pub async fn run_history(
        &self,
        run: RunId,
        after: Position,
        limit: Option<usize>,
    ) -> Result<Page<Event>, Error> {
        let query = [("after", Some(after.to_string())), ("limit", text(limit))];
        self.get(&["v1", "runs", &run.to_string(), "events"], &given(query)).await
    }

    /// Everything of one run after `from` (its first event if not given), until it ends.
    pub fn run_events(&self, run: RunId, from: Option<Position>) -> Events {
        Events::of_run(self.clone(), run, from)
    }

    /// Stops a run. Answers what was done; the run's end follows as an event.
    pub async fn run_cancel(&self, run: RunId) -> Result<Cancellation, Error> {
        self.post(&["v1", "runs", &run.to_string(), "cancel"], &json!({})).await
    }

    /// Tries an ended run again.
    pub async fn run_retry(&self, run: RunId) -> Result<Run, Error> {
        self.post(&["v1", "runs", &run.to_string(), "retry"], &json!({})).await
    }

    /// Answers a waiting run.
    pub async fn run_answer(&self, run: RunId, wait: WaitId, answer: &Answer) -> Result<Run, Error> {
        let body = json!({"waitId": wait, "answer": answer});
        self.post(&["v1", "runs", &run.to_string(), "answer"], &body).await
    }

    /// Keeps `bytes` as an artifact of a session. The same `key` again gives the same artifact.
    pub async fn artifact_put(
        &self,
        session: &str,
        new: &NewArtifact,
        bytes: Vec<u8>,
        key: &str,
    ) -> Result<Artifact, Error> {
        let request = self.request(Method::POST, &["v1", "sessions", session, "artifacts"]).query(new);
        let mime_type = new.mime_type.as_deref().unwrap_or("application/octet-stream");
        let request = request.header(CONTENT_TYPE, mime_type).header("idempotency-key", key);
        self.read(self.send(request.body(bytes)).await?).await
    }

    /// Artifacts of a session, the newest first.
    pub async fn session_artifacts(
        &self,
        session: &str,
        limit: Option<usize>,
    ) -> Result<Page<Artifact>, Error> {
        self.get(&["v1", "sessions", session, "artifacts"], &given([("limit", text(limit))])).await
    }

    /// Artifacts of a run, the newest first.
    pub async fn run_artifacts(&self, run: RunId, limit: Option<usize>) -> Result<Page<Artifact>, Error> {
        self.get(&["v1", "runs", &run.to_string(), "artifacts"], &given([("limit", text(limit))])).await
    }

    /// The agents' own sessions that a session is or was tied to, the newest generation of each adapter first.
    pub async fn binding_list(&self, session: &str) -> Result<Vec<Binding>, Error> {
        let mut bindings = vec![];
        let mut after = None;
        loop {
            let page = self.binding_page(session, after.as_deref(), None).await?;
            bindings.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok(bindings);
            }
        }
    }

    /// A page of them.
    pub async fn binding_page(
        &self,
        session: &str,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Page<Binding>, Error> {
        let query = [("after", after.map(str::to_owned)), ("limit", text(limit))];
        self.get(&["v1", "sessions", session, "bindings"], &given(query)).await
    }

    /// The session that `session` names, made if there is none, tied to an agent's own session that exists already, unless it
    /// has been tied to one of that adapter. Asked again it does nothing more.
    pub async fn session_adopt(
        &self,
        session: &Target,
        adoption: &Adoption,
    ) -> Result<SessionAdopted, Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            session: &'a Target,
            #[serde(flatten)]
            adoption: &'a Adoption,
        }
        self.post(&["v1", "adopt"], &Body { session, adoption }).await
    }

    /// Ties a session to an agent's own session that exists already, unless it has been tied to one.
    pub async fn binding_adopt(&self, session: &str, adoption: &Adoption) -> Result<Binding, Error> {
        self.post(&["v1", "sessions", session, "bindings"], adoption).await
    }

    /// Makes sure that an agent's own session is not used again. The session stays.
    pub async fn binding_invalidate(&self, session: &str, adapter: &str) -> Result<Binding, Error> {
        let request = self.request(Method::DELETE, &["v1", "sessions", session, "bindings", adapter]);
        self.read(self.send(request).await?).await
    }

    /// The adapters and what they can do.
    pub async fn adapter_list(&self) -> Result<Vec<Value>, Error> {
        self.get(&["v1", "adapters"], &()).await
    }

    /// The ways to authenticate that an adapter's runtime has named, once one has been started.
    pub async fn login_list(&self, adapter: &str) -> Result<Vec<AuthMethod>, Error> {
        self.get(&["v1", "adapters", adapter, "logins"], &()).await
    }

    /// Authenticates an adapter's runtime by one of them. It takes as long as a person needs.
    pub async fn login_create(&self, adapter: &str, method: &str) -> Result<(), Error> {
        let request = self.request(Method::POST, &["v1", "adapters", adapter, "logins"]);
        self.send(request.json(&json!({"methodId": method}))).await.map(drop)
    }

    /// The models that are configured, and who runs models.
    pub async fn model_list(&self) -> Result<ModelList, Error> {
        self.get(&["v1", "models"], &()).await
    }

    /// Agents by id and version: one's own, and those that are everybody's.
    pub async fn agent_list(&self, after: Option<&str>, limit: Option<usize>) -> Result<Page<Agent>, Error> {
        let query = [("after", after.map(str::to_owned)), ("limit", text(limit))];
        self.get(&["v1", "agents"], &given(query)).await
    }

    /// One agent, by `ID@VERSION`, or the latest version of `ID`.
    pub async fn agent_get(&self, agent: &str) -> Result<Agent, Error> {
        self.get(&["v1", "agents", agent], &()).await
    }

    /// Makes a version of an agent, which never changes; the same again is the same.
    pub async fn agent_create(&self, definition: &AgentDefinition) -> Result<Agent, Error> {
        self.post(&["v1", "agents"], definition).await
    }

    /// Deletes a version of one's own agent.
    pub async fn agent_delete(&self, agent: &str) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, &["v1", "agents", agent])).await.map(drop)
    }

    /// Makes a key. Its secret is shown this once.
    pub async fn key_create(&self, new: &NewKey) -> Result<MadeKey, Error> {
        self.post(&["v1", "keys"], new).await
    }

    /// The keys that the caller may manage, the newest first.
    pub async fn key_list(&self, limit: Option<usize>) -> Result<Page<ApiKey>, Error> {
        self.get(&["v1", "keys"], &given([("limit", text(limit))])).await
    }

    /// Revokes a key: it opens nothing any more.
    pub async fn key_revoke(&self, key: KeyId) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, &["v1", "keys", &key.to_string()])).await.map(drop)
    }

    /// What all of the caller's sessions in memory do.
    pub fn feed(&self) -> Feed {
        Feed::of(self.clone())
    }

    /// Every event of all of the caller's sessions after `after`, in one order; from now on if none is given. Only those
    /// whose types begin with one of the `words`, if there are any, for example `run`.
    pub async fn owner_events(&self, words: &[&str], after: Option<Position>) -> Result<OwnerEvents, Error> {
        OwnerEvents::open(self.clone(), words, after).await
    }

    /// A stream of server-sent events.
    pub(crate) async fn stream(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        after: Option<Position>,
    ) -> Result<Response, Error> {
        let mut request = self.request(Method::GET, path).query(query).header(ACCEPT, "text/event-stream");
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        self.send(request).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &impl Serialize) -> Result<T, Error> {
        self.read(self.send(self.request(Method::GET, path).query(query)).await?).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T, Error> {
        self.read(self.send(self.request(Method::POST, path).json(body)).await?).await
    }

    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.http.request(method, url).bearer_auth(&self.secret);
        match &self.owner {
            Some(owner) => request.header("mainspring-owner", &**owner),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        self.owner.as_deref().map_or(Ok(()), check_owner)?;
        let response = request.send().await.map_err(|error| self.failed(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.map_err(|error| self.failed(error))?;
        match serde_json::from_str::<Problem>(&text) {
            Ok(problem) => Err(Error::Refused(problem)),
            Err(_) => Err(self.protocol(format!("{status} without a reason"))),
        }
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, Error> {
        let bytes = response.bytes().await.map_err(|error| self.failed(error))?;
        serde_json::from_slice(&bytes).map_err(|error| self.protocol(error.to_string()))
    }

    fn failed(&self, source: reqwest::Error) -> Error {
        let (at, source) = (self.at.to_string(), source.without_url());
        match source.is_connect() {
            true => Error::Unreachable { at, source },
            false if source.is_builder() => Error::Invalid(format!("{source}")),
            false => Error::Broken { at, source },
        }
    }

    pub(crate) fn protocol(&self, what: String) -> Error {
        Error::Protocol { at: self.at.to_string(), what }
    }
}

/// Refuses an owner whom a header cannot name: it loses the spaces around its value, and two owners would be one.
fn check_owner(owner: &str) -> Result<(), Error> {
    check_text("an owner", owner).map_err(|bad| Error::Invalid(bad.to_string()))?;
    match owner.starts_with(' ') || owner.ends_with(' ') {
        true => Err(Error::Invalid("an owner must not begin or end with a space".into())),
        false => Ok(()),
    }
}

fn text(number: Option<usize>) -> Option<String> {
    number.map(|number| number.to_string())
}

/// Those parameters of a query that have a value.
fn given<const N: usize>(query: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
