//! Agents to launch: templates of the request that starts a thread, with typed variables.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{AnalysisScope, ThreadVisibility, Timestamp};

/// The kind of value that a variable takes. All values are text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentVariableType {
    /// Any text.
    #[default]
    String,
    /// The id of a dataset.
    DatasetId,
    /// The id of a device.
    DeviceId,
    /// The id of a collection.
    CollectionId,
}

/// A variable of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVariable {
    /// The name, as placeholders write it.
    pub name: String,
    /// The kind of value.
    #[serde(default, rename = "type")]
    pub kind: AgentVariableType,
    /// The description for people.
    #[serde(default)]
    pub description: Option<String>,
    /// True if a launch must give a value, unless there is a default.
    #[serde(default = "required")]
    pub required: bool,
    /// The value of a launch that gives none.
    #[serde(default)]
    pub default: Option<String>,
    /// The content of the collections to choose from. Only for variables of the kind `collection_id`.
    #[serde(default)]
    pub collection_content_type: Option<String>,
}

const fn required() -> bool {
    true
}

/// An agent to launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// The id.
    pub agent_id: String,
    /// The org of the agent; without one, the name of its owner.
    pub org_id: String,
    /// The name, unique in the org.
    pub name: String,
    /// The description for people.
    #[serde(default)]
    pub description: Option<String>,
    /// The request that starts a thread, with placeholders, exactly as it was sent.
    pub request_template: Map<String, Value>,
    /// The variables, one for each placeholder name.
    #[serde(default)]
    pub variables: Vec<AgentVariable>,
    /// When the agent was created.
    pub created: Timestamp,
    /// The owner that created the agent.
    pub created_by: String,
    /// When the agent was last changed.
    pub modified: Timestamp,
    /// The owner that last changed the agent.
    pub modified_by: String,
}

/// The answer of the deletion of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedAgent {
    /// The agent.
    pub agent_id: String,
}

/// Creates an agent to launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CreateAgentRequest {
    /// The name, unique in the org.
    pub name: String,
    /// The description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The request that starts a thread, with placeholders `{{name}}` in its texts.
    pub request_template: Map<String, Value>,
    /// The variables, one for each placeholder name.
    #[serde(default)]
    pub variables: Vec<AgentVariable>,
}

/// Changes an agent to launch. Absent fields stay as they are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdateAgentRequest {
    /// The name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The description; null removes it.
    #[serde(deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    pub description: Option<Option<String>>,
    /// The template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_template: Option<Map<String, Value>>,
    /// The variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variables: Option<Vec<AgentVariable>>,
}

/// Starts a thread from an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchAgentRequest {
    /// The values of the variables.
    pub values: BTreeMap<String, String>,
    /// The readers of the thread.
    pub visibility: ThreadVisibility,
    /// The time range; each dimension that is set replaces that of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis_scope: Option<AnalysisScope>,
}

impl Default for LaunchAgentRequest {
    fn default() -> Self {
        Self { values: BTreeMap::new(), visibility: ThreadVisibility::Org, analysis_scope: None }
    }
}
