//! Search, by reading everything.

use std::cmp::Reverse;

use mainspring_core::{Message, Session, SessionStatus};
use mainspring_kernel::search::{Query, searched};
use mainspring_kernel::store::Found;

use super::state::State;

impl State {
    pub(super) fn search_titles(&self, owner: &str, query: &Query, limit: usize) -> Vec<Session> {
        let own = self.sessions.values().filter(|session| is_own(session, owner));
        let mut found: Vec<&Session> =
            own.filter(|session| session.title.as_deref().is_some_and(|title| query.finds(title))).collect();
        found.sort_by_key(|session| Reverse((session.last_activity_at, session.id)));
        found.into_iter().take(limit).cloned().collect()
    }

    pub(super) fn search_messages(
        &self,
        owner: &str,
        query: &Query,
        before: Option<u64>,
        limit: usize,
    ) -> Vec<Found> {
        let found = |message: &Message| {
            let session = self.sessions.get(&message.session).filter(|session| is_own(session, owner))?;
            query.finds(&searched(&message.content)).then(|| session.title.clone())
        };
        let mut hits: Vec<Found> = self
            .messages
            .values()
            .filter_map(|placed| {
                let place = self.arrivals.get(&placed.message.id).copied()?;
                let title = found(&placed.message)?;
                Some(Found { place, message: placed.message.clone(), title })
            })
            .filter(|found| before.is_none_or(|before| found.place < before))
            .collect();
        hits.sort_by_key(|found| Reverse(found.place));
        hits.truncate(limit);
        hits
    }
}

fn is_own(session: &Session, owner: &str) -> bool {
    session.owner == owner && session.status != SessionStatus::Deleted
}
