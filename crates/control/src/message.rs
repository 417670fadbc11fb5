//! `send_agent_message`.

use mainspring_api::control::{ControlError, MessageReply, SendMessage};
use mainspring_api::{Prompt, PromptContent, SessionTarget};
use mainspring_core::{Message, MessageStatus, Mode, Role, RunOptions};

use crate::{ControlTools, Input, session_id};

impl ControlTools<'_> {
    pub(crate) async fn send(&self, input: Input<SendMessage>) -> Result<MessageReply, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let session = session_id(&input.session_id)?;
        if self.session == Some(session) {
            let message = "a run cannot wait for another run of its own session: it would deadlock";
            return Err(ControlError::new("would_deadlock", message));
        }
        let (client_id, request_id) = self.request_name(input.client_id, input.request_id);
        let prompt = Prompt {
            session: SessionTarget::id(session),
            prompt: Some(PromptContent::Text(input.prompt)),
            adapter: input.adapter_id.map(|name| self.adapter(name)),
            mode: input.mode.unwrap_or(Mode::Ask),
            options: RunOptions {
                model: input.model,
                model_profile: input.model_profile,
                cwd: input.cwd,
                ..RunOptions::default()
            },
            client_id,
            request_id,
            ..Prompt::default()
        };
        let accepted = self.plane.run_create(&prompt).await?.id;
        let run = self.plane.run_ended(accepted).await?;
        let attempt = self.attempts(run.id).await?.pop();
        Ok(MessageReply {
            session: self.plane.session_get(session).await?.into(),
            adapter_session_id: self.native_session(session, attempt.as_ref()).await?,
            attempt,
            terminal_status: run.state.status(),
            text: run.final_text.clone().unwrap_or_default(),
            run: self.run_form(run).await?,
        })
    }
}

/// True for assistant messages that are completed or cancelled, not for the remains of a failed attempt.
pub fn is_final(message: &Message) -> bool {
    let kept = matches!(message.status, MessageStatus::Completed | MessageStatus::Cancelled);
    message.role == Role::Assistant && kept
}
