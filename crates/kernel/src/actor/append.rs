//! Messages that another program has written: a prompt of a person, or the finished results of a turn.
//!
//! Their ids follow from the program's own ids, so that a repeated request finds its messages, however late it comes.

use std::sync::Arc;

use mainspring_core::run::close::left_open;
use mainspring_core::{
    Body, Message, MessageId, MessageStatus, Point, Role, SessionStatus, TitleSource, Usage, session,
};

use super::Actor;
use crate::error::Error;

/// Messages to append at the end of the active path.
#[derive(Debug)]
pub(crate) struct Append {
    /// The program's name for the request, for errors.
    pub(crate) name: String,
    /// The message at which the path must end: its id, and the program's id of it.
    pub(crate) beneath: Option<(MessageId, String)>,
    /// The messages, in order.
    pub(crate) messages: Vec<Arc<Message>>,
    /// The id that one more message of the request would have. If it is stored, an earlier request had more messages.
    pub(crate) after_last: Option<MessageId>,
}

impl Actor {
    /// Appends messages at the tip of an idle session. Returns false with the stored messages if they were appended before.
    pub(super) async fn append(&mut self, append: Append) -> Result<(Vec<Arc<Message>>, bool), Error> {
        if let Some(earlier) = self.appended_before(&append).await? {
            return Ok((earlier, false));
        }
        if self.shared.tasks.is_stopping() || self.lifetime.is_shutting_down() {
            return Err(Error::ShuttingDown);
        }
        if let Some(status) = self.busy() {
            return Err(Error::Busy { status });
        }
        session::check_takes_work(&self.hot.session)?;
        let tip = self.hot.session.tip;
        self.check_beneath(&append, tip)?;
        let mut messages = self.unanswered_results(tip).await?;
        messages.extend(append.messages.iter().cloned());
        let mut draft = self.draft();
        if self.hot.session.status != SessionStatus::Open {
            self.give_up_on_error(draft.session_command(session::Command::Reopen))?;
        }
        if let Some(title) = title_of(&append.messages) {
            let title = session::Command::Title { title, source: TitleSource::Heuristic };
            self.give_up_on_error(draft.session_command(title))?;
        }
        let used = append.messages.iter().filter_map(|message| message.usage);
        let used = used.fold(Usage::default(), |sum, usage| sum + usage);
        if !used.is_zero() {
            draft.emit(Body::UsageUpdated { usage: used });
        }
        self.give_up_on_error(draft.append(&messages))?;
        self.commit(draft).await?;
        Ok((append.messages, true))
    }

    /// Finds the messages of an earlier request with the same name. Refuses the name if that request had other messages.
    async fn appended_before(&self, append: &Append) -> Result<Option<Vec<Arc<Message>>>, Error> {
        let (session, store) = (self.fence.session, &self.shared.store);
        let mut found = vec![];
        for message in &append.messages {
            let earlier = store.message_get(session, message.id).await?;
            match earlier.map(|(placed, _)| placed.message) {
                Some(earlier) if is_same(&earlier, message) => found.push(earlier),
                None if found.is_empty() => return Ok(None),
                _ => return Err(Error::RequestConflict { name: append.name.clone() }),
            }
        }
        if let Some(id) = append.after_last
            && store.message_get(session, id).await?.is_some()
        {
            return Err(Error::RequestConflict { name: append.name.clone() });
        }
        Ok(Some(found))
    }

    /// Refuses results if there is nothing to answer, or if the path has moved on.
    fn check_beneath(&self, append: &Append, tip: Option<Point>) -> Result<(), Error> {
        let is_answer = append.messages.first().is_some_and(|message| message.role == Role::Assistant);
        if is_answer && tip.is_none() {
            let reason =
                "the path is empty, so there is nothing to answer; append the message of a person first";
            return Err(Error::Invalid(reason.into()));
        }
        match &append.beneath {
            Some((message, name)) if self.hot.session.tip_message != Some(*message) => {
                Err(Error::NotAtTip(name.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Builds the results of tool calls that the path ends with, which a fork or an import may leave open.
    async fn unanswered_results(&self, tip: Option<Point>) -> Result<Vec<Arc<Message>>, Error> {
        let unanswered = self.unanswered_calls(tip).await?;
        if unanswered.is_empty() {
            return Ok(vec![]);
        }
        Ok(vec![Arc::new(Message {
            id: self.shared.ids.message(),
            session: self.fence.session,
            run: None,
            role: Role::User,
            status: MessageStatus::Completed,
            content: left_open(unanswered),
            usage: None,
            created_at: self.shared.clock.now(),
            agent: None,
            external_id: None,
        })])
    }
}

/// True if a request with `message` has stored `earlier`. The time may differ: a repeated request may be made
/// later.
fn is_same(earlier: &Message, message: &Message) -> bool {
    let fields =
        |message: &Message| (message.role, message.usage, message.agent.clone(), message.external_id.clone());
    fields(earlier) == fields(message) && earlier.content == message.content
}

/// Derives a title from the first prompt among `messages`.
fn title_of(messages: &[Arc<Message>]) -> Option<String> {
    let prompt = messages.iter().find(|message| message.is_prompt())?;
    session::title_of(&prompt.text())
}
