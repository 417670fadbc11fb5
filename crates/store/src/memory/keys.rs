//! API keys, by looking at all of them.

use mainspring_core::{ApiKey, SessionStatus};
use mainspring_kernel::store::{KeyPage, KeyRef};

use super::state::State;

impl State {
    pub(super) fn key_find(&self, by: &KeyRef) -> Option<ApiKey> {
        let named = |key: &&ApiKey| match by {
            KeyRef::Id(id) => key.id == *id,
            KeyRef::Hash(hash) => key.hash == *hash,
        };
        self.keys.values().find(named).cloned()
    }

    pub(super) fn key_page(&self, page: &KeyPage) -> Vec<ApiKey> {
        let place = |key: &ApiKey| (key.created_at, key.id);
        let wanted = |key: &&ApiKey| {
            (page.org.is_none() || key.org == page.org)
                && page.before.is_none_or(|before| place(key) < before)
        };
        let mut found: Vec<&ApiKey> = self.keys.values().filter(wanted).collect();
        found.sort_by_key(|key| std::cmp::Reverse(place(key)));
        found.into_iter().take(page.limit).cloned().collect()
    }

    pub(super) fn owner_outside_org(&self, owner: &str, org: &str) -> bool {
        let elsewhere = |found: &Option<String>| found.as_deref() != Some(org);
        let sessions = self.sessions.values().filter(|session| session.status != SessionStatus::Deleted);
        { sessions }.any(|session| session.owner == owner && elsewhere(&session.org))
            || self.keys.values().any(|key| key.owner == owner && elsewhere(&key.org))
    }
}
