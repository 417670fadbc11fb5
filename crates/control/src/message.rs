//! `send_agent_message`, and the text of a run.

use mainspring_api::control::{ControlError, ControlPlane, MessageReply, SendMessage};
use mainspring_api::{Prompt, PromptContent, SessionTarget};
use mainspring_core::{Body, Message, MessageStatus, Mode, Position, Role, Run, RunOptions};

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
            options: RunOptions { model: input.model, cwd: input.cwd, ..RunOptions::default() },
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
            text: run_text(self.plane, &run).await?,
            run: self.run_form(run).await?,
        })
    }
}

/// Returns all text of the agent in a run that has ended.
pub async fn run_text(plane: &dyn ControlPlane, run: &Run) -> Result<String, ControlError> {
    let (mut text, mut after) = (String::new(), Position::START);
    loop {
        match plane.run_events(run.id, after, None).await {
            Ok(page) => {
                text.extend(page.items.iter().filter_map(|event| final_text(&event.body)));
                match page.next.and_then(|next| next.parse().ok()) {
                    Some(next) => after = next,
                    None => return Ok(text),
                }
            }
            // The events were pruned; the last message still exists.
            Err(error) if error.is_cursor_expired() => break,
            Err(error) => return Err(error),
        }
    }
    let Some(message) = run.final_message else { return Ok(String::new()) };
    Ok(plane.session_message(run.session, message).await?.text())
}

/// True for assistant messages that are completed or cancelled, not for the remains of a failed attempt.
pub fn is_final(message: &Message) -> bool {
    let kept = matches!(message.status, MessageStatus::Completed | MessageStatus::Cancelled);
    message.role == Role::Assistant && kept
}

/// Returns the text of a final assistant message, if the event is one.
fn final_text(body: &Body) -> Option<String> {
    match body {
        Body::MessageCompleted { message, .. } if is_final(message) => Some(message.text()),
        _ => None,
    }
}
