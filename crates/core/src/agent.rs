//! Agent definitions: the prompt, model, tools and limits of an agent, in immutable versions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::limits::BadName;
use crate::{Network, RunLimits};

/// Prefix of the ids that are reserved for built-in agents.
const RESERVED_PREFIX: &str = "mainspring.";

const MAX_VERSION: u32 = 999_999_999;

/// One version of an agent definition. A version never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentDefinition {
    /// The agent's id, without the version.
    #[cfg_attr(feature = "schema", schema(pattern = "^[A-Za-z0-9._-]{1,128}$"))]
    pub id: String,
    /// The version number. Default: 1.
    #[serde(default = "first_version")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 999_999_999))]
    pub version: u32,
    /// A description for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The model as `PROVIDER/MODEL`. Default: the model of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model profile. Default: the configured profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The system prompt, as a template. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Names of the tools the agent may call; `*` in a name matches any text. Default: all tools.
    #[serde(default = "all_tools", skip_serializing_if = "is_all_tools")]
    pub tools: Vec<String>,
    /// The MCP servers the agent uses; each must be reachable. Default: every configured server that is reachable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Vec<String>>,
    /// Tools that need the approval of a person for each call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approve: Vec<String>,
    /// Tools the agent may not call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Limits of each run.
    #[serde(default, skip_serializing_if = "RunLimits::is_empty")]
    pub limits: RunLimits,
    /// The JSON Schema of the agent's answers. Default: plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub output_schema: Option<Value>,
    /// How many bytes of a tool result the model sees, at least 1000; the rest is stored as an artifact. Default: as
    /// configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1000))]
    pub result_bytes: Option<usize>,
    /// The members, the router and the state of a network of agents. Default: the definition is of one agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

const fn first_version() -> u32 {
    1
}

fn all_tools() -> Vec<String> {
    vec!["*".into()]
}

fn is_all_tools(tools: &[String]) -> bool {
    matches!(tools, [one] if one == "*")
}

impl AgentDefinition {
    /// Creates a definition with defaults for everything but its id and version.
    pub fn new(id: &str, version: u32) -> Self {
        Self {
            id: id.into(),
            version,
            description: String::new(),
            model: None,
            profile: None,
            system: None,
            tools: all_tools(),
            mcp: None,
            approve: vec![],
            deny: vec![],
            limits: RunLimits::default(),
            output_schema: None,
            result_bytes: None,
            network: None,
        }
    }

    /// The agent's id and version.
    pub fn name(&self) -> AgentName {
        AgentName { id: self.id.clone(), version: Some(self.version) }
    }

    /// Checks the id and the version; ids that start with `mainspring.` are reserved.
    pub fn check_name(&self) -> Result<(), BadName> {
        check_id(&self.id)?;
        if self.id.starts_with(RESERVED_PREFIX) {
            return Err(BadName::new("an agent's id", "must not start with \"mainspring.\""));
        }
        match self.version {
            1..=MAX_VERSION => Ok(()),
            _ => Err(BadName::new("an agent's version", "must be from 1 to 999999999")),
        }
    }
}

/// Checks the syntax of an agent id.
pub fn check_id(id: &str) -> Result<(), BadName> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    match (1..=128).contains(&id.len()) && id.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err(BadName::new(
            "an agent's id",
            "must have 1 to 128 letters, digits, dots, underscores and hyphens",
        )),
    }
}

/// A reference to an agent: `ID@VERSION`, or `ID` for the latest version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentName {
    /// The agent's id.
    pub id: String,
    /// The version; `None` means the latest.
    pub version: Option<u32>,
}

impl FromStr for AgentName {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Self, BadName> {
        let (id, version) = match name.split_once('@') {
            None => (name, None),
            Some((id, version)) => {
                // Accept only the canonical spelling, so that each version has exactly one name.
                let parsed = version.parse::<u32>().ok().filter(|parsed| (1..=MAX_VERSION).contains(parsed));
                let parsed = parsed.filter(|parsed| parsed.to_string() == version);
                let bad = || BadName::new("an agent's name", "must be ID or ID@VERSION, such as coder@2");
                (id, Some(parsed.ok_or_else(bad)?))
            }
        };
        check_id(id)?;
        Ok(Self { id: id.into(), version })
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            Some(version) => write!(f, "{}@{version}", self.id),
            None => f.write_str(&self.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_has_one_canonical_form() {
        for (text, wanted) in [
            ("coder", "coder"),
            ("coder@2", "coder@2"),
            ("coder@02", "an agent's name must be ID or ID@VERSION, such as coder@2"),
            ("coder@", "an agent's name must be ID or ID@VERSION, such as coder@2"),
            ("coder@0", "an agent's name must be ID or ID@VERSION, such as coder@2"),
            ("a b", "an agent's id must have 1 to 128 letters, digits, dots, underscores and hyphens"),
        ] {
            let parsed = text.parse::<AgentName>().map(|name| name.to_string());
            assert_eq!(parsed.unwrap_or_else(|bad| bad.to_string()), wanted, "{text}");
        }
        assert!(AgentDefinition::new("mainspring.x", 1).check_name().is_err());
        assert!(AgentDefinition::new("x", 0).check_name().is_err());
    }

    #[test]
    fn default_values_are_not_serialized() {
        let minimal = AgentDefinition::new("a", 1);
        assert_eq!(serde_json::to_value(&minimal).unwrap(), json!({"id": "a", "version": 1}));
        assert_eq!(serde_json::from_value::<AgentDefinition>(json!({"id": "a"})).unwrap(), minimal);
    }
}
