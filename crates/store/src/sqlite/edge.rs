//! Writes and reads the records of edges.

use mainspring_kernel::store::{EdgeChange, EdgeRecord, StoreError};
use rusqlite::{Connection, params};

use super::columns::Columns;
use super::error::write_error;
use super::read::{query_all, query_one};

/// Applies a change. Returns false if it has no effect.
pub(super) fn edge_write(connection: &Connection, change: &EdgeChange) -> Result<bool, StoreError> {
    let write = || -> rusqlite::Result<usize> {
        match change {
            EdgeChange::Put(EdgeRecord { kind, scope, id, body }) => {
                let sql = "INSERT INTO edge_records (kind, scope, record_id, body) VALUES (?1, ?2, ?3, ?4)
                           ON CONFLICT (kind, scope, record_id) DO UPDATE SET body = ?4 WHERE body <> ?4";
                connection.prepare_cached(sql)?.execute(params![kind, scope, id, body.to_string()])
            }
            EdgeChange::Remove { kind, scope, id } => {
                let sql = "DELETE FROM edge_records WHERE kind = ?1 AND scope = ?2 AND record_id = ?3";
                connection.prepare_cached(sql)?.execute(params![kind, scope, id])
            }
        }
    };
    write().map(|changed| changed > 0).map_err(|error| write_error(&error))
}

/// Gets one record.
pub(super) fn edge_record(
    connection: &Connection,
    kind: &'static str,
    scope: &str,
    id: &str,
) -> Result<Option<EdgeRecord>, StoreError> {
    let sql = "SELECT scope, record_id, body FROM edge_records
               WHERE kind = ?1 AND scope = ?2 AND record_id = ?3";
    query_one(connection, sql, params![kind, scope, id], |columns| record(kind, columns))
}

/// Lists the records of a kind, of one scope if it is given, by scope and id.
pub(super) fn edge_records(
    connection: &Connection,
    kind: &'static str,
    scope: Option<&str>,
) -> Result<Vec<EdgeRecord>, StoreError> {
    let sql = "SELECT scope, record_id, body FROM edge_records
               WHERE kind = ?1 AND (?2 IS NULL OR scope = ?2) ORDER BY scope, record_id";
    query_all(connection, sql, params![kind, scope], |columns| record(kind, columns))
}

/// Reads a record. Damaged content becomes null, so that the record keeps its id.
fn record(kind: &'static str, columns: &mut Columns<'_>) -> rusqlite::Result<EdgeRecord> {
    let (scope, id) = (columns.get()?, columns.get()?);
    let body = columns.json().unwrap_or_default();
    Ok(EdgeRecord { kind, scope, id, body })
}
