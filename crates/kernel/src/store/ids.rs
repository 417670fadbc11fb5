//! Queries for ids by prefix.

use mainspring_core::SessionId;

/// Selects ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdPage {
    /// Kind of the ids, and whose ids are searched.
    pub of: IdsOf,
    /// The first id that may be listed.
    pub first: [u8; 16],
    /// The last id that may be listed.
    pub last: [u8; 16],
    /// Page size.
    pub limit: usize,
    /// Maximum number of ids that are looked through, whoever they belong to.
    pub visit: usize,
}

impl IdPage {
    /// The last id to look through, if `next` is the first one that must not be looked through any more.
    pub fn last_visited(&self, next: Option<[u8; 16]>) -> [u8; 16] {
        next.map_or(self.last, |next| u128::from_be_bytes(next).saturating_sub(1).to_be_bytes())
    }
}

/// The ids to search. Things in deleted sessions are not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdsOf {
    /// Sessions of `owner`, and sessions that are visible to `org`.
    Sessions {
        /// Owner of the sessions.
        owner: String,
        /// Org whose visible sessions are searched too.
        org: Option<String>,
    },
    /// Runs in the sessions that `Sessions` selects.
    Runs {
        /// Owner of the sessions.
        owner: String,
        /// Org whose visible sessions are searched too.
        org: Option<String>,
    },
    /// Artifacts in the sessions that `Sessions` selects.
    Artifacts {
        /// Owner of the sessions.
        owner: String,
        /// Org whose visible sessions are searched too.
        org: Option<String>,
    },
    /// Grants of the sessions that `Sessions` selects.
    Grants {
        /// Owner of the sessions.
        owner: String,
        /// Org whose visible sessions are searched too.
        org: Option<String>,
    },
    /// Delegations whose parent is in a session that `Sessions` selects.
    Delegations {
        /// Owner of the sessions.
        owner: String,
        /// Org whose visible sessions are searched too.
        org: Option<String>,
    },
    /// Messages that a session sees.
    Messages(SessionId),
    /// API keys of an org, or all keys.
    Keys {
        /// Org of the keys.
        org: Option<String>,
    },
}
