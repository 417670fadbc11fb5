//! One step: a streamed model call, retried if it fails.

use std::sync::Arc;

use futures_util::StreamExt;
use mainspring_core::{ArtifactRole, Block, Failure, PromptRef, StepInput, StopReason, Time, Usage};
use mainspring_kernel::adapter::{Context, End, HandleError, NewArtifact, Record, StepTaken};
use serde_json::{Value, json};

use super::Exit;
use super::context::Cause;
use super::describe::{offered, options_of};
use super::execution::Execution;
use crate::hooks::AfterError;
use crate::models::SelectedModel;
use crate::provider::{Completion, ErrorKind, ModelError, Piece, Request, ToolUse};

/// The longest wait before a retry. A run fails if its provider asks for more.
const MAX_RETRY_WAIT_MS: u64 = 15 * 60 * 1000;

/// The largest raw response that a step holds; a larger one is an artifact.
const MAX_RAW_BYTES: usize = 16 << 10;

/// The output of a successful step.
pub(super) struct StepOutput {
    /// The text.
    pub(super) text: String,
    /// The tool calls.
    pub(super) calls: Vec<ToolUse>,
    /// The message and the step, to be committed.
    pub(super) records: Vec<Record>,
}

/// The progress of one model call.
struct ModelCall {
    started_at: Time,
    first_piece_at: Option<Time>,
    prompt: PromptRef,
    /// The input of the model besides messages.
    input: Arc<StepInput>,
    text: String,
    has_thinking: bool,
}

impl ModelCall {
    /// The usage of the call after an error. Unknown if the model has produced anything, or may have.
    fn usage_after(&self, error: &ModelError) -> Option<Usage> {
        let is_silent = self.text.is_empty() && !self.has_thinking;
        (is_silent && error.is_free()).then(Usage::default)
    }
}

/// Why a model call produced no completion.
enum CallError {
    Cancelled,
    Failed(ModelError),
}

/// Builds the record of a model call: its number and agent, its model and prompt, its start, why the model stopped, and
/// the failure. The caller sets the other fields.
pub(super) fn new_step(
    (no, agent): (u32, String),
    model: &SelectedModel,
    prompt: PromptRef,
    started_at: Time,
    (stop_reason, error): (StopReason, Option<Failure>),
) -> StepTaken {
    StepTaken {
        no,
        agent,
        provider: model.provider_name.clone(),
        model: model.model.clone(),
        profile: model.profile.clone(),
        prompt,
        tool_calls: vec![],
        stop_reason,
        error,
        usage: None,
        raw_usage: Value::Null,
        started_at,
        first_piece_at: None,
        private: None,
        budget: None,
        input: None,
        raw: Value::Null,
    }
}

/// Returns the stop reason and the failure of a model call that ended with this error, or without one.
pub(super) fn stop_of(error: Option<&ModelError>) -> (StopReason, Option<Failure>) {
    let reason = match error {
        None => StopReason::Stop,
        Some(error) if error.kind == ErrorKind::Refused => StopReason::Refusal,
        Some(_) => StopReason::Error,
    };
    (reason, error.map(|error| Failure::new(error.kind.code(), error.message.clone())))
}

impl Execution<'_> {
    /// Calls the model until it answers or the retries are used up.
    pub(super) async fn step(&mut self, mut context: Context) -> Result<StepOutput, Exit> {
        let mut tries = 0;
        let mut compacted = false;
        loop {
            tries += 1;
            let mut call = ModelCall {
                started_at: self.attempt.now(),
                first_piece_at: None,
                prompt: PromptRef {
                    last: context.messages.last().map(|(_, message)| message.id),
                    messages: u32::try_from(context.messages.len()).unwrap_or(u32::MAX),
                    digest: context.digest.as_ref().map(|digest| digest.message),
                },
                input: Arc::new(StepInput::default()),
                text: String::new(),
                has_thinking: false,
            };
            let error = match self.stream(&mut call, &context).await? {
                Ok(mut completion) => {
                    completion.raw = self.bounded_raw(completion.raw).await?;
                    return Ok(self.finish_step(call, completion));
                }
                Err(CallError::Cancelled) => {
                    let step = self.step_taken(&call, StopReason::Cancelled, None, None, Value::Null);
                    self.attempt.record_at_end(vec![Record::Step(Box::new(step))]).await?;
                    return Err(End::stopped().into());
                }
                Err(CallError::Failed(error)) => error,
            };
            let mut records = vec![self.failed_step(&call, &error)];
            // A context that is too long is compacted once.
            let too_long = error.kind == ErrorKind::ContextTooLong && call.text.is_empty();
            if too_long && !std::mem::replace(&mut compacted, true) {
                // The failed call comes before the calls of the summarizer.
                self.attempt.record(std::mem::take(&mut records)).await?;
                if let Some(smaller) = self.compact(&context, Cause::Provider).await? {
                    context = smaller;
                    continue;
                }
            }
            self.wait_for_retry(&call, error, tries, records).await?;
        }
    }

    /// Sends one request and streams its text to the feed.
    async fn stream(
        &mut self,
        call: &mut ModelCall,
        context: &Context,
    ) -> Result<Result<Completion, CallError>, Exit> {
        self.files.read(&self.attempt, context, self.plan.result_bytes).await?;
        let request = Request {
            model: self.plan.model.model.clone(),
            system: self.plan.system_prompt(),
            messages: self.request_messages(context),
            tools: self.plan.offered_tools().map(|entry| entry.spec.clone()).collect(),
            options: self.plan.model.options.clone(),
            call_prefix: format!("{}_{}", self.attempt.assignment().run.id, self.steps + 1),
        };
        call.input = Arc::new(step_input(&request));
        let provider = self.plan.model.provider.clone();
        let attempt = self.attempt.clone();
        let mut pieces = tokio::select! {
            biased;
            () = attempt.cancelled() => return Ok(Err(CallError::Cancelled)),
            pieces = provider.stream(request) => pieces,
        };
        loop {
            let piece = tokio::select! {
                biased;
                () = attempt.cancelled() => return Ok(Err(CallError::Cancelled)),
                piece = pieces.next() => piece,
            };
            if call.first_piece_at.is_none() && matches!(piece, Some(Ok(_))) {
                call.first_piece_at = Some(attempt.now());
            }
            match piece {
                Some(Ok(Piece::Text(text))) => {
                    attempt.delta(0, &text)?;
                    call.text.push_str(&text);
                }
                Some(Ok(Piece::Thinking(text))) => {
                    attempt.thought(&text)?;
                    call.has_thinking = true;
                }
                Some(Ok(Piece::Done(completion))) => return Ok(Ok(*completion)),
                Some(Err(error)) => return Ok(Err(CallError::Failed(error))),
                None => return Ok(Err(CallError::Failed(ModelError::connection_closed()))),
            }
        }
    }

    fn finish_step(&mut self, call: ModelCall, completion: Completion) -> StepOutput {
        self.steps += 1;
        let mut usage = completion.usage;
        usage.cost = self.plan.model.cost(&usage);
        self.usage += usage;
        let stop = match (completion.cut_off, completion.calls.is_empty()) {
            (true, _) => StopReason::Length,
            (false, false) => StopReason::ToolUse,
            (false, true) => StopReason::Stop,
        };
        let mut step = self.step_taken(
            &call,
            stop,
            None,
            Some(usage).filter(|usage| !usage.at_least),
            completion.raw_usage,
        );
        step.no = self.steps;
        step.tool_calls = completion.calls.iter().map(|call| call.id.clone()).collect();
        step.private = completion.private;
        step.raw = completion.raw;
        let agent = Record::Agent { name: step.agent.clone() };
        let thinking = call.has_thinking.then_some(Block::Thinking {});
        let calls =
            completion.calls.iter().map(|call| Block::tool_use(&call.id, &call.name, call.input.clone()));
        let blocks = thinking.into_iter().chain(calls).collect();
        let message = Record::Message { blocks, usage: Some(usage) };
        let records = vec![agent, message, Record::Step(Box::new(step))];
        StepOutput { text: call.text, calls: completion.calls, records }
    }

    /// Counts the usage of a failed call, and returns the record of the call.
    fn failed_step(&mut self, call: &ModelCall, error: &ModelError) -> Record {
        let (stop, failure) = stop_of(Some(error));
        let usage = call.usage_after(error);
        self.usage += usage.unwrap_or(Usage::UNKNOWN);
        Record::Step(Box::new(self.step_taken(call, stop, failure, usage, Value::Null)))
    }

    /// Commits `records` and waits until the failed call may be retried; fails the run if it may not.
    async fn wait_for_retry(
        &mut self,
        call: &ModelCall,
        error: ModelError,
        tries: u32,
        mut records: Vec<Record>,
    ) -> Result<(), Exit> {
        let hooks = self.adapter.hooks.clone();
        let decision = hooks.on_error(self.hook_context(), &error, &mut self.plan).await;
        let options = &self.adapter.options;
        let retryable = match decision {
            AfterError::Default => error.kind.is_retryable(),
            AfterError::Retry => true,
            AfterError::Stop => false,
        };
        let wait_ms = options.retry_delay_ms(tries, &error);
        // Text that was streamed has reached subscribers: only a new attempt can discard it.
        let exhausted = tries >= options.max_tries || wait_ms > MAX_RETRY_WAIT_MS || !call.text.is_empty();
        if !retryable || exhausted {
            self.attempt.record_at_end(records).await?;
            let failure = Failure::new(error.kind.code(), error.message);
            return Err(End::failed(failure, retryable && wait_ms <= MAX_RETRY_WAIT_MS).into());
        }
        let text = format!(
            "{}; retrying in {} s (try {} of {})",
            error.message,
            wait_ms.div_ceil(1000),
            tries + 1,
            options.max_tries
        );
        records.push(Record::Progress { text });
        self.attempt.record(records).await?;
        tokio::select! {
            () = self.attempt.sleep_for(wait_ms) => Ok(()),
            () = self.attempt.cancelled() => Err(End::stopped().into()),
        }
    }

    fn step_taken(
        &self,
        call: &ModelCall,
        stop_reason: StopReason,
        error: Option<Failure>,
        usage: Option<Usage>,
        raw_usage: Value,
    ) -> StepTaken {
        let name = (self.steps + 1, self.plan.agent.name());
        StepTaken {
            usage,
            raw_usage,
            first_piece_at: call.first_piece_at,
            budget: self.budget(),
            input: Some(call.input.clone()),
            ..new_step(name, &self.plan.model, call.prompt, call.started_at, (stop_reason, error))
        }
    }

    /// Stores a raw response over the size limit as an artifact, and returns a reference to it.
    pub(super) async fn bounded_raw(&self, raw: Value) -> Result<Value, Exit> {
        let text = if raw.is_null() { String::new() } else { raw.to_string() };
        if text.len() <= MAX_RAW_BYTES {
            return Ok(raw);
        }
        let new = NewArtifact {
            kind: "raw_response".into(),
            role: ArtifactRole::Log,
            name: Some(format!("step-{}.json", self.steps + 1)),
            mime_type: Some("application/json".into()),
            ..NewArtifact::default()
        };
        match self.attempt.artifact(new, &mut text.as_bytes()).await {
            Ok(artifact) => Ok(json!({"artifact": artifact.id, "bytes": text.len()})),
            Err(HandleError::Revoked) => Err(HandleError::Revoked.into()),
            Err(HandleError::Kernel(error)) => {
                tracing::warn!(%error, "a raw response could not be stored as an artifact");
                Ok(json!({"bytes": text.len()}))
            }
        }
    }
}

/// The parts of a request that the model gets besides messages.
pub(super) fn step_input(request: &Request) -> StepInput {
    StepInput {
        system_prompt: request.system.clone(),
        tools: request.tools.iter().map(offered).collect(),
        model_options: options_of(&request.options).into_iter().collect(),
    }
}
