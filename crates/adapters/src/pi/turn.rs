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

use mainspring_core::{Failure, Usage};
use mainspring_kernel::adapter::{HandleError, Record, RuntimeFacts};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::PiPrompt;
use super::dialog::{Dialog, UiRequest};
use super::wire::{CommandId, command, response_id, response_result};
use super::worker::{PiWorker, parse_state};
use crate::driver::{
    AgentWorker, Cause, QuestionQueue, TextBlocks, ToolCalls, TurnContext, TurnOutcome, excerpt,
    process_ended,
};

mod content;
mod outcome;
mod tools;

use content::{text_of, usage_of};
use tools::OpenToolCall;

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
            calls: ToolCalls::new(turn.attempt, turn.default_grant.as_ref()),
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
        let native_run = pi_turn.pending_prompts.first().map(ToString::to_string);
        pi_turn.turn.record_at_end(RuntimeFacts { native_run, ..RuntimeFacts::default() }).await;
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
        // Created once, so that output does not restart the timeout for reading the last output.
        let disconnected = worker.disconnected();
        tokio::pin!(disconnected);
        loop {
            let step = tokio::select! {
                biased;
                Some(record) = inbound.recv() => self.handle_record(record).await,
                answered = questions.next_answered() => answered.map(|()| NextStep::Continue),
                () = self.turn.attempt.steered(), if self.can_steer() && questions.is_empty() => {
                    self.steer().await
                }
                () = &mut disconnected => match self.handle_last_records(inbound).await {
                    Some(outcome) => Ok(NextStep::End(outcome)),
                    None => {
                        // After any output, a retry could repeat actions.
                        let end = self.failed(process_ended(&*worker), !self.has_output);
                        return self.unless_lost(TurnOutcome::Broken(end), Cause::Disconnected);
                    }
                },
            };
            match step {
                Ok(NextStep::End(outcome)) => {
                    if let Some((reason, _)) = &self.last_stop {
                        self.turn.record_stop_reason(reason).await;
                    }
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

    /// Handles the records that were queued when the connection ended. Returns the outcome if one of them ends the
    /// turn.
    async fn handle_last_records(&mut self, inbound: &mut mpsc::Receiver<Value>) -> Option<TurnOutcome> {
        while let Ok(record) = inbound.try_recv() {
            if let Ok(NextStep::End(outcome)) = self.handle_record(record).await {
                return Some(outcome);
            }
        }
        None
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
        let (attempt, default_grant) = (self.turn.attempt.clone(), self.turn.default_grant.clone());
        let rules = self.turn.rules.clone();
        let send = self.turn.worker.connection.record_sender();
        let asked_at = attempt.now();
        async move {
            let (response, answered) =
                dialog.answer(&attempt, default_grant.as_ref(), &rules, asked_at).await;
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
