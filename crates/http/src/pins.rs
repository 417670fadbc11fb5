//! Pins of readers on sessions.

use axum::extract::State;
use mainspring_core::Session;

use crate::access::Authenticated;
use crate::body::SessionPath;
use crate::sessions::TaggedSession;
use crate::{Http, Problem};

/// Pins a session for the caller alone
#[utoipa::path(
    put, path = "/v1/sessions/{session}/pin", params(SessionPath),
    responses((status = 200, description = "The session; its version has not changed", body = Session, headers(("ETag" = String)))),
    extensions(("x-problems" = json!(["forbidden", "too_many"]))),
)]
pub(super) async fn session_pin(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<TaggedSession, Problem> {
    Ok(TaggedSession(http.kernel.session_pin(&caller, &by, true).await?))
}

/// Removes the caller's pin of a session, if there is one
#[utoipa::path(
    delete, path = "/v1/sessions/{session}/pin", params(SessionPath),
    responses((status = 200, description = "The session; its version has not changed", body = Session, headers(("ETag" = String)))),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn session_unpin(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<TaggedSession, Problem> {
    Ok(TaggedSession(http.kernel.session_pin(&caller, &by, false).await?))
}
