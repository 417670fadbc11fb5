//! Feedback on a message of the session.

use mainspring_core::{Feedback, MessageId, MessageStatus, NewFeedback, feedback};

use super::Actor;
use crate::error::Error;
use crate::store::Row;

impl Actor {
    /// Records the feedback of `owner`, in place of the earlier one. Changes neither the session's version nor its activity.
    pub(super) async fn feedback_give(
        &mut self,
        message: MessageId,
        owner: String,
        new: NewFeedback,
    ) -> Result<Feedback, Error> {
        let (_, placed, _) = self.message_at(message).await?;
        if matches!(placed.message.status, MessageStatus::NotStarted | MessageStatus::Generating) {
            return Err(Error::Invalid(format!("the message {message} is not complete yet")));
        }
        let session = self.fence.session;
        let known = self.shared.store.feedback_list(session, Some(message), usize::MAX).await?;
        let earlier = known.into_iter().find(|known| known.owner == owner);
        let (id, at) = (self.shared.ids.feedback(), self.shared.clock.now());
        let (given, event) = feedback::give(earlier, (session, message, owner), id, new, at);
        if let Some(event) = event {
            let mut draft = self.draft();
            draft.emit(event);
            draft.row(Row::Feedback(Box::new(given.clone())));
            self.commit(draft).await?;
        }
        Ok(given)
    }
}
