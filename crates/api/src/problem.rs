//! Errors in the format of RFC 9457.

use mainspring_core::{Decider, RunStatus, Time};
use serde::{Deserialize, Serialize};

/// The body of every error (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Always `about:blank`: the code identifies the problem.
    #[serde(rename = "type", default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub kind: String,
    /// The status in words.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code in snake_case, for programs.
    pub code: String,
    /// The cause and the remedy, for people.
    pub detail: String,
    /// True when the same request may succeed later.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub retryable: bool,
    /// Of `session_busy`: the status of the run that keeps the session busy.
    #[serde(rename = "runStatus", default, skip_serializing_if = "Option::is_none")]
    pub run_status: Option<RunStatus>,
    /// Of `already_answered`: the party that answered first.
    #[serde(rename = "answeredBy", default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<Box<Decider>>,
    /// Of `already_answered`: when the first answer was given.
    #[serde(rename = "answeredAtMs", default, skip_serializing_if = "Option::is_none")]
    pub answered_at: Option<Time>,
}
