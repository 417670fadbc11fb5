//! Agent definitions: who an agent is, in versions that never change.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::RunLimits;
use crate::limits::BadName;

/// The ids that are this program's own begin with this.
const RESERVED: &str = "mainspring.";

const MAX_VERSION: u32 = 999_999_999;

/// Who an agent is: one version of it, which never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentDefinition {
    /// Its name, without the version.
    #[cfg_attr(feature = "schema", schema(pattern = "^[A-Za-z0-9._-]{1,128}$"))]
    pub id: String,
    /// Which edition of it; the first if not given.
    #[serde(default = "first")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 999_999_999))]
    pub version: u32,
    /// What it is for, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The model, as `PROVIDER/MODEL`; that of the profile if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model profile; the configured one if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What the model is told beforehand: a template; nothing if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The tools it may call: names, in which `*` stands for anything; all if not given.
    #[serde(default = "all", skip_serializing_if = "is_all")]
    pub tools: Vec<String>,
    /// The MCP servers it cannot do without; all that answer if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Vec<String>>,
    /// The tools that a person must allow each time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approve: Vec<String>,
    /// The tools it may not call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// How much a run may use.
    #[serde(default, skip_serializing_if = "RunLimits::is_empty")]
    pub limits: RunLimits,
    /// The JSON Schema of its answers; text if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub output_schema: Option<Value>,
    /// Bytes of a tool's answer that the model is shown, of at least 1000; the rest is an artifact. As configured if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1000))]
    pub result_bytes: Option<usize>,
}

const fn first() -> u32 {
    1
}

fn all() -> Vec<String> {
    vec!["*".into()]
}

fn is_all(tools: &[String]) -> bool {
    matches!(tools, [one] if one == "*")
}

impl AgentDefinition {
    /// An agent that is nothing but its name.
    pub fn new(id: &str, version: u32) -> Self {
        Self {
            id: id.into(),
            version,
            description: String::new(),
            model: None,
            profile: None,
            system: None,
            tools: all(),
            mcp: None,
            approve: vec![],
            deny: vec![],
            limits: RunLimits::default(),
            output_schema: None,
            result_bytes: None,
        }
    }

    /// Its name with its version.
    pub fn name(&self) -> AgentName {
        AgentName { id: self.id.clone(), version: Some(self.version) }
    }

    /// Refuses a name that is none, or that is this program's own.
    pub fn check_name(&self) -> Result<(), BadName> {
        check_id(&self.id)?;
        if self.id.starts_with(RESERVED) {
            return Err(BadName::new("an agent's id", "must not start with \"mainspring.\""));
        }
        match self.version {
            1..=MAX_VERSION => Ok(()),
            _ => Err(BadName::new("an agent's version", "must be from 1 to 999999999")),
        }
    }
}

/// Refuses an id that no agent can have.
pub fn check_id(id: &str) -> Result<(), BadName> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    match (1..=128).contains(&id.len()) && id.bytes().all(fits) {
        true => Ok(()),
        false => Err(BadName::new(
            "an agent's id",
            "must have 1 to 128 letters, digits, dots, underscores and hyphens",
        )),
    }
}

/// How an agent is named: `ID@VERSION`, or `ID` for its latest version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentName {
    /// Its id.
    pub id: String,
    /// Its version; the latest if none.
    pub version: Option<u32>,
}

impl FromStr for AgentName {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Self, BadName> {
        let (id, version) = match name.split_once('@') {
            None => (name, None),
            Some((id, version)) => {
                // As a version is written, so that there is one name for it.
                let read = version.parse::<u32>().ok().filter(|read| (1..=MAX_VERSION).contains(read));
                let read = read.filter(|read| read.to_string() == version);
                let bad = || BadName::new("an agent's name", "must be ID or ID@VERSION, such as coder@2");
                (id, Some(read.ok_or_else(bad)?))
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
    fn a_name_has_one_form() {
        for (text, wanted) in [
            ("coder", "coder"),
            ("coder@2", "coder@2"),
            ("coder@02", "an agent's name must be ID or ID@VERSION, such as coder@2"),
            ("coder@", "an agent's name must be ID or ID@VERSION, such as coder@2"),
            ("coder@0", "an agent's name must be ID or ID@VERSION, such as coder@2"),
            ("a b", "an agent's id must have 1 to 128 letters, digits, dots, underscores and hyphens"),
        ] {
            let read = text.parse::<AgentName>().map(|name| name.to_string());
            assert_eq!(read.unwrap_or_else(|bad| bad.to_string()), wanted, "{text}");
        }
        assert!(AgentDefinition::new("mainspring.x", 1).check_name().is_err());
        assert!(AgentDefinition::new("x", 0).check_name().is_err());
    }

    #[test]
    fn what_is_not_said_is_not_written() {
        let bare = AgentDefinition::new("a", 1);
        assert_eq!(serde_json::to_value(&bare).unwrap(), json!({"id": "a", "version": 1}));
        assert_eq!(serde_json::from_value::<AgentDefinition>(json!({"id": "a"})).unwrap(), bare);
        assert!(serde_json::from_value::<AgentDefinition>(json!({"id": "a", "colour": 1})).is_err());
    }
}
