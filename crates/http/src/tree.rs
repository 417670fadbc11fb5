//! A session's tree: where its path goes, its messages and their families, forks.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_api::{Fork, MessageView, Navigation, Page, TreeNode, TreeQuery};
use mainspring_kernel::kernel::ForkRequest;

use crate::access::Known;
use crate::body::{Asked, Input, Named, NamedMessage, Once, idempotency_key};
use crate::sessions::{Tagged, version};
use crate::{Http, Problem};

/// A session's tree: line by line in the order of opening, parents before children
#[utoipa::path(
    get, path = "/v1/sessions/{session}/tree", params(Named, TreeQuery),
    responses((status = 200, description = "A page", body = Page<TreeNode>)),
)]
pub(super) async fn session_tree(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    Asked(query): Asked<TreeQuery>,
) -> Result<Json<Page<TreeNode>>, Problem> {
    let tree = http.kernel.session_tree(&caller, &by, query).await?;
    Ok(Json(Page { items: tree.nodes, next: tree.next.map(|next| next.to_string()) }))
}

/// One message and what stands around it
#[utoipa::path(
    get, path = "/v1/sessions/{session}/messages/{message}", params(NamedMessage),
    responses((status = 200, description = "The message", body = MessageView)),
)]
pub(super) async fn session_message(
    State(http): State<Http>,
    Known(caller): Known,
    NamedMessage(by, message): NamedMessage,
) -> Result<Json<MessageView>, Problem> {
    Ok(Json(http.kernel.session_message(&caller, &by, message).await?))
}

/// Moves the active path; with `If-Match`, only if nobody has changed the session meanwhile
#[utoipa::path(
    post, path = "/v1/sessions/{session}/navigate", request_body = Navigation,
    params(Named, ("If-Match" = Option<String>, Header, description = "The ETag that it must still have.")),
    responses((status = 200, description = "As it is now", body = mainspring_core::Session, headers(("ETag" = String)))),
    extensions(("x-problems" = json!(["forbidden", "session_busy", "abandoned_message", "version_conflict", "wrong_state"]))),
)]
pub(super) async fn session_navigate(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    headers: HeaderMap,
    Input(to): Input<Navigation>,
) -> Result<Tagged, Problem> {
    let version = version(&headers)?;
    let to =
        to.message_id.ok_or_else(|| Problem::invalid("say where: messageId, or null for an empty path"))?;
    Ok(Tagged(http.kernel.session_navigate(&caller, &by, to, version).await?))
}

/// A new session that goes on from a message of this one; nothing is copied
#[utoipa::path(
    post, path = "/v1/sessions/{session}/fork", request_body = Fork, params(Named, Once),
    responses(
        (status = 200, description = "The same request made it before", body = mainspring_core::Session, headers(("ETag" = String), ("Location" = String))),
        (status = 201, description = "It was made", body = mainspring_core::Session, headers(("ETag" = String), ("Location" = String))),
    ),
    extensions(("x-problems" = json!([
        "forbidden", "already_exists", "request_conflict", "abandoned_message", "session_busy", "wrong_state"
    ]))),
)]
pub(super) async fn session_fork(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    headers: HeaderMap,
    Input(fork): Input<Fork>,
) -> Result<Response, Problem> {
    let Fork { message_id: message, key, title } = fork;
    let request = ForkRequest { message, key, title };
    let (session, made) = http.kernel.session_fork(&caller, &by, request, idempotency_key(&headers)?).await?;
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    let place = HeaderValue::from_str(&format!("/v1/sessions/{}", session.id));
    let mut response = (status, Tagged(session)).into_response();
    response.headers_mut().extend(place.into_iter().map(|place| (header::LOCATION, place)));
    Ok(response)
}
