//! The agent of a session: what its next run would use, and how that is changed.

use std::collections::BTreeMap;

use mainspring_core::{ClientTool, GivenMessage, OfferedTool, OnExpiry, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The agent that the next run of a session would use, if its prompt names no options. Each part says where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionAgent {
    /// The session.
    pub session_id: SessionId,
    /// The adapter.
    pub adapter: String,
    /// The agent definition, with its version if it was found.
    pub agent_definition: SourcedText,
    /// The model, as `PROVIDER/MODEL` if the runtime is known here. Absent if the runtime chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<SourcedText>,
    /// The model profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_profile: Option<SourcedText>,
    /// Options for the model's provider, by name.
    pub model_options: BTreeMap<String, SourcedValue>,
    /// The instructions. Those of an agent definition are a template, which is rendered for each run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<SourcedText>,
    /// The tools that the model may call, except those of MCP servers. For a network, only the tools of the session:
    /// the members have tools of their own.
    pub tools: Vec<AgentTool>,
    /// The MCP servers whose tools are added when a run starts: names, in which `*` matches anything.
    pub mcp_servers: Vec<String>,
    /// The limits of a run, by name.
    pub limits: BTreeMap<String, SourcedValue>,
    /// The known reasons why the next run would fail, one line each.
    pub problems: Vec<String>,
}

/// A text and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SourcedText {
    /// The text.
    pub value: String,
    /// The origin of the text.
    pub from: AgentSource,
}

/// A value and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SourcedValue {
    /// The value.
    pub value: Value,
    /// The origin of the value.
    pub from: AgentSource,
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentTool {
    /// The tool.
    #[serde(flatten)]
    pub tool: OfferedTool,
    /// The origin of the tool: the session's tools are executed by the caller, the others by the server.
    pub from: AgentSource,
}

/// The origin of a part of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AgentSource {
    /// The session.
    Session,
    /// The agent definition.
    AgentDefinition,
    /// The model profile.
    ModelProfile,
    /// The server.
    Server,
}

/// Changes of the agent of an idle session, all or none. A field that is absent changes nothing. A field that is given
/// replaces the whole setting of that name; null clears the setting.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentChange {
    /// The agent definition, as `ID` or `ID@VERSION`; null leaves it as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 512))]
    pub agent_definition: Option<String>,
    /// The model.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub model: Option<Option<String>>,
    /// The model profile.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub model_profile: Option<Option<String>>,
    /// The instructions.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub system_prompt: Option<Option<String>>,
    /// Options for the model's provider.
    #[serde(default, deserialize_with = "crate::present_or_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub model_options: Option<Option<Map<String, Value>>>,
    /// The tools that the caller executes.
    #[serde(
        default,
        deserialize_with = "crate::request::tools_or_null",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<ClientTool>>))]
    pub tools: Option<Option<Vec<ClientTool>>>,
    /// The conversation. It becomes a new path from a new root; the earlier messages stay in the tree. Each
    /// tool call must have a result. The last message may be one of a person.
    #[serde(
        default,
        deserialize_with = "crate::request::messages_or_null",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<GivenMessage>>))]
    pub messages: Option<Option<Vec<GivenMessage>>>,
}

/// A tool of a session, whose name is in the path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewTool {
    /// A description for the model.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of the arguments, which must be an object.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub input_schema: Value,
    /// How long a run waits for the result of a call, in milliseconds. Absent: as long as for any other answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub timeout_ms: Option<u64>,
    /// The consequence of a call that gets no result in this time. Absent: `time_out`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnExpiry>,
}
