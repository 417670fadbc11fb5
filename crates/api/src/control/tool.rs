//! The public description of a control tool: one entry of the manifest.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A control tool: its purpose, input and answer, and the access that it needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ControlTool {
    /// The name.
    pub name: String,
    /// The name for people.
    pub title: String,
    /// The purpose of the tool, when to use it and when not.
    pub description: String,
    /// Whether the tool only reads.
    pub access: ToolAccess,
    /// The action that policy rules about the tool match.
    pub rule: ControlToolRule,
    /// The annotations of the tool in MCP.
    pub annotations: ControlToolHints,
    /// How the answer is bounded and read page by page; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<ControlToolPages>,
    /// The JSON Schema of the input.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub input_schema: Map<String, Value>,
    /// The JSON Schema of the answer of a call that succeeds.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub output_schema: Map<String, Value>,
}

/// Whether a tool changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolAccess {
    /// The tool only reads; every role may use it.
    Read,
    /// The tool starts or stops work; members, admins and agents may use it.
    Act,
}

/// The three parts of a policy rule about a tool, such as `deny tool call delegate_agent`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ControlToolRule {
    /// The capability.
    pub capability: String,
    /// The operation of the capability.
    pub operation: String,
    /// The resource of the operation: the tool's name.
    pub resource: String,
}

/// The annotations of a tool in MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ControlToolHints {
    /// The tool changes nothing.
    pub read_only_hint: bool,
    /// The tool may undo or end work that others have begun.
    pub destructive_hint: bool,
    /// Repeating a call with the same arguments has no further effect.
    pub idempotent_hint: bool,
    /// The tool may reach things outside of mainspring, through the agents that it starts.
    pub open_world_hint: bool,
}

/// How an answer is bounded and read page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ControlToolPages {
    /// The maximum size of the answer in bytes. Only an answer with a single larger item exceeds it.
    pub max_bytes: usize,
    /// The input that takes the value of `next` of an earlier answer.
    pub cursor: String,
    /// The field of the answer with the cursor of the next page; null on the last one.
    pub next: String,
}
