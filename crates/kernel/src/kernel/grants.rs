//! Grants: recorded decisions to allow or deny. A revoked grant decides nothing from then on, nor do the grants of
//! delegated runs that depend on it.

use mainspring_core::{Decider, Grant, GrantId, RunId, SessionId, Time};

use super::{Caller, Kernel, Shared};
use crate::actor::Command;
use crate::error::Error;
use crate::store::{GrantPage, SessionRef};

/// A bound on the walk up a chain of grants that depend on each other. A chain has one grant per level of
/// delegation.
const MAX_CHAIN: usize = 64;

/// Selects grants to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrantQuery {
    /// Only grants of this session.
    pub session: Option<SessionId>,
    /// Only grants that are in force.
    pub in_force: bool,
    /// Only grants before this one.
    pub before: Option<(Time, GrantId)>,
    /// Page size; the default if not given.
    pub limit: Option<usize>,
}

impl Kernel {
    /// Lists the grants of a run and those of its session, oldest first.
    pub async fn run_grants(&self, caller: &Caller, run: RunId) -> Result<Vec<Grant>, Error> {
        let run = self.run_readable(caller, run).await?;
        self.shared.mark_ended_by_parent(self.shared.store.grants(run.session, run.id).await?).await
    }

    /// Lists the grants of a session, or of all of the caller's sessions, newest first.
    pub async fn grant_list(&self, caller: &Caller, query: GrantQuery) -> Result<Vec<Grant>, Error> {
        let owner = match query.session {
            // The session may belong to another owner of the caller's org.
            Some(session) => self.session_get(caller, &SessionRef::Id(session)).await?.owner,
            None => caller.owner.clone(),
        };
        let mut page = GrantPage {
            owner,
            session: query.session,
            in_force_at: query.in_force.then(|| self.shared.clock.now()),
            before: query.before,
            limit: self.page(query.limit)?,
        };
        let mut found = vec![];
        loop {
            let grants = self.shared.store.grant_page(&page).await?;
            let is_last = grants.len() < page.limit;
            page.before = grants.last().map(|last| (last.created_at, last.id));
            let grants = self.shared.mark_ended_by_parent(grants).await?;
            // The store does not know which grants depend on a revoked one.
            found.extend(grants.into_iter().filter(|grant| !query.in_force || grant.revoked_at.is_none()));
            if is_last || found.len() >= page.limit {
                found.truncate(page.limit);
                return Ok(found);
            }
        }
    }

    /// Revokes a grant at once. Revoking it again changes nothing.
    pub async fn grant_revoke(&self, caller: &Caller, id: GrantId) -> Result<Grant, Error> {
        caller.check_person()?;
        let missing = || Error::not_found("grant", id);
        let grant = self.shared.store.grant_get(id).await?.ok_or_else(missing)?;
        let session =
            self.session_get(caller, &SessionRef::Id(grant.session)).await.map_err(|_| missing())?;
        self.check_session_change(caller, &session).await?;
        let by = caller.decider();
        self.shared.call(grant.session, |reply| Command::GrantRevoke(id, by, reply)).await
    }
}

impl Shared {
    /// True if every grant that `grant` depends on is in force. A deleted grant is not in force.
    pub(crate) async fn are_parents_in_force(&self, grant: &Grant, now: Time) -> Result<bool, Error> {
        Ok(self.broken_parent(grant, now).await?.is_none())
    }

    /// The grants that hold for a run now: neither they nor the grants that they depend on are revoked or expired.
    pub(crate) async fn grants_in_force(&self, session: SessionId, run: RunId) -> Result<Vec<Grant>, Error> {
        let now = self.clock.now();
        let mut all = vec![];
        for grant in self.store.grants(session, run).await? {
            if grant.holds_at(now) && self.are_parents_in_force(&grant, now).await? {
                all.push(grant);
            }
        }
        Ok(all)
    }

    /// The nearest grant that `grant` depends on and that is no longer in force: when it ended, and who ended it.
    async fn broken_parent(
        &self,
        grant: &Grant,
        now: Time,
    ) -> Result<Option<(Time, Option<Box<Decider>>)>, Error> {
        let mut next = grant.parent_grant();
        for _ in 0..MAX_CHAIN {
            let Some(id) = next else { return Ok(None) };
            match self.store.grant_get(id).await? {
                Some(parent) if parent.holds_at(now) => next = parent.parent_grant(),
                Some(parent) => {
                    let ended = parent.revoked_at.or(parent.expires_at).unwrap_or(now);
                    return Ok(Some((ended, parent.revoked_by)));
                }
                None => return Ok(Some((now, None))),
            }
        }
        Ok(Some((now, None)))
    }

    /// Marks grants as revoked if a grant that they depend on is not in force any more.
    async fn mark_ended_by_parent(&self, mut grants: Vec<Grant>) -> Result<Vec<Grant>, Error> {
        let now = self.clock.now();
        for grant in grants.iter_mut().filter(|grant| grant.revoked_at.is_none()) {
            if let Some((at, by)) = self.broken_parent(grant, now).await? {
                (grant.revoked_at, grant.revoked_by) = (Some(at), by);
            }
        }
        Ok(grants)
    }
}
