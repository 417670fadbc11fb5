//! `/v1/keys`: API keys.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use mainspring_api::{KeyListQuery, MadeKey, NewKey, Page};
use mainspring_core::ApiKey;
use mainspring_kernel::kernel::{self, KeyQuery};

use crate::access::Authenticated;
use crate::audit::About;
use crate::body::{IdempotencyHeader, Json, JsonObject, KeyPath, QueryParams, idempotency_key};
use crate::sessions::{page_of, page_start};
use crate::{Http, Problem};

/// Creates an API key; only this response contains its secret
#[utoipa::path(
    post, path = "/v1/keys", request_body = NewKey, params(IdempotencyHeader),
    responses(
        (status = 200, description = "The key that the same request created before, without its secret", body = MadeKey),
        (status = 201, description = "The new key with its secret", body = MadeKey),
    ),
    extensions(("x-problems" = json!(["forbidden", "not_allowed_by_key", "request_conflict"]))),
)]
pub(super) async fn key_create(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
    JsonObject(body): JsonObject<NewKey>,
) -> Result<Response, Problem> {
    let NewKey { name, owner_id, org_id, role, expires_at_ms, folders, .. } = body;
    let new = kernel::NewKey {
        name,
        owner: owner_id,
        org: org_id,
        role,
        expires_at: expires_at_ms,
        folders,
        adapters: body.adapters,
        models: body.models,
        tools: body.tools,
        spend_per_day: body.spend_per_day,
    };
    let (key, secret) = http.kernel.key_create(&caller, new, idempotency_key(&headers)?).await?;
    let secret = secret.map(|secret| secret.reveal().to_owned());
    let replayed = secret.is_none();
    let status = if replayed { StatusCode::OK } else { StatusCode::CREATED };
    let about = About { owner: Some(key.owner.clone()), org: key.org.clone(), ..About::ids([&key.id]) };
    Ok(about.with((status, Json(MadeKey { key, secret, replayed }))))
}

/// Lists API keys without their secrets, newest first
#[utoipa::path(
    get, path = "/v1/keys", params(KeyListQuery),
    responses((status = 200, description = "A page of API keys", body = Page<ApiKey>)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn key_list(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    QueryParams(query): QueryParams<KeyListQuery>,
) -> Result<Json<Page<ApiKey>>, Problem> {
    let (limit, before) = (query.limit, page_start(query.before)?);
    let items = http.kernel.key_list(&caller, KeyQuery { before, limit }).await?;
    Ok(Json(page_of(&http, items, limit, |key| format!("{}.{}", key.created_at.0, key.id))))
}

/// Revokes an API key; succeeds also if it is revoked already
#[utoipa::path(
    delete, path = "/v1/keys/{key}", params(KeyPath),
    responses((status = 204, description = "The key is revoked")),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn key_revoke(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
    KeyPath(key): KeyPath,
) -> Result<Response, Problem> {
    let revoked = http.kernel.key_revoke(&caller, key).await?;
    let about = About { owner: Some(revoked.owner), org: revoked.org, ..About::default() };
    Ok(about.with(StatusCode::NO_CONTENT))
}
