//! One turn of an ACP agent: turns its messages into deltas, records and questions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use agent_client_protocol::Responder;
use agent_client_protocol::v1::schema::{
    ContentBlock, MessageId, Plan, PlanEntryStatus, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SelectedPermissionOutcome, SessionUpdate, ToolCallContent, ToolCallStatus,
    ToolCallUpdateFields, ToolKind, UsageUpdate,
};
use mainspring_core::{Approval, Block, Cost, Failure, ToolOutcome, Usage};
use mainspring_kernel::adapter::{Death, End, HandleError, Record};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::client::ClientServices;
use super::permission::{act, is_empty, kind_name, narrowest_option, question};
use super::wire::{CallError, Inbound};
use super::worker::AcpWorker;
use crate::driver::{AgentWorker, Cause, QuestionQueue, TextBlocks, TurnContext, TurnOutcome, excerpt};

/// The result of `session/prompt`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PromptResult {
    stop_reason: String,
    #[serde(default)]
    usage: Option<Value>,
}

/// A running turn.
pub(super) struct AcpTurn<'a> {
    turn: TurnContext<'a, AcpWorker>,
    text: TextBlocks<'a>,
    client: ClientServices,
    /// The cost of the native session before the turn, if known.
    cost_before: Option<f64>,
    cost: Option<f64>,
    /// The message that the last text belongs to, if the agent names it.
    message: Option<MessageId>,
    tools: HashMap<String, OpenToolCall>,
    /// The ids of tool calls that were denied.
    denied: Arc<Mutex<HashSet<String>>>,
    /// Whether the agent has produced text, a thought, a tool call, a plan or a request.
    has_output: bool,
}

/// A tool call without an outcome.
#[derive(Default)]
struct OpenToolCall {
    name: Option<String>,
    title: Option<String>,
    kind: Option<ToolKind>,
    input: Option<Value>,
    /// The latest output.
    output: String,
    started: bool,
}

impl<'a> AcpTurn<'a> {
    pub(super) fn new(turn: TurnContext<'a, AcpWorker>, cost_before: Option<f64>) -> Self {
        let (text, client) = (TextBlocks::new(turn.attempt), ClientServices::new(&turn));
        Self {
            turn,
            text,
            client,
            cost_before,
            cost: None,
            message: None,
            tools: HashMap::new(),
            denied: Arc::default(),
            has_output: false,
        }
    }

    /// Prompts the agent and processes its messages until the turn ends. Returns the outcome and the total cost of the
    /// native session.
    pub(super) async fn run(mut self, prompt: Vec<Value>) -> (TurnOutcome, Option<f64>) {
        let worker = self.turn.worker.clone();
        let mut inbound = worker.connection.subscribe(self.turn.native);
        let params = json!({"sessionId": self.turn.native, "prompt": prompt});
        let result = worker.connection.call::<PromptResult>("session/prompt", params);
        tokio::pin!(result);
        let mut questions = QuestionQueue::default();
        let outcome = loop {
            let step = tokio::select! {
                biased;
                Some(message) = inbound.recv() => match message {
                    Inbound::Update(update) => self.handle_update(*update).await,
                    Inbound::Permission(request) => {
                        let (mut request, responder) = *request;
                        let started = self.start_requested_tool(&mut request).await;
                        questions.push(self.decide_permission(request, responder), false);
                        started
                    }
                    Inbound::Client(request) => {
                        self.has_output = true;
                        if let Some(request) = self.client.serve(*request) {
                            questions.push(self.client.clone().decide_and_serve(request), false);
                        }
                        Ok(())
                    }
                },
                answered = questions.next_answered() => answered,
                result = &mut result => break self.finish(result, &mut inbound).await,
                () = worker.disconnected() => break self.fail_disconnected(&mut inbound).await,
            };
            match step {
                // A cancelled attempt has answered its open questions; the agent ends the turn itself.
                Ok(()) | Err(HandleError::Revoked) => {}
                Err(HandleError::Kernel(error)) => {
                    let failure = Failure::new(error.code(), error.to_string());
                    break TurnOutcome::Broken(self.failed(failure, false));
                }
            }
        };
        worker.connection.unsubscribe();
        let outcome = self.close_terminals(outcome).await;
        (outcome, self.cost)
    }

    /// Kills the terminals of the turn before it ends.
    async fn close_terminals(&self, outcome: TurnOutcome) -> TurnOutcome {
        match self.client.close().await {
            Death::Proven => outcome,
            // Returning would claim that everything has stopped.
            Death::Unproven if self.turn.attempt.is_cancelled() => std::future::pending().await,
            Death::Unproven => {
                let message =
                    "a command of the agent was ended from outside; whether all of it has ended is not known";
                TurnOutcome::Broken(self.failed(Failure::new("transport_interruption", message), false))
            }
        }
    }

    /// Processes the updates that arrived before the result of the prompt, and closes denied tool calls.
    async fn drain(&mut self, inbound: &mut mpsc::UnboundedReceiver<Inbound>) -> Result<(), HandleError> {
        while let Ok(message) = inbound.try_recv() {
            if let Inbound::Update(update) = message {
                self.handle_update(*update).await?;
            }
        }
        // Not every agent reports that a denied call did not run. Calls that were announced but not started are dropped;
        // the kernel records an unknown outcome for the started ones.
        let denied = self.denied.lock().clone();
        let failed = |id: &String| Record::ToolFailed {
            tool_use_id: id.clone(),
            outcome: ToolOutcome::Failed,
            error: Failure::new("denied", "the tool call was not allowed"),
            content: vec![],
        };
        let open = self.tools.keys().filter(|id| denied.contains(*id)).map(failed).collect::<Vec<_>>();
        self.tools.retain(|id, _| !denied.contains(id));
        if open.is_empty() { Ok(()) } else { self.turn.attempt.record(open).await }
    }

    /// Ends the turn with the result of the prompt.
    async fn finish(
        &mut self,
        result: Result<PromptResult, CallError>,
        inbound: &mut mpsc::UnboundedReceiver<Inbound>,
    ) -> TurnOutcome {
        if let Err(HandleError::Kernel(error)) = self.drain(inbound).await {
            return TurnOutcome::Broken(self.failed(Failure::new(error.code(), error.to_string()), false));
        }
        let result = match result {
            Ok(result) => result,
            Err(CallError::Disconnected) => return self.fail_disconnected(inbound).await,
            Err(error) if self.turn.attempt.is_cancelled() => {
                tracing::debug!(%error, "an agent answered a cancelled prompt with an error");
                return TurnOutcome::Broken(End::Stopped { usage: self.usage(None) });
            }
            Err(error) => {
                let (end, cause) = (self.failed(self.turn.worker.failure(&error), false), error.cause());
                let outcome = match cause {
                    Cause::UnknownSession => TurnOutcome::Ended(end),
                    _ => TurnOutcome::Broken(end),
                };
                return outcome.unless_lost(&self.turn, self.has_output, cause);
            }
        };
        let usage = self.usage(result.usage.as_ref());
        let failed = |code: &str, message: &str| End::Failed {
            error: Failure::new(code, message),
            retryable: false,
            usage,
        };
        TurnOutcome::Ended(match result.stop_reason.as_str() {
            "end_turn" => End::Succeeded { usage },
            "cancelled" => End::Stopped { usage },
            "max_tokens" => failed("max_tokens", "the agent reached the most tokens it may write"),
            "max_turn_requests" => {
                failed("max_turn_requests", "the agent reached the most steps it may take")
            }
            "refusal" => failed("refusal", "the agent refused to go on"),
            other => failed(
                "unknown_stop_reason",
                &format!("the agent stopped for a reason unknown here: {other}"),
            ),
        })
    }

    /// Ends the turn after the process has ended or closed the connection.
    async fn fail_disconnected(&mut self, inbound: &mut mpsc::UnboundedReceiver<Inbound>) -> TurnOutcome {
        // The kernel records an unknown outcome for open tool calls.
        while let Ok(Inbound::Update(update)) = inbound.try_recv() {
            let _ = self.handle_update(*update).await;
        }
        // After any output, a retry could repeat actions.
        let failure = self.turn.worker.failure(&CallError::Disconnected);
        TurnOutcome::Broken(self.failed(failure, !self.has_output)).unless_lost(
            &self.turn,
            self.has_output,
            Cause::Disconnected,
        )
    }

    fn failed(&self, error: Failure, retryable: bool) -> End {
        End::Failed { error, retryable, usage: self.usage(None) }
    }

    async fn handle_update(&mut self, update: SessionUpdate) -> Result<(), HandleError> {
        self.has_output |= matches!(
            update,
            SessionUpdate::AgentMessageChunk(_)
                | SessionUpdate::AgentThoughtChunk(_)
                | SessionUpdate::ToolCall(_)
                | SessionUpdate::ToolCallUpdate(_)
                | SessionUpdate::Plan(_)
        );
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                if self.message != chunk.message_id {
                    self.message = chunk.message_id;
                    self.text.end_block();
                }
                self.text.push(&text_of(&chunk.content))
            }
            SessionUpdate::AgentThoughtChunk(chunk) => self.turn.attempt.thought(&text_of(&chunk.content)),
            SessionUpdate::ToolCall(call) => {
                let fields = ToolCallUpdateFields::new()
                    .title(call.title)
                    .name(call.name)
                    .kind(call.kind)
                    .status(call.status)
                    .content(call.content)
                    .raw_input(call.raw_input)
                    .raw_output(call.raw_output);
                self.update_tool(&call.tool_call_id.0, &fields).await
            }
            SessionUpdate::ToolCallUpdate(update) => {
                self.update_tool(&update.tool_call_id.0, &update.fields).await
            }
            SessionUpdate::Plan(plan) => {
                self.turn.attempt.record(vec![Record::Progress { text: plan_text(&plan) }]).await
            }
            SessionUpdate::UsageUpdate(update) => {
                self.keep_cost(&update);
                Ok(())
            }
            // Commands, modes and titles do not belong to the turn.
            _ => Ok(()),
        }
    }

    /// Records the start, progress or end of a tool call. A call has started once its input is known or it is in
    /// progress.
    async fn update_tool(&mut self, id: &str, fields: &ToolCallUpdateFields) -> Result<(), HandleError> {
        self.text.end_block();
        let tool = self.tools.entry(id.to_owned()).or_default();
        for (known, update) in [(&mut tool.name, &fields.name), (&mut tool.title, &fields.title)] {
            if let Some(update) = update.as_ref().filter(|update| !update.is_empty()) {
                *known = Some(update.clone());
            }
        }
        tool.kind = fields.kind.or(tool.kind);
        if let Some(input) = fields.raw_input.as_ref().filter(|input| !is_empty(input)) {
            tool.input = Some(input.clone());
        }
        let status = fields.status.unwrap_or(ToolCallStatus::Pending);
        let mut records = vec![];
        if !tool.started && (tool.input.is_some() || status != ToolCallStatus::Pending) {
            records.push(start_tool(id, tool));
        }
        let output = tool_output(fields, &self.client);
        let ends = matches!(status, ToolCallStatus::Completed | ToolCallStatus::Failed);
        if !output.is_empty() {
            tool.output.clone_from(&output);
            if tool.started && !ends {
                records.push(Record::ToolUpdated { tool_use_id: id.to_owned(), text: output.clone() });
            }
        }
        match status {
            ToolCallStatus::Completed => {
                // The last update may hold the status alone.
                let output = std::mem::take(&mut tool.output);
                let content = if output.is_empty() { vec![] } else { vec![Block::text(output)] };
                records.push(Record::ToolCompleted { tool_use_id: id.to_owned(), content });
            }
            ToolCallStatus::Failed => {
                let message = if output.is_empty() { "the tool failed".into() } else { output };
                records.push(Record::ToolFailed {
                    tool_use_id: id.to_owned(),
                    outcome: ToolOutcome::Failed,
                    error: Failure::new("tool_failed", message),
                    content: vec![],
                });
            }
            _ => {}
        }
        if ends {
            self.tools.remove(id);
        }
        if records.is_empty() { Ok(()) } else { self.turn.attempt.record(records).await }
    }

    /// Records the start of a tool call that needs a permission, whatever its status. Completes the request with fields
    /// from earlier updates, because some agents send only the id of the call.
    async fn start_requested_tool(
        &mut self,
        request: &mut RequestPermissionRequest,
    ) -> Result<(), HandleError> {
        self.has_output = true;
        let call = &mut request.tool_call;
        let id = call.tool_call_id.to_string();
        self.update_tool(&id, &call.fields).await?;
        let Some(tool) = self.tools.get_mut(&id) else { return Ok(()) };
        let fields = &mut call.fields;
        fields.title = fields.title.take().or_else(|| tool.title.clone());
        fields.name = fields.name.take().or_else(|| tool.name.clone());
        fields.kind = fields.kind.or(tool.kind);
        fields.raw_input = fields.raw_input.take().or_else(|| tool.input.clone());
        if tool.started {
            return Ok(());
        }
        let started = start_tool(&id, tool);
        self.turn.attempt.record(vec![started]).await
    }

    /// Decides a permission request by the policy and responds to the agent.
    fn decide_permission(
        &self,
        request: RequestPermissionRequest,
        responder: Responder,
    ) -> impl Future<Output = Result<(), HandleError>> + Send + use<> {
        let (attempt, standing) = (self.turn.attempt.clone(), self.turn.standing.clone());
        let (rules, denied) = (self.turn.rules.clone(), self.denied.clone());
        async move {
            let (act, question) = (act(&request), question(&request).into());
            let decided = rules.request_permission(&attempt, standing.as_ref(), &act, question).await;
            if matches!(decided, Ok(Approval::Denied | Approval::Expired)) {
                denied.lock().insert(request.tool_call.tool_call_id.to_string());
            }
            let chosen = match &decided {
                Ok(decision) => narrowest_option(&request.options, *decision),
                Err(_) => None,
            };
            let outcome = match chosen {
                Some(option) => RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(
                    option.option_id.clone(),
                )),
                None => RequestPermissionOutcome::Cancelled,
            };
            let response = serde_json::to_value(RequestPermissionResponse::new(outcome)).unwrap_or_default();
            let _ = responder.respond(response);
            decided.map(drop)
        }
    }

    fn keep_cost(&mut self, update: &UsageUpdate) {
        if let Some(cost) = update.cost.as_ref().filter(|cost| cost.currency == "USD") {
            self.cost = Some(cost.amount);
        }
    }

    /// The usage of the turn: the agent's token counts, and the increase of the native session's cost. The cost is
    /// unknown if the agent does not report it or the cost before the turn is unknown.
    fn usage(&self, reported: Option<&Value>) -> Usage {
        let count = |name: &str| reported.and_then(|usage| usage.get(name)?.as_u64()).unwrap_or_default();
        let costs = self.cost.zip(self.cost_before).filter(|(now, before)| now >= before);
        Usage {
            input_tokens: count("inputTokens"),
            output_tokens: count("outputTokens"),
            cache_read_tokens: count("cachedReadTokens"),
            cache_write_tokens: count("cachedWriteTokens"),
            cost: Cost::from(costs.map(|(now, before)| now - before)),
        }
    }
}

/// Marks a tool call as started and returns its record.
fn start_tool(id: &str, tool: &mut OpenToolCall) -> Record {
    tool.started = true;
    let names = [tool.name.as_deref(), tool.title.as_deref(), tool.kind.and_then(kind_name)];
    let name = names.into_iter().flatten().next().unwrap_or("tool").to_owned();
    Record::ToolStarted { tool_use_id: id.to_owned(), name, input: tool.input.clone() }
}

/// The output of a tool call as text.
fn tool_output(fields: &ToolCallUpdateFields, client: &ClientServices) -> String {
    let mut text = String::new();
    for content in fields.content.iter().flatten() {
        match content {
            ToolCallContent::Content(content) => text.push_str(&text_of(&content.content)),
            ToolCallContent::Terminal(terminal) => {
                text.push_str(&client.terminal_text(&terminal.terminal_id.0).unwrap_or_default());
            }
            ToolCallContent::Diff(diff) => text.push_str(&format!("changed {}\n", diff.path.display())),
            _ => {}
        }
    }
    if text.is_empty()
        && let Some(output) = &fields.raw_output
    {
        text = output.as_str().map_or_else(|| output.to_string(), str::to_owned);
    }
    excerpt(text)
}

fn text_of(content: &ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::ResourceLink(link) => format!("[{}]({})", link.name, link.uri),
        ContentBlock::Image(image) => format!("[image: {}]", image.mime_type),
        _ => String::new(),
    }
}

fn plan_text(plan: &Plan) -> String {
    let line = |entry: &agent_client_protocol::v1::schema::PlanEntry| {
        let mark = match entry.status {
            PlanEntryStatus::Completed => "x",
            PlanEntryStatus::InProgress => ">",
            _ => " ",
        };
        format!("[{mark}] {}", entry.content)
    };
    excerpt(plan.entries.iter().map(line).collect::<Vec<_>>().join("\n"))
}
