//! Feedback of readers on messages.

use axum::extract::State;
use mainspring_api::Page;
use mainspring_core::{Feedback, NewFeedback};

use crate::access::Authenticated;
use crate::body::{Json, JsonObject, MessagePath, SessionPath};
use crate::{Http, Problem};

/// Gives feedback on a message, in place of the caller's earlier feedback on it
#[utoipa::path(
    put, path = "/v1/sessions/{session}/messages/{message}/feedback", request_body = NewFeedback, params(MessagePath),
    responses((status = 200, description = "The caller's feedback", body = Feedback)),
    extensions(("x-problems" = json!(["forbidden", "abandoned_message"]))),
)]
pub(super) async fn feedback_give(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    MessagePath(by, message): MessagePath,
    JsonObject(new): JsonObject<NewFeedback>,
) -> Result<Json<Feedback>, Problem> {
    Ok(Json(http.kernel.feedback_give(&caller, &by, message, new).await?))
}

/// Lists the feedback on the messages of a session, of all its readers
#[utoipa::path(
    get, path = "/v1/sessions/{session}/feedback", params(SessionPath),
    responses((status = 200, description = "All feedback", body = Page<Feedback>)),
)]
pub(super) async fn feedback_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
) -> Result<Json<Page<Feedback>>, Problem> {
    Ok(Json(Page::single(http.kernel.feedback_list(&caller, &by).await?)))
}
