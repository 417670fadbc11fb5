//! One-shot model calls beside the conversation, for summaries and titles. The answer is text and is not streamed.

use futures_util::StreamExt;
use mainspring_core::{PromptRef, Time, Usage};
use mainspring_kernel::adapter::{AttemptHandle, StepTaken};
use serde_json::Value;

use super::step::{new_step, stop_of};
use crate::models::SelectedModel;
use crate::provider::{ErrorKind, ModelError, Piece, Request, RequestMessage};

/// A one-shot model call.
pub(super) struct OneShot<'a> {
    pub(super) model: &'a SelectedModel,
    pub(super) system: &'a str,
    pub(super) text: String,
}

/// The outcome of a one-shot model call.
pub(super) struct OneShotResult {
    pub(super) text: Result<String, ModelError>,
    /// The usage; `None` if it is unknown.
    pub(super) usage: Option<Usage>,
    pub(super) raw_usage: Value,
}

impl OneShot<'_> {
    /// Makes the call, without retries.
    pub(super) async fn call(self) -> OneShotResult {
        let request = Request {
            model: self.model.model.clone(),
            system: Some(self.system.to_owned()),
            messages: vec![RequestMessage::user(self.text)],
            tools: vec![],
            options: self.model.options.clone(),
            call_prefix: String::new(),
        };
        let failed = |error: ModelError, is_silent: bool| {
            let usage = (is_silent && error.is_free()).then(Usage::default);
            OneShotResult { text: Err(error), usage, raw_usage: Value::Null }
        };
        let (mut text, mut is_silent) = (String::new(), true);
        let mut pieces = self.model.provider.stream(request).await;
        while let Some(piece) = pieces.next().await {
            let was_silent = std::mem::replace(&mut is_silent, false);
            match piece {
                Ok(Piece::Text(piece)) => text.push_str(&piece),
                Ok(Piece::Thinking(_)) => {}
                Ok(Piece::Done(completion)) => {
                    let mut usage = completion.usage;
                    usage.cost = self.model.cost(&completion.usage);
                    let text = match text.trim() {
                        "" => Err(ModelError::new(ErrorKind::Refused, "the model returned no text")),
                        text => Ok(text.to_owned()),
                    };
                    return OneShotResult { text, usage: Some(usage), raw_usage: completion.raw_usage };
                }
                Err(error) => return failed(error, was_silent),
            }
        }
        failed(ModelError::connection_closed(), is_silent)
    }
}

impl OneShotResult {
    /// Returns the step to record for the call.
    pub(super) fn step(
        &self,
        attempt: &AttemptHandle,
        name: (u32, String),
        model: &SelectedModel,
        prompt: PromptRef,
        started_at: Time,
    ) -> StepTaken {
        StepTaken {
            usage: self.usage,
            raw_usage: self.raw_usage.clone(),
            first_piece_at: self.text.is_ok().then(|| attempt.now()),
            ..new_step(name, model, prompt, started_at, stop_of(self.text.as_ref().err()))
        }
    }
}
