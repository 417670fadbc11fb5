//! One turn of an ACP agent: turns its messages into deltas, records and questions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use agent_client_protocol::Responder;
use agent_client_protocol::v1::schema::{
    ContentBlock, MessageId, Plan, PlanEntry, PlanEntryStatus, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, SelectedPermissionOutcome, SessionUpdate,
    ToolCallStatus, ToolCallUpdateFields, UsageUpdate,
};
use mainspring_core::{Approval, Block, Cost, Failure, FailureCode, PlannedTask, TaskStatus, Usage};
use mainspring_kernel::adapter::{AttemptHandle, Death, End, HandleError, Record, RuntimeFacts};
use mainspring_kernel::policy::{self, Question};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::client::ClientServices;
use super::permission::{approval_request, narrowest_option, question, replies, requested_action};
use super::tool_call::{OpenToolCall, file_of, text_of};
use super::wire::{CallError, Inbound};
use super::worker::AcpWorker;
use crate::driver::{
    AgentWorker, Cause, QuestionQueue, TOOL_UPDATE_INTERVAL_MS, TextBlocks, ToolCalls, TurnContext,
    TurnOutcome, excerpt,
};

/// The result of `session/prompt`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PromptResult {
    stop_reason: String,
    #[serde(default)]
    usage: Option<Value>,
    #[serde(rename = "_meta", default)]
    meta: Option<Value>,
}

impl PromptResult {
    /// The token counts that the agent reports: in `usage`, or as Gemini does, in `_meta.quota.token_count`.
    fn token_counts(&self) -> Option<&Value> {
        let quota = || self.meta.as_ref()?.pointer("/quota/token_count");
        self.usage.as_ref().or_else(quota).filter(|counts| counts.is_object())
    }
}

/// A running turn.
pub(super) struct AcpTurn<'a> {
    turn: TurnContext<'a, AcpWorker>,
    /// The attempt handle for requests of the agent. It asks people only while the turn lasts.
    asker: AttemptHandle,
    /// Cancelled once the agent has ended the turn.
    ended_by_agent: CancellationToken,
    text: TextBlocks<'a>,
    client: ClientServices,
    /// The requests of the agent that are being decided or executed.
    questions: QuestionQueue,
    /// The cost of the native session before the turn, if known.
    cost_before: Option<f64>,
    cost: Option<f64>,
    /// The message that the last text belongs to, if the agent names it.
    message: Option<MessageId>,
    calls: ToolCalls<'a>,
    tools: HashMap<String, OpenToolCall>,
    /// The ids of tool calls that have ended.
    ended: HashSet<String>,
    /// The ids of tool calls that were denied.
    denied: Arc<Mutex<HashSet<String>>>,
    /// Whether the agent has produced text, a thought, a tool call, a plan or a request.
    has_output: bool,
}

impl<'a> AcpTurn<'a> {
    pub(super) fn new(turn: TurnContext<'a, AcpWorker>, cost_before: Option<f64>) -> Self {
        let ended_by_agent = CancellationToken::new();
        let asker = turn.attempt.asking_until(ended_by_agent.clone());
        let (text, client) = (TextBlocks::new(turn.attempt), ClientServices::new(&turn, asker.clone()));
        let calls = ToolCalls::new(turn.attempt, turn.default_grant.as_ref());
        Self {
            turn,
            asker,
            ended_by_agent,
            text,
            client,
            questions: QuestionQueue::default(),
            cost_before,
            cost: None,
            message: None,
            calls,
            tools: HashMap::new(),
            ended: HashSet::new(),
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
        let (native_run, result) = worker.connection.request::<PromptResult, _>("session/prompt", params);
        // Created once, so that output does not restart the timeout for reading the last output.
        let disconnected = worker.disconnected();
        tokio::pin!(result, disconnected);
        self.turn.record_at_end(RuntimeFacts { native_run, ..RuntimeFacts::default() }).await;
        let outcome = loop {
            let step = tokio::select! {
                biased;
                Some(message) = inbound.recv() => self.handle(message).await,
                answered = self.questions.next_answered() => answered,
                result = &mut result => break self.finish(result, &mut inbound).await,
                () = &mut disconnected => break self.fail_disconnected(&mut inbound).await,
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

    async fn handle(&mut self, message: Inbound) -> Result<(), HandleError> {
        match message {
            Inbound::Update(update) => self.handle_update(*update).await,
            Inbound::Permission(request) => {
                let (mut request, responder) = *request;
                let started = self.start_requested_tool(&mut request).await;
                let diff = self.requested_diff(&request).await;
                self.questions.push(self.decide_permission(request, diff, responder), false);
                started
            }
            Inbound::Client(request) => {
                self.has_output = true;
                if let Some(request) = self.client.serve(*request) {
                    self.questions.push(self.client.clone().decide_and_serve(request), false);
                }
                Ok(())
            }
        }
    }

    /// Kills the terminals of the turn before it ends.
    async fn close_terminals(&mut self, outcome: TurnOutcome) -> TurnOutcome {
        match self.client.close().await {
            Death::Proven => outcome,
            // Returning would claim that everything has stopped.
            Death::Unproven if self.turn.attempt.is_cancelled() => std::future::pending().await,
            Death::Unproven => {
                let message =
                    "a command of the agent was ended from outside; whether all of it has ended is not known";
                TurnOutcome::Broken(
                    self.failed(Failure::new(FailureCode::TransportInterruption, message), false),
                )
            }
        }
    }

    /// Processes the messages that arrived before the result of the prompt, and closes denied tool calls. Some agents do
    /// not wait for the response to a request: if the agent `has_ended` its turn regularly, its requests for files are
    /// decided and executed all the same, unless a person must decide. Permissions and terminals are refused.
    async fn drain(
        &mut self,
        inbound: &mut mpsc::UnboundedReceiver<Inbound>,
        has_ended: bool,
    ) -> Result<(), HandleError> {
        // After a cancellation, some records are refused.
        let unless_revoked = |handled| match handled {
            Ok(()) | Err(HandleError::Revoked) => Ok(()),
            Err(error) => Err(error),
        };
        while let Ok(message) = inbound.try_recv() {
            if self.is_served(has_ended) || matches!(message, Inbound::Update(_)) {
                unless_revoked(self.handle(message).await)?;
            }
        }
        self.ended_by_agent.cancel();
        while self.is_served(has_ended) && !self.questions.is_empty() {
            unless_revoked(self.questions.next_answered().await)?;
        }
        // Not every agent reports that a denied call did not run. Calls that were announced but not started are dropped;
        // the kernel records an unknown outcome for the started ones.
        let denied = self.denied.lock().clone();
        for id in denied.iter().filter(|id| self.tools.contains_key(*id)) {
            let error = Failure::new("denied", "the tool call was not allowed");
            self.calls.end(id, Some(error), vec![]).await?;
        }
        self.tools.retain(|id, _| !denied.contains(id));
        self.calls.write_files(&mut self.text).await
    }

    /// Reports whether the requests of an agent that `has_ended` its turn are served. They are not if the run has been
    /// cancelled since.
    fn is_served(&self, has_ended: bool) -> bool {
        has_ended && !self.turn.attempt.is_cancelled()
    }

    /// Ends the turn with the result of the prompt.
    async fn finish(
        &mut self,
        result: Result<PromptResult, CallError>,
        inbound: &mut mpsc::UnboundedReceiver<Inbound>,
    ) -> TurnOutcome {
        let has_ended = result.is_ok() && !self.turn.attempt.is_cancelled();
        if let Err(HandleError::Kernel(error)) = self.drain(inbound, has_ended).await {
            return TurnOutcome::Broken(self.failed(Failure::new(error.code(), error.to_string()), false));
        }
        let result = match result {
            Ok(result) => result,
            Err(CallError::Disconnected) => {
                // Completes the log: the message of the failure contains its end.
                self.turn.worker.disconnected().await;
                return self.fail_disconnected(inbound).await;
            }
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
        self.turn.record_stop_reason(&result.stop_reason).await;
        let usage = self.usage(result.token_counts());
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
        // The kernel records an unknown outcome for open tool calls. Responses to requests are not awaited.
        while let Ok(message) = inbound.try_recv() {
            if let Inbound::Update(update) = message {
                let _ = self.handle_update(*update).await;
            }
        }
        let _ = self.calls.write_files(&mut self.text).await;
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

    /// Adds content of the agent's answer: streams text, and stores files.
    async fn add_content(&mut self, content: ContentBlock) -> Result<(), HandleError> {
        if let Some(file) = file_of(&content) {
            let file = file.store(self.turn.attempt).await?;
            return self.calls.add_file(&mut self.text, file).await;
        }
        self.text.push(&text_of(&content))
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
                self.add_content(chunk.content).await
            }
            SessionUpdate::AgentThoughtChunk(chunk) => self.turn.attempt.thought(&text_of(&chunk.content)),
            SessionUpdate::ToolCall(call) => {
                let fields = ToolCallUpdateFields::new()
                    .title(call.title)
                    .name(call.name)
                    .kind(call.kind)
                    .status(call.status)
                    .content(call.content)
                    .locations(call.locations)
                    .raw_input(call.raw_input)
                    .raw_output(call.raw_output);
                self.ended.remove(&*call.tool_call_id.0);
                self.update_tool(&call.tool_call_id.0, fields).await
            }
            // Some agents report more about a call that has ended.
            SessionUpdate::ToolCallUpdate(update) if self.ended.contains(&*update.tool_call_id.0) => Ok(()),
            SessionUpdate::ToolCallUpdate(update) => {
                self.update_tool(&update.tool_call_id.0, update.fields).await
            }
            SessionUpdate::Plan(plan) => {
                let tasks = plan.entries.iter().map(planned_task).collect();
                let progress = Record::Progress { text: plan_text(&plan) };
                self.turn.attempt.record(vec![progress, Record::Tasks { tasks }]).await
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
    async fn update_tool(&mut self, id: &str, fields: ToolCallUpdateFields) -> Result<(), HandleError> {
        self.text.end_block();
        let tool = self.tools.entry(id.to_owned()).or_default();
        let status = fields.status.unwrap_or(ToolCallStatus::Pending);
        let has_content = fields.content.is_some() || fields.raw_output.is_some();
        tool.update(fields);
        if !tool.started && (tool.input.is_some() || status != ToolCallStatus::Pending) {
            self.calls.start(&mut self.text, tool.start(id)).await?;
            tool.started = true;
        }
        if !matches!(status, ToolCallStatus::Completed | ToolCallStatus::Failed) {
            return match has_content {
                true => self.report_progress(id).await,
                false => Ok(()),
            };
        }
        let (output, content) = tool.output_blocks(self.turn.attempt, &self.client).await?;
        let error = (status == ToolCallStatus::Failed).then(|| {
            let message = if output.is_empty() { "the tool failed".into() } else { excerpt(output) };
            Failure::new("tool_failed", message)
        });
        self.calls.end(id, error, content).await?;
        self.tools.remove(id);
        self.ended.insert(id.to_owned());
        Ok(())
    }

    /// Records the output of a running tool call, unless it was recorded a moment ago.
    async fn report_progress(&mut self, id: &str) -> Result<(), HandleError> {
        let now = self.turn.attempt.now();
        let Some(tool) = self.tools.get_mut(id).filter(|tool| tool.started) else { return Ok(()) };
        if tool.reported_at.is_some_and(|last| now < last.plus(TOOL_UPDATE_INTERVAL_MS)) {
            return Ok(());
        }
        let text = excerpt(tool.output_text(&self.client));
        if text.is_empty() {
            return Ok(());
        }
        tool.reported_at = Some(now);
        self.turn.attempt.record(vec![Record::ToolUpdated { tool_use_id: id.to_owned(), text }]).await
    }

    /// Records the start of a tool call that needs a permission, even if the agent reports another status. Completes
    /// the request with fields from earlier updates, because some agents send only the id of the call.
    async fn start_requested_tool(
        &mut self,
        request: &mut RequestPermissionRequest,
    ) -> Result<(), HandleError> {
        self.has_output = true;
        let call = &mut request.tool_call;
        let id = call.tool_call_id.to_string();
        self.calls.ask(&id);
        self.update_tool(&id, call.fields.clone()).await?;
        let Some(tool) = self.tools.get_mut(&id) else { return Ok(()) };
        let fields = &mut call.fields;
        fields.title = fields.title.take().or_else(|| tool.title.clone());
        fields.name = fields.name.take().or_else(|| tool.name.clone());
        fields.kind = fields.kind.or(tool.kind);
        fields.raw_input = fields.raw_input.take().or_else(|| tool.input.clone());
        fields.locations = fields.locations.take().or_else(|| Some(tool.locations.clone()));
        if tool.started {
            return Ok(());
        }
        self.calls.start(&mut self.text, tool.start(&id)).await?;
        tool.started = true;
        Ok(())
    }

    /// The changes of files that the requested call would make. A long text is stored as an artifact.
    async fn requested_diff(&mut self, request: &RequestPermissionRequest) -> Vec<Block> {
        match self.tools.get(&*request.tool_call.tool_call_id.0) {
            Some(tool) => tool.diff_blocks(self.turn.attempt).await.unwrap_or_default(),
            None => vec![],
        }
    }

    /// Decides a permission request by the policy and responds to the agent.
    fn decide_permission(
        &self,
        request: RequestPermissionRequest,
        diff: Vec<Block>,
        responder: Responder,
    ) -> impl Future<Output = Result<(), HandleError>> + Send + use<> {
        let (attempt, default_grant) = (self.asker.clone(), self.turn.default_grant.clone());
        let (rules, denied) = (self.turn.rules.clone(), self.denied.clone());
        async move {
            let replies = Some(replies(&request.options));
            let data = Some(Box::new(approval_request(&request, diff)));
            let question = Question { replies, request: data, ..question(&request).into() };
            let mut decided = match narrowest_option(&request.options, Approval::Allowed) {
                Some(_) if attempt.may_ask() => {
                    let (action, question) = (requested_action(&request), question.clone());
                    let decided =
                        rules.request_permission(&attempt, default_grant.as_ref(), &action, question).await;
                    decided.map(|answer| answer.decision)
                }
                Some(_) => Ok(Approval::Allowed),
                // No option of the request expresses that it is allowed.
                None => {
                    let refused = policy::refuse(&attempt, question.clone(), "no_allow_option").await;
                    refused.map(|()| Approval::Denied)
                }
            };
            // An agent must not act on a permission after its turn, which may have ended during the decision.
            if matches!(decided, Ok(Approval::Allowed)) && !attempt.may_ask() {
                let refused = policy::refuse(&attempt, question, "turn_ended").await;
                decided = refused.map(|()| Approval::Denied);
            }
            if matches!(decided, Ok(Approval::Denied | Approval::Supplied | Approval::Expired)) {
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
    /// unknown if the agent does not report it or the cost before the turn is unknown. Without token counts the usage is a
    /// lower bound.
    fn usage(&self, reported: Option<&Value>) -> Usage {
        let count = |name: &str| reported.and_then(|counts| token_count(counts, name)).unwrap_or_default();
        let costs = self.cost.zip(self.cost_before).filter(|(now, before)| now >= before);
        Usage {
            input_tokens: count("inputTokens"),
            output_tokens: count("outputTokens"),
            cache_read_tokens: count("cachedReadTokens"),
            cache_write_tokens: count("cachedWriteTokens"),
            cost: Cost::from(costs.map(|(now, before)| now - before)),
            at_least: reported.is_none(),
        }
    }
}

/// Reads a count by its camelCase or snake_case name.
fn token_count(counts: &Value, name: &str) -> Option<u64> {
    let snake_case = name.chars().fold(String::new(), |mut text, letter| {
        if letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
        text
    });
    counts.get(name).or_else(|| counts.get(&snake_case))?.as_u64()
}

/// An entry of the agent's plan. It has no id: the kernel recognises it by its text.
fn planned_task(entry: &PlanEntry) -> PlannedTask {
    let status = match entry.status {
        PlanEntryStatus::Completed => TaskStatus::Completed,
        PlanEntryStatus::InProgress => TaskStatus::InProgress,
        _ => TaskStatus::Pending,
    };
    PlannedTask { title: entry.content.clone(), status, ..PlannedTask::default() }
}

fn plan_text(plan: &Plan) -> String {
    let line = |entry: &PlanEntry| {
        let mark = match entry.status {
            PlanEntryStatus::Completed => "x",
            PlanEntryStatus::InProgress => ">",
            _ => " ",
        };
        format!("[{mark}] {}", entry.content)
    };
    excerpt(plan.entries.iter().map(line).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_are_read_from_usage_or_from_the_quota_of_gemini() {
        let counts = |result: Value| {
            let result: PromptResult = serde_json::from_value(result).unwrap();
            let counts = result.token_counts()?;
            Some((token_count(counts, "inputTokens")?, token_count(counts, "outputTokens")?))
        };
        let usage = json!({"stopReason": "end_turn", "usage": {"inputTokens": 3, "outputTokens": 4}});
        let quota = json!({"quota": {"token_count": {"input_tokens": 5, "output_tokens": 6}}});
        assert_eq!(counts(usage), Some((3, 4)));
        assert_eq!(counts(json!({"stopReason": "end_turn", "_meta": quota})), Some((5, 6)));
        assert_eq!(counts(json!({"stopReason": "end_turn", "_meta": {"x": 1}})), None);
    }
}
