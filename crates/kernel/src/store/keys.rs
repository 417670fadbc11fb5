//! API keys and agent definitions as the store finds and lists them.

use mainspring_core::{AgentDefinition, KeyId, Time};

/// A version of an agent that an owner has made.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentRow {
    /// Owner of the agent.
    pub owner: String,
    /// Hash of the definition.
    pub hash: [u8; 32],
    /// The definition.
    pub definition: AgentDefinition,
    /// When the version was made.
    pub created_at: Time,
}

/// Identifies an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRef {
    /// Id.
    Id(KeyId),
    /// Hash of the secret.
    Hash([u8; 32]),
}

/// Selects API keys to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPage {
    /// Only keys of this org.
    pub org: Option<String>,
    /// Only keys created before this one.
    pub before: Option<(Time, KeyId)>,
    /// Page size.
    pub limit: usize,
}
