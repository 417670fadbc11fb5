//! Access: who calls, and what of a session they may read and change.
//!
//! An owner reads and changes what is its own. Whoever belongs to the session's org reads what the owner shows to it,
//! and changes nothing. What a caller may not read is not found.

use mainspring_core::{AccessRole, KeyId, Run, Session, Visibility};

use crate::error::Error;

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// For whom it acts: whose sessions it reads and changes.
    pub owner: String,
    /// The org it belongs to: it reads what is shown to it, and the sessions it makes belong to it.
    pub org: Option<String>,
    /// What it may do.
    pub role: AccessRole,
    /// The API key it showed.
    pub key: Option<KeyId>,
}

impl Caller {
    /// A caller that acts for `owner`, as a member and without an org.
    pub fn new(owner: impl Into<String>) -> Self {
        Self { owner: owner.into(), org: None, role: AccessRole::Member, key: None }
    }

    /// The same caller, in `org`.
    pub fn in_org(self, org: impl Into<String>) -> Self {
        Self { org: Some(org.into()), ..self }
    }

    /// The same caller, in `role`.
    pub fn with_role(self, role: AccessRole) -> Self {
        Self { role, ..self }
    }

    /// Whether it may read `session`.
    pub fn reads(&self, session: &Session) -> bool {
        let shown = session.visibility == Visibility::Org && session.org.is_some();
        self.owner == session.owner || (shown && self.org == session.org)
    }

    /// Refuses who may not change `session`: it is not found, or forbidden to who may read it.
    pub(crate) fn check_changes(&self, session: &Session) -> Result<(), Error> {
        match self.reads(session) {
            false => Err(Error::not_found("session", session.id)),
            true => self.check_changes_of("session", session.id, &session.owner),
        }
    }

    /// Refuses who may read `run` but not change it.
    pub(crate) fn check_changes_run(&self, run: &Run) -> Result<(), Error> {
        self.check_changes_of("run", run.id, &run.owner)
    }

    fn check_changes_of(&self, what: &str, name: impl std::fmt::Display, owner: &str) -> Result<(), Error> {
        if self.owner == owner {
            return self.check_makes();
        }
        Err(Error::Forbidden(format!("the {what} {name} is another owner's: you may read it, not change it")))
    }

    /// Refuses who only reads.
    pub(crate) fn check_makes(&self) -> Result<(), Error> {
        match self.role {
            AccessRole::Admin | AccessRole::Member => Ok(()),
            AccessRole::Viewer => {
                Err(Error::Forbidden("a viewer only reads: use the key of a member or an admin".into()))
            }
        }
    }

    /// Refuses who does not manage keys.
    pub(crate) fn check_admin(&self) -> Result<(), Error> {
        match self.role {
            AccessRole::Admin => Ok(()),
            AccessRole::Member | AccessRole::Viewer => Err(Error::Forbidden(
                "only an admin manages keys and logins: use an admin's key, or the token of the state directory".into(),
            )),
        }
    }
}
