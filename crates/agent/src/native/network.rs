//! A network in the agent loop: asks the router, calls the first member of the stack (a queue), and repeats
//! until the network ends.
//!
//! ```text
//!          ┌────────────── result ──────────────┐
//!          ▼                                    │
//! start ─ advance ──run.routed──▶ enter ─▶ the loop of one agent
//!          │   ▲                    │
//!          │   └── results ── parallel stage (children)
//!          └─ end
//! ```
//!
//! Every decision is committed before the member that it names is called. The same commit holds the result of the
//! previous call, unless a routing model is asked in between. An execution that starts again reads the decisions and
//! continues at the end of the path.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::network::{Member, Progress, RouteEnd};
use mainspring_core::{Failure, Message, MessageId, Network, Role, Route, Stage, StateScope};
use mainspring_kernel::adapter::{AttemptHandle, End, Executed, Record};
use serde_json::{Map, Value, json};

use super::execution::{Execution, NextAction};
use super::plan::read_state;
use super::{Exit, NativeAdapter, Plan};
use crate::definition::Definition;
use crate::network::{LastResult, RouterInput};
use crate::output::OutputSchema;

mod parallel;
mod router;
mod view;

/// The most messages of the path that are read when a run continues, or as the context of parallel members.
const MAX_CALL_MESSAGES: usize = 1_000;

/// The data that the loop keeps about a run.
pub(super) struct NetworkRun {
    /// The definition of the network.
    definition: Arc<Definition>,
    /// True if the caller may not change the definition.
    is_shared: bool,
    /// The last decision.
    route: Option<Route>,
    /// The members that were called, each with the number of the last model call before it.
    called: Vec<(u32, String)>,
    /// The members that wrote the messages of this run; an empty name for the results of a parallel stage.
    authors: HashMap<MessageId, String>,
    /// The messages with the results of parallel stages.
    stages: Vec<MessageId>,
    /// The result of the present call as far as it is known; between calls, the result of the last call.
    last: Option<LastResult>,
}

impl NetworkRun {
    pub(super) fn new(definition: Arc<Definition>, is_shared: bool) -> Self {
        let (route, called, authors, stages, last) = (None, vec![], HashMap::new(), vec![], None);
        Self { definition, is_shared, route, called, authors, stages, last }
    }

    /// The network.
    fn network(&self) -> Result<&Network, Exit> {
        let missing = || Exit::failed("agent_not_found", "the definition is not a network any more");
        self.definition.network.as_ref().ok_or_else(missing)
    }

    fn member(&self, name: &str) -> Result<&Member, Exit> {
        let missing = || {
            let message = format!("the network {} has no member {name:?} any more", self.definition.name());
            Exit::failed("agent_not_found", message)
        };
        self.network()?.member(name).ok_or_else(missing)
    }

    /// The member that works now; `None` in a parallel stage and after the end.
    pub(super) fn current(&self) -> Option<&Member> {
        match self.route.as_ref()?.next.as_ref()? {
            Stage::One(name) => self.definition.network.as_ref()?.member(name),
            Stage::Parallel(_) => None,
        }
    }

    /// Adds a decision.
    fn add_route(&mut self, route: Route) {
        let was_parallel =
            self.route.as_ref().is_some_and(|last| matches!(last.next, Some(Stage::Parallel(_))));
        self.stages.extend(route.message.filter(|_| was_parallel));
        if let Some(Stage::One(name)) = &route.next {
            self.called.push((route.step, name.clone()));
        }
        self.route = Some(route);
    }

    /// The member that made the model call number `step`.
    fn author_of(&self, step: u32) -> Option<&str> {
        self.called.iter().rfind(|(before, _)| *before < step).map(|(_, name)| name.as_str())
    }
}

impl Plan {
    /// Resolves the plan of a member: its own definition, completed and bounded by that of the network.
    pub(super) async fn of_member(
        adapter: &NativeAdapter,
        attempt: &AttemptHandle,
        network: &NetworkRun,
        member: &Member,
    ) -> Result<Self, Exit> {
        let (own, is_own_shared) = super::plan::find_agent(adapter, attempt, &member.agent).await?;
        if own.network.is_some() {
            let message = format!("{} is a network; the members of a network are agents", member.agent);
            return Err(Exit::failed("agent_invalid", message));
        }
        let common = &network.definition;
        let has_model = own.model.is_some() || own.profile.is_some();
        let merged = Definition {
            model: if has_model { own.model.clone() } else { common.model.clone() },
            profile: if has_model { own.profile.clone() } else { common.profile.clone() },
            system: None,
            approve: own.approve.iter().chain(&common.approve).cloned().collect(),
            deny: own.deny.iter().chain(&common.deny).cloned().collect(),
            limits: common.limits,
            ..Definition::clone(&own)
        };
        let mut plan = Self::of_agent(adapter, attempt, Arc::new(merged), network.is_shared).await?;
        if is_own_shared {
            plan.limits = plan.limits.within(&own.limits);
        }
        // The schema of the run is for the network's answer, not for the answers of its members.
        plan.output = own.output.clone();
        plan.system = member_system(attempt, common, &own).await?;
        plan.shares_run_state = true;
        Ok(plan)
    }
}

/// Builds a member's system prompt: the prompt of the run, or else of the network, then the member's own prompt.
pub(super) async fn member_system(
    attempt: &AttemptHandle,
    common: &Definition,
    own: &Definition,
) -> Result<Option<String>, Exit> {
    let state = match common.reads_state() || own.reads_state() {
        true => read_state(attempt, StateScope::Run).await?,
        false => Map::new(),
    };
    let more = Some(json!({"name": common.name(), "state": state}));
    let given = attempt.assignment().run.options.system_prompt.clone();
    let common = match given {
        Some(given) => Some(given),
        None => super::plan::render_system(common, attempt, more.clone()).await?,
    };
    let own = super::plan::render_system(own, attempt, more).await?;
    let parts: Vec<String> = common.into_iter().chain(own).collect();
    Ok((!parts.is_empty()).then(|| parts.join("\n\n")))
}

impl Execution<'_> {
    /// Finds where the network continues: at its first decision, within a call, or after a call. Returns `None` if the
    /// next action is decided by [`Execution::advance`].
    pub(super) async fn resume_network(&mut self) -> Result<Option<NextAction>, Exit> {
        let is_new = self.attempt.assignment().attempt.no == 1 && self.attempt.answer().is_none();
        let routes = if is_new { vec![] } else { self.attempt.routes().await? };
        let Some(network) = &mut self.network else { return Ok(None) };
        routes.into_iter().for_each(|route| network.add_route(route));
        let Some(route) = network.route.clone() else { return Ok(None) };
        let call = self.messages_since(&route).await?;
        match route.next {
            // The decision to end was committed, but the end was not.
            None => Ok(None),
            Some(Stage::Parallel(names)) => {
                self.apply_answer()?;
                match call.last() {
                    None => {
                        self.enter().await?;
                    }
                    Some(results) => self.remember_stage(&names, results),
                }
                Ok(None)
            }
            Some(Stage::One(name)) => {
                let is_stopped = self.enter().await?;
                let next = self.resume_point().await?;
                if call.is_empty() {
                    return Ok((!is_stopped).then_some(NextAction::CallModel));
                }
                self.remember_call(&name, &call);
                let ends_with_results =
                    call.last().is_some_and(|last| !last.is_prompt() && last.role == Role::User);
                Ok(if ends_with_results && self.is_call_complete() { None } else { Some(next) })
            }
        }
    }

    /// The messages of the run's path since a decision.
    async fn messages_since(&self, route: &Route) -> Result<Vec<Arc<Message>>, Exit> {
        let run = self.attempt.assignment().run.id;
        let prompt = self.attempt.assignment().prompt.id;
        let path = self.attempt.path(MAX_CALL_MESSAGES).await?;
        let is_before = |message: &&Arc<Message>| match route.message {
            Some(before) => message.id == before,
            None => message.run != Some(run) || message.id == prompt,
        };
        let since = path.iter().rposition(|message| is_before(&message)).map_or(0, |at| at + 1);
        Ok(path[since..].to_vec())
    }

    /// Restores the result of a call from its messages.
    fn remember_call(&mut self, name: &str, call: &[Arc<Message>]) {
        let answers = || call.iter().filter(|message| message.role == Role::Assistant);
        let text = answers().next_back().map(|message| message.text()).unwrap_or_default();
        let tools = answers().flat_map(|message| message.tool_calls()).map(|(_, name)| name).collect();
        self.set_last(LastResult { agent: name.to_owned(), text, tools, ..LastResult::default() });
    }

    fn set_last(&mut self, last: LastResult) {
        if let Some(network) = &mut self.network {
            network.last = Some(last);
        }
    }

    /// Notes the tools of a round for the result of the call.
    pub(super) fn note_tools(&mut self, text: &str, names: Vec<String>) {
        let Some(network) = &mut self.network else { return };
        let Some(agent) = network.current().map(|member| member.name().to_owned()) else { return };
        let last = network.last.get_or_insert_default();
        last.agent = agent;
        text.clone_into(&mut last.text);
        last.tools.extend(names);
    }

    /// True if the present member has made as many model calls as it may before the router is asked again.
    pub(super) fn is_call_complete(&self) -> bool {
        let Some(network) = &self.network else { return false };
        let before = network.route.as_ref().map_or(0, |route| route.step);
        network.current().is_some_and(|member| member.steps > 0 && self.steps >= before + member.steps)
    }

    /// Ends the call of a member that has answered, and continues the network.
    pub(super) async fn member_answered(
        &mut self,
        text: &str,
        records: Vec<Record>,
    ) -> Result<Option<Executed>, Exit> {
        self.note_tools(text, vec![]);
        let output = self.plan.output.as_ref().and_then(|schema| schema.parse(text).ok());
        if let Some(last) = self.network.as_mut().and_then(|network| network.last.as_mut()) {
            last.output = output.unwrap_or_default();
        }
        self.advance(records).await
    }

    /// Asks the router until it chooses a single member, and enters that member, or ends the network. `records` hold
    /// the result of the previous call, and are committed even if the router fails or waits.
    pub(super) async fn advance(&mut self, mut records: Vec<Record>) -> Result<Option<Executed>, Exit> {
        loop {
            let route = match self.next_route(&mut records).await {
                Ok(route) => route,
                // A waiting run has no final commit that could hold the result of the finished call, so the result is
                // committed now.
                Err(exit) if exit.is_waiting() => {
                    self.attempt.record(records).await?;
                    return Err(exit);
                }
                Err(exit) => {
                    self.attempt.record_at_end(records).await?;
                    return Err(exit);
                }
            };
            records.push(Record::Routed(Box::new(route.clone())));
            if route.next.is_none() {
                return self.end_network(&route, records).await.map(Some);
            }
            self.attempt.record(std::mem::take(&mut records)).await?;
            if let Some(network) = &mut self.network {
                network.add_route(route);
            }
            if !self.enter().await? {
                return Ok(None);
            }
        }
    }

    /// Makes the next decision. Repeats a decision to end that was committed before a crash.
    async fn next_route(&mut self, records: &mut Vec<Record>) -> Result<Route, Exit> {
        let Some(network) = &self.network else { return Err(Exit::failed("agent_not_found", "no network")) };
        let earlier = network.route.clone();
        if let Some(ended) = earlier.clone().filter(|earlier| earlier.next.is_none()) {
            // The decision was made before a crash.
            return Ok(Route { no: ended.no + 1, ..ended });
        }
        let (members, max_iter) = (network.network()?.members.clone(), network.network()?.max_iter);
        let is_first = earlier.is_none();
        let mut state = read_state(&self.attempt, StateScope::Run).await?;
        if is_first {
            for (key, value) in network.network()?.state.iter().filter(|(key, _)| !state.contains_key(*key)) {
                records.push(Record::RunState { key: key.clone(), value: Some(value.clone()) });
            }
            let defaults = network.network()?.state.clone();
            let given = std::mem::replace(&mut state, defaults);
            state.extend(given);
        }
        for record in records.iter() {
            match record {
                Record::RunState { key, value: Some(value) } => {
                    drop(state.insert(key.clone(), value.clone()));
                }
                Record::RunState { key, value: None } => drop(state.remove(key)),
                _ => {}
            }
        }
        let input = RouterInput {
            input: self.attempt.assignment().prompt.text(),
            state,
            last: network.last.clone().filter(|_| !is_first),
            stack: earlier.as_ref().map(|earlier| earlier.stack.clone()).unwrap_or_default(),
            calls: earlier.as_ref().map_or(0, |earlier| earlier.calls),
            enabled: vec![],
        };
        let input =
            input.with_enabled(&members).map_err(|error| Exit::failed("network_rule_failed", error))?;
        if input.enabled.is_empty() && is_first {
            return Err(Exit::failed("network_no_agent", "no agent of the network is enabled"));
        }
        let choice = self.choose(&input, records).await?;
        let progress = Progress { step: self.steps, max_iter };
        Ok(Route::decide(earlier.as_ref(), choice, progress, |name| input.is_enabled(name)))
    }

    /// Enters the stage of the last decision. Returns true if the stage has ended, false if its member is to be called.
    async fn enter(&mut self) -> Result<bool, Exit> {
        let Some(network) = &self.network else { return Ok(false) };
        match network.route.as_ref().and_then(|route| route.next.clone()) {
            None => Ok(false),
            Some(Stage::Parallel(names)) => {
                self.run_parallel(&names).await?;
                Ok(true)
            }
            Some(Stage::One(name)) => {
                self.enter_member(&name).await?;
                Ok(self.plan.is_stopped)
            }
        }
    }

    /// Makes the member the agent of the loop.
    async fn enter_member(&mut self, name: &str) -> Result<(), Exit> {
        let Some(network) = &mut self.network else { return Ok(()) };
        network.last = Some(LastResult { agent: name.to_owned(), ..LastResult::default() });
        let network = &*network;
        let mut plan = Plan::of_member(self.adapter, &self.attempt, network, network.member(name)?).await?;
        // Earlier members may have achieved goals since the execution began.
        plan.goals = self.plan.goals.of_next_member();
        let problems = Self::prepare(self.adapter, &self.attempt, self.steps, &mut plan).await?;
        self.plan = plan;
        self.resume.asked_again = 0;
        self.record_notices(problems).await?;
        self.load_steps().await
    }

    /// Ends the run. The answer is the last message; it is checked against the schema of the run.
    async fn end_network(&mut self, route: &Route, mut records: Vec<Record>) -> Result<Executed, Exit> {
        let text = self.network.as_ref().and_then(|network| network.last.as_ref());
        let text = text.map(|last| last.text.clone()).unwrap_or_default();
        if let Some(schema) = &self.attempt.assignment().run.options.output_schema {
            let schema = OutputSchema::new(schema);
            let schema = schema.map_err(|error| Exit::failed("invalid_output_schema", error))?;
            let (output, error) = match schema.parse(&text) {
                Ok(output) => (output, None),
                Err(problem) => {
                    let message = format!("the network's answer does not match the output schema: {problem}");
                    (Value::Null, Some(Failure::new("output_invalid", message)))
                }
            };
            records.push(Record::Output { output, error });
        }
        if route.end == Some(RouteEnd::MaxIter) {
            let text = format!("the network has reached its maximum of {} agent calls and ends", route.calls);
            records.push(Record::Progress { text });
        }
        let has_state = records.iter().any(|record| matches!(record, Record::RunState { .. }));
        match has_state {
            // The actor merges state changes only in a commit that an attempt asks for, not in the commit that ends the
            // run.
            true => self.attempt.record(records).await?,
            false => self.attempt.record_at_end(records).await?,
        }
        self.generate_title(&text);
        Ok(End::succeeded())
    }
}
