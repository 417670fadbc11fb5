//! One turn: follows a run until it ends, and puts the questions of waiting runs to the person.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use mainspring_client::{Events, Item, Snapshot};
use mainspring_core::{
    Answer, Block, Body, FailureCode, Message, MessageId, MessageStatus, Role, Run, RunId, RunState,
    RunStatus, Wait, WaitRequest,
};
use mainspring_kernel::clock::Clock;
use serde_json::{Value, json};

use super::Conversation;
use super::input::{LineInput, LineRequest};
use super::wrap::one_line;
use crate::approval;
use crate::error::{CliError, Exit};
use crate::follow::{exit_code, unprinted};
use crate::output::{YELLOW, json_value};
use crate::signals::Signal;

/// Time without output before a spinner is shown.
const SPINNER_DELAY_MS: u64 = 150;

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// The run ended.
    RunEnded(Exit),
    /// The person leaves the chat.
    Leave(Exit),
}

/// The printed state of one run.
#[derive(Default)]
struct RunDisplay {
    /// Text of each message that was already shown while it streamed.
    streamed: HashMap<MessageId, String>,
    /// Tool calls: name and arguments, by id.
    calls: HashMap<String, (String, Value)>,
    /// Current activity, for the spinner.
    activity: Option<String>,
}

/// Next step after an item was shown.
enum NextStep {
    /// Read the next item.
    Read,
    /// Check whether the session waits for an answer.
    CheckWait,
    /// Check whether the run has ended.
    CheckEnd,
}

impl Conversation<'_, '_> {
    /// Follows a run that was active at `snapshot`, when this chat joined. The run may already wait for an answer, and
    /// then no event announces the wait.
    pub(super) async fn follow_active(
        &mut self,
        run: &Run,
        snapshot: &Snapshot,
    ) -> Result<TurnEnd, CliError> {
        let display = self.print_partial(snapshot)?;
        match self.ask_open_question().await? {
            Some(turn) => Ok(turn),
            None => {
                let events = self.connection.events(&run.session.to_string(), self.position);
                Box::pin(self.follow_from(display, run, events)).await
            }
        }
    }

    /// Follows `run` until it ends. Ctrl-C cancels the run; a second Ctrl-C leaves the chat.
    pub(super) async fn follow(&mut self, run: &Run, events: Events) -> Result<TurnEnd, CliError> {
        Box::pin(self.follow_from(RunDisplay::default(), run, events)).await
    }

    /// Follows `run`, of which `display` was already printed.
    async fn follow_from(
        &mut self,
        mut display: RunDisplay,
        run: &Run,
        mut events: Events,
    ) -> Result<TurnEnd, CliError> {
        let (session, run) = (run.session.to_string(), run.id);
        let mut cancelling = false;
        let _echo_guard = self.input.disable_echo();
        let clock = Clock::system();
        loop {
            let item = tokio::select! {
                // Checks signals first, so that a busy stream cannot delay Ctrl-C.
                biased;
                signal = self.signals.next() => match signal {
                    Signal::Interrupt if !cancelling => {
                        cancelling = true;
                        self.cancel(run).await?;
                        continue;
                    }
                    _ => return Ok(TurnEnd::Leave(Exit::Cancelled)),
                },
                item = events.next() => item,
                () = clock.sleep_for(SPINNER_DELAY_MS), if self.screen.is_idle() => {
                    self.screen.show_spinner(display.activity.as_deref().unwrap_or("working"));
                    continue;
                }
            };
            let item = match item {
                None => return Ok(TurnEnd::Leave(Exit::Unavailable)),
                Some(Err(error)) if error.is_gone() && self.connection.is_guest() => {
                    self.connection.reconnect().await?;
                    events = self.connection.events(&session, events.position().unwrap_or(self.position));
                    continue;
                }
                Some(item) => item?,
            };
            self.position = events.position().unwrap_or(self.position);
            let turn = match self.print_item(run, &item, &mut display)? {
                NextStep::Read => None,
                NextStep::CheckWait => self.ask_open_question().await?,
                NextStep::CheckEnd => match self.ask_open_question().await? {
                    None => self.check_end(run).await?,
                    turn => turn,
                },
            };
            if let Some(turn) = turn {
                return Ok(turn);
            }
        }
    }

    /// Shows the partial output of the session's active run.
    fn print_partial(&mut self, snapshot: &Snapshot) -> Result<RunDisplay, CliError> {
        let mut display = RunDisplay::default();
        for open in &snapshot.partial {
            let text: String = open.blocks.iter().map(|block| block.text.as_str()).collect();
            if !self.context.output.json {
                self.screen.print_answer(&text)?;
            }
            display.streamed.insert(open.message_id, text);
        }
        Ok(display)
    }

    async fn cancel(&mut self, run: RunId) -> Result<(), CliError> {
        self.screen.print_note("cancelling; press Ctrl-C again to leave")?;
        // The run may have ended in the meantime.
        let _ = self.connection.request(async |client| client.run_cancel(run).await).await;
        Ok(())
    }

    /// Asks the person the session's pending question, if there is one, no matter which run asks it.
    async fn ask_open_question(&mut self) -> Result<Option<TurnEnd>, CliError> {
        let session = self.session.clone().unwrap_or_default();
        let snapshot =
            self.connection.request(async |client| client.session_snapshot(&session).await).await?;
        let active = snapshot.active_run.as_ref();
        let open =
            active.and_then(|run| Some((run.id, run.state.wait().filter(|wait| wait.answer.is_none())?)));
        match open {
            Some((asker, wait)) => self.ask_person(asker, wait).await,
            None => Ok(None),
        }
    }

    /// Reports how the run has ended; none if it has not ended.
    async fn check_end(&mut self, run: RunId) -> Result<Option<TurnEnd>, CliError> {
        let run = self.connection.request(async |client| client.run_get(run).await).await?;
        if !run.state.status().is_ended() {
            return Ok(None);
        }
        self.screen.end_text()?;
        self.print_end(&run.state)?;
        self.last_run = Some(run.id);
        Ok(Some(TurnEnd::RunEnded(exit_code(run.state.status()))))
    }

    fn print_end(&mut self, state: &RunState) -> Result<(), CliError> {
        let error = state.error();
        match state.status() {
            RunStatus::Succeeded => {}
            RunStatus::Cancelled => self.screen.print_note("cancelled")?,
            status => {
                let (code, message) =
                    error.map(|error| (error.code.as_str(), error.message.as_str())).unwrap_or_default();
                self.screen.print_error(&format!("{status}: {message} ({code})"))?;
                let remedy = match error.map(|error| &error.code) {
                    // Another model or an API key helps.
                    Some(
                        FailureCode::ModelNotConfigured
                        | FailureCode::ModelKeyMissing
                        | FailureCode::ModelUnauthorized,
                    ) => "/model scripted/any goes on without a key; docs/models.md says how to set one",
                    Some(FailureCode::Authentication) => "/login logs in, and the answer goes on",
                    Some(_) | None => "/retry retries it",
                };
                self.screen.print_note(remedy)?;
            }
        }
        Ok(())
    }

    async fn ask_person(&mut self, run: RunId, wait: &Wait) -> Result<Option<TurnEnd>, CliError> {
        self.screen.end_text()?;
        if self.context.output.json {
            let (kind, question) = (wait.request, &wait.question);
            self.context.output.print_json(
                &json!({"type": "question", "runId": run, "waitId": wait.id, "request": kind, "question": question}),
            )?;
        }
        let prompt = match wait.request {
            WaitRequest::Input => "answer › ",
            WaitRequest::Approval => approval::chat_prompt(wait),
            WaitRequest::Tools => {
                let names: Vec<&str> = wait.calls.iter().map(|call| call.name.as_str()).collect();
                let names = names.join(", ");
                self.screen.print_note(&format!(
                    "waiting for the client that declared the tools {names}; Ctrl-C cancels the run"
                ))?;
                return Ok(None);
            }
        };
        self.screen.print_question(&wait.question)?;
        approval::request_lines(wait).into_iter().try_for_each(|line| self.screen.print_note(&line))?;
        loop {
            let request = LineRequest { prompt, style: YELLOW, answer: true };
            let input = tokio::select! {
                biased;
                signal = self.signals.next() => signal.into(),
                input = self.input.read_line(request) => input?,
            };
            let line = match input {
                LineInput::Line(line) => line,
                LineInput::Interrupted => {
                    self.cancel(run).await?;
                    return Ok(None);
                }
                LineInput::Ended => {
                    self.screen.print_note("the question stays open and the run keeps waiting")?;
                    return Ok(Some(TurnEnd::Leave(Exit::Waiting)));
                }
            };
            let Some(answer) = parse_answer(wait.request, &line) else {
                if !line.trim().is_empty() {
                    self.screen.print_note("please answer y or n; Ctrl-C cancels the run")?;
                }
                continue;
            };
            let answered =
                self.connection.request(async |client| client.run_answer(run, wait.id, &answer).await).await;
            // Another client may have answered first.
            if let Err(error) = answered {
                self.screen.print_error(&error.message)?;
            }
            return Ok(None);
        }
    }

    /// Shows one item and returns the next step.
    fn print_item(
        &mut self,
        run: RunId,
        item: &Item,
        display: &mut RunDisplay,
    ) -> Result<NextStep, CliError> {
        let next = match item {
            Item::Event(event) if starts_wait(&event.body) => NextStep::CheckWait,
            Item::Event(event) if event.run == Some(run) && event.body.ends_run() => NextStep::CheckEnd,
            // The skipped events are not replayed, so check the run's current state.
            Item::Reset(_) => NextStep::CheckEnd,
            _ => NextStep::Read,
        };
        if self.context.output.json {
            self.print_json(item)?;
            return Ok(next);
        }
        match item {
            Item::Event(event) => self.print_event(&event.body, event.run == Some(run), display)?,
            Item::Live(live) => {
                if let Body::MessageDelta { message_id, text, .. } = &live.body {
                    display.streamed.entry(*message_id).or_default().push_str(text);
                    self.screen.print_answer(text)?;
                }
            }
            Item::Thought(thought) => self.screen.print_thought(&thought.text)?,
            Item::Reset(_) | Item::Unknown { .. } => {}
        }
        Ok(next)
    }

    fn print_json(&mut self, item: &Item) -> Result<(), CliError> {
        let output = self.context.output;
        match item {
            Item::Event(event) => output.print_json(&**event)?,
            Item::Live(live) => output.print_json(live)?,
            Item::Thought(thought) => {
                output.print_json(&json!({"type": "thought", "payload": json_value(thought)}))?;
            }
            Item::Reset(_) | Item::Unknown { .. } => {}
        }
        Ok(())
    }

    fn print_event(&mut self, body: &Body, of_run: bool, display: &mut RunDisplay) -> Result<(), CliError> {
        match body {
            Body::MessageCompleted { message, .. } => self.print_message(message, of_run, display)?,
            Body::ToolStarted { name, .. } => display.activity = Some(format!("{name} is running")),
            Body::ProgressUpdated { text } => self.screen.print_note(text)?,
            Body::EventDamaged { message, .. } => self.screen.print_note(&format!("damaged: {message}"))?,
            Body::AttemptFailed { error, retryable: true, .. } => {
                self.screen.end_text()?;
                self.screen.print_note(&format!("{} ({}); it will be retried", error.message, error.code))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn print_message(
        &mut self,
        message: &Message,
        of_run: bool,
        display: &mut RunDisplay,
    ) -> Result<(), CliError> {
        display.activity = None;
        let printed = display.streamed.remove(&message.id).unwrap_or_default();
        if message.role == Role::Assistant && message.status == MessageStatus::Completed {
            let text = message.text();
            self.screen.print_answer(unprinted(&text, &printed))?;
        }
        self.screen.end_text()?;
        if message.role == Role::User && !of_run {
            self.screen.print_note(&format!("from another client: {}", one_line(&message.text(), 400)))?;
        }
        for block in &message.content {
            match block {
                Block::ToolUse { id, name, input, .. } => {
                    display.calls.insert(id.clone(), (name.clone(), input.clone()));
                }
                Block::ToolResult { tool_use_id, name, content, is_error, .. } => {
                    self.print_tool_result(display.calls.remove(tool_use_id), name, content, *is_error)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn print_tool_result(
        &mut self,
        call: Option<(String, Value)>,
        name: &str,
        content: &[Block],
        is_error: bool,
    ) -> io::Result<()> {
        // The person has already seen the question and the answer.
        if name == mainspring_agent::tool::ASK_PERSON && !is_error {
            return Ok(());
        }
        let input = match call {
            Some((_, Value::Object(input))) if input.is_empty() => String::new(),
            Some((_, input)) => input.to_string(),
            None => String::new(),
        };
        let text = mainspring_core::message::text_of(content);
        self.screen.print_tool_call(name, &input, if is_error { Err(&text) } else { Ok(&text) })
    }
}

fn starts_wait(body: &Body) -> bool {
    matches!(body, Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. })
}

/// Parses the answer to a request; none if the line is not an answer.
fn parse_answer(request: WaitRequest, line: &str) -> Option<Answer> {
    let line = line.trim();
    match (request, line.to_lowercase().as_str()) {
        (_, "") => None,
        (WaitRequest::Input, _) => Some(Answer::Input { input: Value::String(line.to_owned()) }),
        (WaitRequest::Approval, _) => approval::parse_answer(line),
        (WaitRequest::Tools, _) => None,
    }
}

/// Finds the last prompt on a path.
pub(super) fn last_prompt(path: &[Arc<Message>]) -> Option<&Message> {
    path.iter().rev().map(|message| &**message).find(|message| is_prompt(message))
}

/// True for a person's message, false for tool results.
pub(super) fn is_prompt(message: &Message) -> bool {
    let result = |block: &Block| matches!(block, Block::ToolResult { .. });
    message.role == Role::User && !message.content.iter().any(result)
}
