//! Pins of the caller.

use mainspring_core::Session;
use reqwest::Method;

use super::Client;
use crate::Error;

impl Client {
    /// Pins a session for the caller alone.
    pub async fn session_pin(&self, session: &str) -> Result<Session, Error> {
        self.pin(Method::PUT, session).await
    }

    /// Removes the caller's pin of a session, if there is one.
    pub async fn session_unpin(&self, session: &str) -> Result<Session, Error> {
        self.pin(Method::DELETE, session).await
    }

    async fn pin(&self, method: Method, session: &str) -> Result<Session, Error> {
        let request = self.request(method, &["v1", "sessions", session, "pin"]);
        self.read(self.send(request).await?).await
    }
}
