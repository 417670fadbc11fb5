//! Networks: the checks of their definitions, and what a router sees.
//!
//! A network is an agent definition with the table `network`. The rules of its stack are in `core/src/network.rs`; the
//! native loop calls its members ([`crate::native`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::network::{BadNetwork, Member};
use mainspring_core::{AgentDefinition, AgentName, Failure, Network, Stage};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::definition::{Definition, ListedDefinition};
use crate::template;

/// The maximum size of an expression.
const MAX_EXPRESSION_BYTES: usize = 4 << 10;

/// Checks the network of a definition, if it is one. The error names the field and its position.
pub(crate) fn check(record: &AgentDefinition) -> Result<(), String> {
    let Some(network) = &record.network else { return Ok(()) };
    let of_members = [
        ("tools", record.tools != ["*"]),
        ("mcp", record.mcp.is_some()),
        ("output_schema", record.output_schema.is_some()),
        ("result_bytes", record.result_bytes.is_some()),
    ];
    if let Some((field, _)) = of_members.iter().find(|(_, is_given)| *is_given) {
        return Err(format!(
            "{field}: a network has none of its own; give it to the agents that are its members"
        ));
    }
    let has_model = record.model.is_some() || record.profile.is_some();
    network.check(&record.limits, has_model).map_err(|bad| bad.to_string())?;
    for (field, expression) in network.expressions() {
        if expression.len() > MAX_EXPRESSION_BYTES {
            return Err(format!("{field}: an expression has at most {MAX_EXPRESSION_BYTES} bytes"));
        }
        template::check_expression(expression).map_err(|error| format!("{field}: {error}"))?;
    }
    Ok(())
}

/// Replaces a network by an error if one of its members is not among `listed`, or is itself a network.
pub(crate) fn refuse_unknown_members(listed: &mut [ListedDefinition]) {
    let valid = listed.iter().filter_map(|listed| listed.definition.as_ref().ok());
    let valid: Vec<Arc<Definition>> = valid.cloned().collect();
    for listed in listed {
        let Ok(definition) = &listed.definition else { continue };
        if let Some(bad) = unknown_member(definition, &valid) {
            listed.definition = Err(bad.to_string());
        }
    }
}

fn unknown_member(definition: &Definition, valid: &[Arc<Definition>]) -> Option<BadNetwork> {
    let network = definition.network.as_ref()?;
    network.agents().find_map(|(field, agent)| {
        let name: AgentName = agent.parse().ok()?;
        let matches = |one: &&Arc<Definition>| {
            one.id == name.id && name.version.is_none_or(|version| one.version == version)
        };
        match valid.iter().filter(matches).max_by_key(|one| one.version) {
            Some(found) if found.network.is_some() => Some(BadNetwork::new(
                field,
                format!("{agent} is a network; the members of a network are agents"),
            )),
            Some(_) => None,
            None => Some(BadNetwork::new(field, format!("there is no agent {agent}; make it first"))),
        }
    })
}

/// Serializes a network in the form of a TOML definition, in which names of fields have underscores.
pub(crate) fn to_file<S: Serializer>(network: &Option<Network>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(network).map_err(serde::ser::Error::custom)?;
    if let Some(fields) = value.as_object_mut()
        && let Some(max_iter) = fields.remove("maxIter")
    {
        fields.insert("max_iter".into(), max_iter);
    }
    value.serialize(serializer)
}

/// The result of the last call, as routers see it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LastResult {
    /// The name of the member. The first one, if several worked in parallel.
    pub agent: String,
    /// The text of the member's last message.
    pub text: String,
    /// The answer as JSON, if the member has an output schema.
    pub output: Value,
    /// The names of the tools that the member called, in order.
    pub tools: Vec<String>,
    /// The text of each member, if several worked in parallel.
    pub texts: BTreeMap<String, String>,
    /// The members that failed, if several worked in parallel.
    pub failed: Vec<String>,
}

/// The facts that a router decides upon.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RouterInput {
    /// The prompt of the run.
    pub input: String,
    /// The run's state.
    pub state: Map<String, Value>,
    /// The result of the last call; none before the first.
    pub last: Option<LastResult>,
    /// The rest of the stack.
    pub stack: Vec<Stage>,
    /// The number of agent calls so far.
    pub calls: u32,
    /// The names of the members that may be called.
    pub enabled: Vec<String>,
}

impl RouterInput {
    /// Fills [`RouterInput::enabled`]. The error names the condition that cannot be evaluated.
    pub(crate) fn with_enabled(mut self, members: &[Member]) -> Result<Self, String> {
        let variables = self.variables();
        for (at, member) in members.iter().enumerate() {
            let enabled = match &member.enabled {
                Some(condition) => template::is_true(condition, &variables)
                    .map_err(|error| format!("network.members[{at}].enabled: {error}"))?,
                None => true,
            };
            if enabled {
                self.enabled.push(member.name().to_owned());
            }
        }
        Ok(self)
    }

    /// The variables of expressions.
    pub(crate) fn variables(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// True if the member may be called.
    pub fn is_enabled(&self, name: &str) -> bool {
        self.enabled.iter().any(|enabled| enabled == name)
    }
}

/// The decision of a router in code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodeRoute {
    /// Adds agents to the stack.
    Agents(Vec<Stage>),
    /// Adds nothing: the network continues with its stack, and ends when the stack is empty.
    Nothing,
    /// Ends the network.
    Done,
    /// Asks the routing model.
    Model,
}

impl CodeRoute {
    /// Adds one agent to the stack.
    pub fn agent(name: &str) -> Self {
        Self::Agents(vec![Stage::One(name.into())])
    }
}

/// A router in code, which a definition names as `router.code`.
#[async_trait]
pub trait NetworkRouter: Send + Sync + 'static {
    /// Decides which agents are called next. The router is asked after every call. After a crash, it is asked again only
    /// for a decision that was not recorded.
    async fn route(&self, input: &RouterInput) -> Result<CodeRoute, Failure>;
}

/// The routers in code, by name.
#[derive(Clone, Default)]
pub struct Routers(BTreeMap<String, Arc<dyn NetworkRouter>>);

impl Routers {
    /// Adds a router.
    #[must_use]
    pub fn with(mut self, name: &str, router: Arc<dyn NetworkRouter>) -> Self {
        self.0.insert(name.into(), router);
        self
    }

    /// Finds a router. The error names the registered routers.
    pub(crate) fn get(&self, name: &str) -> Result<&Arc<dyn NetworkRouter>, Failure> {
        self.0.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
            let message = format!("no router {name:?} is registered; there is {}", known.join(", "));
            Failure::new("router_not_found", message)
        })
    }
}

impl fmt::Debug for Routers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::definition::{from_toml, to_toml};

    const REVIEW: &str = r#"
id = "review"
profile = "main_reasoner"
system = "We review together."
[limits]
max_steps = 50
[network]
max_iter = 8
state = { tone = "short", nested = { a = [1] } }
reduce = "list"
[[network.members]]
agent = "planner@1"
[[network.members]]
agent = "worker@1"
name = "left"
enabled = "state.plan is defined"
steps = 0
[[network.members]]
agent = "worker@1"
name = "right"
[[network.router.rules]]
when = "calls == 0"
to = ["planner", ["left", "right"]]
[[network.router.rules]]
when = "'OK' in last.text"
[network.router.model]
system = "Prefer left."
"#;

    #[test]
    fn a_network_round_trips_through_toml_and_json() {
        let record = from_toml(REVIEW).unwrap();
        let network = record.network.clone().unwrap();
        assert_eq!((network.max_iter, network.members.len()), (8, 3));
        let toml = to_toml(&record).unwrap();
        assert!(toml.contains("max_iter = 8"), "{toml}");
        assert_eq!(from_toml(&toml).unwrap(), record);
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json["network"]["maxIter"], json!(8));
        assert_eq!(serde_json::from_value::<AgentDefinition>(json).unwrap(), record);
        assert_eq!(Definition::new(record.clone()).unwrap().to_record(), record);
    }

    #[test]
    fn a_bad_network_is_refused_with_field_and_position() {
        for (from, to, wanted) in [
            ("'OK' in last.text", "'OK' in", "network.router.rules[1].when: line 1"),
            ("state.plan is defined", "state.plan is", "network.members[1].enabled: line 1"),
            ("[\"planner\", [", "[\"poet\", [", "network.router.rules[0].to[0]: no member \"poet\""),
            ("max_iter = 8", "max_iter = 0", ""),
            ("reduce = \"list\"", "reduce = { agent = \"poet\" }", "network.reduce.agent: no member"),
            ("[limits]", "tools = [\"a\"]\n[limits]", "tools: a network has none of its own"),
            ("steps = 0", "stepz = 0", "unknown field `stepz`"),
        ] {
            assert!(REVIEW.contains(from), "{from}");
            match Definition::parse(&REVIEW.replace(from, to)) {
                Ok(_) => assert_eq!(wanted, "", "{to}"),
                Err(error) => assert!(!wanted.is_empty() && error.contains(wanted), "{to}: {error}"),
            }
        }
        let unlimited = REVIEW.replace("max_iter = 8", "max_iter = 0").replace("max_steps = 50", "");
        assert!(Definition::parse(&unlimited).unwrap_err().starts_with("network.max_iter: 0 means no limit"));
    }

    #[test]
    fn a_file_with_an_unknown_member_is_not_usable() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("review.toml", REVIEW);
        write("planner.toml", "id = \"planner\"");
        let definitions = crate::Definitions::new(Some(folder.path().into()));
        let refused = definitions.find("review").unwrap_err();
        assert!(refused.contains("network.members[1].agent: there is no agent worker@1"), "{refused}");
        write("worker.toml", "id = \"worker\"");
        assert_eq!(definitions.find("review").unwrap().name(), "review@1");
        write("worker.toml", &REVIEW.replace("id = \"review\"", "id = \"worker\""));
        let refused = definitions.find("review").unwrap_err();
        assert!(refused.contains("worker@1 is a network"), "{refused}");
    }
}
