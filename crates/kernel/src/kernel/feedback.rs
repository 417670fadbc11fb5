//! Operations on feedback: every reader of a session may give feedback of their own.

use mainspring_core::feedback::normalized;
use mainspring_core::{Feedback, MessageId, NewFeedback};

use super::{Caller, Kernel};
use crate::actor::Command;
use crate::error::Error;
use crate::store::SessionRef;

/// Feedback that a session's list shows at most.
const MAX_LISTED: usize = 10_000;

impl Kernel {
    /// Gives feedback on a message, in place of the caller's earlier one.
    pub async fn feedback_give(
        &self,
        caller: &Caller,
        by: &SessionRef,
        message: MessageId,
        new: NewFeedback,
    ) -> Result<Feedback, Error> {
        let session = self.session_get(caller, by).await?;
        caller.check_writes()?;
        let new = normalized(new).map_err(|bad| Error::Invalid(bad.to_string()))?;
        let owner = caller.owner.clone();
        self.shared.call(session.id, |reply| Command::Feedback(message, owner, Box::new(new), reply)).await
    }

    /// Lists the feedback of all readers on the messages of a session.
    pub async fn feedback_list(&self, caller: &Caller, by: &SessionRef) -> Result<Vec<Feedback>, Error> {
        let session = self.session_get(caller, by).await?;
        Ok(self.shared.store.feedback_list(session.id, None, MAX_LISTED).await?)
    }
}
