//! Converts the runs and attempts of one session.

use std::sync::Arc;

use mainspring_core::attempt::Cancellation;
use mainspring_core::{
    Attempt, AttemptId, Block, CancelReason, Cost, Failure, FailureCode, LineId, Message, MessageStatus,
    Mode, Place, Point, RequestName, RetryReason, Role, Run, RunId, RunOptions, RunOutput, RunState,
    RunStatus, Session, Time, Usage,
};
use mainspring_kernel::kernel::instructions_hash;
use serde_json::Value;

use super::rows::{Fields, SessionRows};
use super::session::{Draft, DraftRun, valid_name};
use super::{Import, UNRECORDED_ERROR, id};

impl Import<'_> {
    pub(super) fn import_run(&mut self, draft: &mut Draft, row: &Fields, rows: &SessionRows, line: LineId) {
        let original_id = row.text_or_empty("run_id");
        let Some(id) = id::<RunId>(&original_id) else {
            let why = "its id is not run_ and 32 hexadecimal digits";
            return self.report.skipped("runs", why, &original_id);
        };
        let (state, ended) = self.convert_state(row, &original_id);
        let usage = usage(row);
        let mut unfinished = vec![];
        let attempt_rows: Vec<&Fields> =
            rows.attempts.iter().filter(|attempt| attempt.text("run_id") == Some(&original_id)).collect();
        let mut attempts: Vec<Attempt> = attempt_rows
            .iter()
            .filter_map(|row| self.convert_attempt(draft, id, row, &mut unfinished))
            .collect();
        // The original recorded only the usage of the last attempt.
        if let Some(last) = attempts.last_mut() {
            last.usage = usage;
        }
        let adapter = attempt_rows.last().and_then(|last| last.text("adapter_id"));
        let adapter =
            adapter.map_or_else(|| draft.session.adapter.clone(), |adapter| self.adapter_name(adapter));
        let created_at = row.time("created_at_ms").unwrap_or(self.options.now);
        let updated_at = row.time("updated_at_ms").unwrap_or(created_at);
        let completed_at = match ended {
            true => row.time("completed_at_ms").unwrap_or(updated_at),
            false => self.options.now,
        };
        let (prompt, system_prompt) = self.convert_input(row, &original_id);
        let original_hash = || valid_name(row, "system_prompt_hash");
        let system_prompt_hash = instructions_hash(system_prompt.as_deref()).or_else(original_hash);
        let parent = draft.messages.last().map(|last| last.id);
        let prompt = self.prompt(&draft.session, id, &prompt, created_at);
        let answer = self.answer(&draft.session, id, row, &state, completed_at);
        draft.messages.extend([prompt.clone(), answer.clone()]);
        let run = Run {
            id,
            session: draft.session.id,
            owner: draft.session.owner.clone(),
            no: u32::try_from(draft.runs.len() + 1).unwrap_or(u32::MAX),
            parent: row.text("parent_run_id").and_then(super::id),
            request: RequestName {
                client_id: valid_name(row, "client_id"),
                request_id: valid_name(row, "request_id"),
                idempotency_key: valid_name(row, "idempotency_key"),
            },
            fingerprint: Run::UNKNOWN_FINGERPRINT,
            adapter,
            mode: row.text("mode").and_then(Mode::from_name).unwrap_or_default(),
            prompt: Some(prompt.id),
            options: RunOptions {
                system_prompt,
                model_profile: valid_name(row, "model_profile"),
                model: valid_name(row, "requested_model_id"),
                cwd: row.text("cwd").filter(|cwd| !cwd.is_empty()).map(str::to_owned),
                ..RunOptions::default()
            },
            system_prompt_hash,
            place: Place::Tip,
            steers: false,
            merged_into: None,
            pen: Some(Point { line, pos: u32::try_from(draft.messages.len()).unwrap_or(u32::MAX) }),
            state,
            attempts: attempts.last().map_or(0, |last| last.no),
            last_attempt: attempts.last().map(|last| last.id),
            final_message: Some(answer.id),
            usage,
            budget: None,
            final_text: None,
            output: self.convert_result(row, &original_id),
            retried_at: None,
            goals: vec![],
            tasks: vec![],
            created_at,
            started_at: row.time("started_at_ms"),
            completed_at: Some(completed_at),
            updated_at: if ended { updated_at } else { self.options.now },
        };
        self.report.imported("runs");
        self.runs.insert(run.id, (run.session, run.state.status()));
        draft.runs.push(DraftRun { run, attempts, prompt, parent, answer, unfinished });
    }

    /// Converts the final state of a run. The flag is false if the original did not record that the run ended.
    fn convert_state(&mut self, row: &Fields, original_id: &str) -> (RunState, bool) {
        let (code, message) = (row.text("error_code"), row.text("error_message"));
        let error = || Failure::new(code.unwrap_or("unknown"), message.unwrap_or(UNRECORDED_ERROR));
        let status = row.text("status").unwrap_or_default();
        let known = RunStatus::from_name(status);
        match known {
            Some(RunStatus::Succeeded) => (RunState::Succeeded {}, true),
            Some(RunStatus::Failed) => (RunState::Failed { error: error() }, true),
            Some(RunStatus::Cancelled) => (RunState::Cancelled { reason: CancelReason::Requested }, true),
            Some(RunStatus::TimedOut) => (RunState::TimedOut { error: error() }, true),
            Some(RunStatus::Orphaned) => {
                let error = match (code, message) {
                    (None, None) => executor_lost(),
                    _ => error(),
                };
                (RunState::Orphaned { error }, true)
            }
            _ => {
                let how = match known {
                    Some(_) => "not ended: orphaned",
                    None => "unknown status: orphaned",
                };
                self.report.changed("runs", how, original_id);
                (RunState::Orphaned { error: executor_lost() }, false)
            }
        }
    }

    /// Returns the prompt and the system prompt of a run.
    fn convert_input(&mut self, row: &Fields, original_id: &str) -> (String, Option<String>) {
        let raw = row.text_or_empty("input_json");
        let input: Option<Value> = serde_json::from_str(&raw).ok();
        let Some(prompt) = input.as_ref().and_then(|input| input["prompt"].as_str()) else {
            self.report.changed("runs", "unreadable input: kept unchanged as the prompt", original_id);
            return (raw, None);
        };
        let system = input.as_ref().and_then(|input| input["systemPrompt"].as_str());
        (prompt.to_owned(), system.filter(|system| !system.is_empty()).map(str::to_owned))
    }

    /// Returns the structured output of a run.
    fn convert_result(&mut self, row: &Fields, original_id: &str) -> Option<Box<RunOutput>> {
        match serde_json::from_str(row.text("result_json")?) {
            Ok(Value::Null) => None,
            Ok(value) => Some(Box::new(RunOutput::new(value, None))),
            Err(_) => {
                self.report.changed("runs", "unreadable result: left out", original_id);
                None
            }
        }
    }

    fn prompt(&self, session: &Session, run: RunId, text: &str, at: Time) -> Arc<Message> {
        let content = text_block(text).into_iter().collect();
        self.message(session, run, Role::User, MessageStatus::Completed, content, at)
    }

    /// Builds the answer of a run: its final text and its error.
    fn answer(
        &self,
        session: &Session,
        run: RunId,
        row: &Fields,
        state: &RunState,
        at: Time,
    ) -> Arc<Message> {
        let status = match state.status() {
            RunStatus::Succeeded => MessageStatus::Completed,
            RunStatus::Cancelled => MessageStatus::Cancelled,
            _ => MessageStatus::Failed,
        };
        let text = text_block(row.text("final_text").unwrap_or_default());
        let error = state.error().cloned();
        let error = error.map(|Failure { code, message }| Block::Error { code: code.into(), message });
        let content = text.into_iter().chain(error).collect();
        self.message(session, run, Role::Assistant, status, content, at)
    }

    fn message(
        &self,
        session: &Session,
        run: RunId,
        role: Role,
        status: MessageStatus,
        content: Vec<Block>,
        created_at: Time,
    ) -> Arc<Message> {
        Arc::new(Message {
            id: self.options.ids.message(),
            session: session.id,
            run: Some(run),
            role,
            status,
            content,
            usage: None,
            created_at,
            agent: None,
            external_id: None,
        })
    }

    fn convert_attempt(
        &mut self,
        draft: &Draft,
        run: RunId,
        row: &Fields,
        unfinished: &mut Vec<AttemptId>,
    ) -> Option<Attempt> {
        let original_id = row.text_or_empty("attempt_id");
        let no = row.number("attempt_no").and_then(|no| no.try_into().ok());
        let (Some(id), Some(no)) = (id::<AttemptId>(&original_id), no.filter(|no| *no > 0)) else {
            self.report.skipped("attempts", "invalid id or number", &original_id);
            return None;
        };
        let status = row.text("status").and_then(RunStatus::from_name).filter(|status| status.is_ended());
        if status.is_none() {
            self.report.changed("attempts", "not ended: orphaned", &original_id);
            unfinished.push(id);
        }
        let error = match (status, row.text("error_code"), row.text("error_message")) {
            (None, ..) => Some(executor_lost()),
            (_, None, None) => None,
            (_, code, message) => Some(Failure::new(code.unwrap_or("unknown"), message.unwrap_or_default())),
        };
        let binding =
            row.text("binding_id").and_then(super::id).filter(|binding| draft.bindings.contains_key(binding));
        let created_at = row.time("created_at_ms").unwrap_or(self.options.now);
        let completed_at = match status {
            Some(_) => row.time("completed_at_ms").or(row.time("updated_at_ms")).unwrap_or(created_at),
            None => self.options.now,
        };
        let metadata = self.convert_metadata("attempts", row, &original_id);
        let original_reason = row.text("retry_reason").filter(|reason| !reason.is_empty());
        let retry_reason = original_reason.and_then(RetryReason::from_name);
        if original_reason.is_some() && retry_reason.is_none() {
            self.report.changed("attempts", "unknown retry reason: left out", &original_id);
        }
        self.report.imported("attempts");
        Some(Attempt {
            id,
            run,
            no,
            status: status.unwrap_or(RunStatus::Orphaned),
            adapter: self.adapter_name(row.text("adapter_id").unwrap_or(&draft.session.adapter)),
            node: self.node,
            instance: valid_name(row, "adapter_instance_id"),
            native_run: valid_name(row, "adapter_native_run_id"),
            binding,
            resume_from: row.text("resume_from_attempt_id").and_then(super::id),
            checkpoint: row.text("checkpoint_artifact_id").and_then(super::id),
            retry_reason,
            error,
            retryable: row.number("retryable") == Some(1) || status.is_none(),
            usage: Usage::UNKNOWN,
            sandbox: None,
            left_running: vec![],
            metadata,
            cancellation: Cancellation {
                requested_at: row.time("cancellation_requested_at_ms"),
                dispatched_at: row.time("cancellation_dispatched_at_ms"),
                acknowledged_at: row.time("cancellation_acknowledged_at_ms"),
            },
            created_at,
            started_at: row.time("started_at_ms"),
            completed_at: Some(completed_at),
        })
    }
}

/// Converts the usage of a run. A number that the original did not record is unknown.
fn usage(row: &Fields) -> Usage {
    let names = ["input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"];
    let (tokens, cost) = (names.map(|name| row.count(name)), row.real("cost_usd"));
    if cost.is_none() && tokens.iter().all(Option::is_none) {
        return Usage::UNKNOWN;
    }
    let [input_tokens, output_tokens, cache_read_tokens, cache_write_tokens] =
        tokens.map(Option::unwrap_or_default);
    Usage {
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        cost: Cost::from(cost),
        at_least: tokens.contains(&None),
    }
}

fn text_block(text: &str) -> Option<Block> {
    (!text.is_empty()).then(|| Block::text(text))
}

/// The error of a run or attempt whose process ended without recording a result.
fn executor_lost() -> Failure {
    Failure::new(FailureCode::ExecutorLost, "the process that executed it has ended")
}
