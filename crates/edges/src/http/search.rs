//! `/v1/search`

use axum::Json;
use axum::extract::State;
use mainspring_kernel::kernel::{SearchHit, SearchQuery};
use serde::Deserialize;

use super::access::Known;
use super::body::Asked;
use super::sessions::Page;
use super::{Http, Problem};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Words {
    q: String,
    limit: Option<usize>,
    before: Option<u64>,
}

/// `GET /v1/search`: titles first, then messages, the latest first. Any text is a query.
pub(super) async fn session_search(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(Words { q: text, limit, before }): Asked<Words>,
) -> Result<Json<Page<SearchHit>>, Problem> {
    let found = http.kernel.session_search(&caller, &SearchQuery { text, before, limit }).await?;
    Ok(Json(Page { items: found.hits, next: found.next.map(|next| next.to_string()) }))
}
