//! Usage of many runs, in groups.

use mainspring_core::{SessionId, Time, UsageSum};
use serde::{Deserialize, Serialize};

/// Selects runs by the time of their acceptance, and groups them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UsageQuery {
    /// Groups the runs by `day`, `agent`, `model` or `session`, or by several of these, separated by commas. If not
    /// given, the answer has only the total.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        param(pattern = r"^(day|agent|model|session)(,(day|agent|model|session)){0,3}$")
    )]
    pub by: Option<String>,
    /// Only runs accepted at this time or later, in milliseconds since the Unix epoch; 30 days before `to` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(value_type = Option<i64>))]
    pub from: Option<Time>,
    /// Only runs accepted before this time; now if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(value_type = Option<i64>))]
    pub to: Option<Time>,
    /// The minutes by which the caller's days begin before those of UTC: 60 for UTC+1. 0 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(minimum = -1440, maximum = 1440))]
    pub utc_offset_minutes: Option<i64>,
}

/// The usage of runs in a span of time: in total, and by group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct UsageReport {
    /// The beginning of the span.
    #[serde(rename = "fromMs")]
    pub from: Time,
    /// The end of the span, which is not part of it.
    #[serde(rename = "toMs")]
    pub to: Time,
    /// The usage of all runs. Runs that wait for their first attempt have used nothing and are not counted.
    pub total: UsageSum,
    /// The usage by group, sorted by day, agent, model and session. Empty without `by`.
    pub groups: Vec<UsageGroup>,
    /// The number of runs that cannot be read and are therefore not counted. Absent if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged_runs: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The usage of the runs of one group. Only the fields that the query groups by are present, besides `usage`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct UsageGroup {
    /// The day on which the runs were accepted: `2026-11-17`. Absent if the query does not group by day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The adapter that executed the runs. Absent if the query does not group by agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The model of the runs, or their model profile. Absent if the query does not group by model, or if the agent
    /// chose the model itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The session of the runs. Absent if the query does not group by session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The usage of the group.
    pub usage: UsageSum,
}
