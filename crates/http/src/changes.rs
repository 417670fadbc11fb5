//! `/v1/sessions/{session}/changes`: changes of files.

use axum::extract::State;
use mainspring_api::{ChangesQuery, SessionChanges};

use crate::access::Authenticated;
use crate::body::{Json, QueryParams, SessionPath};
use crate::{Http, Problem};

/// Lists the changes of files that tool calls on the active path have recorded, by turn and by file
#[utoipa::path(
    get, path = "/v1/sessions/{session}/changes", params(SessionPath, ChangesQuery),
    responses((status = 200, description = "The recorded changes", body = SessionChanges)),
)]
pub(super) async fn session_changes(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    QueryParams(query): QueryParams<ChangesQuery>,
) -> Result<Json<SessionChanges>, Problem> {
    Ok(Json(http.kernel.session_changes(&caller, &by, query.before, query.limit).await?))
}
