//! The plan: the settings of one execution, resolved from the run's options, its session and its agent definition.

use std::sync::Arc;

use mainspring_core::{
    AgentLimits, AgentName, ClientTool, Failure, FailureCode, Mode, Run, RunLimits, SandboxProfile,
    StateScope,
};
use mainspring_kernel::adapter::{AttemptHandle, End};
use mainspring_kernel::policy::{Rules, definition_rules};
use serde_json::{Map, Value, json};

use super::choice::{ModelChoice, choose_model};
use super::goals::Goals;
use super::network::NetworkRun;
use super::{Exit, NativeAdapter};
use crate::definition::Definition;
use crate::models::SelectedModel;
use crate::output::OutputSchema;
use crate::template;
use crate::tool::{ToolEntry, Toolbox};

/// The number of state keys that are read at a time.
const STATE_PAGE: usize = 500;

/// The surface kind of the session of a member that works in parallel with others.
pub(super) const MEMBER_SURFACE: &str = "network_member";

/// The settings of one execution.
#[derive(Clone)]
pub struct Plan {
    /// The agent definition.
    pub agent: Arc<Definition>,
    /// The model.
    pub model: SelectedModel,
    /// The system prompt, without the instruction for structured output.
    pub system: Option<String>,
    /// The tools that the model may call.
    pub tools: Toolbox,
    /// The limits of the run.
    pub limits: RunLimits,
    /// The schema of the answer.
    pub output: Option<OutputSchema>,
    /// The maximum size of a tool result in a request.
    pub result_bytes: usize,
    /// The rules about calls of tools.
    pub(super) rules: Arc<Rules>,
    /// The tools that the run's API key lists; `None` if the key allows all tools.
    listed_tools: Option<Vec<String>>,
    /// Notices about the plan for readers of the run, one line each.
    pub(super) notices: Vec<String>,
    /// A note about processes that act for the run and that nothing confines.
    pub(super) unconfined: Option<String>,
    /// True if tools read and write the state of the run unless they name another scope: the agent is a member of a
    /// network.
    pub(super) shares_run_state: bool,
    /// True if a hook has stopped the agent before its first model call.
    pub(super) is_stopped: bool,
    /// The goals of the run.
    pub(super) goals: Goals,
}

impl Plan {
    /// Resolves the plan. The run's options take precedence over the session's, and those over the agent's, except that
    /// the limits of a shared agent are never raised.
    ///
    /// The plan of a network is the plan of its first member until a member is called.
    pub(super) async fn resolve(
        adapter: &NativeAdapter,
        attempt: &AttemptHandle,
    ) -> Result<(Self, Option<NetworkRun>), Exit> {
        let assignment = attempt.assignment();
        let name = assignment.run.agent_definition(&assignment.session);
        let (agent, is_shared) = find_agent(adapter, attempt, name).await?;
        if let Some(first) = agent.network.as_ref().and_then(|network| network.members.first()).cloned() {
            let network = NetworkRun::new(agent, is_shared);
            let plan = Self::of_member(adapter, attempt, &network, &first).await?;
            return Ok((plan, Some(network)));
        }
        let shares_run_state = attempt.is_network_member().await?;
        let plan = Self::of_agent(adapter, attempt, agent, is_shared).await?;
        Ok((Self { shares_run_state, ..plan }, None))
    }

    /// Resolves the plan of an agent. `is_shared` is true if the caller may not change its definition.
    pub(super) async fn of_agent(
        adapter: &NativeAdapter,
        attempt: &AttemptHandle,
        agent: Arc<Definition>,
        is_shared: bool,
    ) -> Result<Self, Exit> {
        let assignment = attempt.assignment();
        let (session, run) = (&assignment.session, &assignment.run);
        let options = &run.options;
        let session_profile = session.model_profile.as_deref();
        let ModelChoice { model, missing_profile } =
            choose_model(&adapter.models, options, session_profile, &agent);
        let mut model = model.map_err(|error| Exit::failed(error.kind.code(), error.message))?;
        if let Some(given) = &options.model_options {
            let merged = model.options.merge(given);
            model.options = merged.map_err(|error| Exit::failed("invalid_model_options", error))?;
        }
        // A caller cannot raise the limits of a definition that it cannot change.
        let of_agent = AgentLimits { limits: agent.limits, is_ceiling: is_shared };
        let limits = options.limits.of_agent(of_agent).or(adapter.options.limits);
        let key = options.key.as_deref();
        if let Some(missing) = missing_profile.filter(|_| key.is_some_and(|key| key.models.is_some())) {
            // The agent's default model may not be one that the key lists.
            let message = format!("the model profile {missing:?} is not configured any more");
            return Err(Exit::failed(FailureCode::ModelNotConfigured, message));
        }
        let is_cost_limited = limits.max_cost.is_some() || key.is_some_and(|key| key.spend_per_day.is_some());
        if is_cost_limited && model.price.is_none() {
            let message = format!(
                "the run has a cost limit, but the price of {} is unknown; configure it as [prices.\"{}\"]",
                model.model, model.model
            );
            return Err(Exit::failed("model_price_unknown", message));
        }
        let output = options.output_schema.as_ref().map(OutputSchema::new).transpose();
        let output = output.map_err(|error| Exit::failed("invalid_output_schema", error))?;
        let system = match &options.system_prompt {
            Some(given) => Some(given.clone()),
            None => render_system(&agent, attempt, None).await?,
        };
        let tools = match run.mode {
            Mode::Ask => Toolbox::default(),
            Mode::Act => adapter.tools.filter(&agent.tools),
        };
        let listed_tools = key.and_then(|key| key.tools.clone());
        let tools = listed(tools, listed_tools.as_deref());
        let output = output.or_else(|| agent.output.clone());
        let result_bytes = agent.result_bytes.unwrap_or(adapter.options.result_bytes);
        let notice = |missing| {
            let model = model.name();
            format!(
                "the session's model profile {missing:?} is not configured any more: this run uses {model}"
            )
        };
        let notices = missing_profile.map(notice).into_iter().collect();
        let rules = Arc::new(Rules::new(&assignment.rules, definition_rules(&agent.deny, &agent.approve)));
        Ok(Self {
            agent,
            model,
            system,
            tools,
            limits,
            output,
            result_bytes,
            rules,
            listed_tools,
            notices,
            unconfined: None,
            shares_run_state: false,
            is_stopped: false,
            goals: Goals::of(run),
        })
    }

    /// Ends the agent's turn before its first model call: the run succeeds without an answer. The call of a network's
    /// member ends with an empty result; it counts, and the router is asked next. Has no effect once a model was called.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Adds the tools of MCP servers. Returns the problems, if any; they are an error if the definition names its servers.
    pub(super) async fn add_mcp_tools(
        &mut self,
        adapter: &NativeAdapter,
        run: &Run,
    ) -> Result<Option<String>, Exit> {
        if run.mode == Mode::Ask || (adapter.mcp.is_empty() && self.agent.mcp.is_none()) {
            return Ok(None);
        }
        let servers = self.agent.mcp.clone().unwrap_or_else(|| vec!["*".into()]);
        let is_confined = run.options.sandbox.is_some_and(|bound| bound != SandboxProfile::Off);
        let (tools, problems) = adapter.mcp.tools(&servers, is_confined).await;
        let processes = if is_confined { vec![] } else { adapter.mcp.processes(&servers) };
        self.unconfined = (!processes.is_empty())
            .then(|| format!("nothing confines the MCP servers of this run: {}", processes.join(", ")));
        if !problems.is_empty() && self.agent.mcp.is_some() {
            let failure = Failure::new("mcp_unavailable", problems.join("; "));
            // For a confined run a retry does not help: the server would be unconfined again.
            return Err(Exit::from(End::failed(failure, !is_confined)));
        }
        let tools = tools.filter(&self.agent.tools);
        let tools = listed(tools, self.listed_tools.as_deref());
        self.tools = std::mem::take(&mut self.tools).merge(&tools);
        Ok((!problems.is_empty()).then(|| problems.join("; ")))
    }

    /// Adds the tools that the client executes.
    pub(super) fn add_client_tools(&mut self, tools: &[ClientTool]) -> Result<(), Exit> {
        for tool in tools {
            if self.tools.get(&tool.name).is_some() {
                let message = format!(
                    "the agent {} already has a tool named {:?}; choose another name, such as client_{}",
                    self.agent.name(),
                    tool.name,
                    tool.name
                );
                return Err(Exit::failed("tool_name_taken", message));
            }
            self.tools.add_client(tool).map_err(|error| Exit::failed("invalid_tool", error.to_string()))?;
        }
        Ok(())
    }

    /// Iterates over the tools that the model is offered.
    pub(super) fn offered_tools(&self) -> impl Iterator<Item = &ToolEntry> {
        self.tools.iter().filter(|entry| self.goals.offers(&entry.spec.name))
    }

    /// Returns the whole system prompt, with the instructions for goals and for structured output.
    pub(super) fn system_prompt(&self) -> Option<String> {
        let instruction = self.output.as_ref().map(OutputSchema::instruction);
        let instructions = self.goals.instruction().into_iter().chain(instruction);
        let parts: Vec<String> = self.system.iter().cloned().chain(instructions).collect();
        (!parts.is_empty()).then(|| parts.join("\n\n"))
    }
}

/// Returns the tools that a key lists; all tools if the key has no list.
fn listed(tools: Toolbox, names: Option<&[String]>) -> Toolbox {
    match names {
        Some(names) => tools.filter(names),
        None => tools,
    }
}

/// Renders the system prompt of the agent for the session and the run of `attempt`, within a `network` if one is given.
pub(super) async fn render_system(
    agent: &Definition,
    attempt: &AttemptHandle,
    network: Option<Value>,
) -> Result<Option<String>, Exit> {
    match &agent.system {
        None => return Ok(None),
        Some(system) if template::is_plain(system) => return Ok(Some(system.clone())),
        Some(_) => {}
    }
    let assignment = attempt.assignment();
    let (session, run) = (&assignment.session, &assignment.run);
    let state = match agent.reads_state() {
        true => read_state(attempt, StateScope::Session).await?,
        false => Map::new(),
    };
    let mut context = json!({
        "session": {
            "id": session.id, "key": session.key, "title": session.title, "owner": session.owner,
            "metadata": session.metadata,
        },
        "run": {"id": run.id, "mode": run.mode, "cwd": run.options.cwd.as_ref().or(session.cwd.as_ref())},
        "state": state,
    });
    if let Some(network) = network {
        context["network"] = network;
    }
    agent.render_system(&context).map_err(|error| Exit::failed("agent_template_failed", error))
}

/// Reads the whole state of a scope.
pub(super) async fn read_state(
    attempt: &AttemptHandle,
    scope: StateScope,
) -> Result<Map<String, Value>, Exit> {
    if scope == StateScope::Run {
        let entries = attempt.run_state(attempt.assignment().run.id).await?;
        return Ok(entries.into_iter().map(|entry| (entry.key, entry.value)).collect());
    }
    let mut all = Map::new();
    loop {
        let after = all.keys().next_back().cloned();
        let page = attempt.state_list(scope, after.as_deref(), STATE_PAGE).await?;
        let is_last = page.len() < STATE_PAGE;
        all.extend(page.into_iter().map(|entry| (entry.key, entry.value)));
        if is_last {
            return Ok(all);
        }
    }
}

/// Finds the agent definition: the owner's own or a shared one, and whether it is shared.
pub(super) async fn find_agent(
    adapter: &NativeAdapter,
    attempt: &AttemptHandle,
    name: &str,
) -> Result<(Arc<Definition>, bool), Exit> {
    let missing = |message: String| Exit::failed("agent_not_found", message);
    let name: AgentName = name.parse().map_err(|_| missing(format!("{name:?} is not a valid agent name")))?;
    let own = attempt.agent(&name).await?;
    let own_version = own.as_ref().map(|own| own.version);
    let found = adapter.definitions.find_for(&name, own).map_err(missing)?;
    let is_shared = own_version != Some(found.version);
    Ok((found, is_shared))
}
