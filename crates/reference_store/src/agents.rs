//! Agents that owners have defined.

use mainspring_kernel::store::{AgentRow, StoreError, Unique};

use super::tables::Tables;

impl Tables {
    pub(super) fn agent_write(&mut self, agent: &AgentRow) -> Result<bool, StoreError> {
        let key = (agent.owner.clone(), agent.definition.id.clone(), agent.definition.version);
        match self.agents.get(&key) {
            Some((hash, _)) if *hash != agent.hash => Err(StoreError::Conflict(Unique::Agent)),
            Some((_, Some(_))) => Ok(false),
            _ => {
                self.agents.insert(key, (agent.hash, Some(agent.clone())));
                Ok(true)
            }
        }
    }

    pub(super) fn agent_delete(&mut self, owner: &str, id: &str, version: u32) -> bool {
        let known = self.agents.get_mut(&(owner.to_owned(), id.to_owned(), version));
        known.is_some_and(|(_, row)| row.take().is_some())
    }

    pub(super) fn agent_find(&self, owner: &str, id: &str, version: Option<u32>) -> Option<AgentRow> {
        let matches = |row: &&AgentRow| {
            row.owner == owner
                && row.definition.id == id
                && version.is_none_or(|version| row.definition.version == version)
        };
        let rows = self.agents.values().filter_map(|(_, row)| row.as_ref());
        rows.filter(matches).max_by_key(|row| row.definition.version).cloned()
    }

    pub(super) fn agent_page(
        &self,
        owner: &str,
        after: Option<&(String, u32)>,
        limit: usize,
    ) -> Vec<AgentRow> {
        let matches = |row: &&AgentRow| {
            let sort_key = (row.definition.id.clone(), row.definition.version);
            row.owner == owner && after.is_none_or(|after| sort_key > *after)
        };
        let rows = self.agents.values().filter_map(|(_, row)| row.as_ref());
        rows.filter(matches).take(limit).cloned().collect()
    }
}
