//! Messages of other programs: a program that runs its turns itself keeps its conversation in a session.

use std::sync::Arc;

use mainspring_api::{MessageAppend, ResultMessage, ResultsAppend};
use mainspring_core::limits::check_text;
use mainspring_core::{Block, Message, MessageId, MessageStatus, Role, SessionId, Time, turn};

use super::idempotency::fingerprint;
use super::runs::{check_size, json_size, prompt_size};
use super::{Caller, Kernel};
use crate::actor::{Append, Command};
use crate::error::Error;
use crate::store::SessionRef;

impl Kernel {
    /// Appends a message of a person at the end of the session's path, while no run is active. The message may remain
    /// without an answer. Returns false with the message if it was appended before.
    pub async fn message_append(
        &self,
        caller: &Caller,
        by: &SessionRef,
        new: MessageAppend,
    ) -> Result<(Arc<Message>, bool), Error> {
        let session = self.session_for_change(caller, by).await?;
        check_text("the id of a message", &new.id)?;
        let content = new.content.into_blocks();
        check_prompt(&content)?;
        let size = prompt_size(&content);
        check_size("the message", size, self.shared.options.limits.prompt_bytes)?;
        self.shared.check_storage(&session.owner, size as u64, 0).await?;
        let message = Message {
            id: prompt_id(session.id, &new.id),
            session: session.id,
            run: None,
            role: Role::User,
            status: MessageStatus::Completed,
            content: self.resolve_attachments(caller, content).await?,
            usage: None,
            created_at: self.written_at(new.created_at)?,
            agent: None,
            external_id: Some(new.id.clone()),
        };
        let append = Append {
            name: format!("the message id {:?}", new.id),
            beneath: None,
            messages: vec![Arc::new(message)],
            after_last: None,
        };
        let append = Box::new(append);
        let (mut messages, made) =
            self.shared.call(session.id, |reply| Command::Append(append, reply)).await?;
        let message =
            messages.pop().ok_or_else(|| Error::Corrupt("an appended message is missing".into()))?;
        Ok((message, made))
    }

    /// Appends the finished results of a turn at the end of the session's path, while no run is active. Returns false with
    /// the messages if they were appended before.
    pub async fn results_append(
        &self,
        caller: &Caller,
        by: &SessionRef,
        new: ResultsAppend,
    ) -> Result<(Vec<Arc<Message>>, bool), Error> {
        let session = self.session_for_change(caller, by).await?;
        check_text("the id of a turn", &new.id)?;
        let names = new.messages.iter().flat_map(|message| [&message.agent, &message.id]);
        for name in names.chain([&new.agent, &new.beneath]).flatten() {
            check_text("the name of an agent or a message", name)?;
        }
        let mut messages = vec![];
        let mut size = 0;
        for (index, result) in new.messages.into_iter().enumerate() {
            let id = result_id(session.id, &new.id, index);
            let message = self.result_message(caller, session.id, id, new.agent.as_deref(), result).await?;
            size += json_size(Some(&message.content));
            messages.push(Arc::new(message));
        }
        let contents = messages.iter().map(|message| (message.role, message.content.as_slice()));
        turn::check_results(contents).map_err(|error| Error::Invalid(error.to_string()))?;
        self.shared.check_storage(&session.owner, size as u64, 0).await?;
        if let (Some(usage), Some(last)) = (new.usage, messages.last_mut()) {
            let last = Arc::make_mut(last);
            last.usage = Some(last.usage.unwrap_or_default() + usage).filter(|usage| !usage.is_zero());
        }
        let beneath = new.beneath.map(|name| {
            let id = name.parse().unwrap_or_else(|_| prompt_id(session.id, &name));
            (id, name)
        });
        let append = Box::new(Append {
            name: format!("the turn id {:?}", new.id),
            beneath,
            after_last: Some(result_id(session.id, &new.id, messages.len())),
            messages,
        });
        self.shared.call(session.id, |reply| Command::Append(append, reply)).await
    }

    async fn result_message(
        &self,
        caller: &Caller,
        session: SessionId,
        id: MessageId,
        agent: Option<&str>,
        result: ResultMessage,
    ) -> Result<Message, Error> {
        let content = result.content.into_blocks();
        check_size("a message", json_size(Some(&content)), self.shared.options.limits.message_bytes)?;
        Ok(Message {
            id,
            session,
            run: None,
            role: result.role,
            status: MessageStatus::Completed,
            content: self.resolve_attachments(caller, content).await?,
            usage: result.usage.filter(|usage| !usage.is_zero()),
            created_at: self.written_at(result.created_at)?,
            agent: result.agent.or_else(|| agent.map(str::to_owned)),
            external_id: result.id,
        })
    }

    /// The time at which a message was written: the program's time `at`, but now if there is none or it is in the future.
    fn written_at(&self, at: Option<Time>) -> Result<Time, Error> {
        let now = self.shared.clock.now();
        match at {
            Some(at) if at.0 < 0 => {
                Err(Error::Invalid("createdAtMs counts from 1970 and is not negative".into()))
            }
            Some(at) => Ok(at.min(now)),
            None => Ok(now),
        }
    }
}

/// Refuses a message of a person that is empty, or that holds blocks of agents.
fn check_prompt(content: &[Block]) -> Result<(), Error> {
    let is_blank = |block: &Block| matches!(block, Block::Text { text } if text.trim().is_empty());
    let is_allowed = |block: &Block| matches!(block, Block::Text { .. } | Block::Attachment { .. });
    match () {
        () if content.iter().all(is_blank) => Err(Error::Invalid("a message must not be empty".into())),
        () if !content.iter().all(is_allowed) => {
            Err(Error::Invalid("a message of a person holds text and attachments only".into()))
        }
        () => Ok(()),
    }
}

/// The id of the message that a program calls `id`.
fn prompt_id(session: SessionId, id: &str) -> MessageId {
    MessageId::from_random(fingerprint(&("message_append", session, id)))
}

/// The id of a message of the turn that a program calls `turn`.
fn result_id(session: SessionId, turn: &str, index: usize) -> MessageId {
    MessageId::from_random(fingerprint(&("results_append", session, turn, index)))
}
