//! `/v1/cluster`: the servers that share the database.
//!
//! This crate does not know the servers: it calls the [`ClusterReader`] that the serving program passes in.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::State;
use mainspring_api::Cluster;
use mainspring_kernel::Error;

use crate::access::Authenticated;
use crate::body::Json;
use crate::{Http, Problem};

/// Reads the servers of the cluster. The error says why they cannot be read.
pub type ClusterReader =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Cluster, String>> + Send>> + Send + Sync>;

/// Shows the servers that share the database, and which of them is active
#[utoipa::path(
    get, path = "/v1/cluster",
    responses((status = 200, description = "The servers", body = Cluster)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn cluster_status(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Cluster>, Problem> {
    caller.check_server_admin()?;
    match &http.cluster {
        Some(read) => Ok(Json(read().await.map_err(Error::Unavailable)?)),
        None => Ok(Json(Cluster::default())),
    }
}
