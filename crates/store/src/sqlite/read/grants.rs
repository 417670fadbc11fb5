//! Reads grants.

use mainspring_core::{Grant, GrantEffect, GrantSource, RunId, SessionId};
use mainspring_kernel::store::StoreError;
use rusqlite::{Connection, params};

use super::super::columns::{Columns, Id};
use super::query_all;

pub(in super::super) fn grants(
    connection: &Connection,
    session: SessionId,
    run: RunId,
) -> Result<Vec<Grant>, StoreError> {
    let sql = "SELECT grant_id, session_id, run_id, capability, operation, resource_pattern, effect, source, \
               created_at_ms, expires_at_ms, constraints_json FROM grants WHERE session_id = ?1 AND (run_id = ?2 OR run_id IS NULL) \
               ORDER BY created_at_ms, grant_id";
    query_all(connection, sql, params![session.bytes(), run.bytes()], grant)
}

fn grant(columns: &mut Columns<'_>) -> rusqlite::Result<Grant> {
    Ok(Grant {
        id: columns.id()?,
        session: columns.id()?,
        run: columns.maybe_id()?,
        capability: columns.get()?,
        operation: columns.get()?,
        resource_pattern: columns.get()?,
        effect: columns.name(GrantEffect::from_name)?,
        source: columns.name(GrantSource::from_name)?,
        created_at: columns.time()?,
        expires_at: columns.maybe_time()?,
        constraints: columns.maybe_json()?.unwrap_or_default(),
    })
}
