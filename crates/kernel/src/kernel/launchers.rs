//! Agents to launch: templates of conversations. They belong to the org of their creator, whose members all use them.

use mainspring_api::threads::{
    AgentRecord, AgentVariable, AgentVariableType, CreateAgentRequest, UpdateAgentRequest,
};
use mainspring_core::launch::{BadTemplate, Variable, check};
use mainspring_core::limits::check_text;
use serde_json::Value;

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::{EdgeChange, EdgeRecord, StoreError};

/// The kind of the stored records.
const KIND: &str = "launcher";
/// Agents to launch that an org may have.
pub const LAUNCHERS_PER_ORG: usize = 1000;
/// The longest template, in bytes.
const MAX_BYTES: usize = 256 << 10;

impl Kernel {
    /// Creates an agent to launch. `id` is the caller's name for the request: the same again gives the same agent.
    pub async fn launcher_create(
        &self,
        caller: &Caller,
        id: &str,
        new: CreateAgentRequest,
    ) -> Result<AgentRecord, Error> {
        caller.check_writes()?;
        let _writes = self.shared.edge.launcher_writes.lock().await;
        let known = self.launchers(caller).await?;
        let agent_id = format!("agt_{id}");
        if let Some(made) = known.iter().find(|known| known.agent_id == agent_id) {
            return Ok(made.clone());
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
        self.launcher_write(caller, &known, record).await
    }

    /// Lists the agents to launch, the newest first.
    pub async fn launcher_list(&self, caller: &Caller) -> Result<Vec<AgentRecord>, Error> {
        self.launchers(caller).await
    }

    /// Gets an agent to launch by its id.
    pub async fn launcher_get(&self, caller: &Caller, id: &str) -> Result<AgentRecord, Error> {
        let found = self.launchers(caller).await?.into_iter().find(|known| known.agent_id == id);
        found.ok_or_else(|| Error::not_found("agent", id))
    }

    /// Finds an agent to launch by its name.
    pub async fn launcher_find(&self, caller: &Caller, name: &str) -> Result<AgentRecord, Error> {
        let found = self.launchers(caller).await?.into_iter().find(|known| known.name == name);
        found.ok_or_else(|| Error::not_found("agent", name))
    }

    /// Changes an agent to launch.
    pub async fn launcher_update(
        &self,
        caller: &Caller,
        id: &str,
        change: UpdateAgentRequest,
    ) -> Result<AgentRecord, Error> {
        caller.check_writes()?;
        let _writes = self.shared.edge.launcher_writes.lock().await;
        let known = self.launchers(caller).await?;
        let found = known.iter().find(|known| known.agent_id == id);
        let mut record = found.cloned().ok_or_else(|| Error::not_found("agent", id))?;
        let UpdateAgentRequest { name, description, request_template, variables } = change;
        record.name = name.unwrap_or(record.name);
        record.description = description.unwrap_or(record.description);
        record.request_template = request_template.unwrap_or(record.request_template);
        record.variables = variables.unwrap_or(record.variables);
        if found == Some(&record) {
            return Ok(record);
        }
        record.modified = self.shared.clock.now().into();
        record.modified_by.clone_from(&caller.owner);
        self.launcher_write(caller, &known, record).await
    }

    /// Deletes an agent to launch. The threads that were launched from it stay.
    pub async fn launcher_delete(&self, caller: &Caller, id: &str) -> Result<(), Error> {
        caller.check_writes()?;
        let remove = EdgeChange::Remove { kind: KIND, scope: scope(caller), id: id.to_owned() };
        match self.shared.store.edge_write(&remove).await? {
            true => Ok(()),
            false => Err(Error::not_found("agent", id)),
        }
    }

    async fn launchers(&self, caller: &Caller) -> Result<Vec<AgentRecord>, Error> {
        let records = self.shared.store.edge_records(KIND, Some(&scope(caller))).await?;
        let read = |record: EdgeRecord| serde_json::from_value::<AgentRecord>(record.body);
        let all: Result<Vec<_>, _> = records.into_iter().map(read).collect();
        let mut all = all.map_err(|error| Error::Corrupt(format!("an agent to launch: {error}")))?;
        all.sort_by(|a, b| (b.created, &b.agent_id).cmp(&(a.created, &a.agent_id)));
        Ok(all)
    }

    async fn launcher_write(
        &self,
        caller: &Caller,
        known: &[AgentRecord],
        record: AgentRecord,
    ) -> Result<AgentRecord, Error> {
        check_text("the name of an agent", &record.name)?;
        let is_taken = |known: &&AgentRecord| known.name == record.name && known.agent_id != record.agent_id;
        if known.iter().any(|known| is_taken(&known)) {
            return Err(Error::AlreadyExists { name: record.name });
        }
        let template = Value::Object(record.request_template.clone());
        if template.to_string().len() > MAX_BYTES {
            return Err(Error::Invalid(format!("the template of an agent has at most {MAX_BYTES} bytes")));
        }
        check(&template, &variables(&record.variables)).map_err(|bad| invalid(&bad))?;
        let body = serde_json::to_value(&record).unwrap_or_default();
        let put = EdgeRecord { kind: KIND, scope: scope(caller), id: record.agent_id.clone(), body };
        match self.shared.store.edge_write(&EdgeChange::Put(put)).await {
            // The outcome is unknown: look it up.
            Err(StoreError::Unavailable(why)) => match self.launchers(caller).await?.contains(&record) {
                true => Ok(record),
                false => Err(Error::Unavailable(why)),
            },
            written => written.map(|_| record).map_err(Error::from),
        }
    }
}

/// The org that agents belong to; without one, the owner. An owner may have the name of an org.
fn scope(caller: &Caller) -> String {
    match &caller.org {
        Some(org) => format!("org:{org}"),
        None => format!("owner:{}", caller.owner),
    }
}

/// The variables of a template, for its rules.
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
