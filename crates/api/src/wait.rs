//! Open waits: questions of runs that somebody has to answer.

use mainspring_core::{RunId, SessionId, Time, Wait};
use serde::{Deserialize, Serialize};

/// An open wait, with what a person needs to answer it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenWait {
    /// The run that waits.
    pub run_id: RunId,
    /// The session of the run.
    pub session_id: SessionId,
    /// The owner of the session.
    pub owner_id: String,
    /// The title of the session. Absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The key of the session. Absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The adapter that executes the run.
    pub adapter: String,
    /// The model of the run, or its model profile. Absent if the agent chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The folder in which the run works. Absent if none is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// When the run last changed: when it began to wait, or when a part of the answer arrived.
    #[serde(rename = "updatedAtMs")]
    pub updated_at: Time,
    /// True if the caller may answer: the session is the caller's own, and the caller's role may change it.
    pub may_answer: bool,
    /// The question, the possible answers, the requested call with its change of files, and the expiry.
    pub wait: Wait,
}

/// Selects open waits to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitListQuery {
    /// The number of waits; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[0-9]{1,18}\.run_[0-9a-f]{32}$"))]
    pub after: Option<String>,
}
