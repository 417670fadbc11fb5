//! A round of tools: each call is decided, in order; then those that run do so side by side; then all results go to
//! the model in the order of the calls.
//!
//! A call that runs is recorded before it does. What an earlier attempt began is made again if it is idempotent; else
//! its outcome is unknown, and the model is told so.

use std::panic::AssertUnwindSafe;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use mainspring_core::{ArtifactRole, Block, Failure, ToolOutcome, WaitRequest};
use mainspring_kernel::adapter::{End, HandleError, NewArtifact, Record};
use serde_json::Value;

use super::Stop;
use super::resume::About;
use super::summary::ends;
use super::turn::Looper;
use crate::hooks::{Decision, ToolResult};
use crate::provider::Call;
use crate::tool::{Desk, Entry, ToolCall, fits};

/// How a call that ran ended.
struct Ran {
    at: usize,
    ended: Result<String, (ToolOutcome, String)>,
}

impl Looper<'_> {
    /// Decides, runs and answers `calls`. `records` go into the first commit of it.
    pub(super) async fn round(
        &mut self,
        calls: &[Call],
        mut decided: Vec<Decision>,
        mut records: Vec<Record>,
    ) -> Result<(), Stop> {
        for call in calls.iter().skip(decided.len()) {
            let decision = self.decide(call).await;
            if let Decision::Pause { question, request } = &decision {
                if !records.is_empty() {
                    self.attempt.record(std::mem::take(&mut records)).await?;
                }
                let (question, request) = (question.clone(), *request);
                return Err(self.wait(request, question, About::Tool { decided, pause: decision }));
            }
            decided.push(decision);
        }
        let mut results: Vec<Option<ToolResult>> = vec![None; calls.len()];
        let mut running = FuturesUnordered::new();
        for (at, (call, decision)) in calls.iter().zip(&decided).enumerate() {
            match decision {
                Decision::Execute => {
                    if let Some(entry) = self.begin(call, &mut records, &mut results[at]) {
                        running.push(self.call(at, entry, call));
                    }
                }
                Decision::Reject { reason } => results[at] = Some(ToolResult::error(reason.clone())),
                Decision::Result { result } => results[at] = Some(result.clone()),
                // Nothing is left to be decided here.
                Decision::Pause { .. } => results[at] = Some(ToolResult::error("it was not decided")),
            }
        }
        for (call, result) in calls.iter().zip(&mut results) {
            if let Some(known) = result.take() {
                *result = Some(self.told(call, known).await?);
            }
        }
        if !running.is_empty() {
            self.attempt.record(std::mem::take(&mut records)).await?;
        }
        loop {
            let ran = tokio::select! {
                biased;
                () = self.attempt.cancelled() => return Err(End::stopped().into()),
                ran = running.next() => ran,
            };
            if let Some(Ran { at, ended }) = ran {
                records.push(outcome(&calls[at], &ended));
                let result = match ended {
                    Ok(text) => ToolResult { text, is_error: false },
                    Err((_, text)) => ToolResult::error(text),
                };
                results[at] = Some(self.told(&calls[at], result).await?);
            }
            if running.is_empty() {
                records.push(Record::ToolResults { blocks: blocks(calls, results) });
                return Ok(self.attempt.record(records).await?);
            }
            self.attempt.record(std::mem::take(&mut records)).await?;
        }
    }

    async fn decide(&self, call: &Call) -> Decision {
        let wrong = |text: String| Decision::Result { result: ToolResult::error(text) };
        let Some(entry) = self.plan.tools.get(&call.name) else {
            let known: Vec<&str> = self.plan.tools.iter().map(|entry| entry.spec.name.as_str()).collect();
            return wrong(format!("no tool {:?}; there is {}", call.name, known.join(", ")));
        };
        if let Err(error) = entry.check(&call.input) {
            return wrong(error.to_string());
        }
        let named = |patterns: &[String]| patterns.iter().any(|pattern| fits(pattern, &call.name));
        if named(&self.plan.agent.deny) {
            return Decision::Reject { reason: format!("you may not call {}", call.name) };
        }
        if entry.asks() {
            let approval = call.input["approval"] == Value::Bool(true);
            let question = call.input["question"].as_str().unwrap_or_default().to_owned();
            let request = if approval { WaitRequest::Approval } else { WaitRequest::Input };
            return Decision::Pause { question, request };
        }
        if named(&self.plan.agent.approve) {
            let input: String = call.input.to_string().chars().take(2000).collect();
            let question = format!("May the agent call {} with {input}?", call.name);
            return Decision::Pause { question, request: WaitRequest::Approval };
        }
        self.adapter.hooks.on_tool_use(self.occasion(), call).await
    }

    /// Records that a call is about to run; none if it must not, and then `result` says why.
    fn begin(
        &self,
        call: &Call,
        records: &mut Vec<Record>,
        result: &mut Option<ToolResult>,
    ) -> Option<Entry> {
        let Some(entry) = self.plan.tools.get(&call.name).cloned() else {
            *result = Some(ToolResult::error(format!("no tool {:?}", call.name)));
            return None;
        };
        if entry.asks() {
            // A person has said yes or no, and there is nothing to run.
            *result = Some(ToolResult { text: "yes".into(), is_error: false });
            return None;
        }
        let tool_use_id = call.id.clone();
        let begun = self.attempt.assignment().open_effects.iter().any(|effect| effect.tool_use_id == call.id);
        if begun && !entry.traits.idempotent {
            let text = "outcome unknown: it was interrupted, and may or may not have had its effect";
            let error = Failure::new("outcome_unknown", text);
            records.push(Record::ToolFailed { tool_use_id, outcome: ToolOutcome::Unknown, error });
            *result = Some(ToolResult::error(text));
            return None;
        }
        records.push(match begun {
            true => {
                Record::ToolUpdated { tool_use_id, text: "it was interrupted, and is called again".into() }
            }
            false => Record::ToolStarted { tool_use_id, name: call.name.clone(), input: None },
        });
        Some(entry)
    }

    /// Runs one call: it ends by itself, by its timeout, or by a panic that harms nobody else.
    fn call(&self, at: usize, entry: Entry, call: &Call) -> impl Future<Output = Ran> + Send + use<> {
        let assignment = self.attempt.assignment();
        let cwd = assignment.run.options.cwd.clone().or_else(|| assignment.session.cwd.clone());
        let asked = ToolCall {
            id: call.id.clone(),
            input: call.input.clone(),
            session: assignment.session.id,
            run: assignment.run.id,
            owner: assignment.run.owner.clone(),
            cwd,
            desk: Desk::new(self.attempt.clone(), self.plan.result_bytes),
        };
        let attempt = self.attempt.clone();
        async move {
            let timeout = entry.traits.timeout_ms;
            let late = attempt.sleep_until(attempt.now().plus(timeout));
            let ended = tokio::select! {
                biased;
                ended = AssertUnwindSafe(entry.call(asked)).catch_unwind() => match ended {
                    Ok(Ok(text)) => Ok(text),
                    Ok(Err(error)) => Err((ToolOutcome::Failed, error.to_string())),
                    Err(_) => Err((ToolOutcome::Failed, format!("the tool {} broke: it panicked", entry.spec.name))),
                },
                () = late => Err((
                    ToolOutcome::Unknown,
                    format!("the tool {} took longer than {timeout} ms and was stopped", entry.spec.name),
                )),
            };
            Ran { at, ended }
        }
    }

    /// What the model is told of a call: what a hook makes of its result, as much of it as is shown. All of what is
    /// longer becomes an artifact.
    async fn told(&self, call: &Call, result: ToolResult) -> Result<ToolResult, Stop> {
        let result = self.adapter.hooks.on_tool_result(self.occasion(), call, result).await;
        let (limit, size) = (self.plan.result_bytes, result.text.len());
        if size <= limit {
            return Ok(result);
        }
        let new = NewArtifact {
            kind: "tool_output".into(),
            role: ArtifactRole::ToolOutput,
            name: Some(format!("{}.txt", call.name)),
            mime_type: Some("text/plain; charset=utf-8".into()),
        };
        let kept = match self.attempt.artifact(new, &mut result.text.as_bytes()).await {
            Ok(artifact) => Some(artifact.id),
            Err(HandleError::Revoked) => return Err(HandleError::Revoked.into()),
            Err(HandleError::Kernel(error)) => {
                tracing::warn!(%error, "the answer of a tool could not be kept as an artifact");
                None
            }
        };
        let (head, tail) = ends(&result.text, limit * 3 / 4, limit / 4);
        let (from, left_out) = (head.len(), size - head.len() - tail.len());
        let kept = match kept {
            None => "they could not be kept".to_owned(),
            Some(id) if self.plan.tools.get("artifact_read").is_some() => format!(
                "all {size} are kept as the artifact {id}: to read on call artifact_read with \"artifact\": \"{id}\", \
                 \"offset\": {from}"
            ),
            Some(id) => format!("all {size} are kept as the artifact {id}"),
        };
        let text = format!("{head}\n[{left_out} bytes are left out here; {kept}]\n{tail}");
        Ok(ToolResult { text, is_error: result.is_error })
    }
}

fn outcome(call: &Call, ended: &Result<String, (ToolOutcome, String)>) -> Record {
    let tool_use_id = call.id.clone();
    match ended {
        Ok(_) => Record::ToolCompleted { tool_use_id },
        Err((outcome, text)) => {
            let code = if *outcome == ToolOutcome::Unknown { "tool_timed_out" } else { "tool_failed" };
            let error = Failure::new(code, text.clone());
            Record::ToolFailed { tool_use_id, outcome: *outcome, error }
        }
    }
}

fn blocks(calls: &[Call], results: Vec<Option<ToolResult>>) -> Vec<Block> {
    let block = |(call, result): (&Call, Option<ToolResult>)| {
        let result = result.unwrap_or_else(|| ToolResult::error("it has no result"));
        Block::ToolResult {
            tool_use_id: call.id.clone(),
            name: call.name.clone(),
            content: vec![Block::text(result.text)],
            is_error: result.is_error,
        }
    };
    calls.iter().zip(results).map(block).collect()
}
