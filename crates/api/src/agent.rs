//! Agent definitions.

use mainspring_core::{AgentDefinition, Time};
use serde::{Deserialize, Serialize};

/// An agent definition and its scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// The definition.
    #[serde(flatten)]
    // The definition's own schema allows no further fields beside it.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub definition: AgentDefinition,
    /// The callers that may use the definition.
    pub scope: AgentScope,
    /// When the owner created the definition; absent for a shared one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at_ms: Option<Time>,
}

/// An agent definition to create.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct NewAgent(
    /// The definition.
    #[serde(deserialize_with = "crate::request::AgentForm::deserialize")]
    pub AgentDefinition,
);

/// The callers that may use an agent definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgentScope {
    /// The owner who created it.
    Owner,
    /// Everybody: it is built in, or a file of the server.
    Shared,
}

/// Selects agents to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentListQuery {
    /// The number of agents; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[A-Za-z0-9._-]{1,128}(@[1-9][0-9]{0,8})?$"))]
    pub after: Option<String>,
}
