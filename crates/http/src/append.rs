//! Messages that another program appends to a session, after it has run the turn itself.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mainspring_api::{Appended, MessageAppend, ResultsAppend};
use mainspring_core::Message;

use crate::access::Authenticated;
use crate::audit::About;
use crate::body::{Json, JsonObject, SessionPath};
use crate::{Http, Problem};

/// Appends a message of a person at the end of the active path, without a run
#[utoipa::path(
    post, path = "/v1/sessions/{session}/messages", request_body = MessageAppend, params(SessionPath),
    responses(
        (status = 200, description = "The message that was appended under this id before", body = Message),
        (status = 201, description = "The appended message", body = Message),
    ),
    extensions(("x-problems" = json!([
        "forbidden", "request_conflict", "session_busy", "session_closed", "too_large", "wrong_state"
    ]))),
)]
pub(super) async fn message_append(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    JsonObject(message): JsonObject<MessageAppend>,
) -> Result<Response, Problem> {
    let (message, made) = http.kernel.message_append(&caller, &by, message).await?;
    Ok(About::ids([&message.id]).with((status(made), Json::<Arc<Message>>(message)).into_response()))
}

/// Appends the finished results of a turn at the end of the active path, without a run
#[utoipa::path(
    post, path = "/v1/sessions/{session}/results", request_body = ResultsAppend, params(SessionPath),
    responses(
        (status = 200, description = "The messages that were appended under this id before", body = Appended),
        (status = 201, description = "The appended messages", body = Appended),
    ),
    extensions(("x-problems" = json!([
        "forbidden", "request_conflict", "session_busy", "session_closed", "not_at_tip", "too_large", "wrong_state"
    ]))),
)]
pub(super) async fn results_append(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    JsonObject(results): JsonObject<ResultsAppend>,
) -> Result<Response, Problem> {
    let (messages, made) = http.kernel.results_append(&caller, &by, results).await?;
    let ids = messages.iter().map(|message| message.id.to_string()).collect();
    let about = About { ids, ..About::default() };
    Ok(about.with((status(made), Json(Appended { messages })).into_response()))
}

fn status(made: bool) -> StatusCode {
    if made { StatusCode::CREATED } else { StatusCode::OK }
}
