//! The HTTP edge: resources under `/v1`, events as JSON pages or server-sent events.
//!
//! Handlers translate: a request into a kernel verb, its answer into JSON, its error into a problem (RFC 9457). A
//! connection that ends cancels nothing. Streams end when the server stops.

#![expect(unused_qualifications, reason = "utoipa's attributes write them")]

use std::sync::Arc;

use axum::{Router, middleware};
use mainspring_kernel::Kernel;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

mod access;
mod agents;
mod artifacts;
mod bindings;
mod body;
mod delegations;
mod document;
mod events;
mod feed;
mod guard;
mod health;
mod keys;
mod limits;
mod listen;
mod logins;
mod metrics;
mod owner_events;
mod portable;
mod problem;
mod runs;
mod search;
mod sessions;
mod state;
mod streams;
mod tree;
mod watch;

pub use access::Access;
pub use document::document;
pub use limits::HttpLimits;
pub use listen::serve;
#[cfg(test)]
pub(crate) use problem::PROBLEMS;
pub use problem::Problem;

/// What every handler reaches.
#[derive(Clone)]
pub struct Http {
    kernel: Kernel,
    access: Arc<Access>,
    /// Host names besides those of this machine.
    hosts: Arc<[String]>,
    stop: CancellationToken,
    limits: HttpLimits,
    body_bytes: usize,
    /// One for each request that may be worked on at once.
    requests: Arc<Semaphore>,
    streams: Arc<streams::Streams>,
    document: Arc<document::Document>,
    metrics: Arc<metrics::Metrics>,
}

/// Every endpoint, by what a request passes on its way there, and the problems it may meet on it.
fn endpoints() -> [(OpenApiRouter<Http>, &'static [document::Row]); 2] {
    // Those that tell how the server is, which they also do while it is overloaded.
    let open = OpenApiRouter::new()
        .routes(routes!(health::health))
        .routes(routes!(health::ready))
        .routes(routes!(document::openapi))
        .routes(routes!(metrics::metrics));
    let resources = OpenApiRouter::new()
        .routes(routes!(health::adapter_list))
        .routes(routes!(logins::login_list, logins::login_create))
        .routes(routes!(health::model_list))
        .routes(routes!(feed::feed))
        .routes(routes!(owner_events::owner_events))
        .routes(routes!(sessions::session_list, sessions::session_resolve))
        .routes(routes!(sessions::session_get, sessions::session_patch, sessions::session_delete))
        .routes(routes!(sessions::session_messages))
        .routes(routes!(tree::session_message))
        .routes(routes!(tree::session_tree))
        .routes(routes!(tree::session_navigate))
        .routes(routes!(tree::session_fork))
        .routes(routes!(portable::session_export))
        .routes(routes!(sessions::session_snapshot))
        .routes(routes!(sessions::session_close))
        .routes(routes!(sessions::session_compact))
        .routes(routes!(events::session_events))
        .routes(routes!(runs::run_create_in))
        .routes(routes!(runs::run_list, runs::run_create))
        .routes(routes!(runs::run_get))
        .routes(routes!(runs::run_attempts))
        .routes(routes!(runs::run_grants))
        .routes(routes!(runs::run_steps))
        .routes(routes!(delegations::run_delegate, delegations::run_delegations))
        .routes(routes!(delegations::delegation_get))
        .routes(routes!(events::run_events))
        .routes(routes!(runs::run_cancel))
        .routes(routes!(runs::run_retry))
        .routes(routes!(runs::run_answer))
        .routes(routes!(state::session_state_list))
        .routes(routes!(state::session_state_get, state::session_state_set, state::session_state_delete))
        .routes(routes!(state::run_state_list))
        .routes(routes!(state::run_state_get, state::run_state_set, state::run_state_delete))
        .routes(routes!(state::owner_state_list))
        .routes(routes!(state::owner_state_get, state::owner_state_set, state::owner_state_delete))
        .routes(routes!(artifacts::session_artifacts, artifacts::artifact_put))
        .routes(routes!(artifacts::run_artifacts))
        .routes(routes!(artifacts::artifact_get, artifacts::artifact_delete))
        .routes(routes!(artifacts::artifact_content))
        .routes(routes!(bindings::binding_list, bindings::binding_adopt))
        .routes(routes!(bindings::binding_invalidate))
        .routes(routes!(bindings::session_adopt))
        .routes(routes!(search::session_search))
        .routes(routes!(portable::session_import))
        .routes(routes!(agents::agent_list, agents::agent_create))
        .routes(routes!(agents::agent_get, agents::agent_delete))
        .routes(routes!(keys::key_list, keys::key_create))
        .routes(routes!(keys::key_revoke));
    [(open, document::OPEN), (resources, document::RESOURCE)]
}

impl Http {
    /// An edge on `kernel` for those whom `access` lets in, until `stop`.
    pub fn new(kernel: Kernel, access: Access, limits: HttpLimits, stop: CancellationToken) -> Self {
        // A body holds a prompt and a system prompt, metadata and model options, each escaped at worst sixfold.
        let texts = kernel.limits().prompt_bytes.saturating_add(kernel.limits().metadata_bytes);
        let body_bytes = texts.saturating_mul(12).saturating_add(64 << 10);
        let parts = endpoints().map(|(router, common)| (router.into_openapi(), common));
        let streams = Arc::<streams::Streams>::default();
        Self {
            document: Arc::new(document::Document::new(kernel.limits(), parts)),
            metrics: Arc::new(metrics::Metrics::new(kernel.clone(), streams.clone())),
            kernel,
            access: Arc::new(access),
            hosts: Arc::default(),
            stop,
            limits,
            body_bytes,
            requests: Arc::new(Semaphore::new(limits.requests)),
            streams,
        }
    }

    /// The same edge, which others may reach by these host names.
    pub fn known_as(self, hosts: &[String]) -> Self {
        Self { hosts: hosts.into(), ..self }
    }

    /// Every endpoint.
    pub fn router(self) -> Router {
        let [open, resources] = endpoints().map(|(router, _)| Router::from(router));
        let bounded = resources.layer(middleware::from_fn_with_state(self.clone(), watch::bound));
        open.merge(bounded)
            .fallback(problem::no_such_endpoint)
            .method_not_allowed_fallback(problem::no_such_method)
            .layer(middleware::from_fn_with_state(self.clone(), guard::check_origin))
            .layer(middleware::from_fn_with_state(self.clone(), watch::observe))
            .with_state(self)
    }
}
