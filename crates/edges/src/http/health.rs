//! Whether the server lives and works, and what it can do.

use axum::Json;
use axum::extract::State;
use mainspring_kernel::adapter::Capabilities;
use serde::Serialize;

use super::access::Known;
use super::{Http, Problem};

#[derive(Serialize)]
pub(super) struct Health {
    status: &'static str,
    version: &'static str,
}

/// `GET /health`: the process answers.
pub(super) async fn health() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// `GET /ready`: the store answers too, and the server is not stopping.
pub(super) async fn ready(State(http): State<Http>) -> Result<Json<Health>, Problem> {
    http.kernel.check().await?;
    if http.stop.is_cancelled() {
        return Err(mainspring_kernel::Error::ShuttingDown.into());
    }
    Ok(health().await)
}

/// `GET /v1/adapters`
pub(super) async fn adapters(State(http): State<Http>, Known(_): Known) -> Json<Vec<Capabilities>> {
    Json(http.kernel.adapters())
}
