//! Goal types.

use mainspring_core::{GoalType, Time};
use serde::{Deserialize, Serialize};

use crate::AgentScope;

/// A goal type and its scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct GoalTypeRecord {
    /// The goal type.
    #[serde(flatten)]
    // The type's own schema allows no further fields beside it.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub goal_type: GoalType,
    /// The callers that may use the type.
    pub scope: AgentScope,
    /// When the owner first created a type of this name; absent for a shared one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at_ms: Option<Time>,
    /// When the owner last changed the type; absent for a shared one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at_ms: Option<Time>,
}
