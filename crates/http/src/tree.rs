//! A session's message tree: nodes, single messages, navigation and forks.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_api::{Fork, MessageView, Navigation, Page, TreeNode, TreeQuery};
use mainspring_kernel::kernel::ForkRequest;

use crate::access::Authenticated;
use crate::body::{
    IdempotencyHeader, Json, JsonObject, MessagePath, QueryParams, SessionPath, idempotency_key,
};
use crate::sessions::{TaggedSession, if_match_version};
use crate::{Http, Problem};

/// Lists the nodes of a session's message tree: branch by branch in order of creation, parents before children
#[utoipa::path(
    get, path = "/v1/sessions/{session}/tree", params(SessionPath, TreeQuery),
    responses((status = 200, description = "A page of tree nodes", body = Page<TreeNode>)),
)]
pub(super) async fn session_tree(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    QueryParams(query): QueryParams<TreeQuery>,
) -> Result<Json<Page<TreeNode>>, Problem> {
    let tree = http.kernel.session_tree(&caller, &by, query).await?;
    Ok(Json(Page { items: tree.nodes, next: tree.next.map(|next| next.to_string()), damaged: tree.damaged }))
}

/// Returns a message with its parent, children and siblings
#[utoipa::path(
    get, path = "/v1/sessions/{session}/messages/{message}", params(MessagePath),
    responses((status = 200, description = "The message", body = MessageView)),
)]
pub(super) async fn session_message(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    MessagePath(by, message): MessagePath,
) -> Result<Json<MessageView>, Problem> {
    Ok(Json(http.kernel.session_message(&caller, &by, message).await?))
}

/// Moves the active path to another message; with `If-Match`, only if the session is unchanged
#[utoipa::path(
    post, path = "/v1/sessions/{session}/navigate", request_body = Navigation,
    params(SessionPath, ("If-Match" = Option<String>, Header, description = "The ETag that the session must still have.")),
    responses((status = 200, description = "The changed session", body = mainspring_core::Session, headers(("ETag" = String)))),
    extensions(("x-problems" = json!(["folder_not_allowed", "not_allowed_by_key", "forbidden", "session_busy", "abandoned_message", "version_conflict", "wrong_state"]))),
)]
pub(super) async fn session_navigate(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    headers: HeaderMap,
    JsonObject(to): JsonObject<Navigation>,
) -> Result<TaggedSession, Problem> {
    let version = if_match_version(&headers)?;
    let to = to.message_id.ok_or_else(|| {
        Problem::invalid("messageId is required: the id of a message, or null for an empty path")
    })?;
    Ok(TaggedSession(http.kernel.session_navigate(&caller, &by, to, version).await?))
}

/// Creates a session that continues from a message of this one, without copying messages
#[utoipa::path(
    post, path = "/v1/sessions/{session}/fork", request_body = Fork, params(SessionPath, IdempotencyHeader),
    responses(
        (status = 200, description = "The session that the same request created before", body = mainspring_core::Session, headers(("ETag" = String), ("Location" = String))),
        (status = 201, description = "The new session", body = mainspring_core::Session, headers(("ETag" = String), ("Location" = String))),
    ),
    extensions(("x-problems" = json!([
        "folder_not_allowed", "not_allowed_by_key", "forbidden", "already_exists", "request_conflict", "abandoned_message",
        "session_busy", "wrong_state"
    ]))),
)]
pub(super) async fn session_fork(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    SessionPath(by): SessionPath,
    headers: HeaderMap,
    JsonObject(fork): JsonObject<Fork>,
) -> Result<Response, Problem> {
    let Fork { message_id: message, key, title } = fork;
    let request = ForkRequest { message, key, title };
    let (session, made) = http.kernel.session_fork(&caller, &by, request, idempotency_key(&headers)?).await?;
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    let location = HeaderValue::from_str(&format!("/v1/sessions/{}", session.id));
    let mut response = (status, TaggedSession(session)).into_response();
    response.headers_mut().extend(location.into_iter().map(|location| (header::LOCATION, location)));
    Ok(response)
}
