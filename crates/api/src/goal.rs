//! Goal types.

use mainspring_core::{Cursor, Goal, GoalType, RunId, Task, Time};
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

/// Selects the goals and tasks of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GoalsQuery {
    /// The `cursor` of the caller's last snapshot. Parts that have not changed since are null.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(maximum = 9_223_372_036_854_775_807_i64))]
    pub after: Option<u64>,
}

/// The goals and tasks of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct GoalsSnapshot {
    /// The goals of the last 1000 runs that have goals or a plan, in the order in which they were declared;
    /// null if they have not changed since `after`.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub goals: Option<Vec<SessionGoal>>,
    /// The plan of the latest run that has one; null if it has not changed since `after`.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub tasks: Option<Vec<Task>>,
    /// The `after` of the next snapshot.
    pub cursor: Cursor,
}

/// A goal of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionGoal {
    /// The run that declared the goal.
    pub run_id: RunId,
    /// The goal.
    #[serde(flatten)]
    pub goal: Goal,
}
