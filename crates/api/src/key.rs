//! API keys.

use mainspring_core::{AccessRole, ApiKey, Cost, Time};
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
    /// When the key expires, not later than the key that creates it. If not given, the key expires together with the
    /// key that creates it, or never if that key does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<Time>,
    /// The folders in which agents of the key's holder may work, as absolute paths. If not given: those of
    /// the caller's key; if it has none, any for the server's own owner, and for others only those that are
    /// configured for an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub folders: Option<Vec<String>>,
    /// The adapters that the key's holder may use; those of the caller's key if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_items = 256))]
    pub adapters: Option<Vec<String>>,
    /// The models and model profiles that the key's holder may use; those of the caller's key if not given. With such a
    /// list, a run must name a model or a profile, itself or by its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_items = 256))]
    pub models: Option<Vec<String>>,
    /// The tools that agents of the key's holder may call; those of the caller's key if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(max_items = 256))]
    pub tools: Option<Vec<String>>,
    /// The cost in US dollars that the key's runs may have in a day of UTC; no limit if not given.
    #[serde(default, rename = "spendPerDayUsd", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<f64>, minimum = 0.0))]
    pub spend_per_day: Option<Cost>,
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
