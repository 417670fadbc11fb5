//! Feedback on messages.

use mainspring_core::{Feedback, MessageId, SessionId};

use super::tables::Tables;

impl Tables {
    pub(super) fn feedback_write(&mut self, feedback: &Feedback) {
        let key = (feedback.session, feedback.message, feedback.owner.clone());
        self.feedback.insert(key, feedback.clone());
    }

    pub(super) fn feedback_list(
        &self,
        session: SessionId,
        message: Option<MessageId>,
        limit: usize,
    ) -> Vec<Feedback> {
        let matches = |feedback: &&Feedback| {
            feedback.session == session && message.is_none_or(|message| feedback.message == message)
        };
        self.feedback.values().filter(matches).take(limit).cloned().collect()
    }
}
