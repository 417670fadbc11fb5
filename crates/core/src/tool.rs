//! Client tools: tools that the caller of a run executes. The run waits for their results.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Block, Decider, Limits};

/// A tool that the caller executes, as declared in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientTool {
    /// The tool's name: 1 to 64 letters, digits, underscores and hyphens. It must differ from the names of the
    /// agent's own tools.
    #[cfg_attr(feature = "schema", schema(pattern = "^[A-Za-z0-9_-]{1,64}$"))]
    pub name: String,
    /// A description for the model.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of the arguments, which must be an object.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub input_schema: Value,
}

/// A tool call that the caller is asked to execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientCall {
    /// The id of the call, which its result must name. Stable, so that the caller can recognise the call.
    pub tool_use_id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments, valid against the tool's schema.
    pub input: Value,
    /// True when the result of the call has been provided.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answered: bool,
    /// The one who allowed the call; absent if another event records the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<Decider>,
}

/// The result of a tool call that the caller executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientResult {
    /// The id of the tool call.
    pub tool_use_id: String,
    /// The content sent to the model: a string as it is, any other value as JSON.
    pub content: Value,
    /// True when the call failed or was refused.
    #[serde(default)]
    pub is_error: bool,
}

impl ClientResult {
    /// The text sent to the model.
    pub fn text(&self) -> String {
        self.content.as_str().map_or_else(|| self.content.to_string(), str::to_owned)
    }

    /// The id of the call, and its result as messages hold it.
    pub fn to_call_result(&self) -> (String, CallResult) {
        let result = CallResult { content: vec![Block::text(self.text())], is_error: self.is_error };
        (self.tool_use_id.clone(), result)
    }
}

/// The result of a tool call, as messages hold it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallResult {
    /// The content.
    pub content: Vec<Block>,
    /// True when the call failed or was refused, or its outcome is unknown.
    #[serde(default)]
    pub is_error: bool,
}

/// The declaration of a client tool is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTool {
    /// The name is not well-formed.
    #[error("the tool {0:?}: a name has 1 to 64 letters, digits, underscores and hyphens")]
    Name(String),
    /// Two tools have the same name.
    #[error("two tools are called {0:?}")]
    Duplicate(String),
    /// The schema does not describe an object.
    #[error(
        "the tool {0:?}: its inputSchema must be a JSON Schema for an object, such as {{\"type\":\"object\"}}"
    )]
    Schema(String),
    /// There are too many tools.
    #[error("there are {0} tools; at most {1} are allowed")]
    TooMany(usize, usize),
}

/// The tools of `kept`, each replaced by the one of the same name in `given`, then the other tools of `given`.
pub fn replaced(kept: &[ClientTool], given: &[ClientTool]) -> Vec<ClientTool> {
    let find = |tools: &'_ [ClientTool], name: &str| tools.iter().find(|tool| tool.name == name).cloned();
    let first = kept.iter().map(|tool| find(given, &tool.name).unwrap_or_else(|| tool.clone()));
    let others = given.iter().filter(|tool| find(kept, &tool.name).is_none()).cloned();
    first.chain(others).collect()
}

/// True when `name` is a well-formed tool name.
pub fn is_tool_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Checks the tools of a prompt, except for their size in bytes.
pub fn check_client_tools(tools: &[ClientTool], limits: &Limits) -> Result<(), BadTool> {
    if tools.len() > limits.client_tools {
        return Err(BadTool::TooMany(tools.len(), limits.client_tools));
    }
    let mut names = BTreeSet::new();
    for tool in tools {
        let name = || tool.name.chars().take(80).collect::<String>();
        if !is_tool_name(&tool.name) {
            return Err(BadTool::Name(name()));
        }
        if !names.insert(&tool.name) {
            return Err(BadTool::Duplicate(name()));
        }
        let kind = tool.input_schema.get("type");
        if !tool.input_schema.is_object() || kind.is_some_and(|kind| kind != "object") {
            return Err(BadTool::Schema(name()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, input_schema: Value) -> ClientTool {
        ClientTool { name: name.into(), description: String::new(), input_schema }
    }

    #[test]
    fn tools_need_distinct_names_and_object_schemas() {
        let schema = || json!({"type": "object"});
        let check = |tools: &[ClientTool]| {
            let limits = Limits { client_tools: 2, ..Limits::default() };
            check_client_tools(tools, &limits).map_err(|bad| bad.to_string()).err().unwrap_or_default()
        };
        assert_eq!(check(&[tool("client_a-1", schema()), tool("b", json!({}))]), "");
        for name in ["", "a b", "ä", "a.b", &"x".repeat(65)] {
            assert!(check(&[tool(name, schema())]).contains("1 to 64 letters"), "{name}");
        }
        assert_eq!(check(&[tool("a", schema()), tool("a", schema())]), "two tools are called \"a\"");
        for schema in [json!(null), json!([]), json!({"type": "string"})] {
            assert!(check(&[tool("a", schema)]).contains("inputSchema"));
        }
        let three = ["a", "b", "c"].map(|name| tool(name, schema()));
        assert_eq!(check(&three), "there are 3 tools; at most 2 are allowed");
    }

    #[test]
    fn a_string_result_is_sent_as_it_is_and_other_values_as_json() {
        let text = |content| ClientResult { tool_use_id: "t1".into(), content, is_error: false }.text();
        assert_eq!(text(json!("12 °C")), "12 °C");
        assert_eq!(text(json!({"c": 12})), r#"{"c":12}"#);
    }
}
