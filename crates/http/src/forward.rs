//! Forwarding: a server of a cluster that is not the active one passes each request on to the active one.
//!
//! ```text
//! client ──▶ standby ──▶ active        requests, streams of events, uploads: byte by byte, in both directions
//! ```
//!
//! The request keeps its credential, which the active server checks as if it had received the request itself. The standby
//! refuses requests that a browser sends for another site, and describes the visit of the browser (`visit.rs`): both depend
//! on the address that the browser used. A forwarded request proves that a server of the cluster has forwarded it
//! (`peers.rs`).
//!
//! A request that is not answered is never repeated here: whether it was carried out is unknown. When another server
//! becomes the active one, requests that still wait for the previous one fail, so that clients send them again.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use tokio::sync::watch;

use crate::body::Json;
use crate::peers::{PeerKey, not_a_peer};
use crate::{HttpLimits, Problem, guard, health, visit};

/// Marks a forwarded request, so that two servers never send a request back and forth.
const FORWARDED: HeaderName = HeaderName::from_static("mainspring-forwarded");
/// Headers that belong to one connection, or that the HTTP client sets itself. `Host` and `Origin` depend on the connection of
/// the browser: the visit replaces them.
const NOT_FORWARDED: [HeaderName; 9] = [
    header::CONNECTION,
    header::HOST,
    header::ORIGIN,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest time that an unused connection is kept.
const MAX_IDLE_MS: u64 = 15_000;

/// The settings for forwarding.
#[derive(Debug, Clone)]
pub struct ForwardOptions {
    /// Host names of this server besides those of this machine.
    pub hosts: Vec<String>,
    /// Origins whose web pages may call this server.
    pub origins: Vec<String>,
    /// True if this server speaks HTTPS itself.
    pub is_tls: bool,
    /// Certificates that are trusted for the active server instead of those of the system, as PEM.
    pub ca: Option<Vec<u8>>,
    /// The key with which servers of the cluster sign requests to each other. Without one, forwarded requests are
    /// refused.
    pub key: Option<PeerKey>,
    /// How long the servers of the cluster keep a connection without a request: this server's own `http.header_ms`, which
    /// all of them should share.
    pub header_ms: u64,
}

impl Default for ForwardOptions {
    fn default() -> Self {
        let header_ms = HttpLimits::default().header_ms;
        Self { hosts: vec![], origins: vec![], is_tls: false, ca: None, key: None, header_ms }
    }
}

impl ForwardOptions {
    /// How this server is reached.
    pub(super) fn site(&self) -> guard::Site<'_> {
        guard::Site { hosts: &self.hosts, is_tls: self.is_tls }
    }

    /// How long an unused connection is kept: shorter than the other server keeps it. If that server closes a connection
    /// while a request is being sent on it, it is unknown whether the request was carried out.
    fn idle_timeout(&self) -> Duration {
        Duration::from_millis((self.header_ms / 2).min(MAX_IDLE_MS))
    }
}

/// Forwards requests to the active server.
#[derive(Clone)]
pub struct Forward(Arc<Shared>);

struct Shared {
    client: reqwest::Client,
    active: watch::Receiver<Option<String>>,
    options: ForwardOptions,
}

impl Forward {
    /// Forwards to the address that `active` has at the time of a request. Fails if the certificates cannot be used.
    pub fn new(active: watch::Receiver<Option<String>>, options: ForwardOptions) -> Result<Self, String> {
        let client = client(&options)?;
        Ok(Self(Arc::new(Shared { client, active, options })))
    }

    /// Builds the router: this process answers `/health`, and the active server everything else.
    pub fn router(self) -> Router {
        Router::new().fallback(answer).with_state(self)
    }
}

/// Builds the HTTP client for requests to other servers. Fails if the certificates cannot be used.
pub(super) fn client(options: &ForwardOptions) -> Result<reqwest::Client, String> {
    // The process has one TLS provider; the first one installed wins.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(options.idle_timeout())
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .no_proxy();
    if let Some(pem) = &options.ca {
        let roots = reqwest::Certificate::from_pem_bundle(pem).map_err(|error| error.to_string())?;
        client = client.tls_certs_only(roots);
    }
    client.build().map_err(|error| error.to_string())
}

async fn answer(State(forward): State<Forward>, request: Request) -> Response {
    let options = &forward.0.options;
    let answer =
        |request| async { pass_on(&forward.0, request).await.unwrap_or_else(Problem::into_response) };
    guard::checked(options.site(), &options.origins, request, answer).await
}

async fn pass_on(forward: &Shared, request: Request) -> Result<Response, Problem> {
    if request.uri().path() == "/health" {
        return Ok(Json(health::alive()).into_response());
    }
    let is_forwarded = hops(request.headers(), forward.options.key.as_ref())? > 0;
    let target = forward.active.borrow().clone().filter(|_| !is_forwarded);
    let target =
        target.ok_or_else(|| unavailable("no server of the cluster is active at the moment; try again"))?;
    let active = forward.active.clone();
    let gone = || {
        let (mut active, target) = (active.clone(), target.clone());
        Box::pin(async move { replaced(&mut active, &target).await }) as Gone
    };
    let peer =
        Peer { name: "the active server", replaced: "another server of the cluster has become active" };
    relay(&forward.client, &target, request, (1, &forward.options), peer, gone).await
}

/// Resolves when a forwarded request must not wait for its answer any longer.
pub(super) type Gone = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Words about a server in the details of problems.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    /// The name of the server.
    pub(super) name: &'static str,
    /// The reason to stop waiting for the server.
    pub(super) replaced: &'static str,
}

/// Streams a request to the server at the address `target`, and streams the answer back. `hops` counts how often the
/// request has been forwarded, this time included; the key of `options` signs that count. Fails when `gone` resolves
/// before the end of the answer.
pub(super) async fn relay(
    client: &reqwest::Client,
    target: &str,
    request: Request,
    (hops, options): (u8, &ForwardOptions),
    peer: Peer,
    gone: impl Fn() -> Gone,
) -> Result<Response, Problem> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let url = format!("{}{path}", target.trim_end_matches('/'));
    let (parts, body) = request.into_parts();
    let mut headers = forwarded(&parts.headers);
    headers.insert(FORWARDED, HeaderValue::from(u16::from(hops)));
    let key = options.key.as_ref();
    if hops == 1 {
        // A server that forwards the request again passes on what the first one has found.
        visit::describe(&mut headers, &parts.headers, options.site(), key);
    }
    if let Some(key) = key {
        key.sign(&mut headers, &proof_of(hops));
    }
    let mut outgoing = client.request(parts.method, url).headers(headers);
    let has_body = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
    if has_body.iter().any(|name| parts.headers.contains_key(name)) {
        outgoing = outgoing.body(reqwest::Body::wrap_stream(body.into_data_stream()));
    }
    let Peer { name, replaced } = peer;
    let response = tokio::select! {
        response = outgoing.send() => response.map_err(|error| {
            tracing::warn!(%error, %target, "a request could not be forwarded");
            match error.is_connect() {
                true => unavailable(format!("{name} of the cluster is not reachable; try again")),
                false => unavailable(format!(
                    "{name} of the cluster did not answer: whether the request was carried out is unknown"
                )),
            }
        })?,
        () = gone() => {
            return Err(unavailable(format!("{replaced}: whether the request was carried out is unknown")));
        }
    };
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = response.status();
    *answer.headers_mut() = forwarded(response.headers());
    *answer.body_mut() = Body::from_stream(until_gone(response.bytes_stream(), gone(), replaced));
    Ok(answer)
}

/// Returns how often servers of the cluster have forwarded a request. Refuses a count without a valid proof: if such a
/// count were ignored, two servers with different secrets would forward a request back and forth.
pub(super) fn hops(headers: &HeaderMap, key: Option<&PeerKey>) -> Result<u8, Problem> {
    let Some(value) = headers.get(FORWARDED) else { return Ok(0) };
    let hops = value.to_str().ok().and_then(|value| value.parse::<u8>().ok()).filter(|hops| *hops > 0);
    let proven = hops.filter(|hops| key.is_some_and(|key| key.is_signed(headers, &proof_of(*hops))));
    proven.ok_or_else(|| not_a_peer("the header Mainspring-Forwarded"))
}

/// The purpose for which a forwarded request is signed.
fn proof_of(hops: u8) -> String {
    format!("forwarded {hops}")
}

/// Returns the headers without those that belong to the connection.
fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<String> =
        named.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
    let mut forwarded = headers.clone();
    for name in NOT_FORWARDED {
        forwarded.remove(name);
    }
    for name in named {
        forwarded.remove(name.as_str());
    }
    forwarded
}

/// Resolves when another server than `target` is the active one.
async fn replaced(active: &mut watch::Receiver<Option<String>>, target: &str) {
    let other = |active: &Option<String>| active.as_deref().is_some_and(|active| active != target);
    if active.wait_for(other).await.is_err() {
        // This server stops, or becomes the active one: its connections are closed.
        std::future::pending::<()>().await;
    }
}

/// The body of an answer, which fails when `gone` resolves.
fn until_gone(
    body: impl Stream<Item = Result<Bytes, reqwest::Error>> + Send + 'static,
    gone: Gone,
    replaced: &'static str,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static {
    let state = Some((Box::pin(body), gone));
    futures_util::stream::unfold(state, move |state| async move {
        let (mut body, mut gone) = state?;
        let next = tokio::select! {
            next = body.next() => next?.map_err(axum::Error::new),
            () = &mut gone => Err(axum::Error::new(replaced)),
        };
        let state = next.is_ok().then_some((body, gone));
        Some((next, state))
    })
}

pub(super) fn unavailable(detail: impl Into<String>) -> Problem {
    Problem::transient(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
}

/// Lets requests pass only while `is_active` returns true. So a server that was paused refuses requests at once, before
/// any task of its kernel notices that another server may be the active one.
pub fn only_while(router: Router, is_active: impl Fn() -> bool + Clone + Send + Sync + 'static) -> Router {
    router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let is_active = is_active();
        async move {
            match is_active {
                true => next.run(request).await,
                false => unavailable("another server of the cluster may be the active one now; try again")
                    .into_response(),
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_connection_is_kept_for_half_the_time_that_the_other_server_keeps_it() {
        let of = |header_ms| ForwardOptions { header_ms, ..ForwardOptions::default() }.idle_timeout();
        assert_eq!(ForwardOptions::default().idle_timeout(), Duration::from_millis(15_000));
        assert_eq!(of(2_000), Duration::from_millis(1_000));
        assert_eq!(of(3_600_000), Duration::from_millis(MAX_IDLE_MS));
    }
}
