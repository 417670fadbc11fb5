//! Searches by reading all titles and messages.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use mainspring_core::{Point, Session, SessionId, SessionStatus, Time, Visibility};
use mainspring_kernel::search::{Query, searchable_text};
use mainspring_kernel::store::{FoundMessage, PlacedMessage};

use super::tables::Tables;

impl Tables {
    pub(super) fn search_titles(
        &self,
        owner: &str,
        query: &Query,
        before: Option<(Time, SessionId)>,
        limit: usize,
    ) -> Vec<Session> {
        let own =
            self.sessions.values().filter(|session| is_visible(session, owner) && query.covers(session));
        let mut found: Vec<&Session> = own
            .filter(|session| session.title.as_deref().is_some_and(|title| query.matches(title)))
            .filter(|session| before.is_none_or(|before| (session.last_activity_at, session.id) < before))
            .collect();
        found.sort_by_key(|session| Reverse((session.last_activity_at, session.id)));
        found.into_iter().take(limit).cloned().collect()
    }

    pub(super) fn owners_sharing(&self, org: &str) -> Vec<String> {
        let shared = |session: &&Session| {
            session.visibility == Visibility::Org
                && session.org.as_deref() == Some(org)
                && session.status != SessionStatus::Deleted
        };
        let owners = self.sessions.values().filter(shared).map(|session| session.owner.clone());
        owners.collect::<BTreeSet<String>>().into_iter().collect()
    }

    pub(super) fn search_messages(
        &self,
        owner: &str,
        query: &Query,
        before: Option<u64>,
        limit: usize,
    ) -> Vec<FoundMessage> {
        let matching_session = |placed: &PlacedMessage| {
            let line = |point: Point| self.lines.iter().find(|(_, line)| line.id == point.line);
            let owner_session = match placed.point {
                Some(point) => line(point)?.0,
                None => placed.message.session,
            };
            let visible = |session: &&Session| is_visible(session, owner) && query.covers(session);
            let session = self.sessions.get(&owner_session).filter(visible)?;
            query.matches(&searchable_text(&placed.message.content)).then_some(session)
        };
        let mut hits: Vec<FoundMessage> = self
            .messages
            .values()
            .filter_map(|placed| {
                let arrival = self.message_order.get(&placed.message.id).copied()?;
                let session = matching_session(placed)?;
                let (message, title) = (placed.message.clone(), session.title.clone());
                Some(FoundMessage { arrival, session: session.id, message, title })
            })
            .filter(|found| before.is_none_or(|before| found.arrival < before))
            .collect();
        hits.sort_by_key(|found| Reverse(found.arrival));
        hits.truncate(limit);
        hits
    }
}

fn is_visible(session: &Session, owner: &str) -> bool {
    session.owner == owner && session.status != SessionStatus::Deleted
}
