//! Queries for ids by prefix.

use mainspring_core::SessionId;

/// Selects ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdPage {
    /// Kind of the ids, and the part of them that is searched.
    pub of: IdsOf,
    /// The first id that may be listed.
    pub first: [u8; 16],
    /// The last id that may be listed.
    pub last: [u8; 16],
    /// Page size.
    pub limit: usize,
}

/// The ids to search. Things in deleted sessions are not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdsOf {
    /// Sessions of `owner`, and those that are visible to `org`.
    Sessions {
        /// Owner of the sessions.
        owner: String,
        /// Org whose members may read other sessions.
        org: Option<String>,
    },
    /// Runs in such sessions.
    Runs {
        /// Owner of the sessions.
        owner: String,
        /// Org whose members may read other sessions.
        org: Option<String>,
    },
    /// Artifacts in such sessions.
    Artifacts {
        /// Owner of the sessions.
        owner: String,
        /// Org whose members may read other sessions.
        org: Option<String>,
    },
    /// Grants of such sessions.
    Grants {
        /// Owner of the sessions.
        owner: String,
        /// Org whose members may read other sessions.
        org: Option<String>,
    },
    /// Delegations whose parent is in such a session.
    Delegations {
        /// Owner of the sessions.
        owner: String,
        /// Org whose members may read other sessions.
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
