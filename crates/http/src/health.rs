//! Health checks, adapters and models.

use axum::extract::{FromRequestParts, State};
use axum::http::header;
use axum::http::request::Parts;
use mainspring_api::{Capabilities, Health};
use mainspring_core::ModelList;

use crate::access::Authenticated;
use crate::body::Json;
use crate::{Http, Problem};

/// Liveness: the process answers
#[utoipa::path(get, path = "/health", security(()), responses((status = 200, description = "The server is alive", body = Health)))]
pub(super) async fn health(State(http): State<Http>, mut parts: Parts) -> Json<Health> {
    // Sessions belong to owners, so only an admin of the server learns which sessions have failed. Everybody else gets
    // the same answer, with any credential or none. A server without failures answers without checking the credential.
    let checks_credential =
        http.kernel.failed_session_count() > 0 && parts.headers.contains_key(header::AUTHORIZATION);
    let caller = match checks_credential {
        true => Authenticated::from_request_parts(&mut parts, &http).await.ok(),
        false => None,
    };
    let failed = caller.and_then(|Authenticated(caller)| http.kernel.failed_sessions(&caller).ok());
    Json(Health { failed_sessions: failed.unwrap_or_default(), ..alive() })
}

/// The answer of a process that is alive.
pub(super) fn alive() -> Health {
    Health { status: "ok".into(), version: env!("CARGO_PKG_VERSION").into(), failed_sessions: vec![] }
}

/// Readiness: the store answers and the server neither drains nor shuts down
#[utoipa::path(
    get, path = "/ready", security(()),
    responses((status = 200, description = "The server accepts requests", body = Health)),
    extensions(("x-problems" = json!(["unavailable", "shutting_down", "corrupt", "store_lost", "store_full", "audit_failed"]))),
)]
pub(super) async fn ready(State(http): State<Http>) -> Result<Json<Health>, Problem> {
    http.kernel.check_store().await?;
    if http.stop.is_cancelled() || http.kernel.is_draining() {
        return Err(mainspring_kernel::Error::ShuttingDown.into());
    }
    Ok(Json(alive()))
}

/// Lists the adapters and their capabilities
#[utoipa::path(
    get, path = "/v1/adapters",
    responses((status = 200, description = "All adapters", body = Vec<Capabilities>)),
)]
pub(super) async fn adapter_list(
    State(http): State<Http>,
    Authenticated(_): Authenticated,
) -> Json<Vec<Capabilities>> {
    Json(http.kernel.adapters())
}

/// Lists the configured models, the model providers, and whether each has an API key
#[utoipa::path(
    get, path = "/v1/models",
    responses((status = 200, description = "All models and providers, without their keys", body = ModelList)),
)]
pub(super) async fn model_list(State(http): State<Http>, Authenticated(_): Authenticated) -> Json<ModelList> {
    Json(http.kernel.models())
}
