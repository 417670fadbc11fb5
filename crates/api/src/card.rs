//! Cards: a session as one entry of a board.

use mainspring_core::{Run, Usage};
use serde::{Deserialize, Serialize};

/// The part of a session that a board shows besides its settings and its latest run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionCard {
    /// The run that is executed or waits, with its open wait. Absent if there is none, or if it is the latest run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_run: Option<Box<Run>>,
    /// The last text line or tool call of the unended run, else of the active path. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<CardLine>,
    /// The first line of the latest run's prompt, shortened, by which people recognise the session. Absent if the
    /// session has a title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Tokens and cost of all runs of the session and of the runs that they delegated to. The cost is null if it is
    /// unknown: for instance while a run is active whose agent reports the cost only at its end.
    pub usage: Usage,
}

/// The last thing that happened in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CardLine {
    /// The last line of a text.
    Text {
        /// The line, shortened.
        text: String,
        /// True for a line of a prompt. Absent if false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        user: bool,
    },
    /// A tool call.
    Tool {
        /// The title of the call, or the name of the tool.
        tool: String,
    },
}

/// The form in which sessions are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionView {
    /// Each session with its latest run.
    #[default]
    Plain,
    /// Also with its card.
    Cards,
}
