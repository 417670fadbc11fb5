//! The description of an agent: what a run would use, without running it. MCP servers are named and not started.

use std::collections::BTreeMap;

use mainspring_api::{AgentSource, SourcedText, SourcedValue};
use mainspring_core::{AgentDefinition, OfferedTool, RunOptions};
use mainspring_kernel::agents::RuntimeAgent;
use serde_json::Value;

use super::choice::choose_model;
use super::{NAME, NativeAdapter};
use crate::definition::Definition;
use crate::models::SelectedModel;
use crate::provider::{ModelOptions, ToolSpec};

impl NativeAdapter {
    /// Describes what a run with these options would use under `record`; `None` for runs of another adapter.
    pub(crate) fn describe(
        &self,
        adapter: &str,
        options: &RunOptions,
        record: &AgentDefinition,
    ) -> Option<RuntimeAgent> {
        if adapter != NAME {
            return None;
        }
        let mut described = RuntimeAgent { limits: self.options.limits, ..RuntimeAgent::default() };
        let agent = match Definition::new(record.clone()) {
            Ok(agent) => agent,
            Err(problem) => {
                described.problems.push(format!("the agent definition is invalid: {problem}"));
                return Some(described);
            }
        };
        let choice = choose_model(&self.models, options, options.model_profile.as_deref(), &agent);
        if let Some(missing) = choice.missing_profile {
            described.problems.push(format!("the model profile {missing:?} is not configured any more"));
        }
        match choice.model {
            Ok(model) => {
                let names_profile = options.model_profile.is_some() && choice.missing_profile.is_none();
                add_model(&mut described, &model, options.model.is_some(), names_profile, &agent);
            }
            Err(error) => described.problems.push(error.message),
        }
        if agent.network.is_some() {
            // The members have tools of their own.
            return Some(described);
        }
        let tools = self.tools.filter(&agent.tools);
        described.tools = tools.iter().map(|entry| offered(&entry.spec)).collect();
        if !self.mcp.is_empty() || agent.mcp.is_some() {
            described.mcp_servers = agent.mcp.unwrap_or_else(|| vec!["*".into()]);
        }
        Some(described)
    }
}

/// Adds the model and the source of each of its parts. The session may name the model, or its profile.
fn add_model(
    described: &mut RuntimeAgent,
    model: &SelectedModel,
    names_model: bool,
    names_profile: bool,
    agent: &Definition,
) {
    let from = match (names_model, names_profile) {
        (true, _) => AgentSource::Session,
        (false, false) if agent.model.is_some() => AgentSource::AgentDefinition,
        _ => AgentSource::ModelProfile,
    };
    described.model = Some(SourcedText { value: model.name(), from });
    let from = match (names_profile, agent.profile.is_some()) {
        (true, _) => AgentSource::Session,
        (false, true) => AgentSource::AgentDefinition,
        (false, false) => AgentSource::Server,
    };
    described.model_profile = model.profile.clone().map(|value| SourcedText { value, from });
    let sourced = |value| SourcedValue { value, from: AgentSource::ModelProfile };
    let options = options_of(&model.options);
    described.model_options = options.into_iter().map(|(name, value)| (name, sourced(value))).collect();
}

/// A tool as it is described to a model.
pub(super) fn offered(spec: &ToolSpec) -> OfferedTool {
    let ToolSpec { name, description, schema } = spec.clone();
    OfferedTool { name, description, input_schema: schema }
}

/// The options of a request that are set, by the names that a caller gives them.
pub(super) fn options_of(options: &ModelOptions) -> BTreeMap<String, Value> {
    let ModelOptions { temperature, max_tokens, reasoning, silence_ms } = options.clone();
    let all = [
        ("temperature", temperature.map(Value::from)),
        ("maxTokens", max_tokens.map(Value::from)),
        ("reasoning", reasoning.map(Value::from)),
        ("silenceMs", silence_ms.map(Value::from)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
