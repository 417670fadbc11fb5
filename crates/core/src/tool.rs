//! Client tools: what the caller of a run executes itself, and is asked to by a wait.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Limits;

/// A tool that the caller executes, as a prompt declares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientTool {
    /// Its name, none of the agent's own tools has: 1 to 64 letters, digits, underscores and hyphens.
    #[cfg_attr(feature = "schema", schema(pattern = "^[A-Za-z0-9_-]{1,64}$"))]
    pub name: String,
    /// What it does, for the model.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of its arguments, which are an object.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub input_schema: Value,
}

/// A call that the caller is to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientCall {
    /// The call: its result names it. Stable, for the caller to recognise it by.
    pub tool_use_id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, which obey its schema.
    pub input: Value,
    /// Its result was given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answered: bool,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientResult {
    /// The call.
    pub tool_use_id: String,
    /// What the model is told: text, or anything else as JSON.
    pub content: Value,
    /// The call failed, or was refused.
    #[serde(default)]
    pub is_error: bool,
}

impl ClientResult {
    /// What the model is told.
    pub fn text(&self) -> String {
        self.content.as_str().map_or_else(|| self.content.to_string(), str::to_owned)
    }
}

/// Why a client tool cannot be offered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTool {
    /// The name is none.
    #[error("the tool {0:?}: a name has 1 to 64 letters, digits, underscores and hyphens")]
    Name(String),
    /// Two have the same name.
    #[error("two tools are called {0:?}")]
    Twice(String),
    /// A schema is an object.
    #[error(
        "the tool {0:?}: its inputSchema must be a JSON Schema for an object, such as {{\"type\":\"object\"}}"
    )]
    Schema(String),
    /// There are too many.
    #[error("there are {0} tools; at most {1} are allowed")]
    Many(usize, usize),
}

/// True when a tool may be called that.
pub fn is_tool_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

/// Checks the tools that a prompt declares, except for their size.
pub fn check_client_tools(tools: &[ClientTool], limits: &Limits) -> Result<(), BadTool> {
    if tools.len() > limits.client_tools {
        return Err(BadTool::Many(tools.len(), limits.client_tools));
    }
    let mut names = BTreeSet::new();
    for tool in tools {
        let name = || tool.name.chars().take(80).collect::<String>();
        if !is_tool_name(&tool.name) {
            return Err(BadTool::Name(name()));
        }
        if !names.insert(&tool.name) {
            return Err(BadTool::Twice(name()));
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
    fn a_tool_has_a_name_of_its_own_and_a_schema_of_an_object() {
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
    fn a_text_is_told_as_it_is_and_all_else_as_json() {
        let told = |content| ClientResult { tool_use_id: "t1".into(), content, is_error: false }.text();
        assert_eq!(told(json!("12 °C")), "12 °C");
        assert_eq!(told(json!({"c": 12})), r#"{"c":12}"#);
    }
}
