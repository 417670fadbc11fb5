//! A question beside the conversation: a model is asked once, its answer is text, and nobody sees it stream.

use futures_util::StreamExt;
use mainspring_core::{Failure, PromptRef, Role, StopReason, Time, Usage};
use mainspring_kernel::adapter::{AttemptHandle, StepTaken};
use serde_json::Value;

use crate::models::Chosen;
use crate::provider::{ErrorKind, ModelError, Part, Piece, Request, Turn};

/// A question beside the conversation.
pub(super) struct Aside<'a> {
    pub(super) model: &'a Chosen,
    pub(super) system: &'a str,
    pub(super) text: String,
}

/// What came of it.
pub(super) struct Told {
    pub(super) text: Result<String, ModelError>,
    pub(super) usage: Usage,
    pub(super) raw_usage: Value,
}

impl Aside<'_> {
    /// Asks once.
    pub(super) async fn ask(self) -> Told {
        let request = Request {
            model: self.model.model.clone(),
            system: Some(self.system.to_owned()),
            turns: vec![Turn { role: Role::User, parts: vec![Part::Text(self.text)], private: None }],
            tools: vec![],
            options: self.model.options.clone(),
            call_prefix: String::new(),
        };
        let mut told = Told {
            text: Err(ModelError::new(ErrorKind::Broken, "the provider's answer broke off")),
            usage: Usage::default(),
            raw_usage: Value::Null,
        };
        let mut text = String::new();
        let mut pieces = self.model.provider.ask(request).await;
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(Piece::Text(piece)) => text.push_str(&piece),
                Ok(Piece::Thought(_)) => {}
                Ok(Piece::Done(answer)) => {
                    told.usage = answer.usage;
                    told.usage.cost = self.model.cost(&answer.usage);
                    told.raw_usage = answer.raw_usage;
                    told.text = match text.trim() {
                        "" => Err(ModelError::new(ErrorKind::Refused, "the model said nothing")),
                        said => Ok(said.to_owned()),
                    };
                    return told;
                }
                Err(error) => {
                    told.text = Err(error);
                    return told;
                }
            }
        }
        told
    }
}

impl Told {
    /// The model call as it is recorded.
    pub(super) fn step(
        &self,
        attempt: &AttemptHandle,
        (no, agent): (u32, String),
        model: &Chosen,
        prompt: PromptRef,
        started_at: Time,
    ) -> StepTaken {
        let error = self.text.as_ref().err();
        StepTaken {
            no,
            agent,
            provider: model.provider_name.clone(),
            model: model.model.clone(),
            profile: model.profile.clone(),
            prompt,
            tool_calls: vec![],
            stop_reason: match error {
                None => StopReason::Stop,
                Some(error) if error.kind == ErrorKind::Refused => StopReason::Refusal,
                Some(_) => StopReason::Error,
            },
            error: error.map(|error| Failure::new(error.kind.code(), error.message.clone())),
            usage: self.usage,
            raw_usage: self.raw_usage.clone(),
            started_at,
            first_piece_at: self.text.is_ok().then(|| attempt.now()),
            private: None,
            budget: None,
        }
    }
}
