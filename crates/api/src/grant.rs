//! Grants.

use serde::{Deserialize, Serialize};

/// Selects grants to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrantListQuery {
    /// Only grants of this session, by id or key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$"))]
    pub session: Option<String>,
    /// Also grants that were revoked, have expired, or belong to runs that have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// The number of grants; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[0-9]{1,18}\.grant_[0-9a-f]{32}$"))]
    pub before: Option<String>,
}
