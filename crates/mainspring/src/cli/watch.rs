//! Watching a run: its text on standard output as it comes, what it does on standard error.

use std::collections::HashSet;

use mainspring_core::{
    Answer, Approval, Block, Body, MessageId, Position, RunId, RunState, RunStatus, SessionId,
};
use mainspring_kernel::feed::{Delta, Item};
use mainspring_kernel::kernel::Kernel;
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
    let (snapshot, mut events) =
        kernel.session_subscribe(&caller, &SessionRef::Id(session), Some(from)).await?;
    let mut screen = Screen { context, run, streamed: HashSet::new(), mid_line: false };
    if screen.is_blocked(snapshot.active.as_ref())? {
        return Ok(Exit::Waiting);
    }
    let mut interrupted = false;
    loop {
        let item = tokio::select! {
            item = events.next() => item,
            signal = tokio::signal::ctrl_c(), if !interrupted => {
                signal?;
                interrupted = true;
                screen.end_line()?;
                context.output.note(format_args!("{DIM}cancelling…{DIM:#}"))?;
                // A run that has ended meanwhile needs no cancellation.
                let _ = kernel.run_cancel(&caller, run).await;
                continue;
            }
        };
        let Some(item) = item.transpose()? else {
            return Ok(Exit::NotNow);
        };
        if !screen.show(&item)? {
            continue;
        }
        let (now, _) = kernel.session_subscribe(&caller, &SessionRef::Id(session), None).await?;
        if screen.is_blocked(now.active.as_ref())? {
            return Ok(Exit::Waiting);
        }
        let state = kernel.run_get(&caller, run).await?.state;
        match screen.after(kernel, &state).await? {
            Some(exit) => return Ok(exit),
            None => continue,
        }
    }
}

struct Screen<'a, 'b> {
    context: &'a Context<'b>,
    run: RunId,
    streamed: HashSet<MessageId>,
    mid_line: bool,
}

impl Screen<'_, '_> {
    /// Shows one item; true when the run has come to a stop of some kind.
    fn show(&mut self, item: &Item) -> Result<bool, Fail> {
        let event = match item {
            Item::Event(event) if event.run == Some(self.run) => event,
            Item::Event(event) => return Ok(waits(&event.body)),
            Item::Delta(delta) => {
                self.delta(delta)?;
                return Ok(false);
            }
            Item::Truncated(position) if self.context.output.json => {
                let body = Body::MessageTruncated { pos: position.pos };
                self.context.output.object(&live(&body, *position))?;
                return Ok(false);
            }
            _ => return Ok(false),
        };
        let stops = waits(&event.body) || mainspring_kernel::kernel::ends_run(&event.body);
        if self.context.output.json {
            self.context.output.object(&**event)?;
        } else {
            self.describe(&event.body)?;
        }
        Ok(stops)
    }

    /// True when another run of the session waits for a person, and this one behind it.
    fn is_blocked(&self, active: Option<&mainspring_core::Run>) -> Result<bool, Fail> {
        let Some(ahead) = active.filter(|active| active.id != self.run) else {
            return Ok(false);
        };
        let Some(wait) = ahead.state.wait().filter(|wait| wait.answer.is_none()) else {
            return Ok(false);
        };
        if !self.context.output.json {
            let output = self.context.output;
            output
                .note(format_args!("{YELLOW}queued{YELLOW:#} behind a run that waits: {}", wait.question))?;
            output.note(format_args!(
                "answer it with: mainspring run answer {} TEXT (or --allow, --deny)",
                ahead.id
            ))?;
        }
        Ok(true)
    }

    fn delta(&mut self, delta: &Delta) -> Result<(), Fail> {
        self.streamed.insert(delta.message);
        if self.context.output.json {
            let body = Body::MessageDelta {
                message_id: delta.message,
                block: delta.block,
                text: delta.text.clone(),
            };
            self.context.output.object(&live(&body, delta.position))?;
            return Ok(());
        }
        self.mid_line = !delta.text.ends_with('\n');
        Ok(self.context.output.part(&delta.text)?)
    }

    fn describe(&mut self, body: &Body) -> Result<(), Fail> {
        let output = self.context.output;
        match body {
            // What was not seen streaming, such as the end of a run taken up late, is shown whole.
            Body::MessageCompleted { message, .. } => {
                let assistant = message.role == mainspring_core::Role::Assistant;
                if assistant && !self.streamed.contains(&message.id) {
                    for block in &message.content {
                        if let Block::Text { text } = block {
                            output.part(text)?;
                            self.mid_line = !text.ends_with('\n');
                        }
                    }
                }
                self.end_line()?;
            }
            Body::ToolStarted { name, .. } => output.note(format_args!("{DIM}· tool {name}{DIM:#}"))?,
            Body::ToolCompleted { name, .. } => {
                output.note(format_args!("{DIM}· tool {name} done{DIM:#}"))?;
            }
            Body::ToolFailed { name, error, .. } => {
                output.note(format_args!("{RED}· tool {name} failed{RED:#}: {}", error.message))?;
            }
            Body::ProgressUpdated { text } => output.note(format_args!("{DIM}· {text}{DIM:#}"))?,
            Body::AttemptCreated { attempt_no, .. } if *attempt_no > 1 => {
                output.note(format_args!("{DIM}· attempt {attempt_no}{DIM:#}"))?;
            }
            Body::AttemptFailed { error, .. } => {
                self.end_line()?;
                output
                    .note(format_args!("{RED}· attempt failed{RED:#}: {} ({})", error.message, error.code))?;
            }
            Body::RunQueued { policy: Some(_), .. } if !self.mid_line => {}
            _ => {}
        }
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), Fail> {
        if std::mem::take(&mut self.mid_line) {
            self.context.output.part("\n")?;
        }
        Ok(())
    }

    /// What a stop means: the exit, or none if the run goes on.
    async fn after(&mut self, kernel: &Kernel, state: &RunState) -> Result<Option<Exit>, Fail> {
        let output = self.context.output;
        if let Some(wait) = state.wait().filter(|wait| wait.answer.is_none()) {
            self.end_line()?;
            if !output.is_interactive() {
                if !output.json {
                    output.note(format_args!("{YELLOW}waiting{YELLOW:#}: {}", wait.question))?;
                    output.note(format_args!(
                        "answer with: mainspring run answer {} TEXT (or --allow, --deny)",
                        self.run
                    ))?;
                }
                return Ok(Some(Exit::Waiting));
            }
            let Some(answer) = ask(self.context, wait).await? else {
                return Ok(Some(Exit::Waiting));
            };
            kernel.run_answer(&self.context.caller(), self.run, wait.id, answer).await?;
            return Ok(None);
        }
        let status = state.status();
        if !status.is_ended() {
            return Ok(None);
        }
        if !output.json {
            self.end_line()?;
            let why = state
                .error()
                .map(|error| format!(": {} ({})", error.message, error.code))
                .unwrap_or_default();
            output.note(format_args!(
                "{DIM}·{DIM:#} {}{why} {DIM}{}{DIM:#}",
                output::status(status),
                self.run
            ))?;
        }
        Ok(Some(exit_of(status)))
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

/// Puts the run's question to the person at the terminal; none when there is nobody any more.
async fn ask(context: &Context<'_>, wait: &mainspring_core::Wait) -> Result<Option<Answer>, Fail> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let hint = match wait.request {
            mainspring_core::WaitRequest::Input => "answer",
            mainspring_core::WaitRequest::Approval => "allow? [y/n]",
        };
        context.output.part(&format!("{hint}> "))?;
        let Some(line) = lines.next_line().await? else {
            return Ok(None);
        };
        match (wait.request, line.trim()) {
            (mainspring_core::WaitRequest::Input, text) => {
                return Ok(Some(Answer::Input { input: Value::String(text.to_owned()) }));
            }
            (_, "y" | "yes") => {
                return Ok(Some(Answer::Approval { decision: Approval::Allowed }));
            }
            (_, "n" | "no") => {
                return Ok(Some(Answer::Approval { decision: Approval::Denied }));
            }
            _ => {}
        }
    }
}

/// What is shown live and never stored, as JSON: without an event id, since it is no event.
fn live(body: &Body, position: Position) -> Value {
    let mut json = serde_json::to_value(body).unwrap_or_else(|_| json!({}));
    json["position"] = json!(position);
    json
}
