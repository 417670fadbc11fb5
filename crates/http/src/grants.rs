//! `/v1/grants`: recorded decisions, and their revocation.

use axum::extract::State;
use mainspring_api::{GrantListQuery, Page};
use mainspring_core::Grant;
use mainspring_kernel::kernel::{GrantQuery, session_ref};

use crate::access::Authenticated;
use crate::body::{GrantPath, Json, QueryParams};
use crate::sessions::{page_of, page_start};
use crate::{Http, Problem};

/// Lists the grants that are in force, newest first
#[utoipa::path(
    get, path = "/v1/grants", params(GrantListQuery),
    responses((status = 200, description = "A page of grants", body = Page<Grant>)),
)]
pub(super) async fn grant_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    QueryParams(query): QueryParams<GrantListQuery>,
) -> Result<Json<Page<Grant>>, Problem> {
    let session = match query.session {
        None => None,
        Some(name) => Some(http.kernel.session_get(&caller, &session_ref(&name)?).await?.id),
    };
    let (limit, before) = (query.limit, page_start(query.before)?);
    let in_force = !query.all.unwrap_or(false);
    let items = http.kernel.grant_list(&caller, GrantQuery { session, in_force, before, limit }).await?;
    Ok(Json(page_of(&http, items, limit, |grant| format!("{}.{}", grant.created_at.0, grant.id))))
}

/// Revokes a grant at once, and the grants of delegated runs that depend on it; succeeds also if it is revoked already
#[utoipa::path(
    post, path = "/v1/grants/{grant}/revoke", params(GrantPath),
    responses((status = 200, description = "The revoked grant", body = Grant)),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden"]))),
)]
pub(super) async fn grant_revoke(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    GrantPath(grant): GrantPath,
) -> Result<Json<Grant>, Problem> {
    Ok(Json(http.kernel.grant_revoke(&caller, grant).await?))
}
