//! `/v1/search`: full-text search.

use axum::extract::State;
use mainspring_api::{Page, SearchHit, SearchQuery};
use mainspring_kernel::kernel;

use crate::access::Authenticated;
use crate::body::{Json, QueryParams};
use crate::{Http, Problem};

/// Searches session titles and messages for all of the words: titles first, then messages, newest first
#[utoipa::path(
    get, path = "/v1/search", params(SearchQuery),
    responses((status = 200, description = "A page of matches", body = Page<SearchHit>)),
)]
pub(super) async fn session_search(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    QueryParams(SearchQuery { q: text, limit, scope, before }): QueryParams<SearchQuery>,
) -> Result<Json<Page<SearchHit>>, Problem> {
    let before = before.map(|before| before.parse()).transpose()?;
    let scope = scope.unwrap_or_default();
    let query = kernel::SearchQuery { text, scope, before, limit };
    let found = http.kernel.session_search(&caller, &query).await?;
    Ok(Json(Page {
        items: found.hits,
        next: found.next.map(|next| next.to_string()),
        damaged: found.damaged,
    }))
}
