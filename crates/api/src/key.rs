//! API keys.

use mainspring_core::{AccessRole, ApiKey, Time};
use serde::{Deserialize, Serialize};

/// A key to create.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewKey {
    /// The purpose of the key, for people.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub name: String,
    /// The owner that the key acts for; the caller's owner if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub owner_id: Option<String>,
    /// The org that the key belongs to; the caller's if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub org_id: Option<String>,
    /// The role of the key; `member` if not given.
    #[serde(default)]
    pub role: AccessRole,
    /// When the key expires; never if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<Time>,
    /// The folders in which agents of the key's holder may work, as absolute paths. If not given: any for the server's own
    /// owner; for others only those that are configured for an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub folders: Option<Vec<String>>,
}

/// A created key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct MadeKey {
    /// The key.
    #[serde(flatten)]
    pub key: ApiKey,
    /// The secret, returned only once; absent if an earlier, identical request created the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// True if the same request was sent before: this is the key that it created.
    pub replayed: bool,
}

/// Selects keys to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyListQuery {
    /// The number of keys; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[0-9]{1,18}\.key_[0-9a-f]{32}$"))]
    pub before: Option<String>,
}
