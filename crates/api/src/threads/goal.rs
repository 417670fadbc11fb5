//! Goals of threads.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Timestamp;

/// The state of a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentGoalStatus {
    /// The goal is declared.
    Pending,
    /// The agent has reported a value that fits.
    Achieved,
    /// The turn ended without such a value.
    Failed,
}

/// A goal as a caller declares it: its type and the data of that type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentGoal {
    /// The name of the goal type.
    pub goal_type: String,
    /// The caller's own data.
    #[serde(flatten)]
    pub data: Map<String, Value>,
}

/// A goal that a thread has declared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentThreadGoalRecord {
    /// The name of the goal type.
    pub goal_type: String,
    /// The goal as it was declared, with its `goal_type`.
    pub goal_data: Map<String, Value>,
    /// The state of the goal.
    pub status: AgentGoalStatus,
    /// The index of the user message that declared the goal.
    pub message_sequence_num: usize,
    /// When the goal was declared.
    pub created: Timestamp,
    /// When the goal was achieved or failed; null while it is pending.
    #[serde(default)]
    pub concluded_at: Option<Timestamp>,
    /// The last call of the goal's achieve tool.
    #[serde(default)]
    pub achieve_tool_use_id: Option<String>,
}

impl AgentThreadGoalRecord {
    /// Returns the goal as the caller declared it.
    pub fn to_agent_goal(&self) -> AgentGoal {
        let mut data = self.goal_data.clone();
        data.remove("goal_type");
        AgentGoal { goal_type: self.goal_type.clone(), data }
    }
}
