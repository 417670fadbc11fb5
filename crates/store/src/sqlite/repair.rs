//! Rebuilds the parts of a database that can be derived from other parts.
//!
//! A repair rebuilds the indexes, the search index, the counts of stored data and, from its events, the outcome of a
//! run that has ended. It removes cursors that point to missing branches, and adds the checksums that earlier versions
//! did not write. A damaged row is taken from a backup if it has not changed since. Other damaged rows stay.

use std::path::Path;

use mainspring_core::Time;
use rusqlite::Connection;

use super::backup::open_alone;
use super::open::{self, OpenError};
use super::read::session_columns;
use super::{check, checksum, event_blocks, migrate, search, usage, wal};

mod from_backup;
mod runs;

/// A part that was rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Repaired {
    /// The part, for people.
    pub what: &'static str,
    /// The number of rows that were rebuilt or removed.
    pub rows: u64,
}

/// Repairs a database that no process has open. Takes damaged rows from `backup` if they have not changed since; the
/// repair migrates `backup`, so it must be a copy. Damaged rows that cannot be rebuilt stay as they are.
///
/// `delete_damaged` marks the sessions that stay damaged as deleted; the next start removes them with all their data.
pub fn database_repair(
    path: &Path,
    backup: Option<&Path>,
    delete_damaged: bool,
    now: Time,
) -> Result<Vec<Repaired>, OpenError> {
    let fail = |error| open::failed(path, error);
    if open::inspect(path)?.is_none() {
        return Err(OpenError::Missing { path: path.into(), traces: "the state directory".into() });
    }
    let connection = open_alone(path).map_err(fail)?;
    let mut repaired = vec![];
    if !check::index_problems(&connection).map_err(fail)?.is_empty() {
        connection.execute_batch("REINDEX").map_err(fail)?;
        repaired.push(Repaired { what: "indexes", rows: count(&connection, INDEXES).map_err(fail)? });
    }
    if let Some(backup) = backup {
        let mut copy = open_alone(backup).map_err(|error| open::failed(backup, error))?;
        migrate::migrate(&mut copy, now).map_err(|error| open::failed(backup, error))?;
        drop(copy);
        let name = backup.to_string_lossy();
        connection.execute("ATTACH ?1 AS backup", [&name]).map_err(|error| open::failed(backup, error))?;
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
    let rebuilt = rebuild(&connection, backup.is_some(), delete_damaged).and_then(|rebuilt| {
        wal::token_renew(&connection)?;
        connection.execute_batch("COMMIT")?;
        Ok(rebuilt)
    });
    repaired.extend(rebuilt.map_err(fail)?);
    Ok(repaired)
}

const INDEXES: &str = "SELECT count(*) FROM sqlite_schema WHERE type = 'index'";

fn rebuild(
    connection: &Connection,
    has_backup: bool,
    delete_damaged: bool,
) -> rusqlite::Result<Vec<Repaired>> {
    let restored = if has_backup { from_backup::rows_restore(connection)? } else { 0 };
    let deleted = if delete_damaged { sessions_delete(connection)? } else { 0 };
    let runs = runs::runs_rebuild(connection)?;
    let sums = checksum::fill(connection)?;
    let cursors = connection.execute(
        "DELETE FROM cursors WHERE NOT EXISTS (SELECT 1 FROM lines WHERE lines.line = cursors.to_line)",
        [],
    )?;
    let texts = search_rebuild(connection)?;
    let counts = usage::recount(connection)?;
    let blocks = event_blocks::rebuild(connection)?;
    let repaired = [
        ("damaged rows, from the backup", restored),
        ("damaged sessions, deleted", deleted),
        ("outcomes of runs, from their events", runs),
        ("checksums that earlier versions did not write", sums),
        ("choices of missing branches", cursors as u64),
        ("texts of the search index", texts),
        ("counts of what an owner stores", counts),
        ("places of events by their type", blocks),
    ];
    let repaired = repaired.into_iter().filter(|(_, rows)| *rows > 0);
    Ok(repaired.map(|(what, rows)| Repaired { what, rows }).collect())
}

/// Marks damaged sessions as deleted. Returns their number.
fn sessions_delete(connection: &Connection) -> rusqlite::Result<u64> {
    let all = concat!("SELECT ", session_columns!(), ", session_id FROM sessions WHERE status <> 'deleted'");
    let damaged = checksum::damaged(connection, all, &[&checksum::SESSION])?;
    for key in &damaged {
        let delete = "UPDATE sessions SET status = 'deleted', checksum = NULL WHERE session_id = ?1";
        connection.execute(delete, rusqlite::params_from_iter(key))?;
    }
    Ok(damaged.len() as u64)
}

/// Rebuilds the search index from the messages and titles.
fn search_rebuild(connection: &Connection) -> rusqlite::Result<u64> {
    connection.execute_batch(
        "INSERT INTO search_messages(search_messages) VALUES ('delete-all');
         DELETE FROM search_titles;
         UPDATE sessions SET searched_title = NULL, searched_row = NULL;
         UPDATE meta SET value = 0 WHERE name = 'searched' OR name = 'searched_untagged'",
    )?;
    while let Some(mut text) = search::unindexed(connection)? {
        search::search_index(connection, &mut text, || false)?;
    }
    count(connection, "SELECT count(*) FROM messages")
}

fn count(connection: &Connection, sql: &str) -> rusqlite::Result<u64> {
    connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
}
