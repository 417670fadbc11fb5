//! Agent definitions.

use mainspring_api::{Agent, AgentListQuery, Page};
use mainspring_core::AgentDefinition;

use super::Client;
use crate::Error;

impl Client {
    /// Lists agents by id and version: the caller's own and the shared ones.
    pub async fn agent_list(&self, query: &AgentListQuery) -> Result<Page<Agent>, Error> {
        self.get(&["v1", "agents"], query).await
    }

    /// Reads one agent, by `ID@VERSION`, or the latest version of `ID`.
    pub async fn agent_get(&self, agent: &str) -> Result<Agent, Error> {
        self.get(&["v1", "agents", agent], &()).await
    }

    /// Creates an immutable version of an agent. Repeating the same definition is not a conflict.
    pub async fn agent_create(&self, definition: &AgentDefinition) -> Result<Agent, Error> {
        self.post(&["v1", "agents"], definition).await
    }

    /// Deletes a version of the caller's own agent.
    pub async fn agent_delete(&self, agent: &str) -> Result<(), Error> {
        self.delete(&["v1", "agents", agent]).await
    }
}
