//! A session's tree: where its path goes, its messages and their families, forks.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_core::MessageId;
use mainspring_kernel::kernel::{ForkRequest, MessageView, TreeNode, TreeQuery};
use serde::Deserialize;

use super::access::Known;
use super::body::{Asked, Input, Named, NamedMessage, idempotency_key};
use super::sessions::{Page, Tagged, given, version};
use super::{Http, Problem};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    limit: Option<usize>,
    /// Only what comes after this message.
    after: Option<MessageId>,
}

/// `GET /v1/sessions/{session}/tree`: line by line in the order of opening, parents before children.
pub(super) async fn session_tree(
    State(http): State<Http>,
    Known(caller): Known,
    Named(by): Named,
    Asked(query): Asked<PageQuery>,
) -> Result<Json<Page<TreeNode>>, Problem> {
    let query = TreeQuery { after: query.after, limit: query.limit };
    let tree = http.kernel.session_tree(&caller, &by, query).await?;
    Ok(Json(Page { items: tree.nodes, next: tree.next.map(|next| next.to_string()) }))
}

/// `GET /v1/sessions/{session}/messages/{message}`
pub(super) async fn session_message(
    State(http): State<Http>,
    Known(caller): Known,
    NamedMessage(by, message): NamedMessage,
) -> Result<Json<MessageView>, Problem> {
    Ok(Json(http.kernel.session_message(&caller, &by, message).await?))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Navigation {
    /// Null: to none.
    #[serde(default, deserialize_with = "given")]
    message_id: Option<Option<MessageId>>,
}

/// `POST /v1/sessions/{session}/navigate`: with `If-Match`, only if nobody has changed the session meanwhile.
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

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Fork {
    message_id: MessageId,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    title: Option<String>,
}

/// `POST /v1/sessions/{session}/fork`: 201, or 200 if the same request made it before.
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
