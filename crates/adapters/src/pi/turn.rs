//! A turn: what pi says between a prompt and the moment it has settled, as deltas, records and questions.
//!
//! ```text
//! prompt ─▶ accepted ─▶ agent_start ─▶ turn_start … turn_end, again and again ─▶ agent_end ─▶ agent_settled
//! ```
//!
//! That a prompt was accepted does not say that the agent works on it: an extension may have dealt with it. So pi is
//! asked whether it is idle, and asked again when it says that the agent has ended, since older ones do not say that
//! they have settled.
//!
//! A prompt that joins the turn is handed over between two messages of the agent; pi hears it before the next one, or
//! goes on with it if there was to be none.

use std::collections::HashMap;

use mainspring_core::{Cost, Failure, Time, ToolOutcome, Usage};
use mainspring_kernel::adapter::{End, HandleError, Record};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Prompt;
use super::dialog::{Dialog, Request};
use super::fault::Fault;
use super::wire::{CallError, CommandId, answers, command, result_of};
use super::worker::{Worker, understood};
use crate::driver::{Agent, Questions, Turn, Turned, Voice, excerpt, gone};

/// How often what a tool reports is recorded, in milliseconds. Pi repeats all that is known at each report.
const REPORT: u64 = 1_000;

/// One turn under way.
pub(super) struct Play<'a> {
    turn: Turn<'a, Worker>,
    voice: Voice<'a>,
    /// Prompts that pi has not taken yet.
    prompts: Vec<CommandId>,
    /// Pi has taken one.
    accepted: bool,
    /// A message of the agent is under way.
    speaking: bool,
    /// The last time pi was asked whether it is idle.
    asked: Option<CommandId>,
    /// Tool calls that have no outcome, and when they reported last.
    tools: HashMap<String, Time>,
    /// Text of the message that is being streamed was heard.
    streamed: bool,
    /// What was used and is not recorded.
    usage: Usage,
    /// How the last message of the agent ended, and what it said of that.
    stop: Option<(String, String)>,
    /// An extension may deal with the prompt alone: it is a command, or somebody was shown something.
    dealt_with: bool,
}

/// How the turn goes on after a record.
enum Next {
    On,
    Ask(Dialog),
    End(Turned),
}

impl<'a> Play<'a> {
    /// Prompts pi and listens until it has settled.
    pub(super) async fn play(turn: Turn<'a, Worker>, prompt: Prompt) -> Turned {
        let worker = turn.worker.clone();
        let mut inbound = worker.connection.listen();
        let message = match &turn.preface {
            Some(preface) => format!("{preface}\n\n{}", prompt.text),
            None => prompt.text,
        };
        let mut play = Self {
            voice: Voice::new(turn.attempt),
            turn,
            prompts: vec![],
            accepted: false,
            speaking: false,
            asked: None,
            tools: HashMap::new(),
            streamed: false,
            usage: Usage::default(),
            stop: None,
            dealt_with: message.starts_with('/'),
        };
        play.prompt(Prompt { text: message, images: prompt.images }, false);
        let turned = play.listen(&mut inbound).await;
        worker.connection.ignore();
        turned
    }

    /// Sends a prompt. One that joins is what pi hears next if it is at work; any other it refuses then.
    fn prompt(&mut self, prompt: Prompt, joins: bool) {
        let mut ask = json!({"type": "prompt", "message": prompt.text});
        if joins {
            ask["streamingBehavior"] = "steer".into();
        }
        if !prompt.images.is_empty() {
            ask["images"] = prompt.images.into();
        }
        self.prompts.push(self.turn.worker.connection.send(ask));
    }

    async fn listen(mut self, inbound: &mut mpsc::Receiver<Value>) -> Turned {
        let worker = self.turn.worker.clone();
        let mut questions = Questions::default();
        loop {
            let step = tokio::select! {
                biased;
                Some(record) = inbound.recv() => self.hear(record).await,
                answered = questions.answered() => answered.map(|()| Next::On),
                () = self.turn.attempt.steered(), if self.may_be_joined() && questions.is_empty() => {
                    self.join().await
                }
                // Another try could do twice what was done already.
                () = worker.gone() => return Turned::Broken(self.failed(gone(&*worker), false)),
            };
            match step {
                Ok(Next::End(turned)) => {
                    questions.lapsed().await;
                    return turned;
                }
                Ok(Next::Ask(dialog)) => {
                    let lapses = dialog.lapses();
                    questions.push(self.put(dialog), lapses);
                }
                // What was asked when the attempt was cancelled is answered by then; pi ends its turn itself.
                Ok(Next::On) | Err(HandleError::Revoked) => {}
                Err(HandleError::Kernel(error)) => {
                    let failure = Failure::new(error.code(), error.to_string());
                    return Turned::Broken(self.failed(failure, false));
                }
            }
        }
    }

    async fn hear(&mut self, record: Value) -> Result<Next, HandleError> {
        match record["type"].as_str().unwrap_or_default() {
            "response" => return Ok(self.response(record)),
            // Told to stop before it had begun, it did not hear of it.
            "agent_start" if self.turn.attempt.is_cancelled() => {
                self.turn.worker.connection.send(command("abort"));
            }
            "agent_settled" if self.prompts.is_empty() => return Ok(Next::End(self.settled())),
            "agent_end" if self.prompts.is_empty() && record["willRetry"] != true => self.ask(),
            "turn_start" => {
                let used = std::mem::take(&mut self.usage);
                if !used.is_zero() {
                    self.record(Record::Usage(used)).await?;
                }
            }
            "turn_end" => self.turn_end(&record)?,
            "message_start" if record["message"]["role"] == "assistant" => {
                (self.speaking, self.streamed) = (true, false);
                self.voice.pause();
            }
            "message_update" => self.update(&record["assistantMessageEvent"])?,
            "message_end" if record["message"]["role"] == "assistant" => self.whole(&record["message"])?,
            "tool_execution_start" => self.tool_start(&record).await?,
            "tool_execution_update" => self.tool_update(&record).await?,
            "tool_execution_end" => self.tool_end(&record).await?,
            "compaction_end" => self.usage += usage_of(&record["result"]["usage"]),
            "extension_ui_request" => return self.shown(&record).await,
            _ => self.aside(&record).await?,
        }
        Ok(Next::On)
    }

    /// An extension shows something, or asks.
    async fn shown(&mut self, record: &Value) -> Result<Next, HandleError> {
        match Request::of(record) {
            Request::Dialog(dialog) => {
                self.dealt_with = true;
                return Ok(Next::Ask(dialog));
            }
            Request::Notice(text) => self.progress(text).await?,
            Request::Nothing => {}
        }
        Ok(Next::On)
    }

    /// What is not the agent's work, and people may want to know.
    async fn aside(&mut self, record: &Value) -> Result<(), HandleError> {
        let (text, message) = (|key: &str| record[key].as_str(), &record["message"]);
        let said = match text("type").unwrap_or_default() {
            "message_end" if message["role"] == "custom" && message["display"] == true => {
                text_of(&message["content"])
            }
            "auto_retry_start" => {
                format!("trying again: {}", text("errorMessage").unwrap_or("the model did not answer"))
            }
            "extension_error" => {
                format!("an extension failed: {}", text("error").unwrap_or("it did not say why"))
            }
            // Queues, titles, thinking levels, what is not known: nothing that belongs to the turn.
            _ => return Ok(()),
        };
        self.progress(said).await
    }

    /// Puts what an extension asks, and tells it what came of it.
    fn put(&self, dialog: Dialog) -> impl Future<Output = Result<(), HandleError>> + Send + use<> {
        let (attempt, standing) = (self.turn.attempt.clone(), self.turn.standing.clone());
        let tell = self.turn.worker.connection.teller();
        let asked_at = attempt.now();
        async move {
            let (answer, answered) = dialog.answered(&attempt, standing.as_ref(), asked_at).await;
            tell(&answer);
            answered
        }
    }

    /// Pi has answered the prompt, or whether it is idle.
    fn response(&mut self, record: Value) -> Next {
        match answers(&record) {
            Some(id) if self.prompts.contains(&id) => {
                self.prompts.retain(|prompt| *prompt != id);
                match result_of(record) {
                    Ok(_) => {
                        self.accepted = true;
                        self.ask();
                        Next::On
                    }
                    Err(error) => Next::End(self.refused(&error)),
                }
            }
            // Only the last time counts: before that, it may not have begun.
            id if id.is_some() && id == self.asked && self.prompts.is_empty() => match result_of(record) {
                Ok(state) if understood(&state).is_idle() => Next::End(self.settled()),
                _ => Next::On,
            },
            _ => Next::On,
        }
    }

    /// Asks pi whether it is idle.
    fn ask(&mut self) {
        self.asked = Some(self.turn.worker.connection.send(command("get_state")));
    }

    /// Between two messages of the agent a prompt may join.
    fn may_be_joined(&self) -> bool {
        self.prompts.is_empty() && !self.speaking && !self.turn.attempt.is_cancelled()
    }

    /// Hands over the prompts that wait to join. What was said before them is a message of its own.
    async fn join(&mut self) -> Result<Next, HandleError> {
        let attempt = self.turn.attempt;
        let sealed = self.voice.seals().then(|| {
            let usage = std::mem::take(&mut self.usage);
            Record::Message { blocks: vec![], usage: (!usage.is_zero()).then_some(usage) }
        });
        for message in attempt.steer(sealed.into_iter().collect()).await? {
            match Prompt::of(attempt, &message).await {
                Ok(prompt) => self.prompt(prompt, true),
                Err(failure) => return Ok(Next::End(Turned::Broken(self.failed(failure, false)))),
            }
        }
        Ok(Next::On)
    }

    /// Ends the turn because pi refused a prompt.
    fn refused(&self, error: &CallError) -> Turned {
        let failure = self.turn.worker.failure(error);
        if self.accepted {
            // The prompt has joined the run, but pi did not take it.
            return Turned::Broken(self.failed(failure, false));
        }
        // Nothing was done.
        if self.turn.attempt.is_cancelled() {
            return Turned::Ended(End::Stopped { usage: self.usage });
        }
        match error {
            // Pi is busy with work that mainspring did not ask for; another process is not.
            CallError::Refused(why) if Fault::of(why) == Fault::Other => {
                Turned::Broken(self.failed(failure, true))
            }
            _ => Turned::Ended(self.failed(failure, false)),
        }
    }

    /// Pi will do no more.
    fn settled(&self) -> Turned {
        let usage = self.usage;
        let failed = |code: &str, message: &str| self.failed(Failure::new(code, message), false);
        let (reason, why) = match &self.stop {
            Some((reason, why)) => (reason.as_str(), why.as_str()),
            None if self.turn.attempt.is_cancelled() => ("aborted", ""),
            None if self.dealt_with => ("stop", ""),
            // Silence is no success; and should it begin after all, it must not go on.
            None => {
                let why = "the agent took the prompt and did nothing with it";
                return Turned::Broken(failed("adapter_execution_failed", why));
            }
        };
        Turned::Ended(match reason {
            // A tool may end a turn.
            "stop" | "toolUse" => End::Succeeded { usage },
            "aborted" => End::Stopped { usage },
            // A model that is told to stop between two tokens may call that an error.
            "error" if self.turn.attempt.is_cancelled() => End::Stopped { usage },
            "error" => self.failed(Fault::of(why).failure(why), false),
            "length" => failed("max_tokens", "the agent reached the most tokens it may write"),
            other => failed(
                "unknown_stop_reason",
                &format!("the agent stopped for a reason unknown here: {other}"),
            ),
        })
    }

    fn failed(&self, error: Failure, retryable: bool) -> End {
        End::Failed { error, retryable, usage: self.usage }
    }

    fn update(&mut self, event: &Value) -> Result<(), HandleError> {
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "text_start" if self.streamed => {
                self.voice.pause();
                Ok(())
            }
            "text_delta" => {
                self.streamed |= !delta.is_empty();
                self.voice.say(delta)
            }
            "thinking_delta" if !delta.is_empty() => self.turn.attempt.thought(delta),
            _ => Ok(()),
        }
    }

    /// The tools that a message of the agent has called have answered.
    fn turn_end(&mut self, record: &Value) -> Result<(), HandleError> {
        let message = &record["message"];
        let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
        self.stop = Some((text("stopReason"), text("errorMessage")));
        self.usage += usage_of(&message["usage"]);
        for result in record["toolResults"].as_array().into_iter().flatten() {
            self.usage += usage_of(&result["usage"]);
        }
        self.whole(message)
    }

    /// A message of the agent is whole.
    fn whole(&mut self, message: &Value) -> Result<(), HandleError> {
        self.speaking = false;
        // Some models do not stream.
        match std::mem::replace(&mut self.streamed, true) {
            true => Ok(()),
            false => self.voice.say(&text_of(&message["content"])),
        }
    }

    async fn tool_start(&mut self, record: &Value) -> Result<(), HandleError> {
        let Some(tool_use_id) = record["toolCallId"].as_str().map(str::to_owned) else { return Ok(()) };
        let name = record["toolName"].as_str().filter(|name| !name.is_empty()).unwrap_or("tool").to_owned();
        self.tools.insert(tool_use_id.clone(), self.turn.attempt.now());
        self.voice.pause();
        self.record(Record::ToolStarted { tool_use_id, name, input: Some(record["args"].clone()) }).await
    }

    async fn tool_update(&mut self, record: &Value) -> Result<(), HandleError> {
        let now = self.turn.attempt.now();
        let text = text_of(&record["partialResult"]["content"]);
        let id = record["toolCallId"].as_str().unwrap_or_default();
        match self.tools.get_mut(id) {
            Some(last) if !text.is_empty() && now >= last.plus(REPORT) => *last = now,
            _ => return Ok(()),
        }
        self.record(Record::ToolUpdated { tool_use_id: id.to_owned(), text: excerpt(text) }).await
    }

    async fn tool_end(&mut self, record: &Value) -> Result<(), HandleError> {
        let id = record["toolCallId"].as_str().unwrap_or_default();
        if self.tools.remove(id).is_none() {
            return Ok(());
        }
        let tool_use_id = id.to_owned();
        let text = excerpt(text_of(&record["result"]["content"]));
        let records = if record["isError"] == true {
            let why = if text.is_empty() { "the tool failed".into() } else { text };
            let (outcome, error) = (ToolOutcome::Failed, Failure::new("tool_failed", why));
            vec![Record::ToolFailed { tool_use_id, outcome, error }]
        } else {
            let said =
                (!text.is_empty()).then(|| Record::ToolUpdated { tool_use_id: tool_use_id.clone(), text });
            said.into_iter().chain([Record::ToolCompleted { tool_use_id }]).collect()
        };
        self.turn.attempt.record(records).await
    }

    async fn progress(&mut self, text: String) -> Result<(), HandleError> {
        if text.is_empty() {
            return Ok(());
        }
        self.dealt_with = true;
        self.record(Record::Progress { text: excerpt(text) }).await
    }

    async fn record(&self, record: Record) -> Result<(), HandleError> {
        self.turn.attempt.record(vec![record]).await
    }
}

/// The text of what is a text, or a list of blocks.
fn text_of(content: &Value) -> String {
    let text = |block: &Value| match block["type"].as_str() {
        Some("text") => block["text"].as_str().unwrap_or_default().to_owned(),
        Some("image") => format!("[image: {}]", block["mimeType"].as_str().unwrap_or("unknown")),
        _ => String::new(),
    };
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(text).collect(),
        _ => String::new(),
    }
}

/// What was used; what it cost is not known where pi does not say. Nothing, where it says nothing.
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
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cost_that_pi_does_not_tell_is_unknown() {
        assert_eq!(usage_of(&json!({"input": 3, "cost": {"total": 0.5}})).cost, Cost::from(0.5));
        assert_eq!(usage_of(&json!({"input": 3})).cost, Cost::UNKNOWN);
        assert!(usage_of(&Value::Null).is_zero(), "nothing was used");
    }
}
