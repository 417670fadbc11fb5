//! A session's tree: its messages, the active path, forks, search.

use std::sync::Arc;

use mainspring_api::{
    Fork, MessageListQuery, MessageView, Navigation, Page, SearchHit, SearchQuery, TreeNode, TreeQuery,
};
use mainspring_core::{Message, MessageId, Session};
use reqwest::Method;

use super::{Client, if_version, with_json};
use crate::Error;

impl Client {
    /// Reads the last messages of the active path, oldest first. `next` as `before` reads those above.
    pub async fn session_messages(
        &self,
        session: &str,
        query: &MessageListQuery,
    ) -> Result<Page<Arc<Message>>, Error> {
        self.get(&["v1", "sessions", session, "messages"], query).await
    }

    /// Reads a page of a session's tree: messages with their parent and depth, parents before children.
    pub async fn session_tree(&self, session: &str, query: &TreeQuery) -> Result<Page<TreeNode>, Error> {
        self.get(&["v1", "sessions", session, "tree"], query).await
    }

    /// Reads one message with its children and siblings.
    pub async fn session_message(&self, session: &str, message: MessageId) -> Result<MessageView, Error> {
        self.get(&["v1", "sessions", session, "messages", &message.to_string()], &()).await
    }

    /// Moves the active path to the leaf below `message`, or empties it; with `version`, only if the
    /// session still has this version.
    pub async fn session_navigate(
        &self,
        session: &str,
        message: Option<MessageId>,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        let request = self.request(Method::POST, &["v1", "sessions", session, "navigate"]);
        let request = with_json(request, &Navigation { message_id: Some(message) })?;
        self.read(self.send(if_version(request, version)).await?).await
    }

    /// Creates a session that continues from a message of this one. Repeated with the same `idempotency_key`, returns
    /// the same fork.
    pub async fn session_fork(
        &self,
        session: &str,
        fork: &Fork,
        idempotency_key: &str,
    ) -> Result<Session, Error> {
        self.post_idempotent(&["v1", "sessions", session, "fork"], fork, Some(idempotency_key)).await
    }

    /// Finds sessions by title and messages by text.
    pub async fn session_search(&self, query: &SearchQuery) -> Result<Page<SearchHit>, Error> {
        self.get(&["v1", "search"], query).await
    }
}
