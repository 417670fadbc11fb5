//! Operations on agent definitions.
//!
//! An owner sees its own definitions and the shared ones. A version never changes: the same name with different content
//! is a conflict, even after the version was deleted.

use std::collections::BTreeMap;

pub use mainspring_api::{Agent, AgentScope};
use mainspring_core::{AgentDefinition, AgentName};
use serde_json::Value;

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::{AgentRow, StoreError, Unique};

/// Versions of agents that an owner may make, counting deleted ones.
pub const AGENTS_PER_OWNER: usize = 10_000;

/// Selects agents to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentQuery {
    /// Only agents after this one.
    pub after: Option<AgentName>,
    /// Page size; 50 if not given.
    pub limit: Option<usize>,
}

fn shared_agent(definition: AgentDefinition) -> Agent {
    Agent { definition, scope: AgentScope::Shared, created_at_ms: None }
}

fn owned_agent(row: AgentRow) -> Agent {
    let AgentRow { definition, created_at, .. } = row;
    Agent { definition, scope: AgentScope::Owner, created_at_ms: Some(created_at) }
}

impl Kernel {
    /// Makes a version of an agent. Returns false with it if the same version exists already.
    pub async fn agent_create(
        &self,
        caller: &Caller,
        definition: AgentDefinition,
    ) -> Result<(Agent, bool), Error> {
        caller.check_writes()?;
        definition.check_name()?;
        let size = serde_json::to_vec(&definition).map_or(0, |json| json.len());
        let limit = self.shared.options.limits.prompt_bytes;
        if size > limit {
            return Err(Error::TooLarge { what: "the definition", size, limit });
        }
        self.shared.options.agents.check(&definition).map_err(Error::Invalid)?;
        self.check_members(caller, &definition).await?;
        let name = definition.name();
        if let Some(shared) = self.agent_shared(&name) {
            return match is_same(&shared, &definition) {
                true => Ok((shared_agent(shared), false)),
                false => Err(Error::AgentTaken { name: name.to_string() }),
            };
        }
        // Putting an existing version again does not count against the limit and the quota.
        if self.agent_row(caller, &name).await?.is_none() {
            let (count, limit) = (self.shared.store.agent_count(&caller.owner).await?, AGENTS_PER_OWNER);
            if count >= limit {
                return Err(Error::TooMany { what: "agents", limit });
            }
            self.shared.check_agents(&caller.owner, count)?;
        }
        let row = AgentRow {
            owner: caller.owner.clone(),
            hash: hash(&definition),
            definition,
            created_at: self.shared.clock.now(),
        };
        let made = match self.shared.store.agent_write(&row).await {
            Err(StoreError::Conflict(Unique::Agent)) => {
                return Err(Error::AgentTaken { name: name.to_string() });
            }
            // The outcome is unknown: look it up.
            Err(error) if error.is_outcome_unknown() => match self.agent_row(caller, &name).await? {
                Some(found) if found.hash == row.hash => true,
                _ => return Err(error.into()),
            },
            written => written?,
        };
        let row = if made { Some(row) } else { self.agent_row(caller, &name).await? };
        row.map(|row| (owned_agent(row), made)).ok_or_else(|| Error::not_found("agent", name))
    }

    /// Gets an agent by `ID@VERSION`, or the latest version of `ID`.
    pub async fn agent_get(&self, caller: &Caller, name: &AgentName) -> Result<Agent, Error> {
        let owned = self.agent_row(caller, name).await?.map(owned_agent);
        let shared = self.agent_shared(name).map(shared_agent);
        // If both have the same version, the owner made its own before the shared one existed. Versions never change, so the
        // owner's wins: `max_by_key` returns the last maximum.
        let found = [shared, owned].into_iter().flatten().max_by_key(|agent| agent.definition.version);
        found.ok_or_else(|| Error::not_found("agent", name))
    }

    /// Lists the agents that `caller` may use, by id and version.
    pub async fn agent_list(&self, caller: &Caller, query: AgentQuery) -> Result<Vec<Agent>, Error> {
        let limit = self.page(query.limit)?;
        let after = query.after.map(|name| (name.id, name.version.unwrap_or(0)));
        let rows = self.shared.store.agent_page(&caller.owner, after.as_ref(), limit).await?;
        let order = |definition: &AgentDefinition| (definition.id.clone(), definition.version);
        let mut found: BTreeMap<(String, u32), Agent> = BTreeMap::new();
        for shared in self.shared.options.agents.shared() {
            if after.as_ref().is_none_or(|after| order(&shared) > *after) {
                found.insert(order(&shared), shared_agent(shared));
            }
        }
        found.extend(rows.into_iter().map(|row| (order(&row.definition), owned_agent(row))));
        Ok(found.into_values().take(limit).collect())
    }

    /// Deletes a version that the caller made. Sessions that use it cannot run until they use another one.
    pub async fn agent_delete(&self, caller: &Caller, name: &AgentName) -> Result<(), Error> {
        caller.check_writes()?;
        let Some(version) = name.version else {
            return Err(Error::Invalid(format!("which version? name it as {}@VERSION", name.id)));
        };
        match self.shared.store.agent_delete(&caller.owner, &name.id, version).await {
            Ok(true) => Ok(()),
            Ok(false) if self.agent_shared(name).is_some() => Err(Error::Forbidden(format!(
                "the agent {name} is shared by all owners: it is built in, or a file of the server"
            ))),
            Ok(false) => Err(Error::not_found("agent", name)),
            Err(error) if error.is_outcome_unknown() => match self.agent_row(caller, name).await? {
                None => Ok(()),
                Some(_) => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    async fn agent_row(&self, caller: &Caller, name: &AgentName) -> Result<Option<AgentRow>, Error> {
        Ok(self.shared.store.agent_find(&caller.owner, &name.id, name.version).await?)
    }

    /// Finds a shared definition: the named version, or the latest.
    fn agent_shared(&self, name: &AgentName) -> Option<AgentDefinition> {
        let matches = |one: &AgentDefinition| {
            one.id == name.id && name.version.is_none_or(|version| one.version == version)
        };
        let shared = self.shared.options.agents.shared();
        shared.into_iter().filter(matches).max_by_key(|one| one.version)
    }
}

fn is_same(a: &AgentDefinition, b: &AgentDefinition) -> bool {
    hash(a) == hash(b)
}

/// Hash of a definition's content, independent of the order of map keys.
fn hash(definition: &AgentDefinition) -> [u8; 32] {
    let mut ordered = definition.clone();
    ordered.output_schema.iter_mut().for_each(Value::sort_all_objects);
    if let Some(network) = &mut ordered.network {
        let mut state = Value::Object(std::mem::take(&mut network.state));
        state.sort_all_objects();
        network.state = state.as_object().cloned().unwrap_or_default();
    }
    *blake3::hash(&serde_json::to_vec(&ordered).unwrap_or_default()).as_bytes()
}
