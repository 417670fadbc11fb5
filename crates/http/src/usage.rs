//! `/v1/usage`: tokens and cost of the caller's runs.

use axum::extract::State;
use mainspring_api::{UsageQuery, UsageReport};

use crate::access::Authenticated;
use crate::body::{Json, QueryParams};
use crate::{Http, Problem};

/// Sums tokens and cost of the caller's runs in a span of time, by day, agent, model or session
#[utoipa::path(
    get, path = "/v1/usage", params(UsageQuery),
    responses((status = 200, description = "The usage", body = UsageReport)),
)]
pub(super) async fn usage_report(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    QueryParams(query): QueryParams<UsageQuery>,
) -> Result<Json<UsageReport>, Problem> {
    Ok(Json(http.kernel.usage_report(&caller, &query).await?))
}
