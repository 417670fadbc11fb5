//! Following a run: its text goes to standard output as it streams, its activity to standard error.

use std::collections::HashMap;
use std::io::IsTerminal;

use mainspring_client::{Item, Snapshot};
use mainspring_core::{
    Answer, Approval, Block, Body, DigestAuthor, Message, MessageId, MessageStatus, Position, Role, Run,
    RunId, RunState, RunStatus, SessionId, Wait, WaitRequest,
};
use mainspring_kernel::kernel::{Kernel, Work};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::Context;
use super::fail::{Exit, Fail};
use super::home::Home;
use super::output::{self, Busy, DIM, RED, YELLOW};

/// Follows `run` from `from` until it ends, waits for an answer that cannot be given here, or is cancelled by Ctrl-C.
pub(super) async fn watch(
    context: &Context<'_>,
    home: &mut Home<'_>,
    run: &Run,
    from: Position,
) -> Result<Exit, Fail> {
    let (run, session, name) = (run.id, run.session, run.session.to_string());
    let mut screen = Screen {
        context,
        session,
        run,
        streamed: HashMap::new(),
        mid_line: false,
        thinking: false,
        busy: None,
    };
    let snapshot =
        async |home: &mut Home<'_>| home.ask(async |client| client.session_snapshot(&name).await).await;
    if screen.is_blocked(&snapshot(home).await?)? {
        return Ok(Exit::Waiting);
    }
    let mut events = home.events(&name, from);
    let mut told = false;
    let mut interrupt = std::pin::pin!(interrupted());
    loop {
        screen.wait_for("working");
        let item = tokio::select! {
            item = events.next() => item,
            signal = &mut interrupt, if !told => {
                signal?;
                told = true;
                screen.cancel(home).await?;
                continue;
            }
        };
        let item = match item {
            None => return Ok(Exit::NotNow),
            Some(Err(error)) if error.is_gone() && home.is_guest() => {
                home.renew().await?;
                events = home.events(&name, events.position().unwrap_or(from));
                continue;
            }
            Some(item) => item?,
        };
        if !screen.show(&item)? {
            continue;
        }
        if screen.is_blocked(&snapshot(home).await?)? {
            return Ok(Exit::Waiting);
        }
        let state = home.ask(async |client| client.run_get(run).await).await?.state;
        if let Some(exit) = screen.after(home, &state).await? {
            return Ok(exit);
        }
    }
}

/// Waits until the runs accepted by an earlier process have ended; Ctrl-C leaves the rest queued.
///
/// `close` stops accepting work; work accepted before that is completed too.
pub(super) async fn work_off(context: &Context<'_>, kernel: &Kernel, close: impl Fn()) -> Result<(), Fail> {
    let Work { queued, active, .. } = *kernel.work().borrow();
    if queued + active > 0 {
        let count = queued + active;
        let note = format_args!("{DIM}working off {count} accepted from others; Ctrl-C leaves them{DIM:#}");
        context.output.note(note)?;
    }
    let drained = async {
        kernel.drain().await;
        close();
        kernel.drain().await;
    };
    tokio::select! {
        () = drained => Ok(()),
        signal = interrupted() => Ok(signal?),
    }
}

/// Resolves on Ctrl-C, SIGTERM or SIGHUP. A caller that waits repeatedly must keep one future: a signal that arrives
/// between two futures is lost.
pub(super) async fn interrupted() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt,
        _ = terminate.recv() => Ok(()),
        _ = hang_up.recv() => Ok(()),
    }
}

struct Screen<'a, 'b> {
    context: &'a Context<'b>,
    session: SessionId,
    run: RunId,
    /// Text of each message that was already shown while it streamed.
    streamed: HashMap<MessageId, String>,
    mid_line: bool,
    /// True within a thought, which arrives in pieces.
    thinking: bool,
    busy: Option<Busy>,
}

impl Screen<'_, '_> {
    /// Shows one item; true when the run may have ended, or when a run of the session waits for an answer.
    fn show(&mut self, item: &Item) -> Result<bool, Fail> {
        let output = self.context.output;
        self.busy = None;
        if !matches!(item, Item::Thought(_)) {
            self.end_thought()?;
        }
        match item {
            Item::Event(event) if event.run == Some(self.run) => {
                if output.json {
                    output.object(&**event)?;
                } else {
                    self.describe(&event.body)?;
                }
                Ok(waits(&event.body) || event.body.ends_run())
            }
            Item::Event(event) => Ok(waits(&event.body)),
            Item::Live(live) if live.run.is_some_and(|run| run != self.run) => Ok(false),
            Item::Live(live) if output.json => Ok(output.object(live).map(|()| false)?),
            Item::Live(live) => self.live(&live.body).map(|()| false),
            Item::Thought(thought) if output.json => {
                output.object(&json!({"type": "thought", "sessionId": self.session, "payload": thought}))?;
                Ok(false)
            }
            Item::Thought(thought) => {
                if !std::mem::replace(&mut self.thinking, true) {
                    self.step_aside()?;
                    output.aside(format_args!("{DIM}· {DIM:#}"))?;
                }
                output.aside(format_args!("{DIM}{}{DIM:#}", thought.text.replace('\n', "\n  ")))?;
                Ok(false)
            }
            // The skipped events are not replayed, so check the run's current state.
            Item::Reset(_) => Ok(true),
            Item::Unknown { .. } => Ok(false),
        }
    }

    /// True when this run is queued behind a run that waits for a person.
    fn is_blocked(&self, now: &Snapshot) -> Result<bool, Fail> {
        let Some(ahead) = now.active_run.as_ref().filter(|active| active.id != self.run) else {
            return Ok(false);
        };
        let Some(wait) = ahead.state.wait().filter(|wait| wait.answer.is_none()) else {
            return Ok(false);
        };
        let output = self.context.output;
        if output.json {
            let behind = json!({"runId": ahead.id, "waitId": wait.id, "question": wait.question});
            output.object(&json!({"type": "blocked", "runId": self.run, "behind": behind}))?;
        } else {
            output
                .note(format_args!("{YELLOW}queued{YELLOW:#} behind a run that waits: {}", wait.question))?;
            output.note(format_args!("answer it with: {}", how_to_answer(ahead.id, wait)))?;
        }
        Ok(true)
    }

    /// Shows a spinner until something is written, unless a partial line already shows activity.
    fn wait_for(&mut self, what: &str) {
        if !self.mid_line && !self.thinking && self.busy.is_none() {
            self.busy = self.context.output.busy(what);
        }
    }

    fn live(&mut self, body: &Body) -> Result<(), Fail> {
        if let Body::MessageDelta { message_id, text, .. } = body {
            self.streamed.entry(*message_id).or_default().push_str(text);
            self.mid_line = !text.ends_with('\n');
            self.context.output.part(text)?;
        }
        Ok(())
    }

    fn describe(&mut self, body: &Body) -> Result<(), Fail> {
        let output = self.context.output;
        match body {
            Body::MessageCompleted { message, .. } => self.message(message)?,
            Body::ToolStarted { name, .. } => output.note(format_args!("{DIM}· tool {name}{DIM:#}"))?,
            Body::ToolFailed { name, error, .. } => {
                output.note(format_args!("{RED}· tool {name} failed{RED:#}: {}", error.message))?;
            }
            Body::ProgressUpdated { text } => output.note(format_args!("{DIM}· {text}{DIM:#}"))?,
            Body::ContextCompacted { messages, by, .. } => {
                let how = match by {
                    DigestAuthor::Summarizer => "summarised",
                    DigestAuthor::Fallback => "left out",
                };
                output
                    .note(format_args!("{DIM}· {messages} older messages are {how} for the model{DIM:#}"))?;
            }
            Body::AttemptCreated { attempt_no, .. } if *attempt_no > 1 => {
                output.note(format_args!("{DIM}· attempt {attempt_no}{DIM:#}"))?;
            }
            Body::RunQueued { retry_at_ms: Some(_), .. } => {
                output.note(format_args!("{DIM}· will be tried again{DIM:#}"))?;
            }
            Body::AttemptFailed { error, .. } => {
                self.end_line()?;
                output
                    .note(format_args!("{RED}· attempt failed{RED:#}: {} ({})", error.message, error.code))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Shows the part of a complete message that was not shown while it streamed. Output of failed attempts is in the
    /// log only.
    fn message(&mut self, message: &Message) -> Result<(), Fail> {
        let seen = self.streamed.remove(&message.id).unwrap_or_default();
        if message.role == Role::Assistant && message.status == MessageStatus::Completed {
            let text = message.text();
            let rest = unseen(&text, &seen);
            self.context.output.part(rest)?;
            self.mid_line = if rest.is_empty() { self.mid_line } else { !rest.ends_with('\n') };
        }
        self.end_line()?;
        for block in &message.content {
            if let Block::ToolResult { name, is_error: false, .. } = block {
                let shown = super::tree::blocks(std::slice::from_ref(block)).join(" ");
                let shown = output::excerpt(&shown, 100);
                self.context.output.note(format_args!("{DIM}· tool {name} {shown}{DIM:#}"))?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), Fail> {
        if std::mem::take(&mut self.mid_line) {
            self.context.output.part("\n")?;
        }
        Ok(())
    }

    /// Ends the current line before a note. A result that does not go to the terminal is left as it is.
    fn step_aside(&mut self) -> Result<(), Fail> {
        if std::io::stdout().is_terminal() { self.end_line() } else { Ok(()) }
    }

    fn end_thought(&mut self) -> Result<(), Fail> {
        if std::mem::take(&mut self.thinking) {
            self.context.output.aside("\n")?;
        }
        Ok(())
    }

    async fn cancel(&mut self, home: &mut Home<'_>) -> Result<(), Fail> {
        self.busy = None;
        self.end_thought()?;
        self.end_line()?;
        let grace = output::span(self.context.config().cancel_grace_ms);
        let note = format_args!("{DIM}cancelling; what does not stop within {grace} is killed{DIM:#}");
        self.context.output.note(note)?;
        // The run may have ended in the meantime.
        let run = self.run;
        let _ = home.ask(async |client| client.run_cancel(run).await).await;
        Ok(())
    }

    /// Returns the exit code for the run's state, or none if the run continues.
    async fn after(&mut self, home: &mut Home<'_>, state: &RunState) -> Result<Option<Exit>, Fail> {
        let output = self.context.output;
        if let Some(wait) = state.wait().filter(|wait| wait.answer.is_none()) {
            self.end_line()?;
            return self.question(home, wait).await;
        }
        let status = state.status();
        if !status.is_ended() {
            return Ok(None);
        }
        if !output.json {
            self.end_line()?;
            output.note(ended(self.run, state))?;
        }
        Ok(Some(exit_of(status)))
    }

    /// Asks the person at the terminal; without a terminal, prints how to answer.
    async fn question(&mut self, home: &mut Home<'_>, wait: &Wait) -> Result<Option<Exit>, Fail> {
        let output = self.context.output;
        // Client tools are executed by a program, not by the person who watches.
        if output.is_interactive() && wait.request != WaitRequest::Tools {
            output.note(format_args!("{YELLOW}?{YELLOW:#} {}", wait.question))?;
            let answer = tokio::select! {
                answer = ask(self.context, wait) => answer?,
                signal = interrupted() => {
                    signal?;
                    output.part("\n")?;
                    self.cancel(home).await?;
                    return Ok(None);
                }
            };
            if let Some(answer) = answer {
                let run = self.run;
                home.ask(async |client| client.run_answer(run, wait.id, &answer).await).await?;
                return Ok(None);
            }
            output.part("\n")?;
        }
        tell_wait(self.context, self.run, wait)?;
        Ok(Some(Exit::Waiting))
    }
}

/// Returns the part of `text` after `seen`. For a reader who joined late, `seen` is not the beginning of `text`.
fn unseen<'a>(text: &'a str, seen: &str) -> &'a str {
    let after = || text.rfind(seen).and_then(|at| text.get(at + seen.len()..));
    text.strip_prefix(seen).or_else(after).unwrap_or(text)
}

/// Prints the run's question and how to answer it.
pub(super) fn tell_wait(context: &Context<'_>, run: RunId, wait: &Wait) -> Result<(), Fail> {
    let output = context.output;
    if output.json {
        return Ok(());
    }
    output.note(format_args!("{YELLOW}waiting{YELLOW:#}: {}", wait.question))?;
    for call in wait.calls.iter().filter(|call| !call.answered) {
        let (name, input) = (&call.name, output::excerpt(&call.input.to_string(), 200));
        output.note(format_args!("{DIM}· {} calls {name} {input}{DIM:#}", call.tool_use_id))?;
    }
    Ok(output.note(format_args!("answer with: {}", how_to_answer(run, wait)))?)
}

/// Describes how a run has ended.
pub(super) fn ended(run: RunId, state: &RunState) -> String {
    let why = state.error().map(|error| format!(": {} ({})", error.message, error.code)).unwrap_or_default();
    format!("{DIM}·{DIM:#} {}{why} {DIM}{run}{DIM:#}", output::status(state.status()))
}

fn how_to_answer(run: RunId, wait: &Wait) -> String {
    match wait.request {
        WaitRequest::Input => format!("mainspring run answer {run} TEXT"),
        WaitRequest::Approval => format!("mainspring run answer {run} --allow (or --deny)"),
        WaitRequest::Tools => {
            let missing = wait.calls.iter().filter(|call| !call.answered);
            let results = missing.map(|call| format!(" --tool-result '{}=TEXT'", call.tool_use_id));
            format!("mainspring run answer {run}{}", results.collect::<String>())
        }
    }
}

fn waits(body: &Body) -> bool {
    matches!(body, Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. })
}

/// Maps a run's status to the exit code.
pub(super) fn exit_of(status: RunStatus) -> Exit {
    match status {
        RunStatus::Succeeded => Exit::Done,
        RunStatus::Cancelled => Exit::Cancelled,
        _ => Exit::RunFailed,
    }
}

/// Reads an answer from the terminal; none at end of input.
async fn ask(context: &Context<'_>, wait: &Wait) -> Result<Option<Answer>, Fail> {
    let hint = match wait.request {
        WaitRequest::Input => "answer",
        WaitRequest::Approval => "allow? [y/n]",
        WaitRequest::Tools => return Ok(None),
    };
    // Input typed before the question was shown is not an answer to it.
    if std::io::stdin().is_terminal() {
        rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush)
            .map_err(std::io::Error::from)?;
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        context.output.part(&format!("{hint}> "))?;
        let Some(line) = lines.next_line().await? else {
            return Ok(None);
        };
        match (wait.request, line.trim().to_lowercase().as_str()) {
            (_, "") => {}
            (WaitRequest::Input | WaitRequest::Tools, _) => {
                let input = Value::String(line.trim().to_owned());
                return Ok(Some(Answer::Input { input }));
            }
            (WaitRequest::Approval, "y" | "yes") => {
                return Ok(Some(Answer::Approval { decision: Approval::Allowed }));
            }
            (WaitRequest::Approval, "n" | "no") => {
                return Ok(Some(Answer::Approval { decision: Approval::Denied }));
            }
            (WaitRequest::Approval, _) => context.output.note("please answer y or n")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_not_shown_again() {
        assert_eq!(unseen("one two", ""), "one two", "nothing was");
        assert_eq!(unseen("one two", "one "), "two", "it began to");
        assert_eq!(unseen("one two", "two"), "", "it was come upon in the midst");
        assert_eq!(unseen("one two", "ne t"), "wo");
    }
}
