//! Watching a run: its text on standard output as it comes, what it does on standard error.

use std::collections::HashMap;
use std::io::IsTerminal;

use mainspring_core::{
    Answer, Approval, Block, Body, Message, MessageId, MessageStatus, Position, Role, Run, RunId, RunState,
    RunStatus, SessionId, Wait, WaitRequest,
};
use mainspring_kernel::feed::{Delta, Item};
use mainspring_kernel::kernel::{Kernel, Work, ends_run};
use mainspring_kernel::store::SessionRef;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::Context;
use super::fail::{Exit, Fail};
use super::output::{self, DIM, RED, YELLOW};

/// Follows `run` from `from` until it ends, waits for an answer that cannot be had here, or is cancelled by Ctrl-C.
pub(super) async fn watch(
    context: &Context<'_>,
    kernel: &Kernel,
    session: SessionId,
    run: RunId,
    from: Position,
) -> Result<Exit, Fail> {
    let caller = context.caller();
    let by = SessionRef::Id(session);
    let mut items = kernel.session_subscribe(&caller, &by, Some(from)).await?;
    let snapshot = kernel.session_snapshot(&caller, &by).await?;
    let mut screen = Screen { context, session, run, streamed: HashMap::new(), mid_line: false };
    if screen.is_blocked(snapshot.active.as_ref())? {
        return Ok(Exit::Waiting);
    }
    let mut told = false;
    loop {
        let item = tokio::select! {
            item = items.next() => item,
            signal = interrupted(), if !told => {
                signal?;
                told = true;
                screen.cancel(kernel).await?;
                continue;
            }
        };
        let Some(item) = item.transpose()? else {
            return Ok(Exit::NotNow);
        };
        if !screen.show(&item)? {
            continue;
        }
        let now = kernel.session_snapshot(&caller, &by).await?;
        if screen.is_blocked(now.active.as_ref())? {
            return Ok(Exit::Waiting);
        }
        let state = kernel.run_get(&caller, run).await?.state;
        if let Some(exit) = screen.after(kernel, &state).await? {
            return Ok(exit);
        }
    }
}

/// Works off what an earlier process had accepted and this one has started; Ctrl-C leaves the rest queued.
pub(super) async fn work_off(context: &Context<'_>, kernel: &Kernel) -> Result<(), Fail> {
    let Work { queued, active, .. } = *kernel.work().borrow();
    if queued + active == 0 {
        return Ok(());
    }
    let count = queued + active;
    context
        .output
        .note(format_args!("{DIM}working off {count} accepted earlier; Ctrl-C leaves them{DIM:#}"))?;
    tokio::select! {
        () = kernel.drain() => Ok(()),
        signal = interrupted() => Ok(signal?),
    }
}

/// Resolves when the process is told to stop: by Ctrl-C, or by whoever supervises it.
async fn interrupted() -> std::io::Result<()> {
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
    /// How many bytes of a message were shown as they came.
    streamed: HashMap<MessageId, usize>,
    mid_line: bool,
}

impl Screen<'_, '_> {
    /// Shows one item; true when the run, or one that it waits behind, has come to a stop of some kind.
    fn show(&mut self, item: &Item) -> Result<bool, Fail> {
        let output = self.context.output;
        match item {
            Item::Event(event) if event.run == Some(self.run) => {
                if output.json {
                    output.object(&**event)?;
                } else {
                    self.describe(&event.body)?;
                }
                Ok(waits(&event.body) || ends_run(&event.body))
            }
            Item::Event(event) => Ok(waits(&event.body)),
            Item::Delta(delta) if delta.run != Some(self.run) => Ok(false),
            Item::Delta(_) | Item::Truncated(_) if output.json => {
                if let Some(live) = item.live(self.session) {
                    output.object(&live)?;
                }
                Ok(false)
            }
            Item::Delta(delta) => self.delta(delta).map(|()| false),
            Item::Truncated(_) => Ok(false),
            // What was pruned may be this run's end: look at it.
            Item::Reset(_) => Ok(true),
            Item::Thought(thought) if output.json => {
                let payload = json!({"attemptId": thought.attempt, "text": &*thought.text});
                output.object(&json!({"type": "thought", "sessionId": self.session, "payload": payload}))?;
                Ok(false)
            }
            Item::Thought(thought) => {
                self.end_line()?;
                output.note(format_args!("{DIM}· ({}){DIM:#}", thought.text))?;
                Ok(false)
            }
        }
    }

    /// True when another run of the session waits for a person, and this one behind it.
    fn is_blocked(&self, active: Option<&Run>) -> Result<bool, Fail> {
        let Some(ahead) = active.filter(|active| active.id != self.run) else {
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

    fn delta(&mut self, delta: &Delta) -> Result<(), Fail> {
        *self.streamed.entry(delta.message).or_default() += delta.text.len();
        self.mid_line = !delta.text.ends_with('\n');
        Ok(self.context.output.part(&delta.text)?)
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

    /// Shows what of a whole message has not been seen streaming. What a failed attempt left is in the log only.
    fn message(&mut self, message: &Message) -> Result<(), Fail> {
        let seen = self.streamed.get(&message.id).copied().unwrap_or_default();
        if message.role == Role::Assistant && message.status == MessageStatus::Completed {
            let text = message.text();
            let rest = text.get(seen..).unwrap_or_default();
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

    async fn cancel(&mut self, kernel: &Kernel) -> Result<(), Fail> {
        self.end_line()?;
        let grace = output::span(self.context.config().cancel_grace_ms);
        let note = format_args!("{DIM}cancelling; what does not stop within {grace} is killed{DIM:#}");
        self.context.output.note(note)?;
        // A run that has ended meanwhile needs no cancellation.
        let _ = kernel.run_cancel(&self.context.caller(), self.run).await;
        Ok(())
    }

    /// What a stop means: the exit, or none if the run goes on.
    async fn after(&mut self, kernel: &Kernel, state: &RunState) -> Result<Option<Exit>, Fail> {
        let output = self.context.output;
        if let Some(wait) = state.wait().filter(|wait| wait.answer.is_none()) {
            self.end_line()?;
            return self.question(kernel, wait).await;
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

    /// Puts the run's question to the person, if there is one; else says how to answer it.
    async fn question(&mut self, kernel: &Kernel, wait: &Wait) -> Result<Option<Exit>, Fail> {
        let output = self.context.output;
        if output.is_interactive() {
            output.note(format_args!("{YELLOW}?{YELLOW:#} {}", wait.question))?;
            let answer = tokio::select! {
                answer = ask(self.context, wait) => answer?,
                signal = interrupted() => {
                    signal?;
                    output.part("\n")?;
                    self.cancel(kernel).await?;
                    return Ok(None);
                }
            };
            if let Some(answer) = answer {
                kernel.run_answer(&self.context.caller(), self.run, wait.id, answer).await?;
                return Ok(None);
            }
            output.part("\n")?;
        }
        if !output.json {
            output.note(format_args!("{YELLOW}waiting{YELLOW:#}: {}", wait.question))?;
            output.note(format_args!("answer with: {}", how_to_answer(self.run, wait)))?;
        }
        Ok(Some(Exit::Waiting))
    }
}

/// How a run has ended, for people.
pub(super) fn ended(run: RunId, state: &RunState) -> String {
    let why = state.error().map(|error| format!(": {} ({})", error.message, error.code)).unwrap_or_default();
    format!("{DIM}·{DIM:#} {}{why} {DIM}{run}{DIM:#}", output::status(state.status()))
}

fn how_to_answer(run: RunId, wait: &Wait) -> String {
    match wait.request {
        WaitRequest::Input => format!("mainspring run answer {run} TEXT"),
        WaitRequest::Approval => format!("mainspring run answer {run} --allow (or --deny)"),
    }
}

fn waits(body: &Body) -> bool {
    matches!(body, Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. })
}

/// How a run's end ends the process.
pub(super) fn exit_of(status: RunStatus) -> Exit {
    match status {
        RunStatus::Succeeded => Exit::Done,
        RunStatus::Cancelled => Exit::Cancelled,
        _ => Exit::RunFailed,
    }
}

/// Reads an answer from the terminal; none when there is nobody any more.
async fn ask(context: &Context<'_>, wait: &Wait) -> Result<Option<Answer>, Fail> {
    // What was typed before the question was seen is no answer to it.
    if std::io::stdin().is_terminal() {
        rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush)
            .map_err(std::io::Error::from)?;
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let hint = match wait.request {
            WaitRequest::Input => "answer",
            WaitRequest::Approval => "allow? [y/n]",
        };
        context.output.part(&format!("{hint}> "))?;
        let Some(line) = lines.next_line().await? else {
            return Ok(None);
        };
        match (wait.request, line.trim().to_lowercase().as_str()) {
            (_, "") => {}
            (WaitRequest::Input, _) => {
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
