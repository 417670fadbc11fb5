//! The HTTP edge: resources under `/v1`, events as JSON pages or server-sent events.
//!
//! Handlers translate: a request into a kernel call, the result into JSON, an error into a problem (RFC 9457). A closed
//! connection cancels nothing. Streams end when the server stops.

#![expect(unused_qualifications, reason = "utoipa's attributes write them")]

use std::ops::Deref;
use std::sync::Arc;

use axum::http::Method;
use axum::routing::post;
use axum::{Router, middleware};
use mainspring_core::Resource;
use mainspring_kernel::Kernel;
use mainspring_kernel::quotas::Pool;
use tokio_util::sync::CancellationToken;

mod access;
mod agents;
mod append;
mod artifacts;
mod audit;
mod bindings;
mod body;
mod changes;
mod cluster;
mod connections;
mod cors;
mod delegations;
mod document;
mod endpoint;
mod events;
mod feed;
mod feedback;
mod forward;
mod goal_types;
mod grants;
mod guard;
mod health;
mod homes;
mod host_calls;
mod ids;
mod kept;
mod keys;
mod limits;
mod listen;
mod listeners;
mod logins;
mod mcp;
mod metrics;
mod oidc;
mod owner_events;
mod page;
mod peers;
mod pins;
mod portable;
mod problem;
mod runs;
mod search;
mod session_agent;
mod sessions;
mod shared;
mod sign_in;
mod slow_body;
mod sse;
mod state;
mod streams;
mod strict;
mod threads;
mod tls;
mod tools;
mod tree;
mod usage;
mod visit;
mod waits;
mod watch;
mod webhooks;

pub use access::Access;
pub use cluster::ClusterReader;
pub use connections::{Connections, Peer};
pub use document::document;
pub use forward::{Forward, ForwardOptions, only_while};
pub use homes::{Homes, Servers};
pub use limits::HttpLimits;
pub use listen::{UnixPeers, serve};
pub use listeners::{ListenerRequest, ListenerRequests};
pub use oidc::{Oidc, OidcConfig};
pub use peers::{PeerClient, PeerKey};
pub use problem::{PROBLEMS, Problem};
pub use shared::Shared;
pub use threads::thread_operations;
pub use tls::{TlsError, TlsFiles, TlsIo, TlsListener};
pub use webhooks::{WebhookSender, deliver_webhooks};

use endpoint::{Endpoint, Operations, endpoints};
use oidc::browser;

/// The HTTP server's shared state, passed to every handler. Every layer of middleware clones it for each request, so a
/// clone only counts a reference.
#[derive(Clone)]
pub struct Http(Arc<Shared>);

impl Deref for Http {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// Returns all endpoints in two groups, each with the problems that its middleware can answer.
fn endpoints() -> [(Vec<Endpoint>, &'static [document::ProblemRow]); 2] {
    // Status endpoints: not limited, so that they also answer while the server is overloaded.
    let open = endpoints![
        health::health,
        health::ready,
        document::openapi,
        metrics::metrics,
        browser::sign_in_ways,
    ];
    let mut resources = endpoints![
        feed::feed,
        host_calls::host_call_list,
        host_calls::host_call_answer,
        owner_events::owner_events,
        audit::audit_list,
        sessions::session_list,
        sessions::session_resolve,
        sessions::session_get,
        sessions::session_patch,
        sessions::session_delete,
        sessions::session_messages,
        append::message_append,
        append::results_append,
        tree::session_message,
        tree::session_tree,
        tree::session_navigate,
        tree::session_fork,
        portable::session_export,
        sessions::session_snapshot,
        sessions::session_usage,
        changes::session_changes,
        sessions::session_close,
        sessions::session_compact,
        session_agent::session_agent,
        session_agent::session_agent_set,
        session_agent::session_tool_put,
        session_agent::session_tool_delete,
        events::session_events,
        runs::run_create_in,
        runs::run_list,
        runs::run_create,
        runs::run_get,
        runs::run_attempts,
        runs::attempt_get,
        runs::attempt_stderr,
        runs::run_grants,
        runs::run_steps,
        runs::run_step,
        runs::run_route,
        runs::run_processes,
        runs::run_processes_end,
        delegations::run_delegate,
        delegations::run_delegations,
        delegations::delegation_get,
        events::run_events,
        runs::run_cancel,
        runs::run_retry,
        runs::run_answer,
        grants::grant_list,
        grants::grant_revoke,
        artifacts::session_artifacts,
        artifacts::artifact_put,
        artifacts::run_artifacts,
        artifacts::artifact_get,
        artifacts::artifact_delete,
        artifacts::artifact_content,
        bindings::binding_list,
        bindings::binding_adopt,
        bindings::binding_invalidate,
        bindings::session_adopt,
        search::session_search,
        goal_types::session_goals,
        portable::session_import,
        ids::id_find,
        waits::wait_list,
        usage::usage_report,
    ];
    resources.extend(reader_endpoints());
    resources.extend(state_endpoints());
    resources.extend(server_endpoints());
    [(open, document::OPEN_PROBLEMS), (resources, document::RESOURCE_PROBLEMS)]
}

/// Returns the endpoints for the pins and the feedback of a session's readers.
fn reader_endpoints() -> Vec<Endpoint> {
    endpoints![feedback::feedback_give, feedback::feedback_list, pins::session_pin, pins::session_unpin,]
}

/// Returns the endpoints of state.
fn state_endpoints() -> Vec<Endpoint> {
    endpoints![
        state::session_state_list,
        state::session_state_get,
        state::session_state_set,
        state::session_state_delete,
        state::session_state_history,
        state::run_state_list,
        state::run_state_get,
        state::run_state_set,
        state::run_state_delete,
        state::run_state_history,
        state::owner_state_list,
        state::owner_state_get,
        state::owner_state_set,
        state::owner_state_delete,
        state::owner_state_history,
    ]
}

/// Returns the endpoints of the server's configuration and of its callers.
fn server_endpoints() -> Vec<Endpoint> {
    endpoints![
        health::adapter_list,
        cluster::cluster_status,
        logins::login_list,
        logins::login_create,
        health::model_list,
        tools::tool_list,
        agents::agent_list,
        agents::agent_create,
        agents::agent_get,
        agents::agent_delete,
        goal_types::goal_type_list,
        goal_types::goal_type_create,
        goal_types::goal_type_get,
        sign_in::me,
        sign_in::ticket_create,
        sign_in::ticket_redeem,
        browser::sign_in_exchange,
        listeners::listener_open,
        webhooks::webhook_list,
        webhooks::webhook_create,
        webhooks::webhook_remove,
        webhooks::webhook_test,
        webhooks::webhook_dead,
        webhooks::webhook_retry,
        keys::key_list,
        keys::key_create,
        keys::key_revoke,
    ]
}

/// The largest body of a request that is not an upload: it holds a prompt and a system prompt, which have one limit, and
/// metadata and model options, which have another. JSON escapes make each of them at most six times as long.
fn body_bytes(kernel: &Kernel) -> usize {
    let texts = kernel.limits().prompt_bytes.saturating_add(kernel.limits().metadata_bytes);
    texts.saturating_mul(12).saturating_add(64 << 10)
}

impl Http {
    /// Creates the HTTP edge of `kernel`. `access` authenticates requests; cancelling `stop` ends all streams.
    pub fn new(kernel: Kernel, access: Access, limits: HttpLimits, stop: CancellationToken) -> Self {
        let body_bytes = body_bytes(&kernel);
        let streams = streams::Streams::new(limits);
        let connections = Connections::from(limits);
        Self(Arc::new(Shared {
            operations: Arc::default(),
            tickets: Arc::default(),
            listeners: None,
            cluster: None,
            peer_key: None,
            webhooks: None,
            document: Arc::default(),
            metrics: Arc::new(metrics::Metrics::new(kernel.clone(), streams.clone(), connections.clone())),
            mcp: Arc::new(mcp::service(&kernel, body_bytes, stop.clone())),
            kernel,
            access: Arc::new(access),
            hosts: Arc::default(),
            is_tls: false,
            origins: Arc::default(),
            oidc: None,
            stop,
            limits,
            body_bytes,
            requests: Pool::new(Resource::Requests, limits.requests),
            connections,
            streams,
            threads: Arc::default(),
            serves_threads: false,
        }))
    }

    /// Also accepts requests to these host names.
    pub fn with_hosts(mut self, hosts: &[String]) -> Self {
        Arc::make_mut(&mut self.0).hosts = hosts.into();
        self
    }

    /// Sets whether the TCP listener speaks HTTPS: pages of this server then have an origin with that scheme.
    pub fn with_tls(mut self, is_tls: bool) -> Self {
        Arc::make_mut(&mut self.0).is_tls = is_tls;
        self
    }

    /// Returns how this server is reached.
    fn site(&self) -> guard::Site<'_> {
        guard::Site { hosts: &self.hosts, is_tls: self.is_tls }
    }

    /// Returns the connections of this server, to serve its router with.
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    /// Also accepts requests of web pages of these origins, such as `https://app.example.com`.
    pub fn with_origins(mut self, origins: &[String]) -> Self {
        Arc::make_mut(&mut self.0).origins = origins.into();
        self
    }

    /// Also accepts tokens of an identity provider.
    pub fn with_oidc(mut self, oidc: Option<Oidc>) -> Self {
        Arc::make_mut(&mut self.0).oidc = oidc.map(Arc::new);
        self
    }

    /// Passes requests for a TCP address on to `listeners`.
    pub fn with_listeners(mut self, listeners: ListenerRequests) -> Self {
        Arc::make_mut(&mut self.0).listeners = Some(listeners);
        self
    }

    /// Sets whether `/v1/ai`, the threads API, is served.
    pub fn with_threads(mut self, serves_threads: bool) -> Self {
        Arc::make_mut(&mut self.0).serves_threads = serves_threads;
        self
    }

    /// Sets the function that reads the servers of the cluster.
    pub fn with_cluster(mut self, cluster: ClusterReader) -> Self {
        Arc::make_mut(&mut self.0).cluster = Some(cluster);
        self
    }

    /// Sets the key with which other servers of the cluster sign what they forward: a browser may be connected to any of
    /// them.
    pub fn with_peer_key(mut self, key: Option<PeerKey>) -> Self {
        Arc::make_mut(&mut self.0).peer_key = key;
        self
    }

    /// Delivers events to webhooks with `sender`.
    pub fn with_webhooks(mut self, sender: WebhookSender) -> Self {
        Arc::make_mut(&mut self.0).webhooks = Some(sender);
        self
    }

    /// Builds the router with all endpoints and middleware.
    pub fn router(mut self) -> Router {
        let mut operations = Operations::default();
        let [open, resources] = endpoints().map(|(endpoints, _)| {
            operations.extend(&endpoints);
            endpoint::router(endpoints)
        });
        operations.add_undocumented(mcp::OPERATION, Method::POST, mcp::PATH);
        let threads = self.serves_threads.then(|| threads::router(&self, &mut operations));
        Arc::make_mut(&mut self.0).operations = Arc::new(operations);
        let bounded = resources
            .route(mcp::PATH, post(mcp::mcp_message))
            .layer(middleware::from_fn_with_state(self.clone(), strict::refuse_unknown_input))
            .layer(middleware::from_fn_with_state(self.clone(), watch::add_history))
            .layer(middleware::from_fn_with_state(self.clone(), watch::admit));
        open.layer(middleware::from_fn_with_state(self.clone(), strict::refuse_unknown_open_input))
            .merge(bounded)
            .merge(threads.unwrap_or_default())
            .merge(page::router())
            .fallback(problem::no_such_endpoint)
            .method_not_allowed_fallback(problem::no_such_method)
            .layer(middleware::from_fn(watch::contain_panics))
            .layer(middleware::from_fn_with_state(self.clone(), guard::check_origin))
            .layer(middleware::from_fn_with_state(self.clone(), audit::record_request))
            .layer(middleware::from_fn_with_state(self.clone(), watch::record_metrics))
            .with_state(self)
    }

    fn document(&self) -> &document::Document {
        self.document.get_or_init(|| document::Document::new(self.kernel.limits()))
    }
}
