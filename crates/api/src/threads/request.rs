//! Requests of the threads API. Unknown fields are ignored: newer clients send more.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{AgentGoal, AgentMessage, ThreadVisibility};

/// The prefix of the name of every client tool.
pub const CLIENT_TOOL_NAME_PREFIX: &str = "client_";

/// True for a name of a client tool: `client_`, a lower-case letter, then lower-case letters, digits and underscores.
pub fn is_client_tool_name(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(CLIENT_TOOL_NAME_PREFIX) else { return false };
    rest.starts_with(|first: char| first.is_ascii_lowercase())
        && rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// A tool that the client executes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientToolSpec {
    /// The name.
    pub name: String,
    /// The description for the model.
    pub description: String,
    /// The JSON Schema of the arguments.
    pub input_schema: Map<String, Value>,
}

/// The time range that a thread is about. Other dimensions are kept as they are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AnalysisScope(pub Map<String, Value>);

impl AnalysisScope {
    /// Takes every dimension that `other` sets, and keeps the rest.
    pub fn merge(&mut self, other: &Self) {
        let set = other.0.iter().filter(|(_, value)| !value.is_null());
        self.0.extend(set.map(|(name, value)| (name.clone(), value.clone())));
    }
}

/// Starts a thread.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct StartAgentThreadRequest {
    /// The first messages. May be empty if there are goals.
    pub messages: Vec<AgentMessage>,
    /// The instructions of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Tools that the client executes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_tools: Option<Vec<ClientToolSpec>>,
    /// The model profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<String>,
    /// The time range that the thread is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis_scope: Option<AnalysisScope>,
    /// Goals of the first turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goals: Option<Vec<AgentGoal>>,
    /// Not supported: refused unless empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invoke_skills: Option<Vec<Value>>,
    /// Not supported: refused unless empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_skills: Option<Vec<Value>>,
    /// The client's present view. Accepted and not used.
    #[serde(alias = "context", skip_serializing_if = "Option::is_none")]
    pub client_context: Option<Value>,
    /// The readers of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<ThreadVisibility>,
}

/// Sends a message to a thread.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct SendMessageRequest {
    /// The message: text of a person. Optional if there are goals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<AgentMessage>,
    /// Tools to add, or to replace by name, for this turn and later ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_tools: Option<Vec<ClientToolSpec>>,
    /// The time range that replaces the present one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis_scope: Option<AnalysisScope>,
    /// Goals of the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goals: Option<Vec<AgentGoal>>,
    /// Not supported: refused unless empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invoke_skills: Option<Vec<Value>>,
    /// The client's present view. Accepted and not used.
    #[serde(alias = "context", skip_serializing_if = "Option::is_none")]
    pub client_context: Option<Value>,
}

/// The outcome of a client tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientToolResultStatus {
    /// The tool worked.
    Success,
    /// The tool failed.
    Error,
    /// A person declined the call.
    Declined,
}

/// The result of a client tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientToolResult {
    /// The id of the call.
    pub tool_use_id: String,
    /// The name of the tool.
    pub tool_name: String,
    /// The milliseconds that the tool worked.
    pub runtime_ms: u64,
    /// The outcome.
    pub status: ClientToolResultStatus,
    /// The result.
    #[serde(default)]
    pub output: Option<Map<String, Value>>,
}

/// Submits results of client tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubmitToolResultsRequest {
    /// The results, of all or of some calls.
    pub tool_results: Vec<ClientToolResult>,
    /// Tools to add, or to replace by name, for later turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_tools: Option<Vec<ClientToolSpec>>,
}

/// Forks a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkAgentThreadRequest {
    /// The last message that the fork has.
    pub message_sequence_num: i64,
}

/// Changes who may read a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateThreadVisibilityRequest {
    /// The readers of the thread.
    pub visibility: ThreadVisibility,
}

/// Pins a thread for the caller, or removes the pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinThreadRequest {
    /// Whether the thread is pinned.
    pub pinned: bool,
}

/// Searches threads by their text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct SearchThreadsRequest {
    /// Words of the thread's messages or title. Without any, all threads are listed.
    #[serde(alias = "search", skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The number of threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next_token` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_token: Option<String>,
}
