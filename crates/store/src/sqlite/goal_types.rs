//! Writes and reads the goal types of owners, and reads the runs that have goals.

use mainspring_core::{Rows, Run, SessionId};
use mainspring_kernel::store::{GoalTypeRow, StoreError};
use rusqlite::{Connection, params};

use super::columns::Id;
use super::error::write_error;
use super::read::{query_all, query_stored, run, run_columns, sql_limit};

/// Stores a goal type in place of the earlier one of its name. Returns false if there was one.
pub(super) fn goal_type_write(connection: &Connection, row: &GoalTypeRow) -> Result<bool, StoreError> {
    let json =
        serde_json::to_string(&row.goal_type).map_err(|error| StoreError::Corrupt(error.to_string()))?;
    let write = || -> rusqlite::Result<bool> {
        let known = "SELECT 1 FROM goal_types WHERE owner_id = ?1 AND name = ?2";
        let known = connection.prepare_cached(known)?.exists(params![row.owner, row.goal_type.name])?;
        let upsert = "INSERT INTO goal_types (owner_id, name, type_json, created_at_ms, updated_at_ms)
                      VALUES (?1, ?2, ?3, ?4, ?5)
                      ON CONFLICT (owner_id, name) DO UPDATE SET type_json = ?3, updated_at_ms = ?5";
        let (created, updated) = (row.created_at.0, row.updated_at.0);
        connection.prepare_cached(upsert)?.execute(params![
            row.owner,
            row.goal_type.name,
            json,
            created,
            updated
        ])?;
        Ok(!known)
    };
    write().map_err(|error| write_error(&error))
}

pub(super) fn goal_types(connection: &Connection, owner: &str) -> Result<Vec<GoalTypeRow>, StoreError> {
    let sql = "SELECT owner_id, type_json, created_at_ms, updated_at_ms FROM goal_types
               WHERE owner_id = ?1 ORDER BY name";
    query_all(connection, sql, [owner], |columns| {
        Ok(GoalTypeRow {
            owner: columns.get()?,
            goal_type: columns.json()?,
            created_at: columns.time()?,
            updated_at: columns.time()?,
        })
    })
}

/// Lists the last `limit` runs of a session that have goals or tasks, oldest first.
pub(super) fn runs_planned(
    connection: &Connection,
    session: SessionId,
    limit: usize,
) -> Result<Rows<Run>, StoreError> {
    let sql = concat!(
        "SELECT ",
        run_columns!(),
        " FROM runs INDEXED BY runs_planned_idx \
          WHERE session_id = ?1 AND (goals IS NOT NULL OR tasks IS NOT NULL) ORDER BY run_no DESC LIMIT ?2"
    );
    let mut runs = query_stored(connection, sql, params![session.bytes(), sql_limit(limit)], run)?;
    runs.reverse();
    Ok(runs.into_iter().collect())
}
