//! One step: a model is asked, streams, and is asked again if it did not answer.

use futures_util::StreamExt;
use mainspring_core::{Block, Failure, PromptRef, StopReason, Time, Usage};
use mainspring_kernel::adapter::{Context, End, Record, StepTaken};
use serde_json::Value;

use super::Stop;
use super::context::Cause;
use super::turn::Looper;
use crate::hooks::OnError;
use crate::provider::{Answer, Call, ErrorKind, ModelError, Piece, Request};

/// How long a run waits for a provider, in milliseconds: whoever asks for more gets a failed run.
const PATIENCE: u64 = 15 * 60 * 1000;

/// What a step came to, with what is to be recorded of it.
pub(super) struct Stepped {
    /// The text.
    pub(super) text: String,
    /// The calls.
    pub(super) calls: Vec<Call>,
    /// The message and the step.
    pub(super) records: Vec<Record>,
}

/// One model call as it goes on.
struct Asking {
    started_at: Time,
    first_piece_at: Option<Time>,
    prompt: PromptRef,
    text: String,
    thought: bool,
}

/// How a model call ended that did not end well.
enum Ended {
    Cancelled,
    Failed(ModelError),
}

impl Looper<'_> {
    /// Asks the model until it answers, as often as it may be asked.
    pub(super) async fn step(&mut self, mut context: Context) -> Result<Stepped, Stop> {
        let mut tries = 0;
        let mut squeezed = false;
        loop {
            tries += 1;
            let mut asking = Asking {
                started_at: self.attempt.now(),
                first_piece_at: None,
                prompt: PromptRef {
                    last: context.messages.last().map(|(_, message)| message.id),
                    messages: u32::try_from(context.messages.len()).unwrap_or(u32::MAX),
                },
                text: String::new(),
                thought: false,
            };
            match self.ask(&mut asking, &context).await? {
                Ok(answer) => return Ok(self.answered(asking, answer)),
                Err(Ended::Cancelled) => {
                    let step =
                        self.taken(&asking, StopReason::Cancelled, None, Usage::default(), Value::Null);
                    self.attempt.record_at_end(vec![Record::Step(Box::new(step))]).await?;
                    return Err(End::stopped().into());
                }
                Err(Ended::Failed(error)) => {
                    // What is too long is shortened, once.
                    let too_long = error.kind == ErrorKind::ContextTooLong && asking.text.is_empty();
                    if too_long && !std::mem::replace(&mut squeezed, true) {
                        let failure = Failure::new(error.kind.code(), error.message.clone());
                        let step = self.taken(
                            &asking,
                            StopReason::Error,
                            Some(failure),
                            Usage::default(),
                            Value::Null,
                        );
                        self.attempt.record(vec![Record::Step(Box::new(step))]).await?;
                        if let Some(smaller) = self.compact(&context, Cause::Provider).await? {
                            context = smaller;
                            continue;
                        }
                    }
                    self.failed(&asking, error, tries).await?;
                }
            }
        }
    }

    /// One request, streamed.
    async fn ask(&mut self, asking: &mut Asking, context: &Context) -> Result<Result<Answer, Ended>, Stop> {
        self.files.read(&self.attempt, context, self.plan.result_bytes).await?;
        let request = Request {
            model: self.plan.model.model.clone(),
            system: self.plan.told(),
            turns: self.turns(context),
            tools: self.plan.tools.iter().map(|entry| entry.spec.clone()).collect(),
            options: self.plan.model.options.clone(),
            call_prefix: format!("{}_{}", self.attempt.assignment().run.id, self.steps + 1),
        };
        let provider = self.plan.model.provider.clone();
        let attempt = self.attempt.clone();
        let mut pieces = tokio::select! {
            biased;
            () = attempt.cancelled() => return Ok(Err(Ended::Cancelled)),
            pieces = provider.ask(request) => pieces,
        };
        loop {
            let piece = tokio::select! {
                biased;
                () = attempt.cancelled() => return Ok(Err(Ended::Cancelled)),
                piece = pieces.next() => piece,
            };
            if asking.first_piece_at.is_none() {
                asking.first_piece_at = Some(attempt.now());
            }
            match piece {
                Some(Ok(Piece::Text(text))) => {
                    attempt.delta(0, &text)?;
                    asking.text.push_str(&text);
                }
                Some(Ok(Piece::Thought(text))) => {
                    attempt.thought(&text)?;
                    asking.thought = true;
                }
                Some(Ok(Piece::Done(answer))) => return Ok(Ok(*answer)),
                Some(Err(error)) => return Ok(Err(Ended::Failed(error))),
                None => {
                    let broken = ModelError::new(ErrorKind::Broken, "the provider's answer broke off");
                    return Ok(Err(Ended::Failed(broken)));
                }
            }
        }
    }

    fn answered(&mut self, asking: Asking, answer: Answer) -> Stepped {
        self.steps += 1;
        let mut usage = answer.usage;
        usage.cost = self.plan.model.cost(&usage);
        self.usage += usage;
        let stop = match (answer.cut_off, answer.calls.is_empty()) {
            (true, _) => StopReason::Length,
            (false, false) => StopReason::ToolUse,
            (false, true) => StopReason::Stop,
        };
        let mut step = self.taken(&asking, stop, None, usage, answer.raw_usage);
        step.no = self.steps;
        step.tool_calls = answer.calls.iter().map(|call| call.id.clone()).collect();
        step.private = answer.private;
        let thought = asking.thought.then_some(Block::Thinking {});
        let calls = answer.calls.iter().map(|call| Block::ToolUse {
            id: call.id.clone(),
            name: call.name.clone(),
            input: call.input.clone(),
        });
        let blocks = thought.into_iter().chain(calls).collect();
        let records = vec![Record::Message { blocks, usage: Some(usage) }, Record::Step(Box::new(step))];
        Stepped { text: asking.text, calls: answer.calls, records }
    }

    /// Records that the model did not answer; returns once it may be asked again.
    async fn failed(&mut self, asking: &Asking, error: ModelError, tries: u32) -> Result<(), Stop> {
        let stop = if error.kind == ErrorKind::Refused { StopReason::Refusal } else { StopReason::Error };
        let failure = Failure::new(error.kind.code(), error.message.clone());
        let step = self.taken(asking, stop, Some(failure.clone()), Usage::default(), Value::Null);
        let step = Record::Step(Box::new(step));
        let hooks = self.adapter.hooks.clone();
        let wish = hooks.on_error(self.occasion(), &error, &mut self.plan).await;
        let options = &self.adapter.options;
        let again = match wish {
            OnError::Default => error.kind.is_retryable(),
            OnError::Retry => true,
            OnError::Stop => false,
        };
        let wait = options.wait(tries, &error);
        // What was streamed is on the way to its readers: only a new attempt can set it aside.
        if !again || tries >= options.tries || wait > PATIENCE || !asking.text.is_empty() {
            self.attempt.record_at_end(vec![step]).await?;
            return Err(End::failed(failure, again && wait <= PATIENCE).into());
        }
        let text = format!(
            "{}; it is asked again in {} s (try {} of {})",
            error.message,
            wait.div_ceil(1000),
            tries + 1,
            options.tries
        );
        self.attempt.record(vec![step, Record::Progress { text }]).await?;
        let until = self.attempt.now().plus(wait);
        tokio::select! {
            () = self.attempt.sleep_until(until) => Ok(()),
            () = self.attempt.cancelled() => Err(End::stopped().into()),
        }
    }

    fn taken(
        &self,
        asking: &Asking,
        stop_reason: StopReason,
        error: Option<Failure>,
        usage: Usage,
        raw_usage: Value,
    ) -> StepTaken {
        StepTaken {
            no: self.steps + 1,
            agent: self.plan.agent.name(),
            provider: self.plan.model.provider_name.clone(),
            model: self.plan.model.model.clone(),
            profile: self.plan.model.profile.clone(),
            prompt: asking.prompt,
            tool_calls: vec![],
            stop_reason,
            error,
            usage,
            raw_usage,
            started_at: asking.started_at,
            first_piece_at: asking.first_piece_at,
            private: None,
            budget: self.budget(),
        }
    }
}
