//! `/v1/ids`: finding ids by their beginning.

use axum::extract::State;
use mainspring_api::{FoundIds, IdQuery};
use mainspring_core::IdPrefix;
use mainspring_kernel::Error;
use mainspring_kernel::kernel::session_ref;

use crate::access::Authenticated;
use crate::body::{Json, QueryParams};
use crate::{Http, Problem};

/// Finds ids by their beginning, for people who type them; all other operations take whole ids
#[utoipa::path(
    get, path = "/v1/ids", params(IdQuery),
    responses((status = 200, description = "The ids, none if nothing that you may read begins so", body = FoundIds)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn id_find(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    QueryParams(query): QueryParams<IdQuery>,
) -> Result<Json<FoundIds>, Problem> {
    let prefix = IdPrefix::parse(query.kind, &query.prefix).map_err(Error::from)?;
    let session = query.session.as_deref().map(session_ref).transpose()?;
    let ids = http.kernel.id_find(&caller, &prefix, session.as_ref()).await?;
    Ok(Json(FoundIds { ids }))
}
