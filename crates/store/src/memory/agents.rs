//! Agents that an owner has defined, by looking at all of them.

use mainspring_kernel::store::{AgentRow, StoreError, Unique};

use super::state::State;

impl State {
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
        let wanted = |row: &&AgentRow| {
            row.owner == owner
                && row.definition.id == id
                && version.is_none_or(|version| row.definition.version == version)
        };
        let rows = self.agents.values().filter_map(|(_, row)| row.as_ref());
        rows.filter(wanted).max_by_key(|row| row.definition.version).cloned()
    }

    pub(super) fn agent_page(
        &self,
        owner: &str,
        after: Option<&(String, u32)>,
        limit: usize,
    ) -> Vec<AgentRow> {
        let wanted = |row: &&AgentRow| {
            let place = (row.definition.id.clone(), row.definition.version);
            row.owner == owner && after.is_none_or(|after| place > *after)
        };
        let rows = self.agents.values().filter_map(|(_, row)| row.as_ref());
        rows.filter(wanted).take(limit).cloned().collect()
    }
}
