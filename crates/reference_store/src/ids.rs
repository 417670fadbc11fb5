//! Finds ids by their prefix, which is given as a range of ids.

use std::collections::BTreeSet;

use mainspring_core::{MessageId, SessionId, Visibility};
use mainspring_kernel::store::{IdPage, IdsOf, StoreError};

use super::tables::Tables;

impl Tables {
    pub(super) fn id_page(&self, page: &IdPage) -> Result<Option<Vec<[u8; 16]>>, StoreError> {
        let next = self.ids_of_all(&page.of).into_iter().filter(|id| (page.first..=page.last).contains(id));
        let next = next.collect::<BTreeSet<_>>().into_iter().nth(page.visit);
        let found: Vec<[u8; 16]> = self.ids_found(page)?;
        let visited = found.into_iter().filter(|id| next.is_none_or(|next| *id < next));
        let found: Vec<[u8; 16]> = visited.take(page.limit).collect();
        Ok((next.is_none() || found.len() >= page.limit).then_some(found))
    }

    /// All stored ids of the kind.
    fn ids_of_all(&self, of: &IdsOf) -> Vec<[u8; 16]> {
        match of {
            IdsOf::Sessions { .. } => self.sessions.keys().map(|id| *id.as_bytes()).collect(),
            IdsOf::Runs { .. } => self.runs.keys().map(|id| *id.as_bytes()).collect(),
            IdsOf::Artifacts { .. } => self.artifacts.keys().map(|id| *id.as_bytes()).collect(),
            IdsOf::Delegations { .. } => self.delegations.keys().map(|id| *id.as_bytes()).collect(),
            IdsOf::Grants { .. } => self.grants.keys().map(|id| *id.as_bytes()).collect(),
            IdsOf::Messages(_) => self.messages.keys().map(|id| *id.as_bytes()).collect(),
            IdsOf::Keys { .. } => self.keys.keys().map(|id| *id.as_bytes()).collect(),
        }
    }

    /// The ids in the range that may be listed, however many there are.
    fn ids_found(&self, page: &IdPage) -> Result<Vec<[u8; 16]>, StoreError> {
        let all: Vec<[u8; 16]> = match &page.of {
            IdsOf::Sessions { owner, org } => {
                let visible = self.sessions.keys().filter(|id| self.is_visible(**id, owner, org.as_deref()));
                visible.map(|id| *id.as_bytes()).collect()
            }
            IdsOf::Runs { owner, org } => {
                let visible =
                    self.runs.values().filter(|run| self.is_visible(run.session, owner, org.as_deref()));
                visible.map(|run| *run.id.as_bytes()).collect()
            }
            IdsOf::Artifacts { owner, org } => {
                let all = self.artifacts.values();
                let visible = all.filter(|one| self.is_visible(one.session, owner, org.as_deref()));
                visible.map(|artifact| *artifact.id.as_bytes()).collect()
            }
            IdsOf::Delegations { owner, org } => {
                let all = self.delegations.values();
                let visible = all.filter(|one| self.is_visible(one.parent_session, owner, org.as_deref()));
                visible.map(|delegation| *delegation.id.as_bytes()).collect()
            }
            IdsOf::Grants { owner, org } => {
                let all = self.grants.values();
                let visible = all.filter(|one| self.is_visible(one.session, owner, org.as_deref()));
                visible.map(|grant| *grant.id.as_bytes()).collect()
            }
            IdsOf::Messages(session) => return self.message_ids(*session, page),
            IdsOf::Keys { org } => {
                let managed = self.keys.values().filter(|key| org.is_none() || key.org == *org);
                managed.map(|key| *key.id.as_bytes()).collect()
            }
        };
        Ok(all.into_iter().filter(|id| (page.first..=page.last).contains(id)).collect())
    }

    fn is_visible(&self, session: SessionId, owner: &str, org: Option<&str>) -> bool {
        self.session(session).is_some_and(|session| {
            let is_in_org = session.org.is_some() && session.org.as_deref() == org;
            session.owner == owner || (session.visibility == Visibility::Org && is_in_org)
        })
    }

    fn message_ids(&self, session: SessionId, page: &IdPage) -> Result<Vec<[u8; 16]>, StoreError> {
        let mut found = vec![];
        let (first, last) = (MessageId::from_bytes(page.first), MessageId::from_bytes(page.last));
        for id in self.messages.range(first..=last).map(|(id, _)| *id) {
            if self.message_get(session, id)?.is_some() {
                found.push(*id.as_bytes());
            }
        }
        Ok(found)
    }
}
