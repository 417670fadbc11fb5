//! The client: a connection to a server, and one method per operation of the API, named as the operation.
//!
//! The methods are in one file per noun.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use mainspring_api::threads::ErrorEnvelope;
use mainspring_api::{Problem, ToJson, header_name};
use mainspring_core::Position;
use mainspring_core::limits::check_text;
use reqwest::header::{ACCEPT, CONTENT_TYPE, IF_MATCH};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;

use crate::json::FromJson;
use crate::{Error, Socket, TOKEN_FILE};

mod adapters;
mod agents;
mod append;
mod artifacts;
mod bindings;
mod cluster;
mod delegations;
mod feedback;
mod goal_types;
mod grants;
mod host_calls;
mod ids;
mod keys;
mod pins;
mod runs;
mod server;
mod session_agent;
mod sessions;
mod sign_in;
mod state;
mod tree;
mod webhooks;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an unused connection is kept. Shorter than the server's default for `http.header_ms`, after which the server
/// closes it: a request on a connection that is being closed may or may not be carried out.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// The time in which the response to a request must begin. Servers that are busy, or that wait for an event,
/// answer much sooner. Without a limit, a request could wait for ever for the response to begin: hyper may
/// lose the request if the server closes the connection at the moment at which the request is sent
/// (hyperium/hyper#2312).
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);
/// The largest file of certificates that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// A connection to a server, with the credentials to use it. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    address: Arc<str>,
    secret: Arc<SecretString>,
    owner: Option<Arc<str>>,
    host: Option<Arc<str>>,
    response_timeout: Duration,
    /// Keeps the short alias of a long socket path alive.
    _socket: Option<Arc<Socket>>,
}

impl Client {
    /// Connects to an address such as `http://127.0.0.1:7433` with a token or an API key.
    pub fn over_tcp(url: &str, secret: &str) -> Result<Self, Error> {
        Self::new(reqwest::Client::builder(), server_url(url)?, url.into(), secret)
    }

    /// Connects to an address such as `https://agents.example.com`. The server's certificate must be issued by one of the
    /// authorities in the PEM file `ca`; those that the system trusts are not used.
    pub fn over_tls(url: &str, secret: &str, ca: &Path) -> Result<Self, Error> {
        let failed = |why: String| Error::Invalid(format!("{} {why}", ca.display()));
        let pem = read_small(ca).map_err(|error| failed(format!("cannot be read: {error}")))?;
        let roots = reqwest::Certificate::from_pem_bundle(&pem)
            .map_err(|error| failed(format!("is no PEM file of certificates: {error}")))?;
        if roots.is_empty() {
            return Err(failed("holds no certificate".into()));
        }
        Self::new(reqwest::Client::builder().tls_certs_only(roots), server_url(url)?, url.into(), secret)
    }

    /// Connects to the socket of a state directory.
    pub fn over_socket(socket: &Path, secret: &str) -> Result<Self, Error> {
        let base = Url::parse("http://localhost").map_err(|error| Error::Invalid(error.to_string()))?;
        let address = socket.display().to_string();
        Self::new(reqwest::Client::builder().unix_socket(socket), base, address.into(), secret)
    }

    /// Connects to the server of a state directory, on its socket, with its token. The token must exist.
    pub fn from_state_dir(state_dir: &Path) -> Result<Self, Error> {
        let token = state_dir.join(TOKEN_FILE);
        let secret = read_small(&token)
            .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other))
            .map(Zeroizing::new)
            .map_err(|error| Error::Invalid(format!("{} cannot be read: {error}", token.display())))?;
        Self::over_state_dir(state_dir, secret.trim())
    }

    /// Connects to the server of a state directory, on its socket, with a secret other than its token.
    pub fn over_state_dir(state_dir: &Path, secret: &str) -> Result<Self, Error> {
        let socket = Socket::in_state_dir(state_dir);
        let client = Self::over_socket(socket.address(), secret)?;
        Ok(Self {
            address: socket.path().display().to_string().into(),
            _socket: Some(Arc::new(socket)),
            ..client
        })
    }

    fn new(
        builder: reqwest::ClientBuilder,
        base: Url,
        address: Arc<str>,
        secret: &str,
    ) -> Result<Self, Error> {
        // The process has one TLS provider; the first one installed wins.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // No proxy: the address names the server itself.
        let http =
            builder.connect_timeout(CONNECT_TIMEOUT).pool_idle_timeout(IDLE_TIMEOUT).no_proxy().build();
        let http = http.map_err(|error| Error::Invalid(format!("no HTTP client: {error}")))?;
        Ok(Self {
            http,
            base,
            address,
            secret: Arc::new(secret.into()),
            owner: None,
            host: None,
            response_timeout: RESPONSE_TIMEOUT,
            _socket: None,
        })
    }

    /// Acts for `owner`. Only the state directory's token may do that.
    pub fn for_owner(self, owner: &str) -> Self {
        Self { owner: Some(owner.into()), ..self }
    }

    /// Acts as the host of this name: agents of runs that the client creates call the tools of the host.
    pub fn for_host(self, host: &str) -> Self {
        Self { host: Some(host.into()), ..self }
    }

    /// Waits up to `timeout` for the response to a request to begin; 120 seconds unless set. Imports and
    /// uploads of artifacts have no limit, nor do log-ins, which wait for a person.
    pub fn with_response_timeout(self, timeout: Duration) -> Self {
        Self { response_timeout: timeout, ..self }
    }

    /// Opens a stream of server-sent events.
    pub(crate) async fn stream(
        &self,
        path: &[&str],
        query: &impl Serialize,
        after: Option<Position>,
    ) -> Result<Response, Error> {
        let mut request = self.request(Method::GET, path).query(query).header(ACCEPT, "text/event-stream");
        if let Some(after) = after {
            request = request.header(header_name::LAST_EVENT_ID, after.to_string());
        }
        self.send(request).await
    }

    /// Reads the body of a response chunk by chunk.
    fn body_chunks(&self, response: Response) -> impl Stream<Item = Result<Vec<u8>, Error>> + Send + use<> {
        let client = self.clone();
        response.bytes_stream().map(move |chunk| match chunk {
            Ok(chunk) => Ok(chunk.to_vec()),
            Err(error) => Err(client.transport_error(error)),
        })
    }

    async fn get<T: FromJson>(&self, path: &[&str], query: &impl Serialize) -> Result<T, Error> {
        self.read(self.send(self.request(Method::GET, path).query(query)).await?).await
    }

    async fn post<T: FromJson>(&self, path: &[&str], body: &impl ToJson) -> Result<T, Error> {
        self.read(self.send(with_json(self.request(Method::POST, path), body)?).await?).await
    }

    async fn delete(&self, path: &[&str]) -> Result<(), Error> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    /// Posts a request with an idempotency key: requests with the same key are carried out once.
    async fn post_idempotent<T: FromJson>(
        &self,
        path: &[&str],
        body: &impl ToJson,
        idempotency_key: Option<&str>,
    ) -> Result<T, Error> {
        let mut request = with_json(self.request(Method::POST, path), body)?;
        if let Some(key) = idempotency_key {
            request = request.header(header_name::IDEMPOTENCY_KEY, key);
        }
        self.read(self.send(request).await?).await
    }

    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let mut request = self.http.request(method, url).bearer_auth(self.secret.expose_secret());
        if let Some(owner) = &self.owner {
            request = request.header(header_name::OWNER, &**owner);
        }
        if let Some(host) = &self.host {
            request = request.header(header_name::HOST, &**host);
        }
        request
    }

    /// Sends a request, and waits for the beginning of its response for a limited time.
    async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        match tokio::time::timeout(self.response_timeout, self.send_unlimited(request)).await {
            Ok(sent) => sent,
            Err(_) => {
                Err(Error::NoResponse { address: self.address.to_string(), waited: self.response_timeout })
            }
        }
    }

    /// Sends a request whose response may take any time to begin: it waits for a person, or its body is large.
    async fn send_unlimited(&self, request: RequestBuilder) -> Result<Response, Error> {
        self.owner.as_deref().map_or(Ok(()), check_owner)?;
        let response = request.send().await.map_err(|error| self.transport_error(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.map_err(|error| self.transport_error(error))?;
        match Problem::from_json(&text).ok().or_else(|| thread_problem(status, &text)) {
            Some(problem) => Err(Error::Refused(Box::new(problem))),
            None => Err(self.protocol_error(format!("{status} without a reason"))),
        }
    }

    /// Sends a request with a JSON text and returns the text of the response.
    pub(crate) async fn call_text(
        &self,
        method: Method,
        path: &[&str],
        query: &impl Serialize,
        json: Option<String>,
    ) -> Result<String, Error> {
        let mut request = self.request(method, path).query(query);
        if let Some(json) = json {
            request = request.header(CONTENT_TYPE, "application/json").body(json);
        }
        self.send(request).await?.text().await.map_err(|error| self.transport_error(error))
    }

    async fn read<T: FromJson>(&self, response: Response) -> Result<T, Error> {
        let bytes = response.bytes().await.map_err(|error| self.transport_error(error))?;
        let text = str::from_utf8(&bytes).map_err(|error| self.protocol_error(error.to_string()))?;
        T::from_json(text).map_err(|error| self.protocol_error(error.to_string()))
    }

    fn transport_error(&self, source: reqwest::Error) -> Error {
        let (address, source) = (self.address.to_string(), source.without_url());
        match source.is_connect() {
            true => Error::Unreachable { address, source },
            false if source.is_builder() => Error::Invalid(format!("{source}")),
            false => Error::Broken { address, source },
        }
    }

    pub(crate) fn protocol_error(&self, problem: String) -> Error {
        Error::Protocol { address: self.address.to_string(), problem }
    }
}

/// Reads an error of the threads API as a problem. Its code is the name of an exception.
fn thread_problem(status: StatusCode, text: &str) -> Option<Problem> {
    let ErrorEnvelope { error } = serde_json::from_str(text).ok()?;
    Some(Problem {
        kind: "about:blank".into(),
        title: status.canonical_reason().unwrap_or("Error").into(),
        status: status.as_u16(),
        code: error.error_code,
        detail: error.message,
        retryable: status.is_server_error(),
        run_status: None,
        answered_at: None,
        answered_by: None,
    })
}

/// Refuses an owner with leading or trailing spaces: a header drops them, so two owners would become one.
fn check_owner(owner: &str) -> Result<(), Error> {
    check_text("an owner", owner).map_err(|bad| Error::Invalid(bad.to_string()))?;
    match owner.starts_with(' ') || owner.ends_with(' ') {
        true => Err(Error::Invalid("an owner must not begin or end with a space".into())),
        false => Ok(()),
    }
}

/// Reads a token or certificates: a regular file of a bounded size.
fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() || found.len() > MAX_FILE_BYTES {
        let reason = format!("it is not a regular file of at most {MAX_FILE_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    std::fs::read(path)
}

/// Reads the address of a server.
fn server_url(url: &str) -> Result<Url, Error> {
    let base = Url::parse(url).ok();
    let base = base.filter(|base| base.has_host() && matches!(base.scheme(), "http" | "https"));
    base.ok_or_else(|| Error::Invalid(format!("{url:?} is not the address of a server: http://HOST:PORT")))
}

/// Sets the body of a request.
fn with_json(request: RequestBuilder, body: &impl ToJson) -> Result<RequestBuilder, Error> {
    let json = body.to_json().map_err(|error| Error::Invalid(format!("the body: {error}")))?;
    Ok(request.header(CONTENT_TYPE, "application/json").body(json))
}

/// Makes a request conditional on a version.
fn if_version(request: RequestBuilder, version: Option<u64>) -> RequestBuilder {
    match version {
        Some(version) => request.header(IF_MATCH, format!("\"{version}\"")),
        None => request,
    }
}
