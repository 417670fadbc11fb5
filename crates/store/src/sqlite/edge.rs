//! Writes and reads the records of edges.

use mainspring_kernel::store::{EdgeChange, EdgeRecord, StoreError};
use rusqlite::{Connection, params};

use super::error::write_error;
use super::read::query_all;

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

/// Lists the records of a kind, of one scope if it is given, by scope and id.
pub(super) fn edge_records(
    connection: &Connection,
    kind: &'static str,
    scope: Option<&str>,
) -> Result<Vec<EdgeRecord>, StoreError> {
    let sql = "SELECT scope, record_id, body FROM edge_records
               WHERE kind = ?1 AND (?2 IS NULL OR scope = ?2) ORDER BY scope, record_id";
    query_all(connection, sql, params![kind, scope], |columns| {
        Ok(EdgeRecord { kind, scope: columns.get()?, id: columns.get()?, body: columns.json()? })
    })
}
