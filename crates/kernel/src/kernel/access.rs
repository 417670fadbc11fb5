//! Access control for sessions and their runs.
//!
//! An owner reads and changes its own sessions. Members of a session's org read the sessions that are visible to the
//! org, and change nothing. A session that a caller may not read is reported as not found. An agent reads what its owner
//! reads, cancels its owner's runs, and delegates work and sends messages for the run that it executes. It does nothing
//! else.

use mainspring_core::{
    AccessRole, AttemptId, Decider, KeyId, KeyLists, Run, RunId, Session, SessionId, StateWriter, Time,
    Visibility,
};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The attempt for which an agent calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentCaller {
    /// The session of the run.
    pub session: SessionId,
    /// The run that the agent executes.
    pub run: RunId,
    /// The attempt of the run.
    pub attempt: AttemptId,
    /// True if the policy, a person or a grant of a person has allowed the call before it is made.
    pub is_call_approved: bool,
}

/// The identity behind a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// The owner the caller acts for.
    pub owner: String,
    /// The caller's org: the caller reads sessions visible to it, and new sessions belong to it.
    pub org: Option<String>,
    /// The operations the caller may use.
    pub role: AccessRole,
    /// The API key of the request, if one was used.
    pub key: Option<KeyId>,
    /// The attempt for which an agent calls; `None` for people and applications. Not sent to other kernels:
    /// the agent's own kernel has already decided whether the call is permitted.
    #[serde(skip)]
    pub agent: Option<AgentCaller>,
    /// The folders in which the caller's agents may work; `None` if they may work anywhere, empty if only in the folders
    /// that are configured for an adapter.
    pub folders: Option<Vec<String>>,
    /// The adapters, models and tools that the caller may use, and its spend per day; `None` for no limit.
    pub lists: Option<Box<KeyLists>>,
    /// When the token of an identity provider ends, if the request came with one.
    pub token_ends: Option<Time>,
}

impl Caller {
    /// A member that acts for `owner`, without an org.
    pub fn new(owner: impl Into<String>) -> Self {
        Self {
            owner: owner.into(),
            org: None,
            role: AccessRole::Member,
            key: None,
            agent: None,
            folders: None,
            lists: None,
            token_ends: None,
        }
    }

    /// Sets the caller's org.
    pub fn in_org(self, org: impl Into<String>) -> Self {
        Self { org: Some(org.into()), ..self }
    }

    /// Sets the caller's role.
    pub fn with_role(self, role: AccessRole) -> Self {
        Self { role, ..self }
    }

    /// The caller as the party that decides on an approval.
    pub(crate) fn decider(&self) -> Decider {
        let owner_id = self.owner.clone();
        match self.key {
            Some(key_id) => Decider::Key { owner_id, key_id },
            None => Decider::Person { owner_id },
        }
    }

    /// True for a caller that came with an API key, a token of an identity provider or a token of an agent: neither the
    /// holder of the state directory's token nor the program that embeds the kernel.
    pub(crate) fn is_guest(&self) -> bool {
        self.key.is_some() || self.token_ends.is_some() || self.agent.is_some()
    }

    /// The caller as the party that changes state.
    pub(crate) fn state_writer(&self) -> StateWriter {
        StateWriter::Caller { key_id: self.key }
    }

    /// True if the caller may read `session`.
    pub fn may_read(&self, session: &Session) -> bool {
        let org_visible = session.visibility == Visibility::Org && session.org.is_some();
        self.owner == session.owner || (org_visible && self.org == session.org)
    }

    /// Refuses a caller that may not change `session`: as forbidden if it may read the session, else as not found.
    pub(crate) fn check_changes(&self, session: &Session) -> Result<(), Error> {
        match self.may_read(session) {
            false => Err(Error::not_found("session", session.id)),
            true => self.check_changes_of("session", session.id, &session.owner),
        }
    }

    /// Refuses a caller that may read `run` but not change it.
    pub(crate) fn check_changes_run(&self, run: &Run) -> Result<(), Error> {
        self.check_changes_of("run", run.id, &run.owner)
    }

    fn check_changes_of(&self, what: &str, name: impl std::fmt::Display, owner: &str) -> Result<(), Error> {
        if self.owner == owner {
            return self.check_writes();
        }
        Err(Error::Forbidden(format!(
            "the {what} {name} belongs to another owner: you may read it, not change it"
        )))
    }

    /// Returns the caller for delegating work of `run`. An agent acts as its owner, but only for the run it executes.
    pub(crate) fn for_delegation(&self, run: &Run) -> Result<Self, Error> {
        if self.agent.is_some_and(|agent| agent.run != run.id) {
            return Err(Error::Forbidden(format!(
                "an agent delegates only work of the run that it executes, and {} is another one",
                run.id
            )));
        }
        let caller = self.as_owner();
        caller.check_changes_run(run)?;
        Ok(caller)
    }

    /// The same caller without the restrictions of agents, for operations that agents may use.
    pub(crate) fn as_owner(&self) -> Self {
        Self { agent: None, ..self.clone() }
    }

    /// Refuses a caller whose role is read-only, and an agent.
    pub(crate) fn check_writes(&self) -> Result<(), Error> {
        if self.agent.is_some() {
            return Err(Error::Forbidden(
                "an agent changes nothing here: it may delegate work of its own run, send messages with it, and cancel runs"
                    .into(),
            ));
        }
        match self.role {
            AccessRole::Admin | AccessRole::Member => Ok(()),
            AccessRole::Viewer => {
                Err(Error::Forbidden("a viewer only reads: use the key of a member or an admin".into()))
            }
        }
    }

    /// Refuses an agent: only people answer questions and decide permissions.
    pub(crate) fn check_person(&self) -> Result<(), Error> {
        match self.agent {
            None => Ok(()),
            Some(_) => Err(Error::Forbidden(
                "an agent does not answer questions to people: wait for an answer".into(),
            )),
        }
    }

    /// Refuses a caller that is not an admin.
    pub(crate) fn check_admin(&self) -> Result<(), Error> {
        match self.role {
            AccessRole::Admin => Ok(()),
            AccessRole::Member | AccessRole::Viewer => Err(Error::Forbidden(
                "this is for admins: use the key of an admin, or the token of the state directory".into(),
            )),
        }
    }

    /// Refuses a caller that is not an admin of the whole server: an org's admin does not decide for other orgs.
    pub fn check_server_admin(&self) -> Result<(), Error> {
        self.check_admin()?;
        match &self.org {
            None => Ok(()),
            Some(org) => Err(Error::Forbidden(format!(
                "this concerns everybody on the server, and an admin of the org {org:?} decides for that org only: \
                 use the key of an admin without an org, or the token of the state directory"
            ))),
        }
    }
}
