//! Artifacts.

use mainspring_core::{ArtifactRole, RunId};
use serde::{Deserialize, Serialize};

/// Describes an artifact to store; the body holds its bytes, `Content-Type` their type.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ArtifactQuery {
    /// The name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The kind; `file` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The role; `input` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(inline))]
    pub role: Option<ArtifactRole>,
    /// Further facts about the artifact: a JSON object, such as `{"page":1}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// The run that the artifact belongs to; it must be a run of the session. The next attempt of the run continues
    /// from its newest artifact with the role `checkpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(value_type = Option<String>, pattern = "^run_[0-9a-f]{32}$"))]
    pub run: Option<RunId>,
}

/// Selects artifacts to list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ArtifactListQuery {
    /// The number of artifacts; 50 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(pattern = r"^[0-9]{1,18}\.art_[0-9a-f]{32}$"))]
    pub before: Option<String>,
}
