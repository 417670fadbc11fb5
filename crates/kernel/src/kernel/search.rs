//! Search in the titles and messages of the caller's own sessions.

use mainspring_core::{MessageId, Role, SessionId, Time};
use serde::Serialize;

use super::{Caller, Kernel};
use crate::error::Error;
use crate::search::{Query, searchable_text};

/// A search request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SearchQuery {
    /// Words to find. All must occur, each as the beginning of a word.
    pub text: String,
    /// Only messages before this one: the `next` of the previous page.
    pub before: Option<u64>,
    /// Page size of messages, and on the first page also of titles; 50 if not given.
    pub limit: Option<usize>,
}

/// A page of search results.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SearchResult {
    /// Sessions whose title matches, by latest activity; then matching messages, newest first.
    pub hits: Vec<SearchHit>,
    /// The `before` of the next page, if there may be more messages.
    pub next: Option<u64>,
}

/// One search result: a session title or a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SearchHit {
    /// Id of the session.
    pub session_id: SessionId,
    /// Title of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The message; none if the title matched.
    #[serde(flatten)]
    pub message: Option<MessageHit>,
    /// The text around the match, on one line.
    pub snippet: String,
}

/// A message that matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageHit {
    /// Id of the message.
    pub message_id: MessageId,
    /// Author of the message.
    pub role: Role,
    /// When the message was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
}

impl Kernel {
    /// Searches the titles and messages of the caller's own sessions.
    pub async fn session_search(&self, caller: &Caller, search: &SearchQuery) -> Result<SearchResult, Error> {
        let limit = self.page(search.limit)?;
        let query = Query::parse(&search.text)
            .ok_or_else(|| Error::Invalid("there is no word to look for: give letters or digits".into()))?;
        let (store, owner) = (&self.shared.store, &caller.owner);
        let mut hits = vec![];
        if search.before.is_none() {
            for session in store.search_titles(owner, &query, limit).await? {
                let snippet = session.title.clone().unwrap_or_default();
                hits.push(SearchHit { session_id: session.id, title: session.title, message: None, snippet });
            }
        }
        let found = store.search_messages(owner, &query, search.before, limit).await?;
        let next = found.last().filter(|_| found.len() == limit).map(|last| last.arrival);
        hits.extend(found.into_iter().map(|found| {
            let message = &found.message;
            SearchHit {
                session_id: found.session,
                title: found.title,
                message: Some(MessageHit {
                    message_id: message.id,
                    role: message.role,
                    created_at: message.created_at,
                }),
                snippet: query.snippet(&searchable_text(&message.content)),
            }
        }));
        Ok(SearchResult { hits, next })
    }
}
