//! `/v1/keys`

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use mainspring_api::{KeyListQuery, MadeKey, NewKey, Page};
use mainspring_core::ApiKey;
use mainspring_kernel::kernel::{self, KeyQuery};

use crate::access::Known;
use crate::body::{Asked, Input, NamedKey, Once, idempotency_key};
use crate::sessions::{page_of, place};
use crate::{Http, Problem};

/// A key, and its secret, which is shown this once
#[utoipa::path(
    post, path = "/v1/keys", request_body = NewKey, params(Once),
    responses(
        (status = 200, description = "The same request made it before", body = MadeKey),
        (status = 201, description = "It was made", body = MadeKey),
    ),
    extensions(("x-problems" = json!(["forbidden", "request_conflict"]))),
)]
pub(super) async fn key_create(
    State(http): State<Http>,
    Known(caller): Known,
    headers: HeaderMap,
    Input(wanted): Input<NewKey>,
) -> Result<(StatusCode, Json<MadeKey>), Problem> {
    let NewKey { name, owner_id, org_id, role, expires_at_ms } = wanted;
    let new = kernel::NewKey { name, owner: owner_id, org: org_id, role, expires_at: expires_at_ms };
    let (key, secret) = http.kernel.key_create(&caller, new, idempotency_key(&headers)?).await?;
    let secret = secret.map(|secret| secret.reveal().to_owned());
    let replayed = secret.is_none();
    let status = if replayed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(MadeKey { key, secret, replayed })))
}

/// Keys, the newest first, without their secrets, which nobody has
#[utoipa::path(
    get, path = "/v1/keys", params(KeyListQuery),
    responses((status = 200, description = "A page", body = Page<ApiKey>)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn key_list(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(query): Asked<KeyListQuery>,
) -> Result<Json<Page<ApiKey>>, Problem> {
    let (limit, before) = (query.limit, place(query.before)?);
    let items = http.kernel.key_list(&caller, KeyQuery { before, limit }).await?;
    Ok(Json(page_of(&http, items, limit, |key| format!("{}.{}", key.created_at.0, key.id))))
}

/// Revokes a key; one that is revoked stays so
#[utoipa::path(
    delete, path = "/v1/keys/{key}", params(NamedKey),
    responses((status = 204, description = "It opens nothing any more")),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn key_revoke(
    State(http): State<Http>,
    Known(caller): Known,
    NamedKey(key): NamedKey,
) -> Result<StatusCode, Problem> {
    http.kernel.key_revoke(&caller, key).await?;
    Ok(StatusCode::NO_CONTENT)
}
