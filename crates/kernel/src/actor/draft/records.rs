//! Records: an adapter's reports about its attempt, applied to a draft.

use std::sync::Arc;

use mainspring_core::run::Command;
use mainspring_core::run::close::{NewMessage, completes_turn};
use mainspring_core::run::round::ResultPlace;
use mainspring_core::{
    Block, Body, CallResult, Digest, Failure, MessageStatus, NodeId, Role, Route, StateScope, Step,
    StepInput, Time, TitleSource, ToolEnd, ToolOutcome, Usage, goal, session,
};

use serde_json::{Map, Value};

use super::AttemptDraft;
use crate::adapter::{Compacted, Record, StepTaken};
use crate::error::Error;
use crate::kernel::hashed_input;
use crate::store::{OpenToolCall, Row, StepInputRow};

impl AttemptDraft {
    /// Applies a record of the attempt; `node` is this process.
    pub(crate) fn record(&mut self, node: NodeId, record: Record) -> Result<(), Error> {
        let by = self.subject.attempt.id;
        match record {
            Record::Opened { native, fidelity, reconstructed } => {
                self.binding_open(native, fidelity, reconstructed, node)?;
                self.command(Command::Open { by })?;
            }
            Record::Resumed => {
                self.binding_resume(node)?;
                self.command(Command::Open { by })?;
            }
            Record::LeftRunning { processes } => self.emit(Body::AttemptLeftRunning { processes }),
            Record::Confined(sandbox) => self.emit(Body::AttemptConfined { sandbox }),
            Record::Runtime(facts) => self.runtime_facts(*facts),
            Record::Granted(grant) => self.row(Row::Grant(grant)),
            Record::Decided { question, request: approval, decision, grant: grant_id, by, told } => {
                let (wait_id, decided_by) = (self.ids.wait(), Some(Box::new(by)));
                let (expires_at_ms, on_expiry, reason, result) = (None, None, None, None);
                let asked = Body::ApprovalRequested { wait_id, question, approval, expires_at_ms, on_expiry };
                self.emit(asked);
                self.emit(Body::ApprovalResolved {
                    wait_id,
                    decision,
                    grant_id,
                    decided_by,
                    told,
                    reason,
                    result,
                });
            }
            Record::Agent { name } => self.hot.answer.set_agent(name),
            Record::Message { blocks, usage } => self.answer(blocks, usage)?,
            Record::Step(step) => self.step(*step),
            Record::Compacted(compacted) => self.compact(*compacted)?,
            Record::Output { output, error } => self.emit(Body::OutputCompleted { output, error }),
            Record::GoalAchieved { goal, tool_use_id, value } => {
                self.goal_command(goal::Command::Achieve { goal, tool_use_id, value })?;
            }
            Record::GoalRejected { goal, tool_use_id, reason } => {
                self.goal_command(goal::Command::Reject { goal, tool_use_id, reason })?;
            }
            Record::GoalsReminded { max } => self.goal_command(goal::Command::Remind { max })?,
            Record::Tasks { tasks } => self.tasks_plan(tasks),
            Record::Continued { blocks } => {
                self.turn_completed();
                self.write_user(blocks)?;
            }
            Record::ToolResults { blocks } => self.write_results(blocks)?,
            Record::ToolStarted { tool_use_id, name, input, decided_by } => {
                self.start_call(tool_use_id.clone(), name.clone());
                self.emit(Body::ToolStarted { tool_use_id, name, input, decided_by });
            }
            Record::ToolUnasked { tool_use_id, name } => self.emit(Body::ToolUnasked { tool_use_id, name }),
            Record::ToolUpdated { tool_use_id, text } => self.emit(Body::ToolUpdated { tool_use_id, text }),
            Record::ToolCompleted { tool_use_id, content } => {
                self.tool_completed(tool_use_id, CallResult { content, ..CallResult::default() })?;
            }
            Record::ToolFailed { tool_use_id, outcome, error, content } => {
                let result = CallResult { content, is_error: true, ..CallResult::default() };
                self.tool_failed(tool_use_id, outcome, error, result)?;
            }
            Record::ToolDecided { tool_use_id, name, rejection, content } => {
                let result = CallResult { content, is_error: rejection.is_some(), ..CallResult::default() };
                let failure = rejection.map(|error| (ToolOutcome::Rejected, error));
                self.tool_ended(tool_use_id, name, None, failure, result)?;
            }
            Record::ToolProvided { tool_use_id, name, asked_at, result } => {
                let failure = result.failure();
                self.tool_ended(tool_use_id, name, asked_at, failure, result)?;
            }
            Record::Progress { text } => self.emit(Body::ProgressUpdated { text }),
            Record::Title { title } => self.title(&title)?,
            Record::Usage(usage) => self.add_usage(usage),
            Record::OwnerState(change) => self.emit_state_change(StateScope::Owner, &change),
            Record::Routed(route) => self.routed(route),
            Record::RunState { .. } => {}
        }
        Ok(())
    }

    /// Writes a message of the agent, with the usage that belongs to it.
    fn answer(&mut self, blocks: Vec<Block>, usage: Option<Usage>) -> Result<(), Error> {
        let usage = usage.map(Usage::clamped);
        self.hot.answer.add_usage(usage.unwrap_or_default());
        self.write_assistant(blocks)?;
        if let Some(usage) = usage {
            self.emit(Body::UsageUpdated { usage });
        }
        Ok(())
    }

    /// Sets the title that the agent gives, unless it is blank.
    fn title(&mut self, title: &str) -> Result<(), Error> {
        if let Some(title) = session::title_of(title) {
            self.session_command(session::Command::Title { title, source: TitleSource::Agent })?;
        }
        Ok(())
    }

    /// Records a decision of a network's router, with the run's last message.
    fn routed(&mut self, mut route: Box<Route>) {
        route.message = self.subject.run.final_message;
        self.emit(Body::RunRouted { route });
    }

    /// Counts usage of the run.
    pub(crate) fn add_usage(&mut self, usage: Usage) {
        let usage = usage.clamped();
        self.hot.answer.add_usage(usage);
        self.emit(Body::UsageUpdated { usage });
    }

    /// Writes a message of the agent: the streamed text, then `blocks`.
    fn write_assistant(&mut self, blocks: Vec<Block>) -> Result<(), Error> {
        let (earlier, NewMessage { id, mut content }) = self.take_streamed();
        for NewMessage { id, content } in earlier {
            let message = self.message(id, Role::Assistant, content, MessageStatus::Completed, None);
            self.write(message, false)?;
        }
        // Only the message that completes the turn reports the usage.
        let usage = if completes_turn(&blocks) { self.hot.answer.take_usage() } else { None };
        content.extend(blocks);
        let message = self.message(id, Role::Assistant, content, MessageStatus::Completed, usage);
        self.write(message, false)?;
        Ok(())
    }

    /// Records a model call. Its output is the run's last message, if this draft wrote that message.
    fn step(&mut self, taken: StepTaken) {
        self.hot.answer.set_agent(taken.agent.clone());
        let input_hash = taken.input.as_deref().and_then(|input| self.step_input(input));
        let run = &self.subject.run;
        let made = self
            .rows
            .iter()
            .any(|row| matches!(row, Row::Message(made, _) if Some(made.id) == run.final_message));
        let step = Step {
            id: self.ids.step(),
            run: run.id,
            attempt: self.subject.attempt.id,
            no: taken.no,
            agent: taken.agent,
            provider: taken.provider,
            model: taken.model,
            profile: taken.profile,
            prompt: taken.prompt,
            output: run.final_message.filter(|_| made && taken.error.is_none()),
            tool_calls: taken.tool_calls,
            stop_reason: taken.stop_reason,
            error: taken.error,
            usage: taken.usage.map(Usage::clamped),
            raw_usage: taken.raw_usage,
            started_at: taken.started_at,
            first_piece_at: taken.first_piece_at,
            completed_at: self.at,
            input_hash,
            raw: taken.raw,
            private: taken.private,
        };
        if step.usage.is_none() {
            self.add_usage(Usage::UNKNOWN);
        }
        self.hot.steps.add_private(step.private.is_some());
        let completed = Body::StepCompleted {
            step_id: step.id,
            step_no: step.no,
            provider: step.provider.clone(),
            model: step.model.clone(),
            stop_reason: step.stop_reason,
            message_id: step.output,
            error: step.error.clone(),
            budget: taken.budget,
        };
        self.rows.push(Row::Step(Box::new(step)));
        self.emit(completed);
    }

    /// Stores the input of a model call, unless the actor remembers that it is stored. Returns its hash.
    fn step_input(&mut self, input: &StepInput) -> Option<String> {
        let (hash, json) = hashed_input(input)?;
        if self.hot.steps.add_input(&hash) {
            self.rows.push(Row::StepInput(Arc::new(StepInputRow { hash: hash.clone(), json })));
        }
        Some(hash)
    }

    /// Records a digest that replaces older messages of the run's path from now on.
    fn compact(&mut self, compacted: Compacted) -> Result<(), Error> {
        let Compacted { digest, from, messages, by, tokens_before, tokens_after } = compacted;
        if !self.subject.run.pen.is_some_and(|pen| digest.lies_above(pen)) {
            return Err(Error::Invalid("what a digest stands for must lie on the path".into()));
        }
        let digest = Digest { made_at: self.at, ..digest };
        let compacted = Body::ContextCompacted {
            from_message_id: from,
            to_message_id: digest.message,
            messages,
            total: digest.messages(),
            by,
            tokens_before,
            tokens_after,
            summary: digest.summary.clone(),
        };
        self.rows.push(Row::Digest(Box::new(digest)));
        self.emit(compacted);
        Ok(())
    }

    fn start_call(&mut self, tool_use_id: String, name: String) {
        let (run, started_at) = (self.subject.run.id, Some(self.at));
        self.put_call(OpenToolCall { run, tool_use_id, name, started_at, ended: None });
    }

    fn put_call(&mut self, call: OpenToolCall) {
        self.rows.push(Row::ToolCall(Box::new(call.clone())));
        self.hot.calls.add(call);
    }

    /// Records the start and the end of a tool call that the adapter did not execute.
    fn tool_ended(
        &mut self,
        tool_use_id: String,
        name: String,
        started_at: Option<Time>,
        failure: Option<(ToolOutcome, Failure)>,
        result: CallResult,
    ) -> Result<(), Error> {
        let run = self.subject.run.id;
        self.put_call(OpenToolCall { run, tool_use_id: tool_use_id.clone(), name, started_at, ended: None });
        match failure {
            Some((outcome, error)) => self.tool_failed(tool_use_id, outcome, error, result),
            None => self.tool_completed(tool_use_id, result),
        }
    }

    fn tool_completed(&mut self, tool_use_id: String, result: CallResult) -> Result<(), Error> {
        let (name, end) = self.end_call(&tool_use_id, result)?;
        self.emit(Body::ToolCompleted { tool_use_id, name, end });
        Ok(())
    }

    fn tool_failed(
        &mut self,
        tool_use_id: String,
        outcome: ToolOutcome,
        error: Failure,
        result: CallResult,
    ) -> Result<(), Error> {
        let (name, end) = self.end_call(&tool_use_id, result.or_error_text(&error))?;
        self.emit(Body::ToolFailed { tool_use_id, name, outcome, error, end });
        Ok(())
    }

    /// Ends a tool call. The result is stored with the call until a message holds it. If no message holds the call,
    /// only the event has the result.
    fn end_call(&mut self, tool_use_id: &str, result: CallResult) -> Result<(String, ToolEnd), Error> {
        let Some(open) = self.hot.calls.unfinished(tool_use_id) else {
            return Err(not_started(tool_use_id));
        };
        let duration_ms = open.duration_ms(self.at);
        let result = result.or_runtime(duration_ms);
        let content = result.content.clone();
        if self.hot.path.result_place(tool_use_id) == ResultPlace::Event {
            let call = self.hot.calls.remove_unfinished(tool_use_id);
            let call = call.ok_or_else(|| not_started(tool_use_id))?;
            self.remove_call_row(call.run, call.tool_use_id);
            return Ok((call.name, ToolEnd { message_id: None, content, duration_ms }));
        }
        let call = self.hot.calls.end(tool_use_id, result, || self.ids.message());
        let call = call.ok_or_else(|| not_started(tool_use_id))?;
        self.rows.push(Row::ToolCall(Box::new(call.clone())));
        let message_id = call.ended.as_ref().map(|ended| ended.message);
        Ok((call.name.clone(), ToolEnd { message_id, content, duration_ms }))
    }
}

fn not_started(tool_use_id: &str) -> Error {
    Error::Invalid(format!("tool call {tool_use_id:?} has not been started"))
}

/// Refuses records that are larger than `limit` bytes.
pub(crate) fn check_size(records: &[Record], limit: usize) -> Result<(), Error> {
    for record in records {
        let (what, size) = match record {
            Record::Message { blocks, .. }
            | Record::Continued { blocks }
            | Record::ToolResults { blocks } => ("message", size_of(blocks)),
            Record::ToolCompleted { content, .. }
            | Record::ToolFailed { content, .. }
            | Record::ToolDecided { content, .. } => ("tool result", size_of(content)),
            Record::ToolProvided { result, .. } => ("tool result", size_of(&result.content)),
            Record::Output { output, .. } => ("output", output.to_string().len()),
            Record::GoalAchieved { value, .. } => ("value of a goal", value.to_string().len()),
            Record::GoalRejected { reason, .. } => ("report", reason.len()),
            Record::Compacted(compacted) => {
                ("summary", compacted.digest.summary.as_ref().map_or(0, String::len))
            }
            Record::Step(step) => (
                "step",
                step.private.as_ref().map_or(0, |private| private.to_string().len()) + raw_size(&step.raw),
            ),
            Record::ToolStarted { input, .. } => {
                ("tool call", input.as_ref().map_or(0, |input| input.to_string().len()))
            }
            Record::ToolUpdated { text, .. } | Record::Progress { text } => ("report", text.len()),
            Record::Decided { question, .. } => ("question", question.len()),
            Record::Runtime(facts) => {
                ("report", map_size(&facts.metadata) + map_size(&facts.binding_metadata))
            }
            Record::Opened { .. } | Record::Resumed | Record::Granted(_) | Record::Agent { .. } => continue,
            Record::Confined(_) | Record::LeftRunning { .. } | Record::ToolUnasked { .. } => continue,
            Record::Usage(_) | Record::Title { .. } | Record::OwnerState(_) | Record::Routed(_) => continue,
            // A plan is shortened, and a reminder has no text.
            Record::Tasks { .. } | Record::GoalsReminded { .. } => continue,
            Record::RunState { value, .. } => {
                ("state value", value.as_ref().map_or(0, |value| value.to_string().len()))
            }
        };
        if size > limit {
            return Err(Error::TooLarge { what, size, limit });
        }
    }
    Ok(())
}

fn raw_size(raw: &Value) -> usize {
    if raw.is_null() { 0 } else { raw.to_string().len() }
}

fn map_size(map: &Map<String, Value>) -> usize {
    if map.is_empty() { 0 } else { serde_json::to_string(map).map_or(0, |json| json.len()) }
}

fn size_of(blocks: &[Block]) -> usize {
    let size = |block: &Block| match block {
        Block::Text { text } => text.len(),
        Block::ToolResult { content, .. } => size_of(content),
        other => serde_json::to_string(other).map_or(0, |json| json.len()),
    };
    blocks.iter().map(size).sum()
}
