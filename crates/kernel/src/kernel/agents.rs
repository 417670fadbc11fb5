//! Verbs on agent definitions.
//!
//! An owner has those that it made and those that are everybody's, and sees nobody else's. A version never changes: the
//! same name with another body is a conflict, also after it was deleted.

use std::collections::BTreeMap;

pub use mainspring_api::{Agent, AgentScope};
use mainspring_core::{AgentDefinition, AgentName};
use serde_json::Value;

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::{AgentRow, StoreError, Unique};

/// How many versions of agents an owner may have made, the deleted ones included.
pub const AGENTS_PER_OWNER: usize = 10_000;

/// Which agents to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentQuery {
    /// Only those after this one.
    pub after: Option<AgentName>,
    /// How many; 50 if not given.
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
    /// Makes a version of an agent; says whether it was made now. The same again is the same.
    pub async fn agent_create(
        &self,
        caller: &Caller,
        definition: AgentDefinition,
    ) -> Result<(Agent, bool), Error> {
        caller.check_makes()?;
        definition.check_name()?;
        let size = serde_json::to_vec(&definition).map_or(0, |json| json.len());
        let limit = self.shared.options.limits.prompt_bytes;
        if size > limit {
            return Err(Error::TooLarge { what: "the definition", size, limit });
        }
        self.shared.options.agents.check(&definition).map_err(Error::Invalid)?;
        let name = definition.name();
        if let Some(shared) = self.agent_shared(&name) {
            return match same(&shared, &definition) {
                true => Ok((shared_agent(shared), false)),
                false => Err(Error::AgentTaken { name: name.to_string() }),
            };
        }
        let limit = AGENTS_PER_OWNER;
        if self.shared.store.agent_count(&caller.owner).await? >= limit {
            return Err(Error::TooMany { what: "agents", limit });
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
            // Whether it was written is not known: it is looked up.
            Err(StoreError::Unavailable(why)) => match self.agent_row(caller, &name).await? {
                Some(found) if found.hash == row.hash => true,
                _ => return Err(Error::Unavailable(why)),
            },
            written => written?,
        };
        let row = if made { Some(row) } else { self.agent_row(caller, &name).await? };
        row.map(|row| (owned_agent(row), made)).ok_or_else(|| Error::not_found("agent", name))
    }

    /// One agent, by `ID@VERSION`, or the latest version of `ID`.
    pub async fn agent_get(&self, caller: &Caller, name: &AgentName) -> Result<Agent, Error> {
        let owned = self.agent_row(caller, name).await?.map(owned_agent);
        let shared = self.agent_shared(name).map(shared_agent);
        // What an owner made was there before a file of the same name, or could not have been made.
        let found = [shared, owned].into_iter().flatten().max_by_key(|agent| agent.definition.version);
        found.ok_or_else(|| Error::not_found("agent", name))
    }

    /// The agents that `caller` has, by id and version.
    pub async fn agent_list(&self, caller: &Caller, query: AgentQuery) -> Result<Vec<Agent>, Error> {
        let limit = self.page(query.limit)?;
        let after = query.after.map(|name| (name.id, name.version.unwrap_or(0)));
        let rows = self.shared.store.agent_page(&caller.owner, after.as_ref(), limit).await?;
        let place = |definition: &AgentDefinition| (definition.id.clone(), definition.version);
        let mut found: BTreeMap<(String, u32), Agent> = BTreeMap::new();
        for shared in self.shared.options.agents.shared() {
            if after.as_ref().is_none_or(|after| place(&shared) > *after) {
                found.insert(place(&shared), shared_agent(shared));
            }
        }
        found.extend(rows.into_iter().map(|row| (place(&row.definition), owned_agent(row))));
        Ok(found.into_values().take(limit).collect())
    }

    /// Deletes a version that the owner made. Sessions that name it cannot run until they name another.
    pub async fn agent_delete(&self, caller: &Caller, name: &AgentName) -> Result<(), Error> {
        caller.check_makes()?;
        let Some(version) = name.version else {
            return Err(Error::Invalid(format!("which version? name it as {}@VERSION", name.id)));
        };
        match self.shared.store.agent_delete(&caller.owner, &name.id, version).await {
            Ok(true) => Ok(()),
            Ok(false) if self.agent_shared(name).is_some() => Err(Error::Forbidden(format!(
                "the agent {name} is everybody's: it is built in, or a file of the server"
            ))),
            Ok(false) => Err(Error::not_found("agent", name)),
            Err(StoreError::Unavailable(why)) => match self.agent_row(caller, name).await? {
                None => Ok(()),
                Some(_) => Err(Error::Unavailable(why)),
            },
            Err(error) => Err(error.into()),
        }
    }

    async fn agent_row(&self, caller: &Caller, name: &AgentName) -> Result<Option<AgentRow>, Error> {
        Ok(self.shared.store.agent_find(&caller.owner, &name.id, name.version).await?)
    }

    /// The latest version of those that are everybody's and fit.
    fn agent_shared(&self, name: &AgentName) -> Option<AgentDefinition> {
        let fits = |one: &AgentDefinition| {
            one.id == name.id && name.version.is_none_or(|version| one.version == version)
        };
        let shared = self.shared.options.agents.shared();
        shared.into_iter().filter(fits).max_by_key(|one| one.version)
    }
}

fn same(a: &AgentDefinition, b: &AgentDefinition) -> bool {
    hash(a) == hash(b)
}

/// The hash of what a definition says, whatever the order of its maps.
fn hash(definition: &AgentDefinition) -> [u8; 32] {
    let mut ordered = definition.clone();
    ordered.output_schema.iter_mut().for_each(Value::sort_all_objects);
    *blake3::hash(&serde_json::to_vec(&ordered).unwrap_or_default()).as_bytes()
}
