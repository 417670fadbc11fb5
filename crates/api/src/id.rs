//! Finding ids by their beginning.

use mainspring_core::IdKind;
use serde::{Deserialize, Serialize};

/// Selects ids by their beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdQuery {
    /// The kind of the id.
    #[cfg_attr(feature = "schema", param(inline))]
    pub kind: IdKind,
    /// The beginning of the id, with or without the letters of its kind: `run_1a` or `1a`.
    #[cfg_attr(feature = "schema", param(pattern = "^([a-z]{3,5}_)?[0-9A-Fa-f]{1,32}$"))]
    pub prefix: String,
    /// A session whose tree has the message, by id or key. Required for messages, refused for all other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$"))]
    pub session: Option<String>,
}

/// The ids that begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct FoundIds {
    /// The first ten of the ids, in order.
    pub ids: Vec<String>,
}
