//! Changes of files by the tool calls of a session.

use mainspring_core::{ArtifactId, Damage, RunId, SessionId, Time};
use serde::{Deserialize, Serialize};

/// Selects the changes to read. The first page has the changes of the last messages of the active path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ChangesQuery {
    /// The number of turns with changes; 50 if not given. The answer may hold a few more, or fewer if the changes are
    /// large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Only messages of less depth: the `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u32>,
}

/// The changes of files that tool calls on a session's active path have recorded. Files that were changed in another way
/// are not among them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionChanges {
    /// The session.
    pub session_id: SessionId,
    /// Whether the tool calls on this page have recorded changes.
    pub state: ChangesState,
    /// The number of tool calls on this page.
    pub tool_calls: u64,
    /// One change per file, from its first text to its last, by path. A file that ends as it began is left out.
    pub files: Vec<FileChange>,
    /// The turns with recorded changes, the first one first.
    pub turns: Vec<TurnChanges>,
    /// The start of the page with earlier changes; absent on the last page. The beginning of a turn may be on that
    /// page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Damaged messages, whose changes are unknown. Absent if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<Damage>,
}

/// Whether tool calls have recorded changes of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangesState {
    /// Changes are recorded.
    Recorded,
    /// No tool was called: nothing was changed.
    None,
    /// Tools were called and recorded no change: whether they changed files is unknown.
    Unknown,
}

/// The changes of one turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TurnChanges {
    /// The run. Absent for imported messages without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// When the first of the changes was recorded.
    #[serde(rename = "atMs")]
    pub at: Time,
    /// The beginning of the prompt. Absent if the prompt is on another page or has no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The changes, in order.
    pub changes: Vec<FileChange>,
}

/// A change of a file. A text that is too long to be part of a message is an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    /// The path of the file, as the agent reports it.
    pub path: String,
    /// The text before the change. Absent for a new file, and if the agent does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The text after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The artifact that holds the text before the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_artifact: Option<ArtifactId>,
    /// The artifact that holds the text after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_artifact: Option<ArtifactId>,
    /// The tool whose call recorded the change. Absent in `files`, where a change sums up several calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The id of the tool call. Absent in `files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    /// True if the tool call failed, or its outcome is unknown. Absent if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}
