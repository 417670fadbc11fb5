//! One turn: follows a run until it ends, and puts the questions of waiting runs to the person.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use mainspring_client::{Events, Item, Snapshot};
use mainspring_core::{
    Answer, Approval, Block, Body, Message, MessageId, MessageStatus, Role, Run, RunId, RunState, RunStatus,
    Wait, WaitRequest,
};
use mainspring_kernel::clock::Clock;
use serde_json::{Value, json};

use super::Talk;
use super::input::{Ask, Read};
use super::signals::Signal;
use super::wrap::one_line;
use crate::fail::{Exit, Fail};
use crate::output::YELLOW;
use crate::watch::exit_of;

/// Silence before a spinner is shown, in milliseconds.
const STILL: u64 = 150;

/// Error codes that another model or an API key can fix.
const KEY_CODES: [&str; 3] = ["model_not_configured", "model_key_missing", "model_unauthorized"];

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The run ended.
    Over(Exit),
    /// The person leaves the chat.
    Left(Exit),
}

/// State of the display of one run.
#[derive(Default)]
struct Seen {
    /// Number of bytes of each message that were already shown while it streamed.
    streamed: HashMap<MessageId, usize>,
    /// Tool calls: name and arguments, by id.
    calls: HashMap<String, (String, Value)>,
    /// Current activity, for the spinner.
    doing: Option<String>,
}

/// Next step after an item was shown.
enum Next {
    /// Read the next item.
    More,
    /// Check whether the session waits for an answer.
    Waits,
    /// Check whether the run has ended.
    Look,
}

impl Talk<'_, '_> {
    /// Follows a run that was active when this chat joined. The run may already wait for an answer, and then no event
    /// announces the wait.
    pub(super) async fn follow_joined(&mut self, run: &Run) -> Result<Turn, Fail> {
        match self.answer_waiting().await? {
            Some(turn) => Ok(turn),
            None => {
                let events = self.home.events(&run.session.to_string(), self.position);
                self.follow(run, events).await
            }
        }
    }

    /// Follows `run` until it ends. Ctrl-C cancels the run; a second Ctrl-C leaves the chat.
    pub(super) async fn follow(&mut self, run: &Run, mut events: Events) -> Result<Turn, Fail> {
        let (session, run) = (run.session.to_string(), run.id);
        let mut seen = Seen::default();
        let mut stopping = false;
        let _quiet = self.input.quiet();
        let clock = Clock::system();
        loop {
            let item = tokio::select! {
                // Checks signals first, so that a busy stream cannot delay Ctrl-C.
                biased;
                signal = self.signals.next() => match signal {
                    Signal::Interrupt if !stopping => {
                        stopping = true;
                        self.stop(run).await?;
                        continue;
                    }
                    _ => return Ok(Turn::Left(Exit::Cancelled)),
                },
                item = events.next() => item,
                () = clock.sleep_until(clock.now().plus(STILL)), if self.screen.is_still() => {
                    self.screen.busy(seen.doing.as_deref().unwrap_or("working"));
                    continue;
                }
            };
            let item = match item {
                None => return Ok(Turn::Left(Exit::NotNow)),
                Some(Err(error)) if error.is_gone() && self.home.is_guest() => {
                    self.home.renew().await?;
                    events = self.home.events(&session, events.position().unwrap_or(self.position));
                    continue;
                }
                Some(item) => item?,
            };
            self.position = events.position().unwrap_or(self.position);
            let turn = match self.show(run, &item, &mut seen)? {
                Next::More => None,
                Next::Waits => self.answer_waiting().await?,
                Next::Look => match self.answer_waiting().await? {
                    None => self.look(run).await?,
                    turn => turn,
                },
            };
            if let Some(turn) = turn {
                return Ok(turn);
            }
        }
    }

    /// Shows the partial output of the session's active run.
    pub(super) fn show_open(&mut self, snapshot: &Snapshot) -> Result<(), Fail> {
        let text = snapshot.partial.iter().flat_map(|open| &open.blocks).map(|block| block.text.as_str());
        let text: String = text.collect();
        if !self.context.output.json {
            self.screen.say(&text)?;
        }
        Ok(())
    }

    async fn stop(&mut self, run: RunId) -> Result<(), Fail> {
        self.screen.note("stopping; Ctrl-C again leaves")?;
        // The run may have ended in the meantime.
        let _ = self.home.ask(async |client| client.run_cancel(run).await).await;
        Ok(())
    }

    /// Puts the session's pending question to the person, if there is one, whichever run asks.
    async fn answer_waiting(&mut self) -> Result<Option<Turn>, Fail> {
        let session = self.session.clone().unwrap_or_default();
        let snapshot = self.home.ask(async |client| client.session_snapshot(&session).await).await?;
        let active = snapshot.active_run.as_ref();
        let waits = active.and_then(|run| Some((run.id, run.state.wait().filter(|it| it.answer.is_none())?)));
        match waits {
            Some((asker, wait)) => self.ask(asker, wait).await,
            None => Ok(None),
        }
    }

    /// Reports how the run has ended; none if it has not ended.
    async fn look(&mut self, run: RunId) -> Result<Option<Turn>, Fail> {
        let run = self.home.ask(async |client| client.run_get(run).await).await?;
        if !run.state.status().is_ended() {
            return Ok(None);
        }
        self.screen.end()?;
        self.tell_end(&run.state)?;
        self.last = Some(run.id);
        Ok(Some(Turn::Over(exit_of(run.state.status()))))
    }

    fn tell_end(&mut self, state: &RunState) -> Result<(), Fail> {
        let error = state.error();
        let (code, why) =
            error.map(|error| (error.code.as_str(), error.message.as_str())).unwrap_or_default();
        match state.status() {
            RunStatus::Succeeded => {}
            RunStatus::Cancelled => self.screen.note("stopped")?,
            status => {
                self.screen.problem(&format!("{status}: {why} ({code})"))?;
                let remedy = match KEY_CODES.contains(&code) {
                    true => "/model scripted/any goes on without a key; docs/models.md says how to set one",
                    false => "/retry tries it again",
                };
                self.screen.note(remedy)?;
            }
        }
        Ok(())
    }

    async fn ask(&mut self, run: RunId, wait: &Wait) -> Result<Option<Turn>, Fail> {
        self.screen.end()?;
        if self.context.output.json {
            let (kind, question) = (wait.request, &wait.question);
            self.context.output.object(
                &json!({"type": "question", "runId": run, "waitId": wait.id, "request": kind, "question": question}),
            )?;
        }
        let prompt = match wait.request {
            WaitRequest::Input => "answer › ",
            WaitRequest::Approval => "allow? y/n › ",
            WaitRequest::Tools => {
                let names: Vec<&str> = wait.calls.iter().map(|call| call.name.as_str()).collect();
                let names = names.join(", ");
                self.screen
                    .note(&format!("waits for whoever declared the tools {names}; Ctrl-C stops it"))?;
                return Ok(None);
            }
        };
        self.screen.question(&wait.question)?;
        loop {
            let ask = Ask { prompt, style: YELLOW, answer: true };
            let read = tokio::select! {
                biased;
                signal = self.signals.next() => signal.into(),
                read = self.input.line(ask) => read?,
            };
            let line = match read {
                Read::Line(line) => line,
                Read::Interrupted => {
                    self.stop(run).await?;
                    return Ok(None);
                }
                Read::Ended => {
                    self.screen.note("the question stays open, and the run waits")?;
                    return Ok(Some(Turn::Left(Exit::Waiting)));
                }
            };
            let Some(answer) = answer_of(wait.request, &line) else {
                if !line.trim().is_empty() {
                    self.screen.note("please answer y or n; Ctrl-C stops the run")?;
                }
                continue;
            };
            let answered = self.home.ask(async |client| client.run_answer(run, wait.id, &answer).await).await;
            // Another client may have answered first.
            if let Err(fail) = answered {
                self.screen.problem(&fail.message)?;
            }
            return Ok(None);
        }
    }

    /// Shows one item and returns the next step.
    fn show(&mut self, run: RunId, item: &Item, seen: &mut Seen) -> Result<Next, Fail> {
        let next = match item {
            Item::Event(event) if waits(&event.body) => Next::Waits,
            Item::Event(event) if event.run == Some(run) && event.body.ends_run() => Next::Look,
            // The skipped events are not replayed, so check the run's current state.
            Item::Reset(_) => Next::Look,
            _ => Next::More,
        };
        if self.context.output.json {
            self.show_json(item)?;
            return Ok(next);
        }
        match item {
            Item::Event(event) => self.show_event(&event.body, event.run == Some(run), seen)?,
            Item::Live(live) => {
                if let Body::MessageDelta { message_id, text, .. } = &live.body {
                    *seen.streamed.entry(*message_id).or_default() += text.len();
                    self.screen.say(text)?;
                }
            }
            Item::Thought(thought) => self.screen.think(&thought.text)?,
            Item::Reset(_) | Item::Unknown { .. } => {}
        }
        Ok(next)
    }

    fn show_json(&mut self, item: &Item) -> Result<(), Fail> {
        let output = self.context.output;
        match item {
            Item::Event(event) => output.object(&**event)?,
            Item::Live(live) => output.object(live)?,
            Item::Thought(thought) => output.object(&json!({"type": "thought", "payload": thought}))?,
            Item::Reset(_) | Item::Unknown { .. } => {}
        }
        Ok(())
    }

    fn show_event(&mut self, body: &Body, ours: bool, seen: &mut Seen) -> Result<(), Fail> {
        match body {
            Body::MessageCompleted { message, .. } => self.message(message, ours, seen)?,
            Body::ToolStarted { name, .. } => seen.doing = Some(format!("{name} is running")),
            Body::ProgressUpdated { text } => self.screen.note(text)?,
            Body::AttemptFailed { error, retryable: true, .. } => {
                self.screen.end()?;
                self.screen.note(&format!("{} ({}); it will be tried again", error.message, error.code))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn message(&mut self, message: &Message, ours: bool, seen: &mut Seen) -> Result<(), Fail> {
        seen.doing = None;
        let shown = seen.streamed.get(&message.id).copied().unwrap_or_default();
        if message.role == Role::Assistant && message.status == MessageStatus::Completed {
            let text = message.text();
            self.screen.say(text.get(shown..).unwrap_or_default())?;
        }
        self.screen.end()?;
        if message.role == Role::User && !ours {
            self.screen.note(&format!("from elsewhere: {}", one_line(&message.text(), 400)))?;
        }
        for block in &message.content {
            match block {
                Block::ToolUse { id, name, input } => {
                    seen.calls.insert(id.clone(), (name.clone(), input.clone()));
                }
                Block::ToolResult { tool_use_id, name, content, is_error } => {
                    self.tool(seen.calls.remove(tool_use_id), name, content, *is_error)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn tool(
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
        self.screen.tool(name, &input, if is_error { Err(&text) } else { Ok(&text) })
    }
}

fn waits(body: &Body) -> bool {
    matches!(body, Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. })
}

/// Parses the answer to a request; none if the line is not an answer.
fn answer_of(request: WaitRequest, line: &str) -> Option<Answer> {
    let line = line.trim();
    match (request, line.to_lowercase().as_str()) {
        (_, "") => None,
        (WaitRequest::Input, _) => Some(Answer::Input { input: Value::String(line.to_owned()) }),
        (WaitRequest::Approval, "y" | "yes") => Some(Answer::Approval { decision: Approval::Allowed }),
        (WaitRequest::Approval, "n" | "no") => Some(Answer::Approval { decision: Approval::Denied }),
        (WaitRequest::Approval | WaitRequest::Tools, _) => None,
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
