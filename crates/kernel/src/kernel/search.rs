//! Search in the titles and messages of the sessions that the caller may read.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use mainspring_api::SearchHit;
use mainspring_core::{Damage, Rows, Session, SessionId, Time};

use super::sessions::scope_of;
use super::{Caller, Kernel, Scope};
use crate::error::Error;
use crate::search::{Query, searchable_text};
use crate::store::{FoundMessages, SessionsOf};

/// A search request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SearchQuery {
    /// Words to find. All must occur, each as the beginning of a word.
    pub text: String,
    /// The sessions that are searched.
    pub scope: Scope,
    /// The `next` of the previous page.
    pub before: Option<SearchPosition>,
    /// Page size; 50 if not given.
    pub limit: Option<usize>,
}

/// The last hit of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchPosition {
    /// A session whose title matched: its latest activity and its id.
    Title(Time, SessionId),
    /// The arrival number of a message.
    Message(u64),
}

impl fmt::Display for SearchPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Title(at, session) => write!(f, "{}.{session}", at.0),
            Self::Message(arrival) => write!(f, "{arrival}"),
        }
    }
}

impl FromStr for SearchPosition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = match text.split_once('.') {
            Some((at, session)) => match (at.parse(), session.parse()) {
                (Ok(at), Ok(session)) => Some(Self::Title(Time(at), session)),
                _ => None,
            },
            None => text.parse().ok().map(Self::Message),
        };
        read.ok_or_else(|| Error::Invalid(format!("{text:?} is not the `next` of an earlier page")))
    }
}

/// A page of search results.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SearchResult {
    /// Sessions whose title matches, by latest activity; then matching messages, newest first.
    pub hits: Vec<SearchHit>,
    /// The `before` of the next page, if there may be one. A page with fewer hits than asked for may have one: a search
    /// reads a bounded number of messages.
    pub next: Option<SearchPosition>,
    /// Damaged sessions and messages between the hits, which may match.
    pub damaged: Vec<Damage>,
}

impl Kernel {
    /// Searches the titles and messages of the sessions in the scope.
    pub async fn session_search(&self, caller: &Caller, search: &SearchQuery) -> Result<SearchResult, Error> {
        let limit = self.page(search.limit)?;
        let query = Query::parse(&search.text)
            .ok_or_else(|| Error::Invalid("there is no word to look for: give letters or digits".into()))?;
        let sources = self.search_sources(caller, search.scope, &query).await?;
        let titles = match search.before {
            None => self.search_titles(&sources, None, limit).await?,
            Some(SearchPosition::Title(at, session)) => {
                self.search_titles(&sources, Some((at, session)), limit).await?
            }
            Some(SearchPosition::Message(_)) => Rows::from(vec![]),
        };
        let before = match search.before {
            Some(SearchPosition::Message(arrival)) => Some(arrival),
            _ => None,
        };
        let (messages, searched_to) = match limit - titles.len() {
            0 => (Rows::from(vec![]), None),
            room => {
                let found = self.search_messages(&sources, before, room).await?;
                (found.rows, found.searched_to.map(SearchPosition::Message))
            }
        };
        let last_title = titles.last().map(|last| SearchPosition::Title(last.last_activity_at, last.id));
        let last = messages.last().map(|last| SearchPosition::Message(last.arrival)).or(last_title);
        let next = last.filter(|_| titles.len() + messages.len() == limit).or(searched_to);
        let pins = self.shared.pins.of(&*self.shared.store, &caller.owner).await?;
        let (mut hits, mut damaged) = (vec![], titles.damaged);
        let after_titles = |damage: Damage| Damage { index: damage.index + titles.items.len(), ..damage };
        damaged.extend(messages.damaged.into_iter().map(after_titles));
        for session in titles.items {
            hits.push(SearchHit {
                session_id: session.id,
                snippet: session.title.clone().unwrap_or_default(),
                title: session.title,
                message_id: None,
                role: None,
                created_at_ms: None,
                pinned_at_ms: pins.get(&session.id).copied(),
            });
        }
        for found in messages.items {
            // A page of long messages takes long: others are served in between.
            tokio::task::yield_now().await;
            let message = &found.message;
            hits.push(SearchHit {
                session_id: found.session,
                title: found.title,
                message_id: Some(message.id),
                role: Some(message.role),
                created_at_ms: Some(message.created_at),
                snippet: query.snippet(&searchable_text(&message.content)),
                pinned_at_ms: pins.get(&found.session).copied(),
            });
        }
        Ok(SearchResult { hits, next, damaged })
    }

    /// The owners whose sessions are searched, each with its query. Of other owners only sessions that are shared with
    /// the org are searched.
    async fn search_sources(
        &self,
        caller: &Caller,
        scope: Scope,
        query: &Query,
    ) -> Result<Vec<(String, Query)>, Error> {
        let mut sources = vec![];
        for of in scope_of(caller, scope)? {
            match of {
                SessionsOf::Owner(owner) => sources.push((owner, query.clone())),
                SessionsOf::Org(org) => {
                    let owners = self.shared.store.owners_sharing(&org).await?;
                    // The caller's own sessions are searched whole, if at all.
                    let others =
                        owners.into_iter().filter(|owner| scope == Scope::Org || *owner != caller.owner);
                    sources.extend(others.map(|owner| (owner, query.clone().shared_with(&org))));
                }
            }
        }
        Ok(sources)
    }

    async fn search_titles(
        &self,
        sources: &[(String, Query)],
        before: Option<(Time, SessionId)>,
        limit: usize,
    ) -> Result<Rows<Session>, Error> {
        let mut found = Rows::from(vec![]);
        for (no, (owner, query)) in sources.iter().enumerate() {
            let more = self.shared.store.search_titles(owner, query, before, limit).await?;
            if no == 0 {
                found = more;
                continue;
            }
            found.items.extend(more.items);
            found.items.sort_by_key(|session: &Session| Reverse((session.last_activity_at, session.id)));
            found.items.truncate(limit);
            found.damaged.extend(more.damaged);
            found.damaged.iter_mut().for_each(|damage| damage.index = found.items.len());
        }
        Ok(found)
    }

    async fn search_messages(
        &self,
        sources: &[(String, Query)],
        before: Option<u64>,
        limit: usize,
    ) -> Result<FoundMessages, Error> {
        let mut found = FoundMessages { rows: Rows::from(vec![]), searched_to: None };
        for (no, (owner, query)) in sources.iter().enumerate() {
            let more = self.shared.store.search_messages(owner, query, before, limit).await?;
            if no == 0 {
                found = more;
                continue;
            }
            found.rows.items.extend(more.rows.items);
            found.rows.damaged.extend(more.rows.damaged);
            // Past the point where one search stopped, hits may be missing.
            found.searched_to = found.searched_to.max(more.searched_to);
        }
        if sources.len() > 1 {
            let Rows { items, damaged } = &mut found.rows;
            items.sort_by_key(|hit| Reverse(hit.arrival));
            items.retain(|hit| found.searched_to.is_none_or(|searched_to| hit.arrival >= searched_to));
            found.searched_to = found.searched_to.filter(|_| items.len() < limit);
            items.truncate(limit);
            damaged.iter_mut().for_each(|damage| damage.index = items.len());
        }
        Ok(found)
    }
}
