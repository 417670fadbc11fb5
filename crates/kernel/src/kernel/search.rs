//! Search over the titles and messages of the caller's own sessions.

use mainspring_core::{MessageId, Role, SessionId, Time};
use serde::Serialize;

use super::{Caller, Kernel};
use crate::error::Error;
use crate::search::{Query, searched};

/// What to look for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SearchQuery {
    /// Words; each is found as the beginning of a word, and all must be there.
    pub text: String,
    /// Only messages before this place, which an earlier answer gave as its `next`.
    pub before: Option<u64>,
    /// How many messages, and at first how many titles; 50 if not given.
    pub limit: Option<usize>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SearchResult {
    /// Sessions by their titles, the latest activity first; then messages, the latest first.
    pub hits: Vec<SearchHit>,
    /// The place of the last message, if there may be more before it.
    pub next: Option<u64>,
}

/// One thing that was found: a title, or a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SearchHit {
    /// The session.
    pub session_id: SessionId,
    /// Its title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The message; none if the title was found.
    #[serde(flatten)]
    pub message: Option<MessageHit>,
    /// The part of the text where it was found, on one line.
    pub snippet: String,
}

/// A message that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageHit {
    /// The message.
    pub message_id: MessageId,
    /// Who speaks in it.
    pub role: Role,
    /// When it was made.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
}

impl Kernel {
    /// Finds words in the titles and messages of the caller's own sessions.
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
        let next = found.last().filter(|_| found.len() == limit).map(|last| last.place);
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
                snippet: query.snippet(&searched(&message.content)),
            }
        }));
        Ok(SearchResult { hits, next })
    }
}
