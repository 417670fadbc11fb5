//! Tasks of threads: the plan that an agent keeps.

use serde::{Deserialize, Serialize};

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentTaskStatus {
    /// Not begun.
    Pending,
    /// Begun.
    InProgress,
    /// Completed.
    Completed,
}

/// The state of a part of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentSubtaskStatus {
    /// Not done.
    Pending,
    /// Done.
    Done,
}

/// A part of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSubtask {
    /// The title.
    pub title: String,
    /// The state.
    pub status: AgentSubtaskStatus,
}

/// The block in which a task began or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTaskBoundary {
    /// The index of the message.
    pub message_sequence_num: usize,
    /// The index of the block.
    pub content_sequence_num: usize,
}

/// An entry of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentTask {
    /// The number of the task.
    pub task_id: u32,
    /// The place in the plan, from 0.
    pub position: u32,
    /// The title.
    pub title: String,
    /// The state.
    pub status: AgentTaskStatus,
    /// The subject of the task.
    #[serde(default)]
    pub description: Option<String>,
    /// The conclusion.
    #[serde(default)]
    pub conclusion: Option<String>,
    /// Where the task began.
    #[serde(default)]
    pub start: Option<AgentTaskBoundary>,
    /// Where the task ended.
    #[serde(default)]
    pub end: Option<AgentTaskBoundary>,
    /// The parts of the task.
    #[serde(default)]
    pub subtasks: Vec<AgentSubtask>,
}
