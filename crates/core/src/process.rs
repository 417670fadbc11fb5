//! Processes that agents start.

use serde::{Deserialize, Serialize};

/// The processes of an agent that are certain to have ended once the agent's guard has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Supervision {
    /// Every descendant of the agent.
    Tree,
    /// The agent's process group. A process that left the group may still run.
    Group,
}

impl Default for Supervision {
    /// Only Linux lets a process adopt all its descendants.
    fn default() -> Self {
        if cfg!(target_os = "linux") { Self::Tree } else { Self::Group }
    }
}

/// A process that a turn left running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct LeftProcess {
    /// The process id.
    pub pid: i32,
    /// The command line, shortened.
    pub command: String,
}
