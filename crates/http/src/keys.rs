//! `/v1/keys`

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use mainspring_core::{AccessRole, ApiKey, Time};
use mainspring_kernel::kernel::{KeyQuery, NewKey};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::Known;
use crate::body::{Asked, Input, NamedKey, Once, idempotency_key};
use crate::sessions::{Page, place};
use crate::{Http, Problem};

/// A key to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = NewKey)]
pub(super) struct Wanted {
    /// What it is for, for people.
    #[schema(min_length = 1, max_length = 512)]
    name: String,
    /// For whom its holder acts; the caller's owner if not given.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    owner_id: Option<String>,
    /// The org its holder belongs to; the caller's if not given.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    org_id: Option<String>,
    /// What its holder may do; a member if not given.
    #[serde(default)]
    role: AccessRole,
    /// From when on it opens nothing; never if not given.
    #[serde(default)]
    expires_at_ms: Option<Time>,
}

/// A key that was made.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MadeKey)]
pub(super) struct Made {
    #[serde(flatten)]
    key: ApiKey,
    /// Shown this once; absent when the same request made the key before.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// The same request was sent before; this is the key it made.
    replayed: bool,
}

/// A key, and its secret, which is shown this once
#[utoipa::path(
    post, path = "/v1/keys", request_body = Wanted, params(Once),
    responses(
        (status = 200, description = "The same request made it before", body = Made),
        (status = 201, description = "It was made", body = Made),
    ),
    extensions(("x-problems" = json!(["forbidden", "request_conflict"]))),
)]
pub(super) async fn key_create(
    State(http): State<Http>,
    Known(caller): Known,
    headers: HeaderMap,
    Input(wanted): Input<Wanted>,
) -> Result<(StatusCode, Json<Made>), Problem> {
    let Wanted { name, owner_id, org_id, role, expires_at_ms } = wanted;
    let new = NewKey { name, owner: owner_id, org: org_id, role, expires_at: expires_at_ms };
    let (key, secret) = http.kernel.key_create(&caller, new, idempotency_key(&headers)?).await?;
    let secret = secret.map(|secret| secret.reveal().to_owned());
    let replayed = secret.is_none();
    let status = if replayed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(Made { key, secret, replayed })))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// How many; 50 if not given.
    limit: Option<usize>,
    /// The `next` of the page before.
    #[param(pattern = r"^[0-9]{1,18}\.key_[0-9a-f]{32}$")]
    before: Option<String>,
}

/// Keys, the newest first, without their secrets, which nobody has
#[utoipa::path(
    get, path = "/v1/keys", params(ListQuery),
    responses((status = 200, description = "A page", body = Page<ApiKey>)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn key_list(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<Page<ApiKey>>, Problem> {
    let (limit, before) = (query.limit, place(query.before)?);
    let items = http.kernel.key_list(&caller, KeyQuery { before, limit }).await?;
    Ok(Json(Page::of(&http, items, limit, |key| format!("{}.{}", key.created_at.0, key.id))))
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
