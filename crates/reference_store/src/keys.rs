//! API keys, the orgs of owners, and the owners of native sessions.

use mainspring_core::binding::native_key;
use mainspring_core::{ApiKey, SessionStatus};
use mainspring_kernel::store::{KeyPage, KeyRef, NativeClaim, NativeOwner, StoreError, Unique};

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

    pub(super) fn owner_claim(&mut self, owner: &str, org: Option<&str>) -> bool {
        let first = self.first_org(owner).unwrap_or_else(|| org.map(str::to_owned));
        self.owners.entry(owner.to_owned()).or_insert(first).as_deref() == org
    }

    pub(super) fn owner_org(&self, owner: &str) -> Option<String> {
        self.owners.get(owner).cloned().or_else(|| self.first_org(owner)).flatten()
    }

    /// The org of the oldest key or session of `owner`; `None` if there is neither.
    fn first_org(&self, owner: &str) -> Option<Option<String>> {
        let sessions = self.sessions.values().filter(|session| session.status != SessionStatus::Deleted);
        let sessions = sessions.filter(|session| session.owner == owner);
        let keys = self.keys.values().filter(|key| key.owner == owner);
        let oldest = { sessions.map(|session| (session.created_at, &session.org)) }
            .chain(keys.map(|key| (key.created_at, &key.org)))
            .min();
        oldest.map(|(_, org)| org.clone())
    }

    pub(super) fn native_owner_apply(&mut self, native: &NativeOwner) -> Result<(), StoreError> {
        let NativeOwner { adapter, native, owner, claim } = native;
        let (id, key) = ((adapter.clone(), native.clone()), native_key(native));
        let is_of_others =
            |((_, known), by): (&(String, String), &String)| native_key(known) == key && by != owner;
        let is_refused = match claim {
            NativeClaim::Opened => false,
            NativeClaim::Adopted => self.native_owners.iter().any(is_of_others),
            NativeClaim::AdoptedAgain => {
                self.native_owners.get(&id) != Some(owner) || self.native_owners.iter().any(is_of_others)
            }
        };
        if is_refused {
            return Err(StoreError::Conflict(Unique::Other));
        }
        self.native_owners.entry(id).or_insert_with(|| owner.clone());
        Ok(())
    }
}
