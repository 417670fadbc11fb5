//! Health checks, adapters and models.

use axum::extract::State;
use mainspring_api::{Capabilities, Health};
use mainspring_core::ModelList;

use crate::access::Authenticated;
use crate::body::Json;
use crate::{Http, Problem};

/// Liveness: the process answers
#[utoipa::path(get, path = "/health", security(()), responses((status = 200, description = "The server is alive", body = Health)))]
pub(super) async fn health() -> Json<Health> {
    Json(Health { status: "ok".into(), version: env!("CARGO_PKG_VERSION").into() })
}

/// Readiness: the store answers and the server is not shutting down
#[utoipa::path(
    get, path = "/ready", security(()),
    responses((status = 200, description = "The server accepts requests", body = Health)),
    extensions(("x-problems" = json!(["unavailable", "shutting_down", "corrupt", "store_lost", "store_full", "audit_failed"]))),
)]
pub(super) async fn ready(State(http): State<Http>) -> Result<Json<Health>, Problem> {
    http.kernel.check_store().await?;
    if http.stop.is_cancelled() {
        return Err(mainspring_kernel::Error::ShuttingDown.into());
    }
    Ok(health().await)
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
