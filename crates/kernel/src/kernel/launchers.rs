//! Agents to launch: templates of conversations. They belong to the org of their creator; all its members may use them.

use std::collections::VecDeque;
use std::sync::Arc;

use mainspring_api::threads::{
    AgentRecord, AgentVariable, AgentVariableType, CreateAgentRequest, Timestamp, UpdateAgentRequest,
};
use mainspring_core::launch::{BadTemplate, Variable, check};
use mainspring_core::limits::check_text;
use serde_json::Value;

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::{EdgeChange, EdgeRecord};

/// The kind of the stored records.
const KIND: &str = "launcher";
/// The maximum number of agents to launch per org.
pub const LAUNCHERS_PER_ORG: usize = 1000;
/// The longest template, in bytes.
const MAX_BYTES: usize = 256 << 10;

/// The maximum number of cached orgs. Beyond that, the org that was cached first is dropped.
const MAX_ORGS: usize = 256;

/// A cache of the ids and names of agents to launch, by org. The templates stay in the store.
#[derive(Debug, Default)]
pub(crate) struct LauncherCache(VecDeque<(String, Arc<Vec<CachedLauncher>>)>);

/// The part of an agent to launch that is kept in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CachedLauncher {
    id: String,
    name: String,
    created: Timestamp,
}

impl LauncherCache {
    fn get(&self, scope: &str) -> Option<Arc<Vec<CachedLauncher>>> {
        self.0.iter().find(|(known, _)| known == scope).map(|(_, launchers)| launchers.clone())
    }

    fn put(&mut self, scope: &str, launchers: Arc<Vec<CachedLauncher>>) {
        self.forget(scope);
        self.0.push_back((scope.to_owned(), launchers));
        if self.0.len() > MAX_ORGS {
            self.0.pop_front();
        }
    }

    fn forget(&mut self, scope: &str) {
        self.0.retain(|(known, _)| known != scope);
    }
}

impl Kernel {
    /// Creates an agent to launch. `id` identifies the request: a request with the same `id` returns the same agent.
    pub async fn launcher_create(
        &self,
        caller: &Caller,
        id: &str,
        new: CreateAgentRequest,
    ) -> Result<AgentRecord, Error> {
        caller.check_writes()?;
        let mut cache = self.shared.edge.launchers.lock().await;
        let known = self.cached_launchers(caller, &mut cache).await?;
        let agent_id = format!("agt_{id}");
        if known.iter().any(|known| known.id == agent_id) {
            return self.launcher_read(caller, &agent_id).await;
        }
        if known.len() >= LAUNCHERS_PER_ORG {
            return Err(Error::TooMany { what: "agents to launch", limit: LAUNCHERS_PER_ORG });
        }
        let now = self.shared.clock.now().into();
        let CreateAgentRequest { name, description, request_template, variables } = new;
        let (created_by, modified_by) = (caller.owner.clone(), caller.owner.clone());
        let org_id = caller.org.clone().unwrap_or_else(|| caller.owner.clone());
        let record = AgentRecord {
            agent_id,
            org_id,
            name,
            description,
            request_template,
            variables,
            created: now,
            created_by,
            modified: now,
            modified_by,
        };
        self.launcher_write(caller, &mut cache, &known, record).await
    }

    /// Lists the agents to launch, the newest first, and says whether there are more. `after` pages past the agent with
    /// this time of creation and id, which may be deleted by now.
    pub async fn launcher_list(
        &self,
        caller: &Caller,
        after: Option<(Timestamp, &str)>,
        limit: usize,
    ) -> Result<(Vec<AgentRecord>, bool), Error> {
        let known = self.cached_launchers(caller, &mut *self.shared.edge.launchers.lock().await).await?;
        let is_earlier = |launcher: &CachedLauncher| {
            after.is_some_and(|after| (launcher.created, launcher.id.as_str()) >= after)
        };
        let start = known.partition_point(is_earlier);
        let mut page = vec![];
        for launcher in known.iter().skip(start).take(limit) {
            match self.launcher_read(caller, &launcher.id).await {
                // The agent was deleted during the read.
                Err(Error::NotFound { .. }) => {}
                read => page.push(read?),
            }
        }
        Ok((page, known.len() > start.saturating_add(limit)))
    }

    /// Gets an agent to launch by its id.
    pub async fn launcher_get(&self, caller: &Caller, id: &str) -> Result<AgentRecord, Error> {
        self.launcher_read(caller, id).await
    }

    /// Finds an agent to launch by its name.
    pub async fn launcher_find(&self, caller: &Caller, name: &str) -> Result<AgentRecord, Error> {
        let known = self.cached_launchers(caller, &mut *self.shared.edge.launchers.lock().await).await?;
        match known.iter().find(|known| known.name == name) {
            Some(found) => self.launcher_read(caller, &found.id).await,
            None => Err(Error::not_found("agent", name)),
        }
    }

    /// Changes an agent to launch.
    pub async fn launcher_update(
        &self,
        caller: &Caller,
        id: &str,
        change: UpdateAgentRequest,
    ) -> Result<AgentRecord, Error> {
        caller.check_writes()?;
        let mut cache = self.shared.edge.launchers.lock().await;
        let known = self.cached_launchers(caller, &mut cache).await?;
        let found = self.launcher_read(caller, id).await?;
        let mut record = found.clone();
        let UpdateAgentRequest { name, description, request_template, variables } = change;
        record.name = name.unwrap_or(record.name);
        record.description = description.unwrap_or(record.description);
        record.request_template = request_template.unwrap_or(record.request_template);
        record.variables = variables.unwrap_or(record.variables);
        if found == record {
            return Ok(record);
        }
        record.modified = self.shared.clock.now().into();
        record.modified_by.clone_from(&caller.owner);
        self.launcher_write(caller, &mut cache, &known, record).await
    }

    /// Deletes an agent to launch. The threads that were launched from it stay.
    pub async fn launcher_delete(&self, caller: &Caller, id: &str) -> Result<(), Error> {
        caller.check_writes()?;
        let mut cache = self.shared.edge.launchers.lock().await;
        cache.forget(&scope(caller));
        let remove = EdgeChange::Remove { kind: KIND, scope: scope(caller), id: id.to_owned() };
        match self.shared.store.edge_write(&remove).await? {
            true => Ok(()),
            false => Err(Error::not_found("agent", id)),
        }
    }

    /// Returns the agents of the caller's org, the newest first, from the cache or else from the store. The lock on
    /// `cache` excludes writes during the read.
    async fn cached_launchers(
        &self,
        caller: &Caller,
        cache: &mut LauncherCache,
    ) -> Result<Arc<Vec<CachedLauncher>>, Error> {
        let scope = scope(caller);
        if let Some(known) = cache.get(&scope) {
            return Ok(known);
        }
        let records = self.shared.store.edge_records(KIND, Some(&scope)).await?;
        let launcher = |record| {
            agent(record).map(|agent| CachedLauncher {
                id: agent.agent_id,
                name: agent.name,
                created: agent.created,
            })
        };
        let mut all = records.into_iter().map(launcher).collect::<Result<Vec<_>, _>>()?;
        all.sort_by(|a, b| (b.created, &b.id).cmp(&(a.created, &a.id)));
        let all = Arc::new(all);
        cache.put(&scope, all.clone());
        Ok(all)
    }

    /// Reads one agent from the store.
    async fn launcher_read(&self, caller: &Caller, id: &str) -> Result<AgentRecord, Error> {
        let found = self.shared.store.edge_record(KIND, &scope(caller), id).await?;
        found.map_or_else(|| Err(Error::not_found("agent", id)), agent)
    }

    async fn launcher_write(
        &self,
        caller: &Caller,
        cache: &mut LauncherCache,
        known: &[CachedLauncher],
        record: AgentRecord,
    ) -> Result<AgentRecord, Error> {
        check_text("the name of an agent", &record.name)?;
        if record.name.trim().is_empty() {
            return Err(Error::Invalid("the name of an agent is blank: give it letters or digits".into()));
        }
        if known.iter().any(|known| known.name == record.name && known.id != record.agent_id) {
            return Err(Error::AlreadyExists { name: record.name });
        }
        let template = Value::Object(record.request_template.clone());
        if template.to_string().len() > MAX_BYTES {
            return Err(Error::Invalid(format!("the template of an agent has at most {MAX_BYTES} bytes")));
        }
        check(&template, &variables(&record.variables)).map_err(|bad| invalid(&bad))?;
        let body = serde_json::to_value(&record).unwrap_or_default();
        let put = EdgeRecord { kind: KIND, scope: scope(caller), id: record.agent_id.clone(), body };
        // Drops the cached names before the write, so that they are read again even if its outcome is unknown.
        cache.forget(&put.scope);
        match self.shared.store.edge_write(&EdgeChange::Put(put)).await {
            // The outcome is unknown: look it up.
            Err(unknown) if unknown.is_outcome_unknown() => {
                match self.launcher_read(caller, &record.agent_id).await {
                    Ok(written) if written == record => Ok(record),
                    Ok(_) | Err(Error::NotFound { .. }) => Err(unknown.into()),
                    Err(error) => Err(error),
                }
            }
            written => written.map(|_| record).map_err(Error::from),
        }
    }
}

/// Reads a stored agent.
fn agent(record: EdgeRecord) -> Result<AgentRecord, Error> {
    let EdgeRecord { scope, id, body, .. } = record;
    serde_json::from_value(body).map_err(|error| {
        Error::Corrupt(format!(
            "the agent to launch {id} of {scope} cannot be read ({error}): delete it by its id"
        ))
    })
}

/// The org that agents belong to; without one, the owner. The text distinguishes the two, since an owner may have the
/// name of an org.
fn scope(caller: &Caller) -> String {
    match &caller.org {
        Some(org) => format!("org:{org}"),
        None => format!("owner:{}", caller.owner),
    }
}

/// Converts the declared variables of a template to the form that [`check`] takes.
pub fn variables(declared: &[AgentVariable]) -> Vec<Variable<'_>> {
    let variable = |variable: &'_ AgentVariable| -> (bool, bool) {
        (variable.kind == AgentVariableType::CollectionId, variable.collection_content_type.is_some())
    };
    declared
        .iter()
        .map(|declared| {
            let (is_collection, has_content_type) = variable(declared);
            Variable {
                name: &declared.name,
                required: declared.required,
                default: declared.default.as_deref(),
                is_collection,
                has_content_type,
            }
        })
        .collect()
}

/// The error of a template that is not valid.
pub fn invalid(bad: &BadTemplate) -> Error {
    Error::Invalid(bad.to_string())
}
