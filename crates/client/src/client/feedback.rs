//! Feedback on messages.

use mainspring_api::Page;
use mainspring_core::{Feedback, MessageId, NewFeedback};
use reqwest::Method;

use super::{Client, with_json};
use crate::Error;

impl Client {
    /// Gives feedback on a message, in place of the caller's earlier feedback on it.
    pub async fn feedback_give(
        &self,
        session: &str,
        message: MessageId,
        new: &NewFeedback,
    ) -> Result<Feedback, Error> {
        let message = message.to_string();
        let path = ["v1", "sessions", session, "messages", &message, "feedback"];
        let request = with_json(self.request(Method::PUT, &path), new)?;
        self.read(self.send(request).await?).await
    }

    /// Lists the feedback on the messages of a session, of all its readers.
    pub async fn feedback_list(&self, session: &str) -> Result<Page<Feedback>, Error> {
        self.get(&["v1", "sessions", session, "feedback"], &()).await
    }
}
