//! A round of tools: each call is decided, in order; then those that run do so side by side; then all results go to
//! the model in the order of the calls.
//!
//! A call that runs is recorded before it does. What an earlier attempt began is made again if it is idempotent; else
//! its outcome is unknown, and the model is told so. A call that the run's caller executes comes last: the run waits
//! for it with what the others said.

use std::panic::AssertUnwindSafe;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use mainspring_core::{ArtifactRole, Block, ClientCall, ClientResult, Failure, ToolOutcome, WaitRequest};
use mainspring_kernel::adapter::{Ask, End, HandleError, NewArtifact, Record};
use serde_json::Value;

use super::Stop;
use super::resume::About;
use super::summary::ends;
use super::turn::{Calls, Looper};
use crate::hooks::{Decision, ToolResult};
use crate::provider::Call;
use crate::tool::{Desk, Entry, ToolCall, matches_pattern};

/// How a call that ran ended.
struct Ran {
    at: usize,
    ended: Result<String, (ToolOutcome, String)>,
}

impl Looper<'_> {
    /// Decides, runs and answers the calls. The first commit of it holds what is to be recorded with them.
    pub(super) async fn round(&mut self, of: Calls) -> Result<(), Stop> {
        let Calls { calls, mut decided, known, mut records } = of;
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
        let mut asked = vec![];
        for (at, (call, decision)) in calls.iter().zip(&decided).enumerate() {
            let client = self.plan.tools.get(&call.name).is_some_and(Entry::is_client);
            let given = known.iter().find(|result| result.tool_use_id == call.id);
            match (decision, given.or_else(|| self.given(call)).map(told_by_caller)) {
                // What ran before the run waited has been told in its final form.
                (_, Some(result)) if !client => results[at] = Some(result),
                (Decision::Execute, Some(result)) => results[at] = Some(self.told(call, result).await?),
                (Decision::Execute, None) if client => asked.push(at),
                (Decision::Execute, None) => match self.begin(call, &mut records) {
                    Ok(entry) => running.push(self.call(at, entry, call)),
                    Err(result) => results[at] = Some(self.told(call, result).await?),
                },
                (decision, _) => results[at] = Some(self.told(call, decided_result(decision)).await?),
            }
        }
        while !running.is_empty() {
            self.attempt.record(std::mem::take(&mut records)).await?;
            let ran = tokio::select! {
                biased;
                () = self.attempt.cancelled() => return Err(End::stopped().into()),
                ran = running.next() => ran,
            };
            let Some(Ran { at, ended }) = ran else { break };
            records.push(outcome(&calls[at], &ended));
            let result = match ended {
                Ok(text) => ToolResult { text, is_error: false },
                Err((_, text)) => ToolResult::error(text),
            };
            results[at] = Some(self.told(&calls[at], result).await?);
        }
        if !asked.is_empty() {
            if !records.is_empty() {
                self.attempt.record(records).await?;
            }
            return Err(self.call_back(&calls, &asked, &results, decided));
        }
        records.push(Record::ToolResults { blocks: blocks(&calls, results) });
        Ok(self.attempt.record(records).await?)
    }

    /// The result that the caller gave to an earlier attempt, which did not come to tell it.
    fn given(&self, call: &Call) -> Option<&ClientResult> {
        let given = self.earlier.given.iter().map(|(_, result)| result);
        { given }.find(|result| result.tool_use_id == call.id)
    }

    /// The execution returns until the caller has executed its tools. What the others said is kept until then.
    fn call_back(
        &self,
        calls: &[Call],
        asked: &[usize],
        results: &[Option<ToolResult>],
        decided: Vec<Decision>,
    ) -> Stop {
        let asked = asked.iter().map(|at| ClientCall {
            tool_use_id: calls[*at].id.clone(),
            name: calls[*at].name.clone(),
            input: calls[*at].input.clone(),
            answered: false,
        });
        let known = calls.iter().zip(results).filter_map(|(call, result)| {
            let result = result.clone()?;
            let content = Value::String(result.text);
            Some(ClientResult { tool_use_id: call.id.clone(), content, is_error: result.is_error })
        });
        let ask = Ask { results: known.collect(), ..Ask::calls(asked.collect()) };
        self.wait_for(ask, About::Calls { decided })
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
        let named = |patterns: &[String]| patterns.iter().any(|pattern| matches_pattern(pattern, &call.name));
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

    /// Records that a call is about to run; what the model is told instead, if it must not.
    fn begin(&self, call: &Call, records: &mut Vec<Record>) -> Result<Entry, ToolResult> {
        let Some(entry) = self.plan.tools.get(&call.name).cloned() else {
            return Err(ToolResult::error(format!("no tool {:?}", call.name)));
        };
        if entry.asks() {
            // A person has said yes or no, and there is nothing to run.
            return Err(ToolResult { text: "yes".into(), is_error: false });
        }
        let tool_use_id = call.id.clone();
        let begun =
            self.attempt.assignment().open_tool_calls.iter().any(|effect| effect.tool_use_id == call.id);
        if begun && !entry.traits.idempotent {
            let text = "outcome unknown: it was interrupted, and may or may not have had its effect";
            let error = Failure::new("outcome_unknown", text);
            records.push(Record::ToolFailed { tool_use_id, outcome: ToolOutcome::Unknown, error });
            return Err(ToolResult::error(text));
        }
        if !begun && !entry.traits.idempotent && self.earlier.begun.contains(&call.id) {
            return Err(ToolResult::error(
                "it was called, and a crash lost its answer; it is not called again",
            ));
        }
        records.push(match begun {
            true => {
                Record::ToolUpdated { tool_use_id, text: "it was interrupted, and is called again".into() }
            }
            false => Record::ToolStarted { tool_use_id, name: call.name.clone(), input: None },
        });
        Ok(entry)
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

fn told_by_caller(result: &ClientResult) -> ToolResult {
    ToolResult { text: result.text(), is_error: result.is_error }
}

/// What a decision makes of a call that does not run.
fn decided_result(decision: &Decision) -> ToolResult {
    match decision {
        Decision::Reject { reason } => ToolResult::error(reason.clone()),
        Decision::Result { result } => result.clone(),
        // Nothing is left to be decided here.
        Decision::Execute | Decision::Pause { .. } => ToolResult::error("it was not decided"),
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
