//! Servers that share the work: a request goes to the server that can answer it.
//!
//! ```text
//! names a session or a run ──▶ the home of the session
//! creates a session or a run ──▶ here, unless the kernel places the session elsewhere
//! anything else about the store ──▶ the leader
//! ```
//!
//! The path decides, except for a session that is named by its key or in the body. Then the request starts here, and
//! the kernel refuses it if the session belongs to another server. This server then sends the request there, once, with
//! its whole body: the part that was read is kept (`kept.rs`).
//!
//! Invariant: a request is passed on at most [`MAX_HOPS`] times.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use mainspring_core::{NodeId, RunId, SessionId};
use mainspring_kernel::Kernel;
use mainspring_kernel::kernel::Secret;
use mainspring_kernel::kernel::homes::placeable;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::forward::{self, ForwardOptions, Gone, Peer};
use crate::kept::KeptBody;
use crate::{Problem, body_bytes, guard, peers};

/// The maximum number of times that a request is forwarded: to a former home, and from there to the current one.
const MAX_HOPS: u8 = 2;
/// How much of a body that is not JSON is kept in case the request belongs to another server.
const KEPT_UPLOAD_BYTES: usize = 256 << 10;

const HOME: Peer = Peer {
    name: "the server at which the session has its home",
    replaced: "the server at which the session has its home has been replaced",
};
const LEADER: Peer =
    Peer { name: "the leading server", replaced: "another server of the cluster has become the leader" };

/// The servers of a cluster that can act, as far as this server knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Servers {
    /// The ids and addresses of the servers.
    pub addresses: Vec<(NodeId, String)>,
    /// The server that leads.
    pub leader: Option<NodeId>,
}

impl Servers {
    pub(super) fn address(&self, node: NodeId) -> Option<&str> {
        self.addresses.iter().find(|(known, _)| *known == node).map(|(_, address)| address.as_str())
    }
}

/// Sends requests to the servers that can answer them.
#[derive(Clone)]
pub struct Homes(Arc<Shared>);

struct Shared {
    kernel: Kernel,
    client: reqwest::Client,
    servers: watch::Receiver<Servers>,
    options: ForwardOptions,
    stop: CancellationToken,
}

/// The subject of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// The receiving server, or an object that only the kernel can find.
    Server,
    Session(SessionId),
    Run(RunId),
    /// All sessions together, or the store.
    All,
    /// Webhooks, which the leader alone delivers to.
    Webhooks,
}

/// The server that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Here,
    Home(NodeId),
    Leader,
}

/// The kernel's answer that a request belongs to another server, as a response extension.
#[derive(Debug, Clone, Copy)]
pub(super) struct BelongsTo(pub(super) NodeId);

impl Homes {
    /// Routes requests among `servers`. When `stop` is cancelled, the forwarded streams of other servers end too.
    /// Fails if the certificates cannot be used.
    pub fn new(
        kernel: Kernel,
        servers: watch::Receiver<Servers>,
        options: ForwardOptions,
        stop: CancellationToken,
    ) -> Result<Self, String> {
        let client = forward::client(&options)?;
        Ok(Self(Arc::new(Shared { kernel, client, servers, options, stop })))
    }

    /// Adds the routing to the router of this server.
    pub fn layer(self, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(self, route))
    }
}

async fn route(State(Homes(homes)): State<Homes>, request: Request, next: Next) -> Response {
    let key = homes.options.key.as_ref();
    if request.uri().path() == peers::PATH {
        return peers::answer(&homes.kernel, key, request, body_bytes(&homes.kernel)).await;
    }
    let hops = match forward::hops(request.headers(), key) {
        Ok(hops) => hops,
        Err(problem) => return problem.into_response(),
    };
    let subject = homes.subject(&request);
    let target = match hops < MAX_HOPS {
        true => homes.target(subject).await,
        // Only the leader delivers to webhooks, and it would not notice a change that is made here.
        false if subject == Subject::Webhooks && !homes.leads() => Err(forward::unavailable(
            "another server of the cluster becomes the leader at this moment; try again",
        )),
        false => Ok(Target::Here),
    };
    match target {
        Ok(Target::Here) => here(&homes, request, next, hops).await,
        Ok(target) => homes.send(request, target, hops).await,
        Err(problem) => problem.into_response(),
    }
}

/// Handles a request on this server, or sends it to the server that the kernel names.
async fn here(homes: &Shared, request: Request, next: Next, hops: u8) -> Response {
    if hops >= MAX_HOPS {
        return next.run(request).await;
    }
    let is_of_agent = homes.is_of_agent(request.headers());
    // A server that does not know yet that this one drains may have placed the session here.
    let is_placeable = (hops == 0 || homes.kernel.is_draining()) && creates(&request);
    let (request, parts, kept) = keep(&homes.kernel, request);
    let answer = match is_placeable {
        true => placeable(next.run(request)).await,
        false => next.run(request).await,
    };
    let Some(BelongsTo(node)) = answer.extensions().get::<BelongsTo>().copied() else { return answer };
    if is_of_agent {
        // No other server knows the token of the agent. The kernel itself sends an agent's changes to the other server.
        return answer;
    }
    let body = match kept {
        Some(kept) => kept.whole(),
        None => Some(Body::empty()),
    };
    match body {
        Some(body) => homes.send(Request::from_parts(parts, body), Target::Home(node), hops).await,
        None => answer,
    }
}

/// True for a request whose new session the kernel may place on another server.
fn creates(request: &Request) -> bool {
    request.method() == Method::POST && matches!(request.uri().path(), "/v1/runs" | "/v1/sessions")
}

/// Returns the request, and the parts needed to send it again: its head, and its body if it has one.
fn keep(kernel: &Kernel, request: Request) -> (Request, Parts, Option<KeptBody>) {
    let (parts, body) = request.into_parts();
    let mut copy = Request::new(());
    *copy.method_mut() = parts.method.clone();
    *copy.uri_mut() = parts.uri.clone();
    *copy.headers_mut() = parts.headers.clone();
    let (copy, ()) = copy.into_parts();
    let length = parts.headers.get(header::CONTENT_LENGTH);
    let has_body = length.is_some_and(|length| length != "0")
        || (length.is_none() && parts.headers.contains_key(header::TRANSFER_ENCODING));
    if !has_body {
        return (Request::from_parts(parts, body), copy, None);
    }
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let limit = match kind.is_some_and(|kind| kind.starts_with("application/json")) {
        // A larger JSON body is refused, so it is never sent again.
        true => body_bytes(kernel),
        false => KEPT_UPLOAD_BYTES,
    };
    let (body, kept) = KeptBody::new(body, limit);
    (Request::from_parts(parts, body), copy, Some(kept))
}

impl Shared {
    /// Finds the subject of a request by its path. The subject decides which server the request belongs to.
    fn subject(&self, request: &Request) -> Subject {
        let Some(path) = request.uri().path().strip_prefix("/v1/") else { return Subject::Server };
        if self.is_of_agent(request.headers()) {
            return Subject::Server;
        }
        let mut parts = path.split('/');
        let (noun, name) = (parts.next().unwrap_or_default(), parts.next().filter(|name| !name.is_empty()));
        match (noun, name) {
            // A key instead of an id is resolved by the kernel.
            ("sessions", Some(name)) => name.parse().map_or(Subject::Server, Subject::Session),
            ("runs", Some(name)) => name.parse().map_or(Subject::Server, Subject::Run),
            ("webhooks", _) => Subject::Webhooks,
            _ if creates(request) => Subject::Server,
            _ => Subject::All,
        }
    }

    /// Finds the server that a request belongs to.
    async fn target(&self, subject: Subject) -> Result<Target, Problem> {
        let home = match subject {
            Subject::Server => None,
            Subject::Session(session) => self.kernel.session_home(session).await?,
            Subject::Run(run) => self.kernel.run_home(run).await?,
            Subject::All | Subject::Webhooks => {
                return Ok(if self.leads() { Target::Here } else { Target::Leader });
            }
        };
        Ok(home.map_or(Target::Here, Target::Home))
    }

    fn leads(&self) -> bool {
        self.servers.borrow().leader == Some(self.kernel.node())
    }

    /// True for a request of an agent process of this server, whose token no other server knows.
    fn is_of_agent(&self, headers: &HeaderMap) -> bool {
        let header = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = header.and_then(|value| value.split_once(' ')).map(|(_, bearer)| bearer.trim());
        let bearer = bearer.filter(|bearer| !bearer.starts_with(Secret::PREFIX));
        bearer.is_some_and(|bearer| !matches!(self.kernel.caller_by_agent_token(bearer), Ok(None)))
    }

    /// Forwards a request. A browser's request is checked here, since the check depends on the address that the
    /// browser used.
    async fn send(&self, request: Request, target: Target, hops: u8) -> Response {
        let answer = |request| async move {
            self.pass_on(request, target, hops).await.unwrap_or_else(Problem::into_response)
        };
        guard::checked(self.options.site(), &self.options.origins, request, answer).await
    }

    async fn pass_on(&self, request: Request, target: Target, hops: u8) -> Result<Response, Problem> {
        let (node, address) = {
            let servers = self.servers.borrow();
            let node = match target {
                Target::Home(node) => Some(node),
                _ => servers.leader,
            };
            let address = node.and_then(|node| servers.address(node)).map(str::to_owned);
            (node, address)
        };
        let (Some(node), Some(address)) = (node, address) else {
            return Err(forward::unavailable(match target {
                Target::Leader => "no server of the cluster leads at the moment; try again",
                _ => "the server at which the session has its home does not answer; try again",
            }));
        };
        let leads = target == Target::Leader;
        let gone = || {
            let (mut servers, stop) = (self.servers.clone(), self.stop.clone());
            Box::pin(async move {
                let is_gone = |now: &Servers| {
                    now.address(node).is_none() || (leads && now.leader.is_some_and(|it| it != node))
                };
                tokio::select! {
                    Ok(_) = servers.wait_for(is_gone) => {}
                    () = stop.cancelled() => {}
                }
            }) as Gone
        };
        let peer = if leads { LEADER } else { HOME };
        let hops = (hops + 1, &self.options);
        forward::relay(&self.client, &address, request, hops, peer, gone).await
    }
}
