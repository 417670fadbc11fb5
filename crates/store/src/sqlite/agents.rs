//! Writes and reads the agents that owners have defined.

use mainspring_kernel::store::{AgentRow, StoreError, Unique};
use rusqlite::{Connection, OptionalExtension, params};

use super::columns::Columns;
use super::error::write_error;
use super::read::{query_all, query_one, sql_limit};

macro_rules! select {
    () => {
        "SELECT owner_id, hash, definition_json, created_at_ms FROM agents WHERE owner_id = ?1 "
    };
}

fn agent(columns: &mut Columns<'_>) -> rusqlite::Result<AgentRow> {
    Ok(AgentRow {
        owner: columns.get()?,
        hash: columns.get()?,
        definition: columns.json()?,
        created_at: columns.time()?,
    })
}

/// Stores a version of an agent. Returns false if it exists unchanged.
pub(super) fn agent_write(connection: &Connection, row: &AgentRow) -> Result<bool, StoreError> {
    let json =
        serde_json::to_string(&row.definition).map_err(|error| StoreError::Corrupt(error.to_string()))?;
    let (id, version) = (&row.definition.id, row.definition.version);
    let write = || -> rusqlite::Result<Option<bool>> {
        let known = "SELECT hash, definition_json IS NOT NULL FROM agents
                     WHERE owner_id = ?1 AND agent_id = ?2 AND version = ?3";
        let known: Option<([u8; 32], bool)> = connection
            .prepare_cached(known)?
            .query_row(params![row.owner, id, version], |found| Ok((found.get(0)?, found.get(1)?)))
            .optional()?;
        match known {
            Some((hash, _)) if hash != row.hash => return Ok(None),
            Some((_, true)) => return Ok(Some(false)),
            // A deleted version is restored.
            Some((_, false)) | None => {}
        }
        let upsert = "INSERT INTO agents (owner_id, agent_id, version, hash, definition_json, created_at_ms)
                    VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                    ON CONFLICT (owner_id, agent_id, version) DO UPDATE SET definition_json = ?5, created_at_ms = ?6";
        connection.prepare_cached(upsert)?.execute(params![
            row.owner,
            id,
            version,
            row.hash,
            json,
            row.created_at.0
        ])?;
        Ok(Some(true))
    };
    write().map_err(|error| write_error(&error))?.ok_or(StoreError::Conflict(Unique::Agent))
}

/// Deletes the definition of a version. Returns false if there is none.
pub(super) fn agent_delete(
    connection: &Connection,
    (owner, id, version): &(String, String, u32),
) -> rusqlite::Result<bool> {
    let sql = "UPDATE agents SET definition_json = NULL
               WHERE owner_id = ?1 AND agent_id = ?2 AND version = ?3 AND definition_json IS NOT NULL";
    Ok(connection.prepare_cached(sql)?.execute(params![owner, id, version])? > 0)
}

pub(super) fn agent_find(
    connection: &Connection,
    owner: &str,
    id: &str,
    version: Option<u32>,
) -> Result<Option<AgentRow>, StoreError> {
    let sql = concat!(
        select!(),
        "AND agent_id = ?2 AND version = coalesce(?3, version) AND definition_json IS NOT NULL
         ORDER BY version DESC LIMIT 1"
    );
    query_one(connection, sql, params![owner, id, version], agent)
}

pub(super) fn agent_page(
    connection: &Connection,
    owner: &str,
    after: Option<&(String, u32)>,
    limit: usize,
) -> Result<Vec<AgentRow>, StoreError> {
    let (id, version) = after.map_or(("", 0), |(id, version)| (id.as_str(), *version));
    let sql = concat!(
        select!(),
        "AND (agent_id, version) > (?2, ?3) AND definition_json IS NOT NULL ORDER BY agent_id, version LIMIT ?4"
    );
    query_all(connection, sql, params![owner, id, version, sql_limit(limit)], agent)
}

pub(super) fn agent_count(connection: &Connection, owner: &str) -> Result<usize, StoreError> {
    let count: Option<u32> =
        query_one(connection, "SELECT count(*) FROM agents WHERE owner_id = ?1", [owner], |columns| {
            columns.get()
        })?;
    Ok(count.map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX)))
}
