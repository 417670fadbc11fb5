//! Running a scenario and printing its events.

use mainspring_core::{Answer, Body, MessageId, Place, Position, Role, Run};
use mainspring_kernel::feed::{Delta, Item};
use mainspring_kernel::kernel::{Caller, Kernel, NewSession, RunRequest};
use mainspring_kernel::store::SessionRef;

use super::scenario::{SCENARIOS, Scenario, describe_event};
use crate::error::CliError;
use crate::output::{self, BOLD, DIM, Output, format_duration};
use crate::safe_text::Style;

/// Amount of text after which the scenario `cancel` is cancelled.
const CANCEL_AFTER_BYTES: usize = 90;

/// Streamed output of a run.
#[derive(Default)]
struct Streamed {
    /// Text that is not printed yet.
    text: String,
    /// Number of bytes of text so far.
    bytes: usize,
    /// The message that the text belongs to.
    message: Option<MessageId>,
    /// The open thought, which arrives in pieces.
    thought: String,
}

/// Runs scenarios on a kernel and prints them.
pub(super) struct DemoRunner<'a> {
    pub(super) output: &'a Output,
    pub(super) caller: Caller,
}

impl DemoRunner<'_> {
    /// Prints a line, unless the output is JSON.
    pub(super) fn print_line(&self, text: &str) -> Result<(), CliError> {
        if !self.output.json {
            self.output.print_line(text)?;
        }
        Ok(())
    }

    pub(super) fn print_title(&self, title: &str) -> Result<(), CliError> {
        self.print_line("")?;
        self.print_line(&format!("{BOLD}{title}{BOLD:#}"))
    }

    pub(super) async fn run_scenario(&self, kernel: &Kernel, scenario: &Scenario) -> Result<Run, CliError> {
        let mut request = RunRequest::text(scenario.key, scenario.prompt);
        request.session.new =
            NewSession { title: Some(scenario.description.into()), ..NewSession::default() };
        let accepted = kernel.run_create(&self.caller, request).await?;
        self.print_scenario_line(scenario, &format!("{DIM}accepted{DIM:#}"))?;
        self.follow(kernel, scenario, &accepted.run, accepted.position).await
    }

    /// Runs the scenario, then generates another answer to the same prompt, as a branch.
    pub(super) async fn run_branch_scenario(
        &self,
        kernel: &Kernel,
        scenario: &Scenario,
    ) -> Result<Run, CliError> {
        let first = self.run_scenario(kernel, scenario).await?;
        let message_id = first_prompt(kernel, &self.caller, &first).await?;
        let mut request = RunRequest::text(scenario.key, "");
        request.prompt = vec![];
        request.place = Place::Regenerate { message_id };
        let accepted = kernel.run_create(&self.caller, request).await?;
        self.print_scenario_line(
            scenario,
            &format!("{DIM}accepted: another answer to the same prompt{DIM:#}"),
        )?;
        self.follow(kernel, scenario, &accepted.run, accepted.position).await
    }

    /// Prints a run as it happens until it ends, and answers its questions.
    pub(super) async fn follow(
        &self,
        kernel: &Kernel,
        scenario: &Scenario,
        run: &Run,
        from: Position,
    ) -> Result<Run, CliError> {
        let session = SessionRef::Id(run.session);
        let mut events = kernel.session_subscribe(&self.caller, &session, Some(from)).await?;
        let mut streamed = Streamed::default();
        while let Some(item) = events.next().await.transpose()? {
            if let Item::Thought(thought) = &item {
                streamed.thought.push_str(&thought.text);
                continue;
            }
            if !streamed.thought.is_empty() {
                let thought = std::mem::take(&mut streamed.thought);
                self.print_scenario_line(scenario, &format!("{DIM}thinks: {thought}{DIM:#}"))?;
            }
            match item {
                Item::Delta(delta) => self.follow_delta(kernel, scenario, run, &delta, &mut streamed).await?,
                Item::Event(event) if event.run == Some(run.id) => {
                    self.follow_event(kernel, scenario, run, &event.body, &mut streamed).await?;
                    if event.body.ends_run() {
                        break;
                    }
                }
                _ => {}
            }
        }
        Ok(kernel.run_get(&self.caller, run.id).await?)
    }

    /// Prints streamed text; cancels the run of the scenario `cancel` halfway.
    async fn follow_delta(
        &self,
        kernel: &Kernel,
        scenario: &Scenario,
        run: &Run,
        delta: &Delta,
        streamed: &mut Streamed,
    ) -> Result<(), CliError> {
        let before = streamed.bytes;
        streamed.message = Some(delta.message);
        streamed.bytes += delta.text.len();
        streamed.text.push_str(&delta.text);
        self.print_complete_lines(scenario, &mut streamed.text, false)?;
        if scenario.key == "cancel" && before <= CANCEL_AFTER_BYTES && streamed.bytes > CANCEL_AFTER_BYTES {
            kernel.run_cancel(&self.caller, run.id).await?;
        }
        Ok(())
    }

    async fn follow_event(
        &self,
        kernel: &Kernel,
        scenario: &Scenario,
        run: &Run,
        body: &Body,
        streamed: &mut Streamed,
    ) -> Result<(), CliError> {
        // Text that was streamed before the subscription began is taken from the completed message.
        if let Body::MessageCompleted { message, .. } = body
            && message.role == Role::Assistant
            && streamed.message != Some(message.id)
        {
            streamed.text.push_str(&message.text());
        }
        let all = !matches!(body, Body::UsageUpdated { .. });
        self.print_complete_lines(scenario, &mut streamed.text, all)?;
        self.print_event(scenario, body)?;
        if let Body::RunWaitingInput { wait_id } = body {
            let answer = Answer::Input { input: "tea".into() };
            kernel.run_answer(&self.caller, run.id, *wait_id, answer).await?;
        }
        Ok(())
    }

    /// Prints the complete lines of the streamed text, or all of it when `all` is set.
    fn print_complete_lines(
        &self,
        scenario: &Scenario,
        text: &mut String,
        all: bool,
    ) -> Result<(), CliError> {
        loop {
            let end = match text.find('\n') {
                Some(end) => end,
                None if text.len() > 60 => text.rfind(' ').unwrap_or(text.len()),
                None if all && !text.is_empty() => text.len(),
                None => return Ok(()),
            };
            let rest = text.split_off(end);
            self.print_scenario_line(scenario, text)?;
            *text = rest.trim_start_matches(['\n', ' ']).to_owned();
        }
    }

    fn print_event(&self, scenario: &Scenario, body: &Body) -> Result<(), CliError> {
        match describe_event(body) {
            Some(text) => self.print_scenario_line(scenario, &format!("{DIM}{text}{DIM:#}")),
            None => Ok(()),
        }
    }

    pub(super) fn print_scenario_line(&self, scenario: &Scenario, text: &str) -> Result<(), CliError> {
        let style = Style::colour(scenario.colour);
        self.print_line(&format!("  {style}{:>7}{style:#} {DIM}│{DIM:#} {text}", scenario.key))
    }

    pub(super) async fn print_summary(&self, kernel: &Kernel, runs: &[Run]) -> Result<(), CliError> {
        if self.output.json {
            return Ok(runs.iter().try_for_each(|run| self.output.print_json(run))?);
        }
        let mut rows = vec![];
        for (scenario, run) in SCENARIOS.iter().zip(runs) {
            let duration =
                run.completed_at.map(|end| format_duration(end.since(run.created_at))).unwrap_or_default();
            rows.push(vec![
                format!(" {}", scenario.key),
                output::format_status(run.state.status()),
                run.attempts.to_string(),
                kernel.run_steps(&self.caller, run.id).await?.len().to_string(),
                duration,
                scenario.description.into(),
            ]);
        }
        let headings = [" session", "status", "attempts", "model calls", "took", "description"];
        Ok(self.output.print_table(&headings, rows)?)
    }
}

/// Finds the user message that started `run`.
async fn first_prompt(kernel: &Kernel, caller: &Caller, run: &Run) -> Result<MessageId, CliError> {
    let path = kernel.session_path(caller, &SessionRef::Id(run.session), None, None).await?;
    let prompt = path.iter().find(|message| message.role == Role::User);
    prompt.map(|message| message.id).ok_or_else(|| CliError::bad_request("the session has no prompt"))
}
