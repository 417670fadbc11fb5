//! `/v1/sessions/{session}/bindings`

use axum::Json;
use axum::extract::{Path, State};
use mainspring_core::Binding;
use serde::Deserialize;

use super::access::Known;
use super::body::Named;
use super::sessions::Page;
use super::{Http, Problem};

/// `GET /v1/sessions/{session}/bindings`
pub(super) async fn binding_list(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
) -> Result<Json<Page<Binding>>, Problem> {
    let items = http.kernel.binding_list(&caller, &by).await?;
    Ok(Json(Page { items, next: None }))
}

/// The part of the address that names an adapter.
#[derive(Debug, Deserialize)]
pub(super) struct Of {
    adapter: String,
}

/// `DELETE /v1/sessions/{session}/bindings/{adapter}`: it is not used again; the session stays.
pub(super) async fn binding_invalidate(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    Path(of): Path<Of>,
) -> Result<Json<Binding>, Problem> {
    Ok(Json(http.kernel.binding_invalidate(&caller, &by, &of.adapter).await?))
}
