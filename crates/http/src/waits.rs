//! `/v1/waits`: the open waits of all sessions.

use axum::extract::State;
use mainspring_api::{OpenWait, Page, WaitListQuery};
use mainspring_kernel::kernel::WaitQuery;

use crate::access::Authenticated;
use crate::body::{Json, QueryParams};
use crate::sessions::{page_of, page_start};
use crate::{Http, Problem};

/// Lists the open waits of all sessions that the caller may read, oldest first
#[utoipa::path(
    get, path = "/v1/waits", params(WaitListQuery),
    responses((status = 200, description = "A page of open waits", body = Page<OpenWait>)),
)]
pub(super) async fn wait_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    QueryParams(query): QueryParams<WaitListQuery>,
) -> Result<Json<Page<OpenWait>>, Problem> {
    let (limit, after) = (query.limit, page_start(query.after)?);
    let waits = http.kernel.wait_list(&caller, WaitQuery { after, limit }).await?;
    Ok(Json(page_of(&http, waits, limit, |wait| format!("{}.{}", wait.updated_at.0, wait.run_id))))
}
