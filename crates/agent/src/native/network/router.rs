//! The router of a network: a sequence; or rules, code and a model, asked in this order until one decides.

use std::fmt::Write as _;
use std::sync::Arc;

use futures_util::StreamExt;
use mainspring_core::network::{Choice, Reduce, RoutedBy, Router, RoutingModel};
use mainspring_core::{Failure, PromptRef, Stage, Usage};
use mainspring_kernel::adapter::{End, Record, StepTaken};
use serde_json::json;

use super::super::execution::Execution;
use super::super::step::{new_step, step_input, stop_of};
use super::super::{Exit, prompt};
use super::view;
use crate::models::SelectedModel;
use crate::network::{CodeRoute, RouterInput};
use crate::provider::{Completion, ModelError, Part, Piece, Request, RequestMessage, ToolSpec, ToolUse};
use crate::template;

/// How often the routing model is asked again after a choice that cannot be used.
const MAX_ASKED_AGAIN: u32 = 3;

/// The longest wait before a retry of the routing model.
const MAX_RETRY_WAIT_MS: u64 = 15 * 60 * 1000;

const SELECT_AGENT: &str = "select_agent";
const DONE: &str = "done";

/// The instructions of the routing model.
const INSTRUCTIONS: &str = "You route between agents. Read the conversation and call exactly one tool: select_agent with the name of \
the agent that should work next, or done if the request is answered. You do not answer the request yourself.";

impl Execution<'_> {
    /// Asks the router. Commits `records` before a model is asked, so that the result of a finished call is kept even if
    /// the decision fails.
    pub(super) async fn choose(
        &mut self,
        input: &RouterInput,
        records: &mut Vec<Record>,
    ) -> Result<Choice, Exit> {
        if let Some(reducer) = self.reducer() {
            return Ok(Choice::push(RoutedBy::Reducer, vec![Stage::One(reducer)]));
        }
        let Some(network) = &self.network else { return Ok(Choice::done(RoutedBy::Rules)) };
        let default_router = Router { model: Some(RoutingModel::default()), ..Router::default() };
        let router = network.network()?.router.clone().unwrap_or(default_router);
        if !router.sequence.is_empty() {
            let push = if network.route.is_none() { router.sequence } else { vec![] };
            return Ok(Choice::push(RoutedBy::Sequence, push));
        }
        if let Some(choice) = by_rules(&router, input)? {
            return Ok(choice);
        }
        let mut asks_model = router.code.is_none();
        if let Some(name) = &router.code {
            match self.by_code(name, input).await? {
                Some(choice) => return Ok(choice),
                None => asks_model = true,
            }
        }
        match router.model.filter(|_| asks_model) {
            Some(model) => self.by_model(&model, input, records).await,
            None if router.code.is_some() => {
                let message =
                    "the router asks for the routing model, but the network has none: add router.model";
                Err(Exit::failed("routing_failed", message))
            }
            None => Ok(Choice::push(RoutedBy::Rules, vec![])),
        }
    }

    /// The agent that reduces the results of the parallel stage that has just ended.
    fn reducer(&self) -> Option<String> {
        let network = self.network.as_ref()?;
        let is_parallel = matches!(network.route.as_ref()?.next, Some(Stage::Parallel(_)));
        match &network.definition.network.as_ref()?.reduce {
            Reduce::Agent(name) if is_parallel => Some(name.clone()),
            _ => None,
        }
    }

    /// Asks a router in code. Returns `None` if it leaves the decision to the routing model.
    async fn by_code(&self, name: &str, input: &RouterInput) -> Result<Option<Choice>, Exit> {
        let router =
            self.adapter.routers.get(name).map_err(|failure| Exit::from(End::failed(failure, false)))?;
        let asked = tokio::select! {
            biased;
            () = self.attempt.cancelled() => return Err(End::stopped().into()),
            asked = router.route(input) => asked,
        };
        let by = RoutedBy::Code { name: name.to_owned() };
        Ok(match asked.map_err(|failure| Exit::from(End::failed(failure, false)))? {
            CodeRoute::Agents(stages) => {
                check_enabled(&stages, input, &format!("the router {name:?}"))?;
                Some(Choice::push(by, stages))
            }
            CodeRoute::Nothing => Some(Choice::push(by, vec![])),
            CodeRoute::Done => Some(Choice::done(by)),
            CodeRoute::Model => None,
        })
    }

    /// Asks the routing model until its choice can be used.
    async fn by_model(
        &mut self,
        routing: &RoutingModel,
        input: &RouterInput,
        records: &mut Vec<Record>,
    ) -> Result<Choice, Exit> {
        if !records.is_empty() {
            self.attempt.record(std::mem::take(records)).await?;
        }
        self.load_steps().await?;
        let model = self.routing_model(routing)?;
        let mut request = self.routing_request(&model, routing, input).await?;
        for asked in 0..=MAX_ASKED_AGAIN {
            let (text, completion) = self.ask_model(&model, &request, records).await?;
            let problem = match chosen(&completion.calls, input) {
                Ok(choice) => return Ok(choice),
                Err(problem) => problem,
            };
            if asked == MAX_ASKED_AGAIN {
                let message =
                    format!("the routing model made no valid choice in {} tries: {problem}", asked + 1);
                return Err(Exit::failed("routing_failed", message));
            }
            ask_again(&mut request.messages, &text, completion.calls, &problem);
        }
        Err(Exit::failed("routing_failed", "the routing model made no valid choice"))
    }

    /// Selects the routing model: the model of the run's options, else the router's, else the network's.
    fn routing_model(&self, routing: &RoutingModel) -> Result<SelectedModel, Exit> {
        let common = self.network.as_ref().map(|network| network.definition.clone());
        let options = &self.attempt.assignment().run.options;
        let given = (options.model.as_deref(), options.model_profile.as_deref());
        let own = (routing.model.as_deref(), routing.profile.as_deref());
        let (model, profile) = match &common {
            // A key that limits models has allowed only the model that the run names.
            _ if given != (None, None) => given,
            Some(common) if own == (None, None) => (common.model.as_deref(), common.profile.as_deref()),
            _ => own,
        };
        let selected = self.adapter.models.select(model, profile);
        let selected = selected.map_err(|error| Exit::failed(error.kind.code(), error.message))?;
        let spends = options.key.as_ref().is_some_and(|key| key.spend_per_day.is_some());
        if (self.plan.limits.max_cost.is_some() || spends) && selected.price.is_none() {
            let message = format!(
                "the run has a cost limit, but the price of the routing model {} is unknown; configure it as \
                 [prices.\"{}\"]",
                selected.model, selected.model
            );
            return Err(Exit::failed("model_price_unknown", message));
        }
        Ok(selected)
    }

    /// The first request to the routing model: the conversation, the agents that may be called, and the state.
    async fn routing_request(
        &mut self,
        model: &SelectedModel,
        routing: &RoutingModel,
        input: &RouterInput,
    ) -> Result<Request, Exit> {
        let context = self.attempt.context(model.max_prompt_tokens()).await?;
        self.files.read(&self.attempt, &context, self.plan.result_bytes).await?;
        let path = context.messages.iter().map(|(_, message)| message.clone()).collect();
        let Some(network) = &self.network else { return Ok(Request::default()) };
        let path = view::seen_by(None, &network.authors, path);
        let digest = context.digest.as_ref().map(|digest| RequestMessage::user(digest.text()));
        let mut messages: Vec<RequestMessage> = digest.into_iter().collect();
        messages.extend(prompt::messages(&path, &self.private, &self.files));
        let mut agents = String::new();
        for member in network.network()?.members.iter().filter(|member| input.is_enabled(member.name())) {
            let found = super::super::plan::find_agent(self.adapter, &self.attempt, &member.agent).await?.0;
            let description = member.description.as_deref().unwrap_or(&found.description);
            let _ = write!(agents, "\n- {}: {description}", member.name());
        }
        let mut system =
            format!("{INSTRUCTIONS}\n\nThe agents:{agents}\n\nThe state: {}", json!(input.state));
        if let Some(further) = &routing.system {
            system = format!("{system}\n\n{further}");
        }
        Ok(Request {
            model: model.model.clone(),
            system: Some(system),
            messages,
            tools: tools(&input.enabled),
            options: model.options.clone(),
            call_prefix: format!("{}_route_{}", self.attempt.assignment().run.id, self.steps + 1),
        })
    }

    /// Calls the routing model, with retries. Its step and usage go to `records`, committed before a retry or
    /// with the decision.
    async fn ask_model(
        &mut self,
        model: &SelectedModel,
        request: &Request,
        records: &mut Vec<Record>,
    ) -> Result<(String, Completion), Exit> {
        for tries in 1.. {
            self.update_delegated_usage().await?;
            self.check_limits()?;
            let started_at = self.attempt.now();
            let called = tokio::select! {
                biased;
                () = self.attempt.cancelled() => {
                    records.push(Record::Usage(Usage::UNKNOWN));
                    return Err(End::stopped().into());
                }
                called = complete(model, request.clone()) => called,
            };
            let usage = match &called {
                Ok((_, completion)) => {
                    let cost = model.cost(&completion.usage);
                    Some(Usage { cost, ..completion.usage }).filter(|usage| !usage.at_least)
                }
                Err((error, is_silent)) => (*is_silent && error.is_free()).then(Usage::default),
            };
            self.usage += usage.unwrap_or(Usage::UNKNOWN);
            let error = called.as_ref().err().map(|(error, _)| error.clone());
            let mut step = self.routing_step(model, request, error.as_ref(), usage, started_at);
            if let Ok((_, completion)) = &called {
                step.raw = self.bounded_raw(completion.raw.clone()).await?;
            }
            records.push(Record::Step(Box::new(step)));
            records.extend(usage.filter(|usage| !usage.is_zero()).map(Record::Usage));
            let error = match called {
                Ok(answered) => return Ok(answered),
                Err((error, _)) => error,
            };
            let options = &self.adapter.options;
            let wait_ms = options.retry_delay_ms(tries, &error);
            if !error.kind.is_retryable() || tries >= options.max_tries || wait_ms > MAX_RETRY_WAIT_MS {
                let failure =
                    Failure::new(error.kind.code(), format!("the routing model: {}", error.message));
                return Err(End::failed(failure, error.kind.is_retryable()).into());
            }
            let text = format!("the routing model failed: {}; retrying", error.message);
            records.push(Record::Progress { text });
            self.attempt.record(std::mem::take(records)).await?;
            tokio::select! {
                () = self.attempt.sleep_for(wait_ms) => {}
                () = self.attempt.cancelled() => return Err(End::stopped().into()),
            }
        }
        Err(Exit::failed("routing_failed", "the routing model was not asked"))
    }

    fn routing_step(
        &self,
        model: &SelectedModel,
        request: &Request,
        error: Option<&ModelError>,
        usage: Option<Usage>,
        started_at: mainspring_core::Time,
    ) -> StepTaken {
        let agent = self.network.as_ref().map(|network| network.definition.name()).unwrap_or_default();
        let messages = u32::try_from(request.messages.len()).unwrap_or(u32::MAX);
        let prompt = PromptRef { last: None, messages, digest: None };
        StepTaken {
            usage,
            first_piece_at: error.is_none().then(|| self.attempt.now()),
            input: Some(Arc::new(step_input(request))),
            ..new_step((self.steps + 1, agent), model, prompt, started_at, stop_of(error))
        }
    }
}

/// The choice of the first rule that holds.
fn by_rules(router: &Router, input: &RouterInput) -> Result<Option<Choice>, Exit> {
    let variables = input.variables();
    for (at, rule) in router.rules.iter().enumerate() {
        let holds = template::is_true(&rule.when, &variables);
        let holds = holds.map_err(|error| {
            Exit::failed("network_rule_failed", format!("network.router.rules[{at}].when: {error}"))
        })?;
        if !holds {
            continue;
        }
        let by = RoutedBy::Rule { rule: u32::try_from(at + 1).unwrap_or(u32::MAX) };
        if rule.to.is_empty() {
            return Ok(Some(Choice::done(by)));
        }
        check_enabled(&rule.to, input, &format!("network.router.rules[{at}].to"))?;
        return Ok(Some(Choice::push(by, rule.to.clone())));
    }
    Ok(None)
}

/// Refuses agents that are unknown or not enabled.
fn check_enabled(stages: &[Stage], input: &RouterInput, who: &str) -> Result<(), Exit> {
    match stages.iter().flat_map(|stage| stage.names()).find(|name| !input.is_enabled(name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!(
                "{who} names {name:?}, which is no member or not enabled now; enabled: {}",
                input.enabled.join(", ")
            );
            Err(Exit::failed("agent_disabled", message))
        }
    }
}

/// The tools of the routing model.
fn tools(enabled: &[String]) -> Vec<ToolSpec> {
    let select = ToolSpec {
        name: SELECT_AGENT.into(),
        description: "Selects the agent that works next.".into(),
        schema: json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": enabled, "description": "The agent's name."},
                "reason": {"type": "string", "description": "Why this agent."},
            },
            "required": ["name"],
        }),
    };
    let done = ToolSpec {
        name: DONE.into(),
        description: "Ends the work: the request is answered.".into(),
        schema: json!({
            "type": "object",
            "properties": {"summary": {"type": "string", "description": "What was achieved."}},
        }),
    };
    vec![select, done]
}

/// The choice of the routing model. The error tells the model what is wrong.
fn chosen(calls: &[ToolUse], input: &RouterInput) -> Result<Choice, String> {
    let text = |call: &ToolUse, field: &str| call.input[field].as_str().map(str::to_owned);
    if calls.is_empty() {
        return Err(format!("call a tool: {SELECT_AGENT} or {DONE}"));
    }
    let (mut push, mut reasons) = (vec![], vec![]);
    for call in calls {
        match call.name.as_str() {
            DONE if calls.len() == 1 => {
                return Ok(Choice { reason: text(call, "summary"), ..Choice::done(RoutedBy::Model) });
            }
            DONE => return Err(format!("{DONE} stands alone: select agents, or end")),
            SELECT_AGENT => match text(call, "name") {
                Some(name) if input.is_enabled(&name) => {
                    push.push(Stage::One(name));
                    reasons.extend(text(call, "reason"));
                }
                Some(name) => {
                    return Err(format!("no agent {name:?}; there is {}", input.enabled.join(", ")));
                }
                None => return Err("name: the name of an agent is missing".into()),
            },
            other => return Err(format!("no tool {other:?}; there is {SELECT_AGENT}, {DONE}")),
        }
    }
    let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    Ok(Choice { reason, ..Choice::push(RoutedBy::Model, push) })
}

/// Adds the model's answer and its problem to the request.
fn ask_again(messages: &mut Vec<RequestMessage>, text: &str, calls: Vec<ToolUse>, problem: &str) {
    let said = (!text.is_empty()).then(|| Part::Text(text.to_owned()));
    let results = calls.iter().map(|call| Part::ToolResult {
        id: call.id.clone(),
        name: call.name.clone(),
        text: problem.to_owned(),
        is_error: true,
    });
    let results: Vec<Part> = results.collect();
    let parts: Vec<Part> = said.into_iter().chain(calls.into_iter().map(Part::ToolUse)).collect();
    if !parts.is_empty() {
        messages.push(RequestMessage { role: mainspring_core::Role::Assistant, parts, private: None });
    }
    messages.push(match results.is_empty() {
        true => RequestMessage::user(problem),
        false => RequestMessage { role: mainspring_core::Role::User, parts: results, private: None },
    });
}

/// Calls a model without streaming its text anywhere. The error comes with true if the model had produced nothing.
async fn complete(
    model: &SelectedModel,
    request: Request,
) -> Result<(String, Completion), (ModelError, bool)> {
    let (mut text, mut is_silent) = (String::new(), true);
    let mut pieces = model.provider.stream(request).await;
    while let Some(piece) = pieces.next().await {
        match piece {
            Ok(Piece::Text(piece)) => text.push_str(&piece),
            Ok(Piece::Thinking(_)) => {}
            Ok(Piece::Done(completion)) => return Ok((text, *completion)),
            Err(error) => return Err((error, is_silent)),
        }
        is_silent = false;
    }
    Err((ModelError::connection_closed(), is_silent))
}
