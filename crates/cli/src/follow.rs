//! Following a run: its text goes to standard output as it streams, its activity to standard error.

use std::collections::HashMap;
use std::io::IsTerminal;

use mainspring_client::{Item, Snapshot};
use mainspring_core::{
    Answer, Block, Body, DigestAuthor, Failure, Message, MessageId, MessageStatus, Position, RetryReason,
    Role, Run, RunId, RunState, RunStatus, SessionId, Wait, WaitRequest,
};
use mainspring_kernel::kernel::{Kernel, Work};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::Notify;

use super::Context;
use super::approval::{answer_hint, parse_answer, request_lines};
use super::connection::Connection;
use super::error::{CliError, Exit};
use super::output::{self, DIM, RED, Spinner, YELLOW, json_value};
use super::signals::Signals;

/// Follows `run` from `from` until it ends, waits for an answer that cannot be given here, or is cancelled by Ctrl-C. A
/// second Ctrl-C leaves the run, whether or not the server answers.
pub(super) async fn follow_run(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    run: &Run,
    from: Position,
) -> Result<Exit, CliError> {
    let (mut signals, interrupted) = (Signals::register()?, Notify::new());
    let mut printer = RunPrinter {
        context,
        session: run.session,
        run: run.id,
        interrupted: &interrupted,
        streamed: HashMap::new(),
        mid_line: false,
        thinking: false,
        spinner: None,
        failure: None,
    };
    let second_signal = async {
        signals.next().await;
        interrupted.notify_one();
        signals.next().await;
    };
    tokio::select! {
        exit = printer.follow(connection, from) => exit,
        () = second_signal => {
            printer.end_output()?;
            Ok(Exit::Cancelled)
        }
    }
}

/// Waits until all accepted runs have ended, such as those of guests; Ctrl-C leaves the rest queued.
///
/// `close` stops accepting work; work accepted before that is completed too.
pub(super) async fn drain_accepted(
    context: &Context<'_>,
    kernel: &Kernel,
    close: impl Fn(),
) -> Result<(), CliError> {
    let Work { queued, active, .. } = *kernel.work().borrow();
    if queued + active > 0 {
        let count = queued + active;
        let note = format_args!(
            "{DIM}finishing runs accepted from other commands: {count}; Ctrl-C leaves them queued{DIM:#}"
        );
        context.output.print_note(note)?;
    }
    let drained = async {
        kernel.drain().await;
        close();
        kernel.drain().await;
    };
    tokio::select! {
        () = drained => Ok(()),
        signal = interrupt_signal() => Ok(signal?),
    }
}

/// Resolves on Ctrl-C, SIGTERM or SIGHUP. A caller that waits repeatedly must keep one future: a signal that arrives
/// between two futures is lost.
pub(super) async fn interrupt_signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt,
        _ = terminate.recv() => Ok(()),
        _ = hang_up.recv() => Ok(()),
    }
}

/// Prints the events of one run.
struct RunPrinter<'a, 'b> {
    context: &'a Context<'b>,
    session: SessionId,
    run: RunId,
    /// Notified on the first Ctrl-C.
    interrupted: &'a Notify,
    /// Text of each message that was already shown while it streamed.
    streamed: HashMap<MessageId, String>,
    /// True when the last printed text did not end its line.
    mid_line: bool,
    /// True within a thought, which arrives in pieces.
    thinking: bool,
    spinner: Option<Spinner>,
    /// The failure of the last attempt, which is printed unless the end of the run reports it.
    failure: Option<Failure>,
}

impl RunPrinter<'_, '_> {
    async fn follow(&mut self, connection: &mut Connection<'_>, from: Position) -> Result<Exit, CliError> {
        let (run, name) = (self.run, self.session.to_string());
        let snapshot = async |connection: &mut Connection<'_>| {
            connection.request(async |client| client.session_snapshot(&name).await).await
        };
        if self.print_if_blocked(&snapshot(connection).await?)? {
            return Ok(Exit::Waiting);
        }
        let mut events = connection.events(&name, from);
        loop {
            self.show_spinner("working");
            let item = tokio::select! {
                item = events.next() => item,
                () = self.interrupted.notified() => {
                    self.cancel(connection).await?;
                    continue;
                }
            };
            let item = match item {
                None => return Ok(Exit::Unavailable),
                Some(Err(error)) if error.is_gone() && connection.is_guest() => {
                    connection.reconnect().await?;
                    events = connection.events(&name, events.position().unwrap_or(from));
                    continue;
                }
                Some(item) => item?,
            };
            if !self.print_item(&item)? {
                continue;
            }
            if self.print_if_blocked(&snapshot(connection).await?)? {
                return Ok(Exit::Waiting);
            }
            let state = connection.request(async |client| client.run_get(run).await).await?.state;
            if let Some(exit) = self.exit_for(connection, &state).await? {
                return Ok(exit);
            }
        }
    }

    /// Shows one item; true when the run may have ended, or when a run of the session waits for an answer.
    fn print_item(&mut self, item: &Item) -> Result<bool, CliError> {
        let output = self.context.output;
        self.spinner = None;
        if !matches!(item, Item::Thought(_)) {
            self.end_thought()?;
        }
        match item {
            Item::Event(event) if event.run == Some(self.run) => {
                if output.json {
                    output.print_json(&**event)?;
                } else {
                    self.print_event(&event.body)?;
                }
                Ok(starts_wait(&event.body) || event.body.ends_run())
            }
            Item::Event(event) => Ok(starts_wait(&event.body)),
            Item::Live(live) if live.run.is_some_and(|run| run != self.run) => Ok(false),
            Item::Live(live) if output.json => Ok(output.print_json(live).map(|()| false)?),
            Item::Live(live) => self.print_delta(&live.body).map(|()| false),
            Item::Thought(thought) if output.json => {
                output.print_json(
                    &json!({"type": "thought", "sessionId": self.session, "payload": json_value(thought)}),
                )?;
                Ok(false)
            }
            Item::Thought(thought) => {
                if !std::mem::replace(&mut self.thinking, true) {
                    self.end_terminal_line()?;
                    output.print_note_part(format_args!("{DIM}· {DIM:#}"))?;
                }
                output.print_note_part(format_args!("{DIM}{}{DIM:#}", thought.text.replace('\n', "\n  ")))?;
                Ok(false)
            }
            // The skipped events are not replayed, so check the run's current state.
            Item::Reset(_) => Ok(true),
            Item::Unknown { .. } => Ok(false),
        }
    }

    /// If this run is queued behind a run that waits for a person, prints the question of that run and returns true.
    fn print_if_blocked(&self, now: &Snapshot) -> Result<bool, CliError> {
        let Some(ahead) = now.active_run.as_ref().filter(|active| active.id != self.run) else {
            return Ok(false);
        };
        let Some(wait) = ahead.state.wait().filter(|wait| wait.answer.is_none()) else {
            return Ok(false);
        };
        let output = self.context.output;
        if output.json {
            let behind = json!({"runId": ahead.id, "waitId": wait.id, "question": wait.question});
            output.print_json(&json!({"type": "blocked", "runId": self.run, "behind": behind}))?;
        } else {
            output.print_note(format_args!(
                "{YELLOW}queued{YELLOW:#} behind a waiting run: {}",
                wait.question
            ))?;
            output.print_note(format_args!("answer it with: {}", answer_command(ahead.id, wait)))?;
        }
        Ok(true)
    }

    /// Shows a spinner until something is written, unless a partial line already shows activity.
    fn show_spinner(&mut self, what: &str) {
        if !self.mid_line && !self.thinking && self.spinner.is_none() {
            self.spinner = self.context.output.start_spinner(what);
        }
    }

    fn print_delta(&mut self, body: &Body) -> Result<(), CliError> {
        let output = self.context.output;
        match body {
            Body::MessageDelta { message_id, text, .. } => {
                self.streamed.entry(*message_id).or_default().push_str(text);
                self.mid_line = !text.ends_with('\n');
                output.print(text)?;
            }
            Body::StoreFailed { message, .. } => {
                output.print_note(format_args!("{RED}· nothing can be stored{RED:#}: {message}"))?;
            }
            Body::StoreRecovered {} => {
                output.print_note(format_args!("{DIM}· the store can be written again{DIM:#}"))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn print_event(&mut self, body: &Body) -> Result<(), CliError> {
        let output = self.context.output;
        if matches!(body, Body::RunQueued { .. } | Body::AttemptCreated { .. }) {
            self.print_failure()?;
        }
        match body {
            Body::MessageCompleted { message, .. } => self.print_message(message)?,
            Body::ToolStarted { name, .. } => output.print_note(format_args!("{DIM}· tool {name}{DIM:#}"))?,
            Body::ToolFailed { name, error, .. } => {
                output.print_note(format_args!("{RED}· tool {name} failed{RED:#}: {}", error.message))?;
            }
            Body::ProgressUpdated { text } => output.print_note(format_args!("{DIM}· {text}{DIM:#}"))?,
            Body::ContextCompacted { messages, by, .. } => {
                let how = match by {
                    DigestAuthor::Summarizer => "summarised",
                    DigestAuthor::Fallback => "left out",
                };
                output.print_note(format_args!(
                    "{DIM}· {messages} older messages are {how} for the model{DIM:#}"
                ))?;
            }
            Body::AttemptCreated {
                attempt_no, adapter, retry_reason: Some(RetryReason::Failover), ..
            } => {
                output
                    .print_note(format_args!("{DIM}· attempt {attempt_no}: {adapter} takes over{DIM:#}"))?;
            }
            Body::AttemptCreated { attempt_no, .. } if *attempt_no > 1 => {
                output.print_note(format_args!("{DIM}· attempt {attempt_no}{DIM:#}"))?;
            }
            Body::RunQueued { retry_at_ms: Some(_), .. } => {
                output.print_note(format_args!("{DIM}· will be retried{DIM:#}"))?;
            }
            Body::AttemptFailed { error, .. } => self.failure = Some(error.clone()),
            Body::EventDamaged { message, .. } => {
                output.print_note(format_args!("{RED}· damaged{RED:#}: {message}"))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Shows the part of a completed message that was not shown while it streamed. The rest of a failed or cancelled
    /// message is not shown.
    fn print_message(&mut self, message: &Message) -> Result<(), CliError> {
        let printed = self.streamed.remove(&message.id).unwrap_or_default();
        if message.role == Role::Assistant && message.status == MessageStatus::Completed {
            let text = message.text();
            let rest = unprinted(&text, &printed);
            self.context.output.print(rest)?;
            self.mid_line = if rest.is_empty() { self.mid_line } else { !rest.ends_with('\n') };
        }
        self.end_line()?;
        for block in &message.content {
            if let Block::ToolResult { name, is_error: false, .. } = block {
                let shown = super::tree::format_blocks(std::slice::from_ref(block)).join(" ");
                let shown = output::excerpt(&shown, 100);
                self.context.output.print_note(format_args!("{DIM}· tool {name} {shown}{DIM:#}"))?;
            }
        }
        Ok(())
    }

    /// Prints the failure of an attempt that another attempt follows.
    fn print_failure(&mut self) -> Result<(), CliError> {
        let Some(error) = self.failure.take() else { return Ok(()) };
        self.end_line()?;
        let note = format_args!("{RED}· attempt failed{RED:#}: {} ({})", error.message, error.code);
        Ok(self.context.output.print_note(note)?)
    }

    fn end_line(&mut self) -> Result<(), CliError> {
        if std::mem::take(&mut self.mid_line) {
            self.context.output.print("\n")?;
        }
        Ok(())
    }

    /// Ends the current line before a note. A result that does not go to the terminal is left as it is.
    fn end_terminal_line(&mut self) -> Result<(), CliError> {
        if std::io::stdout().is_terminal() { self.end_line() } else { Ok(()) }
    }

    fn end_thought(&mut self) -> Result<(), CliError> {
        if std::mem::take(&mut self.thinking) {
            self.context.output.print_note_part("\n")?;
        }
        Ok(())
    }

    /// Ends the current line, before the command ends or prints something else.
    fn end_output(&mut self) -> Result<(), CliError> {
        self.spinner = None;
        self.end_thought()?;
        self.end_line()
    }

    async fn cancel(&mut self, connection: &mut Connection<'_>) -> Result<(), CliError> {
        self.end_output()?;
        let (output, run) = (self.context.output, self.run);
        let grace = output::format_duration(self.context.config().cancel_grace_ms);
        output.print_note(format_args!(
            "{DIM}cancelling; the agent is killed if it does not stop within {grace}; a second Ctrl-C leaves{DIM:#}"
        ))?;
        match connection.request(async |client| client.run_cancel(run).await).await {
            // The run may have ended in the meantime.
            Err(error) if error.exit != Exit::Refused => Ok(output
                .print_note(format_args!("{RED}not cancelled{RED:#}: {} ({})", error.message, error.code))?),
            _ => Ok(()),
        }
    }

    /// Returns the exit code for the run's state, or none if the run continues.
    async fn exit_for(
        &mut self,
        connection: &mut Connection<'_>,
        state: &RunState,
    ) -> Result<Option<Exit>, CliError> {
        let output = self.context.output;
        if let Some(wait) = state.wait().filter(|wait| wait.answer.is_none()) {
            self.end_line()?;
            return self.ask_or_print(connection, wait).await;
        }
        let status = state.status();
        if !status.is_ended() {
            return Ok(None);
        }
        if !output.json {
            self.end_line()?;
            if self.failure.as_ref() != state.error() {
                self.print_failure()?;
            }
            output.print_note(format_end(self.run, state))?;
        }
        Ok(Some(exit_code(status)))
    }

    /// Asks the person at the terminal; without a terminal, prints how to answer.
    async fn ask_or_print(
        &mut self,
        connection: &mut Connection<'_>,
        wait: &Wait,
    ) -> Result<Option<Exit>, CliError> {
        let output = self.context.output;
        // Client tools are executed by a program, not by the person who watches.
        if output.is_interactive() && wait.request != WaitRequest::Tools {
            output.print_note(format_args!("{YELLOW}?{YELLOW:#} {}", wait.question))?;
            request_lines(wait).into_iter().try_for_each(|line| output.print_note(line))?;
            let answer = tokio::select! {
                answer = read_answer(self.context, wait) => answer?,
                () = self.interrupted.notified() => {
                    output.print_note_part("\n")?;
                    self.cancel(connection).await?;
                    return Ok(None);
                }
            };
            if let Some(answer) = answer {
                let run = self.run;
                connection.request(async |client| client.run_answer(run, wait.id, &answer).await).await?;
                return Ok(None);
            }
            output.print_note_part("\n")?;
        }
        print_wait(self.context, self.run, wait)?;
        Ok(Some(Exit::Waiting))
    }
}

/// Returns the part of `text` after `printed`. For a reader who joined late, `printed` is not the beginning of `text`.
pub(super) fn unprinted<'a>(text: &'a str, printed: &str) -> &'a str {
    let after = || text.rfind(printed).and_then(|at| text.get(at + printed.len()..));
    text.strip_prefix(printed).or_else(after).unwrap_or(text)
}

/// Prints the run's question and how to answer it.
pub(super) fn print_wait(context: &Context<'_>, run: RunId, wait: &Wait) -> Result<(), CliError> {
    let output = context.output;
    if output.json {
        return Ok(());
    }
    output.print_note(format_args!("{YELLOW}waiting{YELLOW:#}: {}", wait.question))?;
    request_lines(wait).into_iter().try_for_each(|line| output.print_note(line))?;
    for call in wait.calls.iter().filter(|call| !call.answered) {
        let (name, input) = (&call.name, output::excerpt(&call.input.to_string(), 200));
        output.print_note(format_args!("{DIM}· {} calls {name} {input}{DIM:#}", call.tool_use_id))?;
    }
    Ok(output.print_note(format_args!("answer with: {}", answer_command(run, wait)))?)
}

/// Describes how a run has ended.
pub(super) fn format_end(run: RunId, state: &RunState) -> String {
    let why = state.error().map(|error| format!(": {} ({})", error.message, error.code)).unwrap_or_default();
    format!("{DIM}·{DIM:#} {}{why} {DIM}{run}{DIM:#}", output::format_status(state.status()))
}

fn answer_command(run: RunId, wait: &Wait) -> String {
    match wait.request {
        WaitRequest::Input => format!("mainspring run answer {run} TEXT"),
        WaitRequest::Approval => format!("mainspring approval allow {run} (or deny)"),
        WaitRequest::Tools => {
            let missing = wait.calls.iter().filter(|call| !call.answered);
            let results = missing.map(|call| format!(" --tool-result '{}=TEXT'", call.tool_use_id));
            format!("mainspring run answer {run}{}", results.collect::<String>())
        }
    }
}

fn starts_wait(body: &Body) -> bool {
    matches!(body, Body::RunWaitingInput { .. } | Body::RunWaitingApproval { .. })
}

/// Maps a run's status to the exit code.
pub(super) fn exit_code(status: RunStatus) -> Exit {
    match status {
        RunStatus::Succeeded => Exit::Done,
        RunStatus::Cancelled => Exit::Cancelled,
        _ => Exit::RunFailed,
    }
}

/// Reads an answer from the terminal; none at end of input.
async fn read_answer(context: &Context<'_>, wait: &Wait) -> Result<Option<Answer>, CliError> {
    let hint = match wait.request {
        WaitRequest::Input => "answer",
        WaitRequest::Approval => answer_hint(wait),
        WaitRequest::Tools => return Ok(None),
    };
    // Input typed before the question was shown is not an answer to it.
    if std::io::stdin().is_terminal() {
        rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush)
            .map_err(std::io::Error::from)?;
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        context.output.print_note_part(format_args!("{hint}> "))?;
        let Some(line) = lines.next_line().await? else {
            return Ok(None);
        };
        match (wait.request, line.trim().to_lowercase().as_str()) {
            (_, "") => {}
            (WaitRequest::Input | WaitRequest::Tools, _) => {
                let input = Value::String(line.trim().to_owned());
                return Ok(Some(Answer::Input { input }));
            }
            (WaitRequest::Approval, _) => match parse_answer(&line) {
                Some(answer) => return Ok(Some(answer)),
                None => context.output.print_note(format_args!("please answer: {hint}"))?,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_text_is_not_printed_again() {
        assert_eq!(unprinted("one two", ""), "one two", "nothing printed");
        assert_eq!(unprinted("one two", "one "), "two", "the beginning printed");
        assert_eq!(unprinted("one two", "two"), "", "joined in the middle");
        assert_eq!(unprinted("one two", "ne t"), "wo");
    }
}
