//! A round of tools: each call is decided in order, then the allowed calls run concurrently, then all results go to the
//! model in the order of the calls.
//!
//! A call is recorded before it runs, and its result as soon as it has ended: a later attempt continues with the
//! results that the round has so far. A call that an earlier attempt began and did not end is repeated if the tool is
//! idempotent; otherwise the model gets the result that the outcome is unknown. Calls that the client executes come
//! last: the run waits for them after the others have finished.

use std::panic::AssertUnwindSafe;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use mainspring_core::message::text_of;
use mainspring_core::{
    Approval, ApprovalChoice, ApprovalRequest, ArtifactRole, Block, CallResult, ClientCall, ClientResult,
    Decider, Failure, FailureCode, Replies, RequestedCall, Time, ToolOutcome, WaitRequest,
};
use mainspring_kernel::adapter::{Ask, End, HandleError, NewArtifact, Record};
use mainspring_kernel::policy::{self, Action, Resource, Verdict};
use serde_json::{Map, Value};

use super::Exit;
use super::execution::{Execution, ToolRound};
use super::resume::Question;
use super::summary::head_and_tail;
use crate::hooks::{ToolDecision, ToolResult};
use crate::provider::ToolUse;
use crate::tool::{ToolCall, ToolContext, ToolEntry};

/// The policy that decides calls that no rule matches: the tools of the native agent need no permission.
const NO_RULE: &str = "no_rule";

/// A tool call that has finished: its index and its outcome.
struct Finished {
    at: usize,
    outcome: Result<String, (ToolOutcome, String)>,
    /// Files of the result.
    files: Vec<Block>,
}

impl Execution<'_> {
    /// Decides and runs the calls, and records their results. The first commit also holds the round's records.
    pub(super) async fn run_tools(&mut self, round: ToolRound) -> Result<(), Exit> {
        let ToolRound { calls, mut decided, known, asked_at, mut records } = round;
        for call in calls.iter().skip(decided.len()) {
            let decision = match self.ended_result(call) {
                Some(_) => ToolDecision::Execute,
                None => self.decide(call, &mut records).await,
            };
            if let ToolDecision::Pause { question, request } = &decision {
                self.record_any(&mut records).await?;
                let ask = self.ask_about(call, *request, question.clone());
                return Err(self.wait(ask, Question::Tool { decided, pause: decision }));
            }
            decided.push(decision);
        }
        let mut results: Vec<Option<ToolResult>> = vec![None; calls.len()];
        let mut files: Vec<Vec<Block>> = vec![vec![]; calls.len()];
        let mut running = FuturesUnordered::new();
        let mut for_client = vec![];
        for (at, (call, decision)) in calls.iter().zip(&decided).enumerate() {
            let is_client = self.plan.tools.get(&call.name).is_some_and(ToolEntry::is_client);
            if let Some(result) = self.ended_result(call) {
                // The result has passed the hooks already.
                results[at] = Some(result);
                files[at] = self.ended_files(call);
                continue;
            }
            let known = known.iter().find(|result| result.tool_use_id == call.id);
            match (decision, known.or_else(|| self.earlier_result(call))) {
                // An earlier version recorded the result of a tool that ran before the run waited.
                (_, Some(given)) if !is_client => results[at] = Some(client_result(given)),
                (ToolDecision::Execute, Some(given)) => {
                    let result = self.prepare_result(call, client_result(given)).await?;
                    records.push(provided_record(call, asked_at, given, &result));
                    results[at] = Some(result);
                }
                (ToolDecision::Execute, None) if is_client => for_client.push(at),
                (ToolDecision::Execute, None) => match self.begin(call, &mut records) {
                    Ok(entry) => running.push(self.run_tool(at, entry, call)),
                    Err(skipped) => results[at] = Some(self.skip(call, skipped, &mut records).await?),
                },
                (decision, _) => {
                    results[at] = Some(self.skip(call, skipped_by(decision), &mut records).await?);
                }
            }
        }
        while !running.is_empty() {
            self.attempt.record(std::mem::take(&mut records)).await?;
            let finished = tokio::select! {
                biased;
                () = self.attempt.cancelled() => return Err(End::stopped().into()),
                finished = running.next() => finished,
            };
            let Some(Finished { at, outcome, files: added }) = finished else { break };
            let (failure, result) = match outcome {
                Ok(text) => (None, ToolResult { text, is_error: false }),
                Err((outcome, text)) => (Some((outcome, text.clone())), ToolResult::error(text)),
            };
            let result = self.prepare_result(&calls[at], result).await?;
            records.push(outcome_record(&calls[at], failure, &result, &added));
            results[at] = Some(result);
            files[at] = added;
        }
        if !for_client.is_empty() {
            self.record_any(&mut records).await?;
            return Err(self.wait_for_client(&calls, &for_client, decided));
        }
        records.push(Record::ToolResults { blocks: result_blocks(&calls, results, files) });
        Ok(self.attempt.record(records).await?)
    }

    /// Gives every call of the round an error result: none of them runs.
    pub(super) async fn reject_round(&mut self, round: ToolRound, reason: &str) -> Result<(), Exit> {
        let ToolRound { calls, mut records, .. } = round;
        let mut results = vec![];
        for call in &calls {
            let skipped = Skipped::rejected(FailureCode::LimitReached, reason.to_owned());
            results.push(Some(self.skip(call, skipped, &mut records).await?));
        }
        let files = vec![vec![]; calls.len()];
        records.push(Record::ToolResults { blocks: result_blocks(&calls, results, files) });
        Ok(self.attempt.record(records).await?)
    }

    /// Commits `records` unless there are none.
    async fn record_any(&self, records: &mut Vec<Record>) -> Result<(), Exit> {
        if !records.is_empty() {
            self.attempt.record(std::mem::take(records)).await?;
        }
        Ok(())
    }

    /// Returns the client's result that an earlier attempt received and did not record on the path.
    fn earlier_result(&self, call: &ToolUse) -> Option<&ClientResult> {
        let mut given = self.earlier.given.iter().map(|(_, result)| result);
        given.find(|result| result.tool_use_id == call.id)
    }

    /// Returns the recorded result of a call that has ended, in this attempt or an earlier one, if its round
    /// has not ended.
    fn ended_result(&self, call: &ToolUse) -> Option<ToolResult> {
        let mut calls = self.attempt.assignment().open_tool_calls.iter();
        let ended = calls.find(|open| open.tool_use_id == call.id)?.ended.as_ref()?;
        Some(ToolResult { text: text_of(&ended.result.content), is_error: ended.result.is_error })
    }

    /// Returns the files of the recorded result of a call that has ended.
    fn ended_files(&self, call: &ToolUse) -> Vec<Block> {
        let mut calls = self.attempt.assignment().open_tool_calls.iter();
        let ended = calls.find(|open| open.tool_use_id == call.id).and_then(|open| open.ended.as_ref());
        let content = ended.map(|ended| ended.result.content.as_slice()).unwrap_or_default();
        content.iter().filter(|block| matches!(block, Block::Attachment { .. })).cloned().collect()
    }

    /// Pauses the execution until the client has executed its calls. The results of the other calls are recorded.
    fn wait_for_client(&self, calls: &[ToolUse], for_client: &[usize], decided: Vec<ToolDecision>) -> Exit {
        let client_calls = for_client.iter().map(|at| ClientCall {
            tool_use_id: calls[*at].id.clone(),
            name: calls[*at].name.clone(),
            input: calls[*at].input.clone(),
            decided_by: self.decided_without_event(&calls[*at]),
            ..ClientCall::default()
        });
        self.wait(
            Ask::calls(client_calls.collect()),
            Question::Calls { decided, asked_at: Some(self.attempt.now()) },
        )
    }

    /// Decides about a call. Adds the records of a decision by the policy.
    async fn decide(&self, call: &ToolUse, records: &mut Vec<Record>) -> ToolDecision {
        let error = |text: String| ToolDecision::Result { result: ToolResult::error(text) };
        let Some(entry) = self.plan.tools.get(&call.name) else {
            let known: Vec<&str> = self.plan.offered_tools().map(|entry| entry.spec.name.as_str()).collect();
            return error(format!("no tool {:?}; the tools are {}", call.name, known.join(", ")));
        };
        if let Err(invalid) = entry.check(&call.input) {
            records.extend(self.plan.goals.rejected(call, &invalid));
            return error(invalid.to_string());
        }
        let verdict = match self.verdict(call).await {
            Ok(verdict) => verdict.map(|(verdict, decided)| {
                records.extend(decided);
                verdict
            }),
            Err(problem) => {
                return error(format!("whether the call is allowed could not be decided: {problem}"));
            }
        };
        if verdict == Some(Verdict::Deny) {
            return ToolDecision::Reject { reason: format!("you may not call {}", call.name) };
        }
        if entry.asks_person() {
            let approval = call.input["approval"] == Value::Bool(true);
            let question = call.input["question"].as_str().unwrap_or_default().to_owned();
            let request = if approval { WaitRequest::Approval } else { WaitRequest::Input };
            return ToolDecision::Pause { question, request };
        }
        let asked = match (verdict, self.control_verdict(call).await) {
            (Some(Verdict::Ask), _) => true,
            (_, Ok(None)) => false,
            (_, Ok(Some((verdict, decided)))) => {
                records.extend(decided);
                verdict == Verdict::Ask
            }
            (_, Err(problem)) => {
                return error(format!("whether the call is allowed could not be decided: {problem}"));
            }
        };
        if asked {
            let question = call_question(call);
            return ToolDecision::Pause { question, request: WaitRequest::Approval };
        }
        let decision = self.adapter.hooks.on_tool_use(self.hook_context(), call).await;
        if matches!(decision, ToolDecision::Reject { .. }) {
            let by = Decider::policy("hook");
            let told = Some("error".to_owned());
            let question = call_question(call);
            let request = Some(Box::new(requested(call).summary()));
            let decision = Approval::Denied;
            records.push(Record::Decided { question, request, decision, grant: None, by, told });
        }
        decision
    }

    /// Asks the policy about a call.
    async fn verdict(&self, call: &ToolUse) -> Result<Option<(Verdict, Vec<Record>)>, HandleError> {
        let request = Some(Box::new(requested(call)));
        let question = policy::Question { replies: Some(replies()), request, ..call_question(call).into() };
        self.plan.rules.verdict(&self.attempt, &action(call), &question).await
    }

    /// Asks the policy about the action of a control tool. `None` unless a rule asks a person about it.
    async fn control_verdict(&self, call: &ToolUse) -> Result<Option<(Verdict, Vec<Record>)>, HandleError> {
        let Some(action) = control_action(call) else { return Ok(None) };
        let request = Some(Box::new(requested_as(&action, call)));
        let question = policy::Question { replies: Some(replies()), request, ..call_question(call).into() };
        self.plan.rules.control_verdict(&self.attempt, &action, &question).await
    }

    /// The party that allowed a call to which no rule applies. Other decisions have events of their own.
    fn decided_without_event(&self, call: &ToolUse) -> Option<Decider> {
        (!self.plan.rules.concern(&action(call))).then(|| Decider::policy(NO_RULE))
    }

    /// The question to a person about a call. An approval can also be denied with a reason, and answered with the result of
    /// the call unless the agent asks a question of its own.
    fn ask_about(&self, call: &ToolUse, request: WaitRequest, question: String) -> Ask {
        let asks_person = self.plan.tools.get(&call.name).is_some_and(ToolEntry::asks_person);
        let approval = match asks_person {
            // The agent asks its own question: there is no tool to run.
            true => ApprovalRequest::plain().offer(&[ApprovalChoice::DenyWithReason]),
            false => match control_action(call).filter(|_| !self.plan.rules.concern(&action(call))) {
                Some(action) => requested_as(&action, call),
                None => requested(call),
            },
        };
        let approval = (request == WaitRequest::Approval).then(|| Box::new(approval));
        let replies = approval.as_ref().map(|_| replies());
        Ask { approval, replies, ..Ask::new(request, question) }
    }

    /// Adds the record that the call starts. Returns the result for the model instead if the call must not run.
    fn begin(&self, call: &ToolUse, records: &mut Vec<Record>) -> Result<ToolEntry, Skipped> {
        let Some(entry) = self.plan.tools.get(&call.name).cloned() else {
            return Err(Skipped::rejected("tool_invalid", format!("no tool {:?}", call.name)));
        };
        if entry.asks_person() {
            // An approval that was granted: there is nothing to run.
            return Err(Skipped::supplied(ToolResult { text: "yes".into(), is_error: false }));
        }
        let tool_use_id = call.id.clone();
        let open_calls = &self.attempt.assignment().open_tool_calls;
        let open = open_calls.iter().any(|open| open.tool_use_id == call.id && open.ended.is_none());
        if open && !entry.traits.idempotent {
            let text = "outcome unknown: the call was interrupted and may or may not have taken effect";
            let end = SkippedEnd::Unknown(Failure::new("outcome_unknown", text));
            return Err(Skipped { result: ToolResult::error(text), end });
        }
        if !open && !entry.traits.idempotent && self.earlier.begun.contains(&call.id) {
            // Recorded by an earlier version, which did not keep the result.
            let text = "the tool was called and a crash lost its result; it is not called again";
            return Err(Skipped { result: ToolResult::error(text), end: SkippedEnd::Recorded });
        }
        records.push(match open {
            true => {
                let text = "the call was interrupted and is repeated".into();
                Record::ToolUpdated { tool_use_id, text }
            }
            false => {
                let (name, decided_by) = (call.name.clone(), self.decided_without_event(call));
                Record::ToolStarted { tool_use_id, name, input: None, decided_by }
            }
        });
        Ok(entry)
    }

    /// Records the end of a call that does not run. Returns its result.
    async fn skip(
        &self,
        call: &ToolUse,
        skipped: Skipped,
        records: &mut Vec<Record>,
    ) -> Result<ToolResult, Exit> {
        let result = self.prepare_result(call, skipped.result).await?;
        let (tool_use_id, content) = (call.id.clone(), vec![Block::text(&result.text)]);
        records.extend(match skipped.end {
            SkippedEnd::Unknown(error) => {
                Some(Record::ToolFailed { tool_use_id, outcome: ToolOutcome::Unknown, error, content })
            }
            SkippedEnd::Decided(rejection) => {
                Some(Record::ToolDecided { tool_use_id, name: call.name.clone(), rejection, content })
            }
            SkippedEnd::Recorded => None,
        });
        Ok(result)
    }

    /// Runs one call until it returns, panics or times out. A panic does not affect other calls.
    fn run_tool(
        &self,
        at: usize,
        entry: ToolEntry,
        call: &ToolUse,
    ) -> impl Future<Output = Finished> + Send + use<> {
        let assignment = self.attempt.assignment();
        let cwd = assignment.run.options.cwd.clone().or_else(|| assignment.session.cwd.clone());
        let call = ToolCall {
            id: call.id.clone(),
            input: call.input.clone(),
            session: assignment.session.id,
            run: assignment.run.id,
            owner: assignment.run.owner.clone(),
            cwd,
            context: ToolContext::new(self.attempt.clone(), self.plan.result_bytes)
                .for_tool(&entry.spec.name)
                .sharing_run_state(self.plan.shares_run_state),
        };
        let (attempt, context) = (self.attempt.clone(), call.context.clone());
        async move {
            let name = entry.spec.name.clone();
            let timeout_ms = entry.traits.timeout_ms;
            let deadline = attempt.sleep_for(timeout_ms);
            let outcome = tokio::select! {
                biased;
                returned = AssertUnwindSafe(entry.call(call)).catch_unwind() => match returned {
                    Ok(Ok(text)) => Ok(text),
                    Ok(Err(error)) => Err((ToolOutcome::Failed, error.to_string())),
                    Err(_) => Err((ToolOutcome::Failed, format!("the tool {name} panicked"))),
                },
                () = deadline => Err((
                    ToolOutcome::Unknown,
                    format!("the tool {name} took longer than {timeout_ms} ms and was stopped"),
                )),
            };
            Finished { at, outcome, files: context.take_files() }
        }
    }

    /// Passes a result through the hook. A result over the size limit is stored as an artifact and shortened.
    async fn prepare_result(&self, call: &ToolUse, result: ToolResult) -> Result<ToolResult, Exit> {
        let result = self.adapter.hooks.on_tool_result(self.hook_context(), call, result).await;
        let (limit, size) = (self.plan.result_bytes, result.text.len());
        if size <= limit {
            return Ok(result);
        }
        let new = NewArtifact {
            kind: "tool_output".into(),
            role: ArtifactRole::ToolOutput,
            name: Some(format!("{}.txt", call.name)),
            mime_type: Some("text/plain; charset=utf-8".into()),
            metadata: Map::from_iter([
                ("tool".to_owned(), call.name.clone().into()),
                ("toolUseId".to_owned(), call.id.clone().into()),
            ]),
            ..NewArtifact::default()
        };
        let artifact = match self.attempt.artifact(new, &mut result.text.as_bytes()).await {
            Ok(artifact) => Some(artifact.id),
            Err(HandleError::Revoked) => return Err(HandleError::Revoked.into()),
            Err(HandleError::Kernel(error)) => {
                tracing::warn!(%error, "a tool result could not be stored as an artifact");
                None
            }
        };
        let (head, tail) = head_and_tail(&result.text, limit * 3 / 4, limit / 4);
        let (from, left_out) = (head.len(), size - head.len() - tail.len());
        let note = match artifact {
            None => "they could not be stored".to_owned(),
            Some(id) if self.plan.tools.get("artifact_read").is_some() => format!(
                "all {size} are stored as the artifact {id}: to read on, call artifact_read with \"artifact\": \"{id}\", \
                 \"offset\": {from}"
            ),
            Some(id) => format!("all {size} are stored as the artifact {id}"),
        };
        let text = format!("{head}\n[{left_out} bytes are left out here; {note}]\n{tail}");
        Ok(ToolResult { text, is_error: result.is_error })
    }
}

/// A call as an action in the terms of the policy's rules.
fn action(call: &ToolUse) -> Action {
    Action { capability: "tool", operation: "call".to_owned(), resource: Resource::Text(call.name.clone()) }
}

/// The action of a control tool in the terms of the policy's rules; `None` for a tool that only reads, for any other tool,
/// and for a call without a valid id.
fn control_action(call: &ToolUse) -> Option<Action> {
    let action = mainspring_control::control_action(&call.name, &call.input)?;
    Some(policy::control_action(action.operation, &action.resource))
}

/// The request to make a call, as data.
fn requested(call: &ToolUse) -> ApprovalRequest {
    requested_as(&action(call), call)
}

/// The request to do `action` by a call, as data.
fn requested_as(action: &Action, call: &ToolUse) -> ApprovalRequest {
    let requested = RequestedCall {
        tool_use_id: Some(call.id.clone()),
        name: call.name.clone(),
        input: call.input.clone(),
        ..RequestedCall::default()
    };
    let request = ApprovalRequest::of(action.requested(), Some(requested));
    request.offer(&[ApprovalChoice::DenyWithReason, ApprovalChoice::SupplyResult])
}

/// The reply to the model for each decision.
fn replies() -> Replies {
    Replies { allowed: "result".to_owned(), denied: "error".to_owned() }
}

/// The question whether a call may be made.
fn call_question(call: &ToolUse) -> String {
    let input: String = call.input.to_string().chars().take(2000).collect();
    format!("May the agent call {} with {input}?", call.name)
}

fn client_result(result: &ClientResult) -> ToolResult {
    ToolResult { text: result.text(), is_error: result.is_error() }
}

/// A call that does not run.
struct Skipped {
    result: ToolResult,
    end: SkippedEnd,
}

/// How the end of a call that does not run is recorded.
enum SkippedEnd {
    /// An earlier attempt began the call; its outcome is unknown.
    Unknown(Failure),
    /// The call was not executed: it was rejected for this reason, or its result was supplied.
    Decided(Option<Failure>),
    /// The end is recorded already.
    Recorded,
}

impl Skipped {
    fn rejected(code: impl Into<FailureCode>, reason: String) -> Self {
        let end = SkippedEnd::Decided(Some(Failure::new(code, reason.clone())));
        Self { result: ToolResult::error(reason), end }
    }

    fn supplied(result: ToolResult) -> Self {
        Self { result, end: SkippedEnd::Decided(None) }
    }
}

/// Returns the result of a call that a decision kept from running.
fn skipped_by(decision: &ToolDecision) -> Skipped {
    match decision {
        ToolDecision::Reject { reason } => Skipped::rejected("tool_rejected", reason.clone()),
        ToolDecision::Result { result } if result.is_error => {
            Skipped::rejected("tool_invalid", result.text.clone())
        }
        ToolDecision::Result { result } => Skipped::supplied(result.clone()),
        // Unreachable: paused calls are resolved before, and others run.
        ToolDecision::Execute | ToolDecision::Pause { .. } => {
            Skipped::rejected("tool_invalid", "the call was not decided".into())
        }
    }
}

/// Records the end of a call that the client has executed or declined: `given` as it came, `result` as the model gets it.
fn provided_record(
    call: &ToolUse,
    asked_at: Option<Time>,
    given: &ClientResult,
    result: &ToolResult,
) -> Record {
    let result = CallResult {
        content: vec![Block::text(&result.text)],
        is_error: result.is_error,
        declined: given.is_declined() && result.is_error,
        runtime_ms: given.runtime_ms,
    };
    Record::ToolProvided { tool_use_id: call.id.clone(), name: call.name.clone(), asked_at, result }
}

/// Records the end of a call that was executed.
fn outcome_record(
    call: &ToolUse,
    failure: Option<(ToolOutcome, String)>,
    result: &ToolResult,
    files: &[Block],
) -> Record {
    let (tool_use_id, content) = (call.id.clone(), content(&result.text, files.to_vec()));
    match failure {
        None => Record::ToolCompleted { tool_use_id, content },
        Some((outcome, text)) => {
            let code = if outcome == ToolOutcome::Unknown { "tool_timed_out" } else { "tool_failed" };
            Record::ToolFailed { tool_use_id, outcome, error: Failure::new(code, text), content }
        }
    }
}

/// Builds the content of a result. Leaves out an empty text if there are files.
fn content(text: &str, files: Vec<Block>) -> Vec<Block> {
    let has_text = !text.is_empty() || files.is_empty();
    has_text.then(|| Block::text(text)).into_iter().chain(files).collect()
}

fn result_blocks(calls: &[ToolUse], results: Vec<Option<ToolResult>>, files: Vec<Vec<Block>>) -> Vec<Block> {
    let block = |((call, result), files): ((&ToolUse, Option<ToolResult>), Vec<Block>)| {
        let result = result.unwrap_or_else(|| ToolResult::error("the call has no result"));
        Block::tool_result(call.id.clone(), call.name.clone(), content(&result.text, files), result.is_error)
    };
    calls.iter().zip(results).zip(files).map(block).collect()
}
