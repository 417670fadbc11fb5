//! A turn: what an agent says between a prompt and its end, as deltas, records and questions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use agent_client_protocol::Responder;
use agent_client_protocol::v1::schema::{
    ContentBlock, MessageId, PermissionOption, PermissionOptionKind, Plan, PlanEntryStatus,
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse, SelectedPermissionOutcome,
    SessionUpdate, ToolCallContent, ToolCallStatus, ToolCallUpdateFields, ToolKind, UsageUpdate,
};
use mainspring_core::{Approval, Cost, Failure, ToolOutcome, Usage};
use mainspring_kernel::adapter::{Death, End, HandleError, Record};
use mainspring_kernel::policy::Action;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::client::Desk;
use super::wire::{CallError, Inbound};
use super::worker::Worker;
use crate::driver::{Agent, Questions, Turn, Turned, Voice, excerpt};

/// What an agent answers to a prompt.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    stop_reason: String,
    #[serde(default)]
    usage: Option<Value>,
}

/// One turn under way.
pub(super) struct Play<'a> {
    turn: Turn<'a, Worker>,
    voice: Voice<'a>,
    desk: Desk,
    /// What the native session had cost before, where that is known.
    cost_before: Option<f64>,
    cost: Option<f64>,
    /// The message that the last text belongs to, where the agent names it.
    message: Option<MessageId>,
    tools: HashMap<String, Tool>,
    /// The tool calls that were not allowed.
    denied: Arc<Mutex<HashSet<String>>>,
    /// True once anything was heard.
    heard: bool,
}

/// A tool call that has no outcome.
#[derive(Default)]
struct Tool {
    name: Option<String>,
    title: Option<String>,
    kind: Option<ToolKind>,
    input: Option<Value>,
    started: bool,
}

impl<'a> Play<'a> {
    pub(super) fn new(turn: Turn<'a, Worker>, cost_before: Option<f64>) -> Self {
        let (voice, desk) = (Voice::new(turn.attempt), Desk::new(&turn));
        Self {
            turn,
            voice,
            desk,
            cost_before,
            cost: None,
            message: None,
            tools: HashMap::new(),
            denied: Arc::default(),
            heard: false,
        }
    }

    /// Prompts the agent and listens until it has ended its turn: how it did, and what the native session has cost.
    pub(super) async fn play(mut self, prompt: Vec<Value>) -> (Turned, Option<f64>) {
        let worker = self.turn.worker.clone();
        let mut inbound = worker.connection.listen(self.turn.native);
        let params = json!({"sessionId": self.turn.native, "prompt": prompt});
        let answer = worker.connection.call::<Answer>("session/prompt", params);
        tokio::pin!(answer);
        let mut questions = Questions::default();
        let turned = loop {
            let step = tokio::select! {
                biased;
                Some(heard) = inbound.recv() => match heard {
                    Inbound::Update(update) => self.update(*update).await,
                    Inbound::Permission(asked) => {
                        let (mut request, responder) = *asked;
                        let started = self.tool_asked(&mut request).await;
                        questions.push(self.decide(request, responder), false);
                        started
                    }
                    Inbound::Client(asked) => {
                        self.heard = true;
                        if let Some(asked) = self.desk.serve(*asked) {
                            questions.push(self.desk.clone().decide(asked), false);
                        }
                        Ok(())
                    }
                },
                decided = questions.answered() => decided,
                answer = &mut answer => break self.answered(answer, &mut inbound).await,
                () = worker.gone() => break self.lost(&mut inbound).await,
            };
            match step {
                // What was asked when the attempt was cancelled is answered by then; the agent ends its turn itself.
                Ok(()) | Err(HandleError::Revoked) => {}
                Err(HandleError::Kernel(error)) => {
                    let failure = Failure::new(error.code(), error.to_string());
                    break Turned::Broken(self.failed(failure, false));
                }
            }
        };
        worker.connection.ignore();
        let turned = self.leave(turned).await;
        (turned, self.cost)
    }

    /// Ends what was run for the agent: the turn is not over before that is.
    async fn leave(&self, turned: Turned) -> Turned {
        match self.desk.close().await {
            Death::Proven => turned,
            // To return would say that it has stopped.
            Death::Unproven if self.turn.attempt.is_cancelled() => std::future::pending().await,
            Death::Unproven => {
                let message =
                    "a command of the agent was ended from outside; whether all of it has ended is not known";
                Turned::Broken(self.failed(Failure::new("transport_interruption", message), false))
            }
        }
    }

    /// Everything that was said before the answer has been heard when the answer is.
    async fn drain(&mut self, inbound: &mut mpsc::UnboundedReceiver<Inbound>) -> Result<(), HandleError> {
        while let Ok(heard) = inbound.try_recv() {
            if let Inbound::Update(update) = heard {
                self.update(*update).await?;
            }
        }
        // What was announced and never begun is forgotten; of what has begun, the kernel says that its outcome is unknown.
        // Not every agent says that what was not allowed has not happened.
        let denied = self.denied.lock().clone();
        let failed = |id: &String| Record::ToolFailed {
            tool_use_id: id.clone(),
            outcome: ToolOutcome::Failed,
            error: Failure::new("denied", "it was not allowed"),
        };
        let open = self.tools.keys().filter(|id| denied.contains(*id)).map(failed).collect::<Vec<_>>();
        self.tools.retain(|id, _| !denied.contains(id));
        if open.is_empty() { Ok(()) } else { self.turn.attempt.record(open).await }
    }

    async fn answered(
        &mut self,
        answer: Result<Answer, CallError>,
        inbound: &mut mpsc::UnboundedReceiver<Inbound>,
    ) -> Turned {
        if let Err(HandleError::Kernel(error)) = self.drain(inbound).await {
            return Turned::Broken(self.failed(Failure::new(error.code(), error.to_string()), false));
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(CallError::Gone) => return self.lost(inbound).await,
            Err(error) if !self.heard && is_unknown(&error) => return Turned::Unknown(error.to_string()),
            Err(error) if self.turn.attempt.is_cancelled() => {
                tracing::debug!(%error, "an agent answered a cancelled prompt with an error");
                return Turned::Broken(End::Stopped { usage: self.usage(None) });
            }
            Err(error) => return Turned::Broken(self.failed(self.turn.worker.failure(&error), false)),
        };
        let usage = self.usage(answer.usage.as_ref());
        let failed = |code: &str, message: &str| End::Failed {
            error: Failure::new(code, message),
            retryable: false,
            usage,
        };
        Turned::Ended(match answer.stop_reason.as_str() {
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

    /// The process has ended in the middle of the turn.
    async fn lost(&mut self, inbound: &mut mpsc::UnboundedReceiver<Inbound>) -> Turned {
        // The tools' outcomes are not known: the kernel says so.
        while let Ok(Inbound::Update(update)) = inbound.try_recv() {
            let _ = self.update(*update).await;
        }
        // Another try could do twice what was done already.
        Turned::Broken(self.failed(self.turn.worker.failure(&CallError::Gone), false))
    }

    fn failed(&self, error: Failure, retryable: bool) -> End {
        End::Failed { error, retryable, usage: self.usage(None) }
    }

    async fn update(&mut self, update: SessionUpdate) -> Result<(), HandleError> {
        self.heard = true;
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                if self.message != chunk.message_id {
                    self.message = chunk.message_id;
                    self.voice.pause();
                }
                self.voice.say(&text_of(&chunk.content))
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
                self.tool(&call.tool_call_id.0, &fields).await
            }
            SessionUpdate::ToolCallUpdate(update) => self.tool(&update.tool_call_id.0, &update.fields).await,
            SessionUpdate::Plan(plan) => {
                self.turn.attempt.record(vec![Record::Progress { text: plan_text(&plan) }]).await
            }
            SessionUpdate::UsageUpdate(update) => {
                self.spent(&update);
                Ok(())
            }
            // Commands, modes, titles: nothing that belongs to the turn.
            _ => Ok(()),
        }
    }

    /// A tool call begins, reports or ends. It has begun once its input is known or it is under way.
    async fn tool(&mut self, id: &str, fields: &ToolCallUpdateFields) -> Result<(), HandleError> {
        self.voice.pause();
        let tool = self.tools.entry(id.to_owned()).or_default();
        for (known, said) in [(&mut tool.name, &fields.name), (&mut tool.title, &fields.title)] {
            if let Some(said) = said.as_ref().filter(|said| !said.is_empty()) {
                *known = Some(said.clone());
            }
        }
        tool.kind = fields.kind.or(tool.kind);
        if let Some(input) = fields.raw_input.as_ref().filter(|input| !is_empty(input)) {
            tool.input = Some(input.clone());
        }
        let status = fields.status.unwrap_or(ToolCallStatus::Pending);
        let mut records = vec![];
        if !tool.started && (tool.input.is_some() || status != ToolCallStatus::Pending) {
            records.push(started(id, tool));
        }
        let said = said(fields, &self.desk);
        if tool.started && !said.is_empty() && status != ToolCallStatus::Failed {
            records.push(Record::ToolUpdated { tool_use_id: id.to_owned(), text: said.clone() });
        }
        match status {
            ToolCallStatus::Completed => records.push(Record::ToolCompleted { tool_use_id: id.to_owned() }),
            ToolCallStatus::Failed => {
                let why = if said.is_empty() { "the tool failed".into() } else { said };
                records.push(Record::ToolFailed {
                    tool_use_id: id.to_owned(),
                    outcome: ToolOutcome::Failed,
                    error: Failure::new("tool_failed", why),
                });
            }
            _ => {}
        }
        if matches!(status, ToolCallStatus::Completed | ToolCallStatus::Failed) {
            self.tools.remove(id);
        }
        if records.is_empty() { Ok(()) } else { self.turn.attempt.record(records).await }
    }

    /// A tool call that a permission is asked for has begun, whatever its state. Who decides is told what was said of
    /// it before, too: some agents name it, and no more.
    async fn tool_asked(&mut self, request: &mut RequestPermissionRequest) -> Result<(), HandleError> {
        self.heard = true;
        let call = &mut request.tool_call;
        let id = call.tool_call_id.to_string();
        self.tool(&id, &call.fields).await?;
        let Some(tool) = self.tools.get_mut(&id) else { return Ok(()) };
        let fields = &mut call.fields;
        fields.title = fields.title.take().or_else(|| tool.title.clone());
        fields.name = fields.name.take().or_else(|| tool.name.clone());
        fields.kind = fields.kind.or(tool.kind);
        fields.raw_input = fields.raw_input.take().or_else(|| tool.input.clone());
        if tool.started {
            return Ok(());
        }
        let begun = started(&id, tool);
        self.turn.attempt.record(vec![begun]).await
    }

    fn decide(
        &self,
        request: RequestPermissionRequest,
        responder: Responder,
    ) -> impl Future<Output = Result<(), HandleError>> + Send + use<> {
        let (attempt, standing) = (self.turn.attempt.clone(), self.turn.standing.clone());
        let (rules, not_allowed) = (self.turn.rules.clone(), self.denied.clone());
        async move {
            let (act, question) = (act(&request), question(&request).into());
            let decided = rules.request_permission(&attempt, standing.as_ref(), &act, question).await;
            if matches!(decided, Ok(Approval::Denied | Approval::Expired)) {
                not_allowed.lock().insert(request.tool_call.tool_call_id.to_string());
            }
            let chosen = match &decided {
                Ok(decision) => choice(&request.options, *decision),
                Err(_) => None,
            };
            let outcome = match chosen {
                Some(option) => RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(
                    option.option_id.clone(),
                )),
                None => RequestPermissionOutcome::Cancelled,
            };
            let answer = serde_json::to_value(RequestPermissionResponse::new(outcome)).unwrap_or_default();
            let _ = responder.respond(answer);
            decided.map(drop)
        }
    }

    fn spent(&mut self, update: &UsageUpdate) {
        if let Some(cost) = update.cost.as_ref().filter(|cost| cost.currency == "USD") {
            self.cost = Some(cost.amount);
        }
    }

    /// What the turn has used: the agent's own count, and by how much the native session's cost has grown. What it
    /// cost is not known where the agent does not say, or where nobody knows what the session had cost before.
    fn usage(&self, said: Option<&Value>) -> Usage {
        let count = |name: &str| said.and_then(|usage| usage.get(name)?.as_u64()).unwrap_or_default();
        let grown = self.cost.zip(self.cost_before).filter(|(now, before)| now >= before);
        Usage {
            input_tokens: count("inputTokens"),
            output_tokens: count("outputTokens"),
            cache_read_tokens: count("cachedReadTokens"),
            cache_write_tokens: count("cachedWriteTokens"),
            cost: Cost::from(grown.map(|(now, before)| now - before)),
        }
    }
}

fn started(id: &str, tool: &mut Tool) -> Record {
    tool.started = true;
    let names = [tool.name.as_deref(), tool.title.as_deref(), tool.kind.and_then(kind_name)];
    let name = names.into_iter().flatten().next().unwrap_or("tool").to_owned();
    Record::ToolStarted { tool_use_id: id.to_owned(), name, input: tool.input.clone() }
}

fn is_empty(input: &Value) -> bool {
    input.is_null() || input.as_object().is_some_and(serde_json::Map::is_empty)
}

/// What a tool says, as text.
fn said(fields: &ToolCallUpdateFields, desk: &Desk) -> String {
    let mut text = String::new();
    for content in fields.content.iter().flatten() {
        match content {
            ToolCallContent::Content(content) => text.push_str(&text_of(&content.content)),
            ToolCallContent::Terminal(terminal) => {
                text.push_str(&desk.shown(&terminal.terminal_id.0).unwrap_or_default());
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

/// What the agent wants to do, as rules name it: `tool KIND TITLE`.
fn act(request: &RequestPermissionRequest) -> Action {
    let fields = &request.tool_call.fields;
    let kind = fields.kind.and_then(kind_name).unwrap_or("other");
    let title = fields.title.as_deref().or(fields.name.as_deref()).unwrap_or_default();
    Action { capability: "tool", operation: kind.to_owned(), resource: title.to_owned() }
}

/// What a kind of tool is called, if it is one at all.
fn kind_name(kind: ToolKind) -> Option<&'static str> {
    Some(match kind {
        ToolKind::Read => "read",
        ToolKind::Edit => "edit",
        ToolKind::Delete => "delete",
        ToolKind::Move => "move",
        ToolKind::Search => "search",
        ToolKind::Execute => "execute",
        ToolKind::Think => "think",
        ToolKind::Fetch => "fetch",
        ToolKind::SwitchMode => "switch_mode",
        _ => return None,
    })
}

fn question(request: &RequestPermissionRequest) -> String {
    let fields = &request.tool_call.fields;
    let title = fields.title.as_deref().or(fields.name.as_deref()).unwrap_or("a tool call");
    match fields.raw_input.as_ref().filter(|input| !is_empty(input)) {
        Some(input) => excerpt(format!("Allow {title}? {input}")),
        None => excerpt(format!("Allow {title}?")),
    }
}

/// The narrowest option that means the decision.
fn choice(options: &[PermissionOption], decision: Approval) -> Option<&PermissionOption> {
    let kinds = match decision {
        Approval::Allowed => [PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways],
        Approval::Denied | Approval::Expired => {
            [PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways]
        }
    };
    kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind))
}

/// True when an error says that the native session is not known. There is no code that all agents use.
fn is_unknown(error: &CallError) -> bool {
    let CallError::Refused { code, message } = error else { return false };
    let message = message.to_lowercase();
    let missing = ["not found", "unknown", "no such", "does not exist", "doesn't exist", "invalid session"];
    *code == agent_client_protocol::ErrorCode::RESOURCE_NOT_FOUND
        || (message.contains("session") && missing.iter().any(|word| message.contains(word)))
}
