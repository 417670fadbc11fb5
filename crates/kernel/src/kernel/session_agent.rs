//! The agent of a session: its definition, model, instructions, options and tools for the next run.
//!
//! A run keeps the agent that it was accepted with. So a change of definition, model, instructions, options or tools
//! holds for the runs that are accepted afterwards, and is possible at any time. Only [`Kernel::session_agent_set`]
//! needs an idle session, since it may also replace the path.

use std::collections::BTreeMap;

use mainspring_api::{AgentChange, AgentSource, AgentTool, SessionAgent, SourcedText, SourcedValue};
use mainspring_core::tool::{check_client_tools, replaced};
use mainspring_core::{
    AgentDefinition, AgentLimits, AgentName, ClientTool, GivenMessage, OfferedTool, RunLimits, RunOption,
    RunOptions, Session, SessionChange, session, validate_messages,
};
use serde_json::Value;

use super::runs::{check_size, json_size};
use super::{AgentScope, Caller, Kernel, Shared};
use crate::actor::{AgentSetting, Command};
use crate::agents::RuntimeAgent;
use crate::error::Error;
use crate::store::SessionRef;

/// Messages that a caller may give to a session at once.
pub const MAX_GIVEN_MESSAGES: usize = 10_000;

impl Kernel {
    /// Describes the agent that the next run of a session would use, if its prompt names no options.
    pub async fn session_agent(&self, caller: &Caller, by: &SessionRef) -> Result<SessionAgent, Error> {
        let session = self.session_get(caller, by).await?;
        let uses_definitions = self.shared.uses(&session.adapter, RunOption::AgentDefinition);
        let found = match uses_definitions {
            true => self.definition_for(&session.owner, &session.agent_definition).await?,
            false => None,
        };
        let mut problems = vec![];
        if uses_definitions && found.is_none() {
            problems.push(format!("no agent definition {:?}", session.agent_definition));
        }
        let (definition, is_shared) = found.unzip();
        let defaults = session.run_defaults();
        let runtime = definition.as_ref().and_then(|definition| {
            self.shared.options.agents.describe(&session.adapter, &defaults, definition)
        });
        let runtime = runtime.unwrap_or_default();
        problems.extend(runtime.problems.iter().cloned());
        let name = definition.as_ref().map_or_else(
            || session.agent_definition.clone(),
            |definition| format!("{}@{}", definition.id, definition.version),
        );
        let of_agent = AgentLimits {
            limits: definition.as_ref().map(|definition| definition.limits).unwrap_or_default(),
            is_ceiling: is_shared.unwrap_or_default(),
        };
        Ok(SessionAgent {
            session_id: session.id,
            adapter: session.adapter.clone(),
            agent_definition: SourcedText { value: name, from: AgentSource::Session },
            model: runtime.model.clone().or_else(|| of_session(session.model.as_ref())),
            model_profile: runtime
                .model_profile
                .clone()
                .or_else(|| of_session(session.model_profile.as_ref())),
            model_options: model_options(&session, &runtime),
            system_prompt: system_prompt(&session, definition.as_ref()),
            tools: self.agent_tools(&session, &runtime, &mut problems),
            limits: limits(of_agent, runtime.limits),
            mcp_servers: runtime.mcp_servers,
            problems,
        })
    }

    /// The tools of the runtime, then those of the session.
    fn agent_tools(
        &self,
        session: &Session,
        runtime: &RuntimeAgent,
        problems: &mut Vec<String>,
    ) -> Vec<AgentTool> {
        let own =
            runtime.tools.iter().map(|tool| AgentTool { tool: tool.clone(), from: AgentSource::Server });
        let mut tools: Vec<AgentTool> = own.collect();
        if !self.shared.supports_client_tools(&session.adapter) {
            return tools;
        }
        for tool in &session.tools {
            if runtime.tools.iter().any(|own| own.name == tool.name) {
                problems.push(format!("the agent already has a tool named {:?}", tool.name));
            }
            let ClientTool { name, description, input_schema, .. } = tool.clone();
            tools.push(AgentTool {
                tool: OfferedTool { name, description, input_schema },
                from: AgentSource::Session,
            });
        }
        tools
    }

    /// Changes the agent of an idle session: everything in `change`, or nothing. Each refusal names its key.
    pub async fn session_agent_set(
        &self,
        caller: &Caller,
        by: &SessionRef,
        change: AgentChange,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        let known = self.session_for_change(caller, by).await?;
        let changes = self.agent_changes(caller, &known, &change).await?;
        let messages = match change.messages {
            Some(messages) => Some(self.check_given(caller, messages.unwrap_or_default()).await?),
            None => None,
        };
        let commands = changes.into_iter().map(session::Command::Set).collect();
        let setting = Box::new(AgentSetting { commands, messages });
        let changed = self.shared.call(known.id, |reply| Command::SetAgent(setting, version, reply)).await?;
        self.shared.marked(caller, changed).await
    }

    /// Checks each key of `change` on its own and turns it into a change of the session.
    async fn agent_changes(
        &self,
        caller: &Caller,
        known: &Session,
        change: &AgentChange,
    ) -> Result<Vec<SessionChange>, Error> {
        let mut changes = vec![];
        if let Some(name) = &change.agent_definition {
            self.check_definition(&known.owner, &known.adapter, name).await?;
            changes.push(SessionChange::AgentDefinition { agent_definition: name.clone() });
        }
        let none = RunOptions::default;
        if let Some(model) = change.model.clone() {
            self.check_default(caller, known, "model", &RunOptions { model: model.clone(), ..none() })?;
            changes.push(SessionChange::Model { model });
        }
        if let Some(model_profile) = change.model_profile.clone() {
            let options = RunOptions { model_profile: model_profile.clone(), ..none() };
            self.check_default(caller, known, "modelProfile", &options)?;
            changes.push(SessionChange::ModelProfile { model_profile });
        }
        if let Some(system_prompt) = change.system_prompt.clone() {
            let options = RunOptions { system_prompt: system_prompt.clone(), ..none() };
            self.check_default(caller, known, "systemPrompt", &options)?;
            changes.push(SessionChange::SystemPrompt { system_prompt });
        }
        if let Some(model_options) = change.model_options.clone() {
            let options = RunOptions { model_options: model_options.clone(), ..none() };
            self.check_default(caller, known, "modelOptions", &options)?;
            changes.push(SessionChange::ModelOptions { model_options });
        }
        if let Some(tools) = &change.tools {
            let tools = tools.clone().unwrap_or_default();
            self.check_tools(caller, known, &tools)?;
            changes.push(SessionChange::Tools { tools });
        }
        Ok(changes)
    }

    fn check_default(
        &self,
        caller: &Caller,
        session: &Session,
        key: &str,
        options: &RunOptions,
    ) -> Result<(), Error> {
        let check = || {
            self.check_options(options)?;
            Shared::check_listed_defaults(caller.lists.as_deref(), None, options)?;
            self.shared.check_defaults(&session.adapter, options)
        };
        check().map_err(|error| naming(key, error))
    }

    /// Checks the messages of a new path: a prompt can follow them, and their attachments are the caller's.
    async fn check_given(
        &self,
        caller: &Caller,
        messages: Vec<GivenMessage>,
    ) -> Result<Vec<GivenMessage>, Error> {
        if messages.len() > MAX_GIVEN_MESSAGES {
            let (size, limit) = (messages.len(), MAX_GIVEN_MESSAGES);
            return Err(Error::Invalid(format!("`messages`: there are {size}; at most {limit} are allowed")));
        }
        validate_messages(&messages).map_err(|invalid| Error::Invalid(format!("`messages`: {invalid}")))?;
        let mut checked = vec![];
        let mut bytes = 0;
        for GivenMessage { role, content } in messages {
            let size = json_size(Some(&content));
            check_size("a message", size, self.shared.options.limits.message_bytes)?;
            bytes += size as u64;
            let content = self.resolve_attachments(caller, content).await;
            let content = content.map_err(|error| naming("messages", error))?;
            checked.push(GivenMessage { role, content });
        }
        self.shared.check_storage(&caller.owner, bytes, 0).await?;
        Ok(checked)
    }

    /// Adds a tool that the caller executes, or replaces the tool of the same name. Applies to runs accepted from now on.
    pub async fn session_tool_put(
        &self,
        caller: &Caller,
        by: &SessionRef,
        tool: ClientTool,
    ) -> Result<Session, Error> {
        loop {
            let known = self.session_for_change(caller, by).await?;
            self.check_tools(caller, &known, &replaced(&known.tools, std::slice::from_ref(&tool)))?;
            let add = vec![session::Command::AddTool(tool.clone())];
            let version = Some(known.version);
            match self.shared.call(known.id, |reply| Command::Session(add, version, None, reply)).await {
                // The tools may have changed since they were checked together.
                Err(Error::Changed { .. }) => {}
                changed => return self.shared.marked(caller, changed?).await,
            }
        }
    }

    /// Removes a tool of a session. Does nothing if there is none of that name.
    pub async fn session_tool_delete(
        &self,
        caller: &Caller,
        by: &SessionRef,
        name: &str,
    ) -> Result<Session, Error> {
        let known = self.session_for_change(caller, by).await?;
        let remove = vec![session::Command::RemoveTool { name: name.to_owned() }];
        let changed = self.shared.call(known.id, |reply| Command::Session(remove, None, None, reply)).await?;
        self.shared.marked(caller, changed).await
    }

    /// Refuses tools of a session that its adapter cannot call, or that are invalid or too many together.
    fn check_tools(&self, caller: &Caller, session: &Session, tools: &[ClientTool]) -> Result<(), Error> {
        if tools.is_empty() {
            return Ok(());
        }
        let limits = &self.shared.options.limits;
        check_client_tools(tools, limits).map_err(|bad| Error::Invalid(format!("`tools`: {bad}")))?;
        check_size("the tools together", json_size(Some(&tools)), limits.client_tools_bytes)?;
        if !self.shared.supports_client_tools(&session.adapter) {
            let adapter = session.adapter.clone();
            return Err(Error::Unsupported { adapter, what: "call tools that you execute" });
        }
        let lists = caller.lists.as_deref();
        lists.map_or(Ok(()), |lists| tools.iter().try_for_each(|tool| lists.check_tool(&tool.name)))?;
        Ok(())
    }

    /// Refuses an agent definition that the adapter does not use, or that `owner` does not have.
    pub(super) async fn check_definition(&self, owner: &str, adapter: &str, name: &str) -> Result<(), Error> {
        let options = RunOptions { agent_definition: Some(name.to_owned()), ..RunOptions::default() };
        self.shared.check_used(adapter, &options)?;
        let invalid = |reason: String| Error::Invalid(format!("`agentDefinition`: {reason}"));
        let parsed: AgentName =
            name.parse().map_err(|bad: mainspring_core::BadName| invalid(bad.to_string()))?;
        match self.definition_for(owner, name).await? {
            Some(_) => Ok(()),
            None => Err(invalid(format!("no agent definition {:?}", parsed.to_string()))),
        }
    }

    /// Finds the definition that `name` stands for in runs of `owner`. Returns true with it if it is shared.
    pub(super) async fn definition_for(
        &self,
        owner: &str,
        name: &str,
    ) -> Result<Option<(AgentDefinition, bool)>, Error> {
        let Ok(name) = name.parse::<AgentName>() else { return Ok(None) };
        match self.agent_get(&Caller::new(owner), &name).await {
            Ok(agent) => Ok(Some((agent.definition, agent.scope == AgentScope::Shared))),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Shared {
    /// True if an adapter uses an option.
    pub(crate) fn uses(&self, adapter: &str, option: RunOption) -> bool {
        self.adapters.get(adapter).is_some_and(|adapter| adapter.capabilities().options.contains(&option))
    }
}

/// Adds the name of the key to a refusal.
fn naming(key: &str, error: Error) -> Error {
    match error {
        Error::Invalid(reason) => Error::Invalid(format!("`{key}`: {reason}")),
        other => other,
    }
}

fn of_session(text: Option<&String>) -> Option<SourcedText> {
    text.map(|text| SourcedText { value: text.clone(), from: AgentSource::Session })
}

/// The options of the session replace those of the model profile one by one; a null removes one.
fn model_options(session: &Session, runtime: &RuntimeAgent) -> BTreeMap<String, SourcedValue> {
    let mut options = runtime.model_options.clone();
    for (name, value) in session.model_options.iter().flatten() {
        match value {
            Value::Null => drop(options.remove(name)),
            value => {
                let sourced = SourcedValue { value: value.clone(), from: AgentSource::Session };
                options.insert(name.clone(), sourced);
            }
        }
    }
    options
}

fn system_prompt(session: &Session, definition: Option<&AgentDefinition>) -> Option<SourcedText> {
    let of_agent = definition.and_then(|definition| definition.system.clone());
    of_session(session.system_prompt.as_ref())
        .or_else(|| of_agent.map(|value| SourcedText { value, from: AgentSource::AgentDefinition }))
}

/// The limits of a run that sets none, by their names in JSON.
fn limits(of_agent: AgentLimits, of_server: RunLimits) -> BTreeMap<String, SourcedValue> {
    let fields = |limits: RunLimits| match serde_json::to_value(limits) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let own = fields(of_agent.limits);
    let all = fields(RunLimits::default().of_agent(of_agent).or(of_server));
    let sourced = |(name, value): (String, Value)| {
        let from = if own.contains_key(&name) { AgentSource::AgentDefinition } else { AgentSource::Server };
        (name, SourcedValue { value, from })
    };
    all.into_iter().map(sourced).collect()
}
