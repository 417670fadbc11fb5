//! Messages of a program that runs its turns itself.

use std::sync::Arc;

use mainspring_api::{Appended, MessageAppend, ResultsAppend};
use mainspring_core::Message;

use super::Client;
use crate::Error;

impl Client {
    /// Appends a message of a person at the end of the session's path, without a run. The same id again gives the same
    /// message.
    pub async fn message_append(
        &self,
        session: &str,
        message: &MessageAppend,
    ) -> Result<Arc<Message>, Error> {
        self.post(&["v1", "sessions", session, "messages"], message).await
    }

    /// Appends the finished results of a turn at the end of the session's path, without a run. The same id again gives the
    /// same messages.
    pub async fn results_append(&self, session: &str, results: &ResultsAppend) -> Result<Appended, Error> {
        self.post(&["v1", "sessions", session, "results"], results).await
    }
}
