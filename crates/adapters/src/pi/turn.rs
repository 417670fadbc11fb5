//! One turn of pi, from the prompt until pi has settled: turns its records into deltas, records and questions.
//!
//! ```text
//! prompt ─▶ accepted ─▶ agent_start ─▶ turn_start … turn_end, again and again ─▶ agent_end ─▶ agent_settled
//! ```
//!
//! An accepted prompt does not mean that the agent works on it: an extension may have handled it. So the turn queries
//! pi's state after the prompt was accepted, and again after `agent_end`, because older versions do not send
//! `agent_settled`.
//!
//! A prompt that joins the turn is sent between two messages of the agent. Pi processes it before the next message, or
//! continues the turn with it.

use std::collections::HashMap;

use mainspring_core::{Cost, Failure, FileLocation, Time, Usage};
use mainspring_kernel::adapter::{End, HandleError, Record};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::PiPrompt;
use super::dialog::{Dialog, UiRequest};
use super::wire::{CallError, CommandId, command, response_id, response_result};
use super::worker::{PiWorker, parse_state};
use crate::driver::{
    AgentWorker, Cause, FileContent, ModelError, QuestionQueue, StartedCall, TOOL_UPDATE_INTERVAL_MS,
    TextBlocks, ToolCalls, TurnContext, TurnOutcome, diff_block, excerpt, output_blocks, process_ended,
    store_file,
};

/// A running turn.
pub(super) struct PiTurn<'a> {
    turn: TurnContext<'a, PiWorker>,
    text: TextBlocks<'a>,
    /// Prompts that pi has not responded to.
    pending_prompts: Vec<CommandId>,
    /// Whether pi has accepted a prompt.
    accepted: bool,
    /// Whether pi is streaming a message.
    in_message: bool,
    /// The last state query.
    state_query: Option<CommandId>,
    calls: ToolCalls<'a>,
    /// Tool calls without an outcome.
    tools: HashMap<String, OpenToolCall>,
    /// Whether the current message was streamed.
    streamed: bool,
    /// Usage that is not recorded yet.
    usage: Usage,
    /// The stop reason and error message of the agent's last message.
    last_stop: Option<(String, String)>,
    /// Whether pi has produced text, a thought, a tool call or a dialog.
    has_output: bool,
    /// Whether an extension may have handled the prompt alone: it is a slash command, or an extension showed something.
    may_be_handled: bool,
}

/// A tool call without an outcome.
struct OpenToolCall {
    name: String,
    input: Value,
    /// The time of its last recorded update.
    updated_at: Time,
}

/// The next step after a record.
enum NextStep {
    Continue,
    Ask(Dialog),
    End(TurnOutcome),
}

impl<'a> PiTurn<'a> {
    /// Prompts pi and processes its records until it has settled.
    pub(super) async fn run(turn: TurnContext<'a, PiWorker>, prompt: PiPrompt) -> TurnOutcome {
        let worker = turn.worker.clone();
        let mut inbound = worker.connection.subscribe();
        let message = match &turn.preface {
            Some(preface) => format!("{preface}\n\n{}", prompt.text),
            None => prompt.text,
        };
        let mut pi_turn = Self {
            text: TextBlocks::new(turn.attempt),
            calls: ToolCalls::new(turn.attempt, turn.standing.as_ref()),
            turn,
            pending_prompts: vec![],
            accepted: false,
            in_message: false,
            state_query: None,
            tools: HashMap::new(),
            streamed: false,
            usage: Usage::default(),
            last_stop: None,
            has_output: false,
            may_be_handled: message.starts_with('/'),
        };
        pi_turn.send_prompt(PiPrompt { text: message, images: prompt.images }, false);
        let outcome = pi_turn.process(&mut inbound).await;
        worker.connection.unsubscribe();
        outcome
    }

    /// Sends a prompt. Only a steering prompt is accepted while pi works.
    fn send_prompt(&mut self, prompt: PiPrompt, steers: bool) {
        let mut command = json!({"type": "prompt", "message": prompt.text});
        if steers {
            command["streamingBehavior"] = "steer".into();
        }
        if !prompt.images.is_empty() {
            command["images"] = prompt.images.into();
        }
        self.pending_prompts.push(self.turn.worker.connection.send(command));
    }

    async fn process(mut self, inbound: &mut mpsc::Receiver<Value>) -> TurnOutcome {
        let worker = self.turn.worker.clone();
        let mut questions = QuestionQueue::default();
        loop {
            let step = tokio::select! {
                biased;
                Some(record) = inbound.recv() => self.handle_record(record).await,
                answered = questions.next_answered() => answered.map(|()| NextStep::Continue),
                () = self.turn.attempt.steered(), if self.can_steer() && questions.is_empty() => {
                    self.steer().await
                }
                () = worker.disconnected() => {
                    // After any output, a retry could repeat actions.
                    let end = self.failed(process_ended(&*worker), !self.has_output);
                    return self.unless_lost(TurnOutcome::Broken(end), Cause::Disconnected);
                }
            };
            match step {
                Ok(NextStep::End(outcome)) => {
                    questions.wait_for_expired().await;
                    return outcome;
                }
                Ok(NextStep::Ask(dialog)) => {
                    let expires = dialog.expires();
                    if dialog.is_permission() {
                        self.calls.ask_unnamed();
                    }
                    questions.push(self.answer_dialog(dialog), expires);
                }
                // A cancelled attempt has answered its open questions; pi ends the turn itself.
                Ok(NextStep::Continue) | Err(HandleError::Revoked) => {}
                Err(HandleError::Kernel(error)) => {
                    let failure = Failure::new(error.code(), error.to_string());
                    return TurnOutcome::Broken(self.failed(failure, false));
                }
            }
        }
    }

    async fn handle_record(&mut self, record: Value) -> Result<NextStep, HandleError> {
        match record["type"].as_str().unwrap_or_default() {
            "response" => return Ok(self.handle_response(record)),
            // Pi ignores an abort that arrives before the agent has started.
            "agent_start" if self.turn.attempt.is_cancelled() => {
                self.turn.worker.connection.send(command("abort"));
            }
            "agent_settled" if self.pending_prompts.is_empty() => return Ok(NextStep::End(self.outcome())),
            "agent_end" if self.pending_prompts.is_empty() && record["willRetry"] != true => {
                self.query_state();
            }
            "turn_start" => {
                let used = std::mem::take(&mut self.usage);
                if !used.is_zero() {
                    self.record(Record::Usage(used)).await?;
                }
            }
            "turn_end" => self.turn_end(&record)?,
            "message_start" if record["message"]["role"] == "assistant" => {
                (self.in_message, self.streamed) = (true, false);
                self.text.end_block();
            }
            "message_update" => self.message_update(&record["assistantMessageEvent"])?,
            "message_end" if record["message"]["role"] == "assistant" => {
                self.message_end(&record["message"])?;
            }
            "tool_execution_start" => self.tool_start(&record).await?,
            "tool_execution_update" => self.tool_update(&record).await?,
            "tool_execution_end" => self.tool_end(&record).await?,
            "compaction_end" => self.usage += usage_of(&record["result"]["usage"]),
            "extension_ui_request" => return self.handle_ui_request(&record).await,
            _ => self.report_notice(&record).await?,
        }
        Ok(NextStep::Continue)
    }

    async fn handle_ui_request(&mut self, record: &Value) -> Result<NextStep, HandleError> {
        match UiRequest::parse(record) {
            UiRequest::Dialog(dialog) => {
                (self.may_be_handled, self.has_output) = (true, true);
                return Ok(NextStep::Ask(dialog));
            }
            UiRequest::Notice(text) => self.progress(text).await?,
            UiRequest::Decoration => {}
        }
        Ok(NextStep::Continue)
    }

    /// Records notices of extensions and retries as progress.
    async fn report_notice(&mut self, record: &Value) -> Result<(), HandleError> {
        let (text, message) = (|key: &str| record[key].as_str(), &record["message"]);
        let notice = match text("type").unwrap_or_default() {
            "message_end" if message["role"] == "custom" && message["display"] == true => {
                text_of(&message["content"])
            }
            "auto_retry_start" => {
                format!("trying again: {}", text("errorMessage").unwrap_or("the model did not answer"))
            }
            "extension_error" => {
                format!("an extension failed: {}", text("error").unwrap_or("it did not say why"))
            }
            // Queues, titles, thinking levels and unknown records do not belong to the turn.
            _ => return Ok(()),
        };
        self.progress(notice).await
    }

    /// Gets an answer to a dialog and sends it to pi.
    fn answer_dialog(&self, dialog: Dialog) -> impl Future<Output = Result<(), HandleError>> + Send + use<> {
        let (attempt, standing) = (self.turn.attempt.clone(), self.turn.standing.clone());
        let send = self.turn.worker.connection.record_sender();
        let asked_at = attempt.now();
        async move {
            let (response, answered) = dialog.answer(&attempt, standing.as_ref(), asked_at).await;
            send(&response);
            answered
        }
    }

    /// Handles the response to a prompt or to a state query.
    fn handle_response(&mut self, record: Value) -> NextStep {
        let id = response_id(&record);
        if let Some(id) = id.filter(|id| self.pending_prompts.contains(id)) {
            self.pending_prompts.retain(|prompt| *prompt != id);
            return match response_result(record) {
                Ok(_) => {
                    self.accepted = true;
                    self.query_state();
                    NextStep::Continue
                }
                Err(error) => NextStep::End(self.refused(&error)),
            };
        }
        // Only the last query counts: at an earlier one, the agent may not have started yet.
        if id.is_none() || id != self.state_query || !self.pending_prompts.is_empty() {
            return NextStep::Continue;
        }
        match response_result(record) {
            Ok(state) if parse_state(&state).is_idle() => NextStep::End(self.outcome()),
            _ => NextStep::Continue,
        }
    }

    fn query_state(&mut self) {
        self.state_query = Some(self.turn.worker.connection.send(command("get_state")));
    }

    /// Reports whether a prompt may join now: between two messages of the agent.
    fn can_steer(&self) -> bool {
        self.pending_prompts.is_empty() && !self.in_message && !self.turn.attempt.is_cancelled()
    }

    /// Sends the prompts that wait to join. The text before them becomes a message of its own.
    async fn steer(&mut self) -> Result<NextStep, HandleError> {
        let attempt = self.turn.attempt;
        let message = self.text.end_message().then(|| {
            let usage = std::mem::take(&mut self.usage);
            Record::Message { blocks: vec![], usage: (!usage.is_zero()).then_some(usage) }
        });
        for message in attempt.steer(message.into_iter().collect()).await? {
            match PiPrompt::read(attempt, &message).await {
                Ok(prompt) => self.send_prompt(prompt, true),
                Err(failure) => {
                    return Ok(NextStep::End(TurnOutcome::Broken(self.failed(failure, false))));
                }
            }
        }
        Ok(NextStep::Continue)
    }

    /// The outcome after pi has refused a prompt.
    fn refused(&self, error: &CallError) -> TurnOutcome {
        let failure = self.turn.worker.failure(error);
        if self.accepted {
            // The prompt has joined the run, but the agent does not know it.
            return TurnOutcome::Broken(self.failed(failure, false));
        }
        // Nothing was done.
        if self.turn.attempt.is_cancelled() {
            return TurnOutcome::Ended(End::Stopped { usage: self.usage });
        }
        let (outcome, cause) = match error {
            CallError::Disconnected => (TurnOutcome::Ended(self.failed(failure, false)), Cause::Disconnected),
            CallError::Refused(message) => {
                let outcome = match ModelError::of(message) {
                    // Pi is busy with something that no attempt asked for. Another process is not.
                    ModelError::Other => TurnOutcome::Broken(self.failed(failure, true)),
                    _ => TurnOutcome::Ended(self.failed(failure, false)),
                };
                (outcome, Cause::reported(message))
            }
        };
        self.unless_lost(outcome, cause)
    }

    fn unless_lost(&self, outcome: TurnOutcome, cause: Cause) -> TurnOutcome {
        outcome.unless_lost(&self.turn, self.has_output, cause)
    }

    /// The outcome after pi has settled.
    fn outcome(&self) -> TurnOutcome {
        let usage = self.usage;
        let failed = |code: &str, message: &str| self.failed(Failure::new(code, message), false);
        let (reason, message) = match &self.last_stop {
            Some((reason, message)) => (reason.as_str(), message.as_str()),
            None if self.turn.attempt.is_cancelled() => ("aborted", ""),
            None if self.may_be_handled => ("stop", ""),
            // Silence is not success. The process is killed in case the agent starts after all.
            None => {
                let message = "the agent took the prompt and did nothing with it";
                let outcome = TurnOutcome::Broken(failed("adapter_execution_failed", message));
                return self.unless_lost(outcome, Cause::Nothing);
            }
        };
        TurnOutcome::Ended(match reason {
            // A tool may end a turn.
            "stop" | "toolUse" => End::Succeeded { usage },
            // The aborted model call reports no usage.
            "aborted" => End::Stopped { usage: usage + Usage::UNKNOWN },
            // An abort between two tokens may be reported as an error of the model.
            "error" if self.turn.attempt.is_cancelled() => End::Stopped { usage: usage + Usage::UNKNOWN },
            "error" => {
                let outcome =
                    TurnOutcome::Ended(self.failed(ModelError::of(message).failure(message), false));
                return self.unless_lost(outcome, Cause::reported(message));
            }
            "length" => {
                let message = "the agent reached the most tokens it may write";
                End::Failed { error: Failure::new("max_tokens", message), retryable: false, usage }
            }
            other => failed(
                "unknown_stop_reason",
                &format!("the agent stopped for a reason unknown here: {other}"),
            ),
        })
    }

    /// The failure of a turn. Once pi has accepted the prompt, a model call may have been cut off.
    fn failed(&self, error: Failure, retryable: bool) -> End {
        let usage = if self.accepted { self.usage + Usage::UNKNOWN } else { self.usage };
        End::Failed { error, retryable, usage }
    }

    fn message_update(&mut self, event: &Value) -> Result<(), HandleError> {
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "text_start" if self.streamed => {
                self.text.end_block();
                Ok(())
            }
            "text_delta" => {
                self.streamed |= !delta.is_empty();
                self.has_output |= !delta.is_empty();
                self.text.push(delta)
            }
            "thinking_delta" if !delta.is_empty() => {
                self.has_output = true;
                self.turn.attempt.thought(delta)
            }
            _ => Ok(()),
        }
    }

    /// Handles the end of a message and its tool calls.
    fn turn_end(&mut self, record: &Value) -> Result<(), HandleError> {
        let message = &record["message"];
        let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
        self.last_stop = Some((text("stopReason"), text("errorMessage")));
        self.usage += match &message["usage"] {
            Value::Null => Usage::UNKNOWN,
            usage => usage_of(usage),
        };
        for result in record["toolResults"].as_array().into_iter().flatten() {
            self.usage += usage_of(&result["usage"]);
        }
        self.message_end(message)
    }

    fn message_end(&mut self, message: &Value) -> Result<(), HandleError> {
        self.in_message = false;
        // Some models do not stream.
        match std::mem::replace(&mut self.streamed, true) {
            true => Ok(()),
            false => {
                let text = text_of(&message["content"]);
                self.has_output |= !text.is_empty();
                self.text.push(&text)
            }
        }
    }

    async fn tool_start(&mut self, record: &Value) -> Result<(), HandleError> {
        let Some(tool_use_id) = record["toolCallId"].as_str().map(str::to_owned) else { return Ok(()) };
        let name = record["toolName"].as_str().filter(|name| !name.is_empty()).unwrap_or("tool").to_owned();
        let input = record["args"].clone();
        let open =
            OpenToolCall { name: name.clone(), input: input.clone(), updated_at: self.turn.attempt.now() };
        self.tools.insert(tool_use_id.clone(), open);
        self.has_output = true;
        self.text.end_block();
        let path = input["path"].as_str();
        let call = StartedCall {
            id: tool_use_id,
            kind: tool_kind(&name).map(str::to_owned),
            locations: path
                .map(|path| FileLocation { path: path.to_owned(), line: None })
                .into_iter()
                .collect(),
            name,
            title: None,
            input: Some(input).filter(|input| !input.is_null()),
        };
        self.calls.start(&mut self.text, call).await
    }

    async fn tool_update(&mut self, record: &Value) -> Result<(), HandleError> {
        let now = self.turn.attempt.now();
        let text = text_of(&record["partialResult"]["content"]);
        let id = record["toolCallId"].as_str().unwrap_or_default();
        match self.tools.get_mut(id) {
            Some(open) if !text.is_empty() && now >= open.updated_at.plus(TOOL_UPDATE_INTERVAL_MS) => {
                open.updated_at = now;
            }
            _ => return Ok(()),
        }
        self.record(Record::ToolUpdated { tool_use_id: id.to_owned(), text: excerpt(text) }).await
    }

    async fn tool_end(&mut self, record: &Value) -> Result<(), HandleError> {
        let id = record["toolCallId"].as_str().unwrap_or_default();
        let Some(open) = self.tools.remove(id) else { return Ok(()) };
        let (result, attempt) = (&record["result"], self.turn.attempt);
        let text = text_of(&result["content"]);
        let error = (record["isError"] == true).then(|| {
            let message = if text.is_empty() { "the tool failed".into() } else { excerpt(text.clone()) };
            Failure::new("tool_failed", message)
        });
        let mut content = output_blocks(attempt, &open.name, text).await?;
        for image in images_of(&result["content"]) {
            let (data, mime_type) = (image["data"].as_str(), image["mimeType"].as_str());
            let data = FileContent::Base64(data.unwrap_or_default());
            content.push(store_file(attempt, data, mime_type.unwrap_or("image/png"), None).await?);
        }
        let diffs = if error.is_none() { diffs_of(&open.name, &open.input) } else { vec![] };
        for (path, before, after) in diffs {
            content.push(diff_block(attempt, path, before, after).await?);
        }
        self.calls.end(id, error, content).await
    }

    async fn progress(&mut self, text: String) -> Result<(), HandleError> {
        if text.is_empty() {
            return Ok(());
        }
        self.may_be_handled = true;
        self.record(Record::Progress { text: excerpt(text) }).await
    }

    async fn record(&self, record: Record) -> Result<(), HandleError> {
        self.turn.attempt.record(vec![record]).await
    }
}

/// The kind of a tool of pi, in the words of the Agent Client Protocol.
fn tool_kind(name: &str) -> Option<&'static str> {
    match name {
        "read" => Some("read"),
        "edit" | "write" => Some("edit"),
        "grep" | "find" | "ls" => Some("search"),
        "bash" | "powershell" => Some("execute"),
        _ => None,
    }
}

/// The changes of a file by a tool of pi: path, text before, text after. Pi does not report the earlier text of a file
/// that it writes as a whole.
fn diffs_of(name: &str, input: &Value) -> Vec<(String, Option<String>, String)> {
    let Some(path) = input["path"].as_str() else { return vec![] };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let replaced = |edit: &Value| Some((path.to_owned(), text(&edit["oldText"]), text(&edit["newText"])?));
    match name {
        "write" => text(&input["content"]).map(|after| (path.to_owned(), None, after)).into_iter().collect(),
        "edit" => match input["edits"].as_array() {
            Some(edits) => edits.iter().filter_map(replaced).collect(),
            None => replaced(input).into_iter().collect(),
        },
        _ => vec![],
    }
}

/// The images of a message's content.
fn images_of(content: &Value) -> impl Iterator<Item = &Value> {
    content.as_array().into_iter().flatten().filter(|block| block["type"] == "image")
}

/// The text of a message's content, which is a string or a list of blocks.
fn text_of(content: &Value) -> String {
    let text = |block: &Value| match block["type"].as_str() {
        Some("text") => block["text"].as_str().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(text).collect(),
        _ => String::new(),
    }
}

/// Converts pi's usage. Without a report it is zero; without a reported cost the cost is unknown.
fn usage_of(usage: &Value) -> Usage {
    if usage.is_null() {
        return Usage::default();
    }
    let count = |name: &str| usage[name].as_u64().unwrap_or_default();
    Usage {
        input_tokens: count("input"),
        output_tokens: count("output"),
        cache_read_tokens: count("cacheRead"),
        cache_write_tokens: count("cacheWrite"),
        cost: Cost::from(usage["cost"]["total"].as_f64()),
        at_least: false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_of_files_are_read_from_the_arguments() {
        let diffs = |name: &str, input: Value| {
            let diff = |(path, before, after): (String, Option<String>, String)| {
                format!("{path} {} {after}", before.as_deref().unwrap_or("-"))
            };
            diffs_of(name, &input).into_iter().map(diff).collect::<Vec<_>>()
        };
        assert_eq!(diffs("write", json!({"path": "/a", "content": "x"})), ["/a - x"]);
        let edits = json!([{"oldText": "x", "newText": "y"}, {"oldText": "z", "newText": ""}]);
        assert_eq!(diffs("edit", json!({"path": "/a", "edits": edits})), ["/a x y", "/a z "]);
        assert_eq!(diffs("edit", json!({"path": "/a", "oldText": "x", "newText": "y"})), ["/a x y"]);
        assert_eq!(diffs("read", json!({"path": "/a"})), [""; 0]);
        assert_eq!(diffs("edit", json!({"edits": 3})), [""; 0]);
    }

    #[test]
    fn an_unreported_cost_is_unknown() {
        assert_eq!(usage_of(&json!({"input": 3, "cost": {"total": 0.5}})).cost, Cost::from(0.5));
        assert_eq!(usage_of(&json!({"input": 3})).cost, Cost::UNKNOWN);
        assert!(usage_of(&Value::Null).is_zero(), "nothing was used");
    }
}
