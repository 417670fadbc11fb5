//! Calls of the tools that a host runs for the agents of its runs.

use mainspring_core::{AttemptId, RunId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Selects the calls that a host has not read yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostCallQuery {
    /// The number of the last call that the host has read; all pending calls if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How long to wait for a call if there is none, in milliseconds; not at all if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(maximum = 30000))]
    pub wait_ms: Option<u64>,
}

/// A call of a tool of the host, made by the agent of a live attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostCall {
    /// The number of the call, which its result names. Later calls have larger numbers.
    pub no: u64,
    /// The agent's own name for the call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// The tool's input.
    #[cfg_attr(feature = "schema", schema(value_type = Value))]
    pub input: Value,
    /// The run that the host created: the calling run, or the run that delegated it.
    pub host_run_id: RunId,
    /// The client of the request that created `hostRunId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The id of the request that created `hostRunId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The owner of the calling run.
    pub owner_id: String,
    /// The session of the calling run.
    pub session_id: SessionId,
    /// The calling run.
    pub run_id: RunId,
    /// The calling attempt.
    pub attempt_id: AttemptId,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostCallResult {
    /// The number of the call.
    pub no: u64,
    /// The result, as text or any JSON.
    #[cfg_attr(feature = "schema", schema(value_type = Value))]
    pub result: Value,
}

/// Whether the agent got a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostCallAnswered {
    /// True if the agent got the result; false if the call is not pending: it was answered, it timed out, or its attempt
    /// has ended.
    pub delivered: bool,
}
