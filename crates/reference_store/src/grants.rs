//! Grants in memory.

use mainspring_core::{Grant, GrantId, Run, RunId, SessionId};
use mainspring_kernel::store::GrantPage;

use super::tables::Tables;

impl Tables {
    /// Writes a grant. A grant that was revoked stays revoked, also if a later attempt of its run records it again.
    pub(super) fn grant_write(&mut self, grant: &Grant) {
        let mut image = grant.clone();
        if let Some(known) = self.grants.get(&grant.id) {
            image.revoked_at = known.revoked_at.or(image.revoked_at);
            image.revoked_by = known.revoked_by.clone().or(image.revoked_by);
        }
        self.grants.insert(grant.id, image);
    }

    pub(super) fn grants_of(&self, session: SessionId, run: RunId) -> Vec<Grant> {
        let applies = |grant: &&Grant| grant.session == session && grant.run.is_none_or(|id| id == run);
        let mut grants: Vec<Grant> = self.grants.values().filter(applies).cloned().collect();
        grants.sort_by_key(|grant| (grant.created_at, grant.id));
        grants
    }

    pub(super) fn grant_get(&self, id: GrantId) -> Option<Grant> {
        self.grants.get(&id).filter(|grant| self.session(grant.session).is_some()).cloned()
    }

    pub(super) fn grant_page(&self, page: &GrantPage) -> Vec<Grant> {
        let is_ended = |run: &Run| run.completed_at.is_some();
        let in_force = |grant: &Grant| {
            let run = grant.run.and_then(|run| self.runs.get(&run));
            page.in_force_at.is_none_or(|now| grant.holds_at(now) && !run.is_some_and(is_ended))
        };
        let is_listed = |grant: &&Grant| {
            self.session(grant.session).is_some_and(|session| session.owner == page.owner)
                && page.session.is_none_or(|session| session == grant.session)
                && page.before.is_none_or(|before| (grant.created_at, grant.id) < before)
                && in_force(grant)
        };
        let mut grants: Vec<Grant> = self.grants.values().filter(is_listed).cloned().collect();
        grants.sort_by_key(|grant| std::cmp::Reverse((grant.created_at, grant.id)));
        grants.truncate(page.limit);
        grants
    }
}
