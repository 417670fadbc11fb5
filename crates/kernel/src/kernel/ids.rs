//! Lookup of ids by their beginnings.

use mainspring_core::{IdKind, IdPrefix};

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::{IdPage, IdsOf, SessionRef};

/// Maximum ids that one lookup returns. Two are enough to know that a prefix is ambiguous.
const FOUND_IDS: usize = 10;
/// Maximum ids that one lookup looks through: those of all owners are in one order.
const VISITED_IDS: usize = 10_000;

impl Kernel {
    /// Lists the first ids that begin with `prefix`: of resources that the caller may read, or of keys that it manages.
    /// Messages are searched only among those that `session` sees.
    pub async fn id_find(
        &self,
        caller: &Caller,
        prefix: &IdPrefix,
        session: Option<&SessionRef>,
    ) -> Result<Vec<String>, Error> {
        let (owner, org) = (caller.owner.clone(), caller.org.clone());
        let of = match (prefix.kind(), session) {
            (IdKind::Message, Some(by)) => IdsOf::Messages(self.session_get(caller, by).await?.id),
            (IdKind::Message, None) => {
                return Err(Error::Invalid("name the session of the message".into()));
            }
            (kind, Some(_)) => {
                return Err(Error::Invalid(format!(
                    "a {kind} is searched in all sessions: leave the session out"
                )));
            }
            (IdKind::Session, None) => IdsOf::Sessions { owner, org },
            (IdKind::Run, None) => IdsOf::Runs { owner, org },
            (IdKind::Artifact, None) => IdsOf::Artifacts { owner, org },
            (IdKind::Delegation, None) => IdsOf::Delegations { owner, org },
            (IdKind::Grant, None) => IdsOf::Grants { owner, org },
            (IdKind::Key, None) => {
                caller.check_admin()?;
                IdsOf::Keys { org }
            }
        };
        let (first, last) = prefix.range();
        let page = IdPage { of, first, last, limit: FOUND_IDS, visit: VISITED_IDS };
        let too_many = || Error::Invalid(format!("too many ids begin with {prefix}: give more digits"));
        let found = self.shared.store.id_page(&page).await?.ok_or_else(too_many)?;
        Ok(found.into_iter().map(|bytes| prefix.kind().format(bytes)).collect())
    }
}
