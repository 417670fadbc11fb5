//! `/v1/keys`

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use mainspring_core::{AccessRole, ApiKey, Time};
use mainspring_kernel::kernel::{KeyQuery, NewKey};
use serde::{Deserialize, Serialize};

use super::access::Known;
use super::body::{Asked, Input, NamedKey, idempotency_key};
use super::sessions::{Page, place};
use super::{Http, Problem};

/// A key to be made.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Wanted {
    name: String,
    #[serde(default)]
    owner_id: Option<String>,
    #[serde(default)]
    org_id: Option<String>,
    #[serde(default)]
    role: AccessRole,
    #[serde(default)]
    expires_at_ms: Option<Time>,
}

/// A key that was made.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Made {
    #[serde(flatten)]
    key: ApiKey,
    /// Shown this once; absent when the same request made the key before.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// The same request was sent before; this is the key it made.
    replayed: bool,
}

/// `POST /v1/keys`: a key, and its secret, which is shown this once.
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

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ListQuery {
    limit: Option<usize>,
    before: Option<String>,
}

/// `GET /v1/keys`: without their secrets, which nobody has.
pub(super) async fn key_list(
    State(http): State<Http>,
    Known(caller): Known,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<Page<ApiKey>>, Problem> {
    let (limit, before) = (query.limit, place(query.before)?);
    let items = http.kernel.key_list(&caller, KeyQuery { before, limit }).await?;
    Ok(Json(Page::of(items, limit, |key| format!("{}.{}", key.created_at.0, key.id))))
}

/// `DELETE /v1/keys/{key}`: revokes it. One that is revoked stays so.
pub(super) async fn key_revoke(
    State(http): State<Http>,
    Known(caller): Known,
    NamedKey(key): NamedKey,
) -> Result<StatusCode, Problem> {
    http.kernel.key_revoke(&caller, key).await?;
    Ok(StatusCode::NO_CONTENT)
}
