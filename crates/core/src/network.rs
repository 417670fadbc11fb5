//! Networks: agents that work in one run, and the router that chooses among them.
//!
//! ```text
//!            ┌───────────── result ─────────────┐
//!            ▼                                  │
//! input ─▶ router ──pushes──▶ stack ──first──▶ member
//!            │                  │
//!            └─ done            └─ empty, max_iter ─▶ end
//! ```
//!
//! A network is an agent definition with members. The router is asked before every call and sees the rest of
//! the stack. Despite its name, the stack is a queue; only the reducer of a parallel stage is put at its front.
//! Each decision of the router is a [`Route`], which is recorded before it is carried out.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{AgentName, RunLimits, agent, limits};

mod reduce;
mod route;
pub use reduce::{MemberChange, Reduce, reduce};
pub use route::{Choice, Progress, Route, RouteEnd, RoutedBy};

/// Maximum number of members of a network.
pub const MAX_MEMBERS: usize = 64;
/// Maximum number of rules of a router, and of stages of a sequence.
pub const MAX_RULES: usize = 256;

/// The members of a network, their router and their shared state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// The agents of the network, in order.
    pub members: Vec<Member>,
    /// The router. Default: a model that selects the next agent, which needs a `model` or a `profile` of the
    /// definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<Router>,
    /// The most calls of agents in one run; 0 means no limit, and needs a limit of steps, tokens, cost or time. Calls of
    /// a routing model do not count. Default: 20.
    #[serde(default = "default_max_iter", alias = "max_iter")]
    pub max_iter: u32,
    /// The state that each run starts with.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub state: Map<String, Value>,
    /// How the changes of state by parallel members become one. Default: `merge`.
    #[serde(default, skip_serializing_if = "Reduce::is_default")]
    pub reduce: Reduce,
}

const fn default_max_iter() -> u32 {
    20
}

/// One agent of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Member {
    /// The agent definition: `ID@VERSION`, or `ID` for the latest version.
    pub agent: String,
    /// The name within the network. Default: the id of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The purpose, for the routing model. Default: the description of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The condition under which the agent may be called, as an expression. Default: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<String>,
    /// The most model calls before the router is asked again; 0 means until the agent answers without calling a tool.
    /// Default: 1, with the tool calls answered.
    #[serde(default = "one_step", skip_serializing_if = "is_one")]
    pub steps: u32,
    /// The text with which the agent's answer begins, if its model supports that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<String>,
}

const fn one_step() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one(steps: &u32) -> bool {
    *steps == 1
}

impl Member {
    /// Creates a member with the defaults of everything but its agent.
    pub fn new(agent: &str) -> Self {
        Self { agent: agent.into(), name: None, description: None, enabled: None, steps: 1, prefill: None }
    }

    /// The name within the network.
    pub fn name(&self) -> &str {
        let id = self.agent.split_once('@').map_or(self.agent.as_str(), |(id, _)| id);
        self.name.as_deref().unwrap_or(id)
    }

    /// True if the condition can never hold.
    fn is_never_enabled(&self) -> bool {
        self.enabled.as_deref().is_some_and(|condition| condition.trim() == "false")
    }
}

/// Chooses the next agents. Either a sequence, or rules, code and a model, which are asked in this order until one of
/// them decides.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Router {
    /// The agents, each called once in this order. A disabled one is skipped when its turn comes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequence: Vec<Stage>,
    /// Conditions in order: the first one that holds decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RouteRule>,
    /// The name of a router that an embedder has registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// A model that selects the next agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<RoutingModel>,
}

/// A condition and the agents that are called if it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteRule {
    /// The condition, an expression over `state`, `last`, `calls`, `stack` and `input`.
    pub when: String,
    /// The agents, in order; none ends the network.
    #[serde(default)]
    pub to: Vec<Stage>,
}

/// The model of a router.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoutingModel {
    /// The model as `PROVIDER/MODEL`. Default: the model of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model profile. Default: the profile of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Further instructions for the routing model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
}

/// A part of the stack: one agent, or several that work in parallel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum Stage {
    /// The name of one agent.
    One(String),
    /// The names of agents that work in parallel.
    Parallel(Vec<String>),
}

impl Stage {
    /// The names, in order.
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Parallel(names) => names,
        }
    }

    /// The number of agent calls that the stage makes.
    fn calls(&self) -> u32 {
        u32::try_from(self.names().len()).unwrap_or(u32::MAX)
    }
}

/// Why a network is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct BadNetwork {
    field: String,
    reason: String,
}

impl BadNetwork {
    /// Creates the error for `field`, such as `network.members[0].agent`.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

impl Network {
    /// Finds a member by its name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name() == name)
    }

    /// The members' agents, each with the name of its field.
    pub fn agents(&self) -> impl Iterator<Item = (String, &str)> {
        self.members
            .iter()
            .enumerate()
            .map(|(at, member)| (format!("network.members[{at}].agent"), member.agent.as_str()))
    }

    /// Every expression, with the name of its field.
    pub fn expressions(&self) -> impl Iterator<Item = (String, &str)> {
        let conditions = self.members.iter().enumerate().filter_map(|(at, member)| {
            Some((format!("network.members[{at}].enabled"), member.enabled.as_deref()?))
        });
        let rules = self.router.iter().flat_map(|router| router.rules.iter().enumerate());
        let rules = rules.map(|(at, rule)| (format!("network.router.rules[{at}].when"), rule.when.as_str()));
        conditions.chain(rules)
    }

    /// Checks everything but the syntax of expressions and the existence of agents. `has_model` is true if the
    /// definition names a model or a profile.
    pub fn check(&self, limits: &RunLimits, has_model: bool) -> Result<(), BadNetwork> {
        self.check_members()?;
        for key in self.state.keys() {
            limits::check_state_key(key)
                .map_err(|bad| BadNetwork::new(format!("network.state.{key}"), bad.to_string()))?;
        }
        let is_limited = limits.max_steps.is_some()
            || limits.max_tokens.is_some()
            || limits.max_cost.is_some()
            || limits.max_time.is_some();
        if self.max_iter == 0 && !is_limited {
            let reason = "0 means no limit: give the definition a limit of steps, tokens, cost or time";
            return Err(BadNetwork::new("network.max_iter", reason));
        }
        match &self.router {
            Some(router) => self.check_router(router)?,
            None if !has_model => {
                let reason = "there is neither a router nor a model: give a router, or the model that routes";
                return Err(BadNetwork::new("network.router", reason));
            }
            None => {}
        }
        match &self.reduce {
            Reduce::Agent(name) if self.member(name).is_none() => {
                Err(self.unknown("network.reduce.agent", name))
            }
            _ => Ok(()),
        }
    }

    fn check_members(&self) -> Result<(), BadNetwork> {
        let count = self.members.len();
        if !(1..=MAX_MEMBERS).contains(&count) {
            return Err(BadNetwork::new(
                "network.members",
                format!("1 to {MAX_MEMBERS} agents, not {count}"),
            ));
        }
        for (at, member) in self.members.iter().enumerate() {
            let field = |name: &str| format!("network.members[{at}].{name}");
            let agent = member.agent.parse::<AgentName>();
            agent.map_err(|bad| BadNetwork::new(field("agent"), bad.to_string()))?;
            agent::check_id(member.name()).map_err(|bad| BadNetwork::new(field("name"), bad.to_string()))?;
            if self.members[..at].iter().any(|earlier| earlier.name() == member.name()) {
                let reason = format!("another member is called {:?}: give one of them a name", member.name());
                return Err(BadNetwork::new(field("name"), reason));
            }
        }
        match self.members.iter().all(Member::is_never_enabled) {
            true => Err(BadNetwork::new("network.members", "no agent is enabled")),
            false => Ok(()),
        }
    }

    fn check_router(&self, router: &Router) -> Result<(), BadNetwork> {
        let Router { sequence, rules, code, model } = router;
        let others = !rules.is_empty() || code.is_some() || model.is_some();
        if !sequence.is_empty() && others {
            let reason = "a sequence stands alone: leave out rules, code and model";
            return Err(BadNetwork::new("network.router.sequence", reason));
        }
        if sequence.is_empty() && !others {
            let reason = "it names no agents: give a sequence, rules, code or a model";
            return Err(BadNetwork::new("network.router", reason));
        }
        for (field, count) in [("sequence", sequence.len()), ("rules", rules.len())] {
            if count > MAX_RULES {
                let reason = format!("at most {MAX_RULES}, not {count}");
                return Err(BadNetwork::new(format!("network.router.{field}"), reason));
            }
        }
        self.check_stages("network.router.sequence", sequence)?;
        for (at, rule) in rules.iter().enumerate() {
            self.check_stages(&format!("network.router.rules[{at}].to"), &rule.to)?;
        }
        let names_agents = sequence.iter().chain(rules.iter().flat_map(|rule| &rule.to)).next().is_some();
        match names_agents || code.is_some() || model.is_some() {
            true => Ok(()),
            false => Err(BadNetwork::new("network.router.rules", "no rule names an agent")),
        }
    }

    fn check_stages(&self, field: &str, stages: &[Stage]) -> Result<(), BadNetwork> {
        for (at, stage) in stages.iter().enumerate() {
            let field = format!("{field}[{at}]");
            if let Some(unknown) = stage.names().iter().find(|name| self.member(name).is_none()) {
                return Err(self.unknown(&field, unknown));
            }
            let Stage::Parallel(names) = stage else { continue };
            if names.len() < 2 {
                return Err(BadNetwork::new(field, "parallel agents are two or more"));
            }
            if names.iter().enumerate().any(|(at, name)| names[..at].contains(name)) {
                return Err(BadNetwork::new(field, "an agent stands twice in one parallel stage"));
            }
        }
        Ok(())
    }

    fn unknown(&self, field: &str, name: &str) -> BadNetwork {
        let members: Vec<&str> = self.members.iter().map(Member::name).collect();
        BadNetwork::new(field, format!("no member {name:?}; there is {}", members.join(", ")))
    }
}

#[cfg(test)]
mod tests;
