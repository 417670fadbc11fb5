//! API keys.

use mainspring_core::{ApiKey, SessionStatus};
use mainspring_kernel::store::{KeyPage, KeyRef};

use super::tables::Tables;

impl Tables {
    pub(super) fn key_find(&self, by: &KeyRef) -> Option<ApiKey> {
        let matches = |key: &&ApiKey| match by {
            KeyRef::Id(id) => key.id == *id,
            KeyRef::Hash(hash) => key.hash == *hash,
        };
        self.keys.values().find(matches).cloned()
    }

    pub(super) fn key_page(&self, page: &KeyPage) -> Vec<ApiKey> {
        let sort_key = |key: &ApiKey| (key.created_at, key.id);
        let matches = |key: &&ApiKey| {
            (page.org.is_none() || key.org == page.org)
                && page.before.is_none_or(|before| sort_key(key) < before)
        };
        let mut found: Vec<&ApiKey> = self.keys.values().filter(matches).collect();
        found.sort_by_key(|key| std::cmp::Reverse(sort_key(key)));
        found.into_iter().take(page.limit).cloned().collect()
    }

    pub(super) fn owner_outside_org(&self, owner: &str, org: &str) -> bool {
        let is_other = |found: &Option<String>| found.as_deref() != Some(org);
        let sessions = self.sessions.values().filter(|session| session.status != SessionStatus::Deleted);
        { sessions }.any(|session| session.owner == owner && is_other(&session.org))
            || self.keys.values().any(|key| key.owner == owner && is_other(&key.org))
    }
}
