//! `send_agent_message`.
//!
//! A message that a run sends is a delegation that continues the other session: the answering run may do no more than
//! the sending run, and a deadlock between two sessions is detected. A message without a calling run is a plain
//! prompt.

use mainspring_api::control::{ControlError, MessageReply, SendMessage};
use mainspring_api::{Delegate, Prompt, PromptContent, SessionTarget};
use mainspring_core::{DelegationMode, Message, MessageStatus, Mode, Role, RunOptions};

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
        let adapter = input.adapter_id.map(|name| self.adapter(name));
        let mode = input.mode.unwrap_or(Mode::Ask);
        let options = RunOptions {
            model: input.model,
            model_profile: input.model_profile,
            cwd: input.cwd,
            ..RunOptions::default()
        };
        let target = SessionTarget::id(session);
        let accepted = match self.calling_run().await? {
            Some(sender) => {
                let work = Delegate {
                    session: target,
                    adapter,
                    run_mode: mode,
                    options,
                    client_id,
                    request_id,
                    ..Delegate::new(DelegationMode::Continue, input.prompt)
                };
                self.plane.run_delegate(sender, &work).await?.run.id
            }
            None => {
                let prompt = Prompt {
                    session: target,
                    prompt: Some(PromptContent::Text(input.prompt)),
                    adapter,
                    mode,
                    options,
                    client_id,
                    request_id,
                    ..Prompt::default()
                };
                self.plane.run_create(&prompt).await?.id
            }
        };
        let run = self.plane.run_ended(accepted).await?;
        let attempt = self.last_attempt(run.id).await?;
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
