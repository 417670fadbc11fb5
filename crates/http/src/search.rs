//! `/v1/search`

use axum::Json;
use axum::extract::State;
use mainspring_core::{MessageId, Role, SessionId, Time};
use mainspring_kernel::kernel::{SearchHit, SearchQuery};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::Known;
use crate::body::Asked;
use crate::sessions::Page;
use crate::{Http, Problem};

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

/// What a search found: a session by its title, or a message.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SearchHit)]
pub(super) struct Hit {
    /// The session.
    session_id: SessionId,
    /// Its title.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// The message; absent if the title was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_id: Option<MessageId>,
    /// Who speaks in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<Role>,
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at_ms: Option<Time>,
    /// The part of the text where it was found, on one line.
    snippet: String,
}

impl From<SearchHit> for Hit {
    fn from(hit: SearchHit) -> Self {
        let SearchHit { session_id, title, message, snippet } = hit;
        Self {
            session_id,
            title,
            message_id: message.as_ref().map(|message| message.message_id),
            role: message.as_ref().map(|message| message.role),
            created_at_ms: message.map(|message| message.created_at),
            snippet,
        }
    }
}

/// Sessions and messages that hold all of the words: titles first, then messages, the latest first
#[utoipa::path(
    get, path = "/v1/search", params(Words),
    responses((status = 200, description = "A page", body = Page<Hit>)),
)]
pub(super) async fn session_search(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(Words { q: text, limit, before }): Asked<Words>,
) -> Result<Json<Page<Hit>>, Problem> {
    let found = http.kernel.session_search(&caller, &SearchQuery { text, before, limit }).await?;
    Ok(Json(Page {
        items: found.hits.into_iter().map(Hit::from).collect(),
        next: found.next.map(|next| next.to_string()),
    }))
}
