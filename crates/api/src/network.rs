//! The route of a run through its network.

use mainspring_core::{Route, RunId, RunStatus, Time, Usage};
use serde::{Deserialize, Serialize};

/// The route of a run through its network: the decisions of its router and the calls of members. Empty if the run's
/// agent is not a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunRoute {
    /// The run.
    pub run_id: RunId,
    /// The agent definition that the run follows.
    pub network: String,
    /// The status of the run.
    pub status: RunStatus,
    /// The decisions of the router, in order, each with the calls that followed.
    pub decisions: Vec<RouteDecision>,
    /// The calls of each member, summed, in the order of their first call.
    pub members: Vec<MemberTotal>,
    /// Tokens and cost of the routing model.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub routing: Usage,
}

/// A decision of a router, and the calls that followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RouteDecision {
    /// When the router decided.
    pub decided_at_ms: Time,
    /// The decision.
    #[serde(flatten)]
    pub route: Route,
    /// The calls, one per agent. Their times and usage are as of now.
    #[serde(rename = "memberCalls", default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<MemberCall>,
}

/// A call of a member.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct MemberCall {
    /// The member's name.
    pub member: String,
    /// The agent definition. Absent before the first model call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The run of a member that works in parallel with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_run_id: Option<RunId>,
    /// The number of model calls.
    pub steps: u32,
    /// When the member began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at_ms: Option<Time>,
    /// When the member's last model call ended, or its own run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at_ms: Option<Time>,
    /// Tokens and cost.
    pub usage: Usage,
}

impl MemberCall {
    /// Returns the milliseconds from the start of the member to the end of its last model call, or of its own run; 0
    /// before that end.
    pub fn duration_ms(&self) -> u64 {
        match (self.started_at_ms, self.completed_at_ms) {
            (Some(started), Some(completed)) => completed.since(started),
            _ => 0,
        }
    }
}

/// All calls of a member in a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct MemberTotal {
    /// The member's name.
    pub member: String,
    /// The number of calls.
    pub calls: u32,
    /// The number of model calls.
    pub steps: u32,
    /// How long the member worked, in milliseconds.
    pub duration_ms: u64,
    /// Tokens and cost.
    pub usage: Usage,
}
