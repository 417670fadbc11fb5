//! The plan: what one execution follows, from its agent's definition, its session and its own options.

use std::sync::Arc;

use mainspring_core::{AgentName, ClientTool, Failure, Mode, RunLimits, StateScope};
use mainspring_kernel::adapter::{AttemptHandle, End};
use serde_json::{Map, Value, json};

use super::{NativeAdapter, Stop};
use crate::definition::Definition;
use crate::models::Chosen;
use crate::output::Form;
use crate::tool::Toolbox;

/// What one execution follows.
#[derive(Clone)]
pub struct Plan {
    /// The definition.
    pub agent: Arc<Definition>,
    /// The model.
    pub model: Chosen,
    /// What the model is told beforehand.
    pub system: Option<String>,
    /// The tools it may call.
    pub tools: Toolbox,
    /// How much the run may use.
    pub limits: RunLimits,
    /// The form its answer has.
    pub output: Option<Form>,
    /// Bytes of a tool's answer that the model is shown.
    pub result_bytes: usize,
}

impl Plan {
    /// The run's options come first, then its session's, then its agent's.
    pub(super) async fn of(adapter: &NativeAdapter, attempt: &AttemptHandle) -> Result<Self, Stop> {
        let assignment = attempt.assignment();
        let (session, run) = (&assignment.session, &assignment.run);
        let options = &run.options;
        let agent = find(adapter, attempt, &session.agent_definition).await?;
        let wish = options.model.as_deref();
        let profile = options.model_profile.as_deref().or(session.model_profile.as_deref());
        // A profile that was asked for beats the model that the definition names.
        let wish = wish.or(if profile.is_none() { agent.model.as_deref() } else { None });
        let model = adapter.models.choose(wish, profile.or(agent.profile.as_deref()));
        let mut model = model.map_err(|error| Stop::failed(error.kind.code(), error.message))?;
        if let Some(given) = &options.model_options {
            let merged = model.options.with(given);
            model.options = merged.map_err(|error| Stop::failed("invalid_model_options", error))?;
        }
        let limits = options.limits.or(agent.limits).or(adapter.options.limits);
        if limits.max_cost.is_some() && model.price.is_none() {
            let message = format!(
                "the run has a limit of cost and nobody knows what {} costs; write [prices.\"{}\"]",
                model.model, model.model
            );
            return Err(Stop::failed("model_price_unknown", message));
        }
        let output = options.output_schema.as_ref().map(Form::new).transpose();
        let output = output.map_err(|error| Stop::failed("invalid_output_schema", error))?;
        let context = json!({
            "session": {
                "id": session.id, "key": session.key, "title": session.title, "owner": session.owner,
                "metadata": session.metadata,
            },
            "run": {"id": run.id, "mode": run.mode, "cwd": options.cwd.as_ref().or(session.cwd.as_ref())},
            "state": if agent.reads_state() && options.system_prompt.is_none() {
                state(attempt).await?
            } else {
                Map::new()
            },
        });
        let system = match &options.system_prompt {
            Some(given) => Some(given.clone()),
            None => agent.system(&context).map_err(|error| Stop::failed("agent_template_failed", error))?,
        };
        let tools = match run.mode {
            Mode::Ask => Toolbox::default(),
            Mode::Act => adapter.tools.only(&agent.tools),
        };
        let output = output.or_else(|| agent.output.clone());
        let result_bytes = agent.result_bytes.unwrap_or(adapter.options.result_bytes);
        Ok(Self { agent, model, system, tools, limits, output, result_bytes })
    }

    /// Adds the tools of MCP servers; says what is missing, unless the definition cannot do without.
    pub(super) async fn add_mcp(
        &mut self,
        adapter: &NativeAdapter,
        mode: Mode,
    ) -> Result<Option<String>, Stop> {
        if mode == Mode::Ask || (adapter.mcp.is_empty() && self.agent.mcp.is_none()) {
            return Ok(None);
        }
        let wanted = self.agent.mcp.clone().unwrap_or_else(|| vec!["*".into()]);
        let (tools, problems) = adapter.mcp.tools(&wanted).await;
        if !problems.is_empty() && self.agent.mcp.is_some() {
            let failure = Failure::new("mcp_unavailable", problems.join("; "));
            return Err(Stop::from(End::failed(failure, true)));
        }
        self.tools = std::mem::take(&mut self.tools).and(&tools.only(&self.agent.tools));
        Ok((!problems.is_empty()).then(|| problems.join("; ")))
    }

    /// Adds the tools that the run's caller executes.
    pub(super) fn add_client(&mut self, tools: &[ClientTool]) -> Result<(), Stop> {
        for tool in tools {
            if self.tools.get(&tool.name).is_some() {
                let message = format!(
                    "the agent {} has a tool of its own called {:?}; give yours another name, such as client_{}",
                    self.agent.name(),
                    tool.name,
                    tool.name
                );
                return Err(Stop::failed("tool_name_taken", message));
            }
            self.tools.add_client(tool).map_err(|bad| Stop::failed("invalid_tool", bad.to_string()))?;
        }
        Ok(())
    }

    /// All that the model is told beforehand.
    pub(super) fn told(&self) -> Option<String> {
        let form = self.output.as_ref().map(Form::instruction);
        let parts: Vec<String> = self.system.iter().cloned().chain(form).collect();
        (!parts.is_empty()).then(|| parts.join("\n\n"))
    }
}

/// All state of the session, as the run sees it.
async fn state(attempt: &AttemptHandle) -> Result<Map<String, Value>, Stop> {
    let mut all = Map::new();
    loop {
        let after = all.keys().next_back().cloned();
        let page = attempt.state_list(StateScope::Session, after.as_deref(), 500).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page.into_iter().map(|entry| (entry.key, entry.value)));
    }
}

/// The agent of this name: the owner's, or one that is everybody's.
async fn find(adapter: &NativeAdapter, attempt: &AttemptHandle, name: &str) -> Result<Arc<Definition>, Stop> {
    let missing = |message: String| Stop::failed("agent_not_found", message);
    let name: AgentName = name.parse().map_err(|_| missing(format!("{name:?} is no agent's name")))?;
    let own = attempt.agent(&name).await?;
    adapter.definitions.find_for(&name, own).map_err(missing)
}
