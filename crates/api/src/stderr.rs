//! The standard error of an agent's process.

use mainspring_core::{ArtifactId, AttemptId, RunId};
use serde::{Deserialize, Serialize};

/// The standard error of an attempt's agent process: its first 16 KB and its last 48 KB, with secrets redacted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttemptStderr {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The run of the attempt.
    pub run_id: RunId,
    /// The text. Null if nothing is kept: the process wrote nothing, the attempt has not ended, or the agent has no process.
    #[cfg_attr(feature = "schema", schema(required))]
    pub text: Option<String>,
    /// The artifact that holds the text. Absent if nothing is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_id: Option<ArtifactId>,
}
