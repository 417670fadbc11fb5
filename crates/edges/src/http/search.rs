//! `/v1/search`

use axum::Json;
use axum::extract::State;
use mainspring_kernel::kernel::{SearchHit, SearchQuery};
use serde::Deserialize;
use utoipa::IntoParams;

use super::access::Known;
use super::body::Asked;
use super::sessions::Page;
use super::{Http, Problem};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Words {
    /// What to look for: any text is a query.
    q: String,
    /// How many; 50 if not given.
    limit: Option<usize>,
    /// The `next` of the page before.
    before: Option<u64>,
}

/// Sessions and messages that hold all of the words: titles first, then messages, the latest first
#[utoipa::path(
    get, path = "/v1/search", params(Words),
    responses((status = 200, description = "A page", body = Page<SearchHit>)),
)]
pub(super) async fn session_search(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(Words { q: text, limit, before }): Asked<Words>,
) -> Result<Json<Page<SearchHit>>, Problem> {
    let found = http.kernel.session_search(&caller, &SearchQuery { text, before, limit }).await?;
    Ok(Json(Page { items: found.hits, next: found.next.map(|next| next.to_string()) }))
}
