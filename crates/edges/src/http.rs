//! The HTTP edge: resources under `/v1`, events as JSON pages or server-sent events.
//!
//! Handlers translate: a request into a kernel verb, its answer into JSON, its error into a problem (RFC 9457). A
//! connection that ends cancels nothing. Streams end when the server stops.

use std::sync::Arc;

use axum::routing::{delete, get, post};
use axum::{Router, middleware};
use mainspring_kernel::Kernel;
use tokio_util::sync::CancellationToken;

mod access;
mod bindings;
mod body;
mod events;
mod guard;
mod health;
mod keys;
mod problem;
mod runs;
mod sessions;

pub use access::Access;
pub use problem::Problem;

/// What every handler reaches.
#[derive(Clone)]
pub struct Http {
    kernel: Kernel,
    access: Arc<Access>,
    /// Host names besides those of this machine.
    hosts: Arc<[String]>,
    stop: CancellationToken,
    body_bytes: usize,
}

impl Http {
    /// An edge on `kernel` for those whom `access` lets in, until `stop`.
    pub fn new(kernel: Kernel, access: Access, stop: CancellationToken) -> Self {
        // A body holds a prompt and a system prompt, metadata and model options, each escaped at worst sixfold.
        let limits = kernel.limits();
        let texts = limits.prompt_bytes.saturating_add(limits.metadata_bytes);
        let body_bytes = texts.saturating_mul(12).saturating_add(64 << 10);
        Self { kernel, access: Arc::new(access), hosts: Arc::default(), stop, body_bytes }
    }

    /// The same edge, which others may reach by these host names.
    pub fn known_as(self, hosts: &[String]) -> Self {
        Self { hosts: hosts.into(), ..self }
    }

    /// Every endpoint.
    pub fn router(self) -> Router {
        let open = Router::new().route("/health", get(health::health)).route("/ready", get(health::ready));
        let resources = Router::new()
            .route("/v1/adapters", get(health::adapters))
            .route("/v1/sessions", get(sessions::session_list).post(sessions::session_resolve))
            .route(
                "/v1/sessions/{session}",
                get(sessions::session_get).patch(sessions::session_patch).delete(sessions::session_delete),
            )
            .route("/v1/sessions/{session}/snapshot", get(sessions::session_snapshot))
            .route("/v1/sessions/{session}/messages", get(sessions::session_messages))
            .route("/v1/sessions/{session}/tree", get(sessions::session_tree))
            .route("/v1/sessions/{session}/events", get(events::session_events))
            .route("/v1/sessions/{session}/bindings", get(bindings::binding_list))
            .route("/v1/sessions/{session}/bindings/{adapter}", delete(bindings::binding_invalidate))
            .route("/v1/sessions/{session}/runs", post(runs::run_create_in))
            .route("/v1/runs", get(runs::run_list).post(runs::run_create))
            .route("/v1/runs/{run}", get(runs::run_get))
            .route("/v1/runs/{run}/attempts", get(runs::run_attempts))
            .route("/v1/runs/{run}/events", get(events::run_events))
            .route("/v1/runs/{run}/cancel", post(runs::run_cancel))
            .route("/v1/runs/{run}/retry", post(runs::run_retry))
            .route("/v1/runs/{run}/answer", post(runs::run_answer))
            .route("/v1/keys", get(keys::key_list).post(keys::key_create))
            .route("/v1/keys/{key}", delete(keys::key_revoke));
        open.merge(resources)
            .fallback(problem::no_such_endpoint)
            .method_not_allowed_fallback(problem::no_such_method)
            .layer(middleware::from_fn_with_state(self.clone(), guard::check_origin))
            .with_state(self)
    }
}
