//! Whether the server lives and works, and what it can do.

use axum::Json;
use axum::extract::State;
use mainspring_api::{Capabilities, Health};
use mainspring_core::ModelList;

use crate::access::Known;
use crate::{Http, Problem};

/// The process answers
#[utoipa::path(get, path = "/health", security(()), responses((status = 200, description = "It does", body = Health)))]
pub(super) async fn health() -> Json<Health> {
    Json(Health { status: "ok".into(), version: env!("CARGO_PKG_VERSION").into() })
}

/// The store answers too, and the server is not stopping
#[utoipa::path(
    get, path = "/ready", security(()),
    responses((status = 200, description = "It takes work", body = Health)),
    extensions(("x-problems" = json!(["unavailable", "shutting_down", "corrupt"]))),
)]
pub(super) async fn ready(State(http): State<Http>) -> Result<Json<Health>, Problem> {
    http.kernel.check_store().await?;
    if http.stop.is_cancelled() {
        return Err(mainspring_kernel::Error::ShuttingDown.into());
    }
    Ok(health().await)
}

/// The adapters and what they can do
#[utoipa::path(
    get, path = "/v1/adapters",
    responses((status = 200, description = "All of them", body = Vec<Capabilities>)),
)]
pub(super) async fn adapter_list(State(http): State<Http>, Known(_): Known) -> Json<Vec<Capabilities>> {
    Json(http.kernel.adapters())
}

/// The models that are configured, who runs models, and whether their keys are there
#[utoipa::path(
    get, path = "/v1/models",
    responses((status = 200, description = "All of them; never a key", body = ModelList)),
)]
pub(super) async fn model_list(State(http): State<Http>, Known(_): Known) -> Json<ModelList> {
    Json(http.kernel.models())
}
