//! State of sessions, runs and owners.

use mainspring_core::MessageId;
use serde::{Deserialize, Serialize};

/// Selects entries of state to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct StateListQuery {
    /// The state of a session as of this message; the end of the path if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<MessageId>,
    /// Only keys after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The number of entries; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Selects the version of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct StateQuery {
    /// The state of a session as of this message; the end of the path if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<MessageId>,
}

/// Selects changes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct StateHistoryQuery {
    /// Only changes before this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// The number of changes; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}
