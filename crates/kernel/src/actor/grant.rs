//! Revoking a grant of the session.

use mainspring_core::{Body, Decider, Grant, GrantId};

use super::Actor;
use crate::error::Error;
use crate::store::Row;

impl Actor {
    pub(super) async fn grant_revoke(&mut self, id: GrantId, by: Decider) -> Result<Grant, Error> {
        let found = self.shared.store.grant_get(id).await?;
        let Some(grant) = found.filter(|grant| grant.session == self.fence.session) else {
            return Err(Error::not_found("grant", id));
        };
        if grant.revoked_at.is_some() {
            return Ok(grant);
        }
        let by = Box::new(by);
        let now = self.shared.clock.now();
        let revoked = Grant { revoked_at: Some(now), revoked_by: Some(by.clone()), ..grant };
        let mut draft = self.draft();
        draft.emit(Body::GrantRevoked { grant_id: id, revoked_by: by });
        draft.row(Row::Grant(Box::new(revoked.clone())));
        self.commit(draft).await?;
        Ok(revoked)
    }
}
