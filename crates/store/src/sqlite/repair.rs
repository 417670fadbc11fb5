//! Rebuilds the parts of a database that other parts determine.
//!
//! Rebuilt are indexes and the search index; removed are choices of branches that are missing. The content of a message
//! or an event never changes: if it is damaged, it is taken from a backup that has it. Other damaged rows stay.

use std::path::Path;

use mainspring_core::Time;
use rusqlite::{Connection, OptionalExtension};

use super::backup::open_alone;
use super::open::{self, OpenError};
use super::read::{event_columns, message_columns};
use super::{check, checksum, migrate, search, wal};

/// A part that was rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Repaired {
    /// The part, for people.
    pub what: &'static str,
    /// The number of rows that were rebuilt or removed.
    pub rows: u64,
}

/// Repairs a database that no process has open. Takes damaged messages and events from `backup`, a copy of a database that
/// may be changed. Other rows with damaged content stay as they are.
pub fn database_repair(path: &Path, backup: Option<&Path>, now: Time) -> Result<Vec<Repaired>, OpenError> {
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
    let rebuilt = rebuild(&connection, backup.is_some()).and_then(|rebuilt| {
        wal::token_renew(&connection)?;
        connection.execute_batch("COMMIT")?;
        Ok(rebuilt)
    });
    repaired.extend(rebuilt.map_err(fail)?);
    Ok(repaired)
}

const INDEXES: &str = "SELECT count(*) FROM sqlite_schema WHERE type = 'index'";

fn rebuild(connection: &Connection, has_backup: bool) -> rusqlite::Result<Vec<Repaired>> {
    let taken = if has_backup { rows_take(connection)? } else { 0 };
    let cursors = connection.execute(
        "DELETE FROM cursors WHERE NOT EXISTS (SELECT 1 FROM lines WHERE lines.line = cursors.to_line)",
        [],
    )?;
    let texts = search_rebuild(connection)?;
    let repaired = [
        ("messages and events, from the backup", taken),
        ("choices of missing branches", cursors as u64),
        ("texts of the search index", texts),
    ];
    let repaired = repaired.into_iter().filter(|(_, rows)| *rows > 0);
    Ok(repaired.map(|(what, rows)| Repaired { what, rows }).collect())
}

/// Replaces damaged messages and events with those of the attached backup. Returns their number.
fn rows_take(connection: &Connection) -> rusqlite::Result<u64> {
    // The place of a message may have changed since the backup, and an event may belong to another history.
    let tables = [
        (&checksum::MESSAGE, "messages", "message_id", message_columns!(), "line, pos"),
        (&checksum::EVENT, "events", "event_seq", event_columns!(), "event_id, session_id"),
    ];
    let mut taken = 0;
    for (layout, table, key, columns, same) in tables {
        let intact =
            format!("SELECT {columns} FROM backup.{table} WHERE {key} = ?1 AND checksum IS NOT NULL");
        let take = format!(
            "UPDATE main.{table} SET ({columns}) = (SELECT {columns} FROM backup.{table} WHERE {key} = ?1) \
             WHERE {key} = ?1 AND ({same}) IS (SELECT {same} FROM backup.{table} WHERE {key} = ?1)"
        );
        let all = format!("SELECT {columns} FROM main.{table}");
        for damaged in checksum::damaged(connection, &all, layout)? {
            let is_intact = connection.query_row(&intact, [&damaged], |row| Ok(layout.check(row, 0).is_ok()));
            if is_intact.optional()? == Some(true) {
                taken += connection.execute(&take, [&damaged])? as u64;
            }
        }
    }
    Ok(taken)
}

/// Builds the search index anew, from the messages and titles.
fn search_rebuild(connection: &Connection) -> rusqlite::Result<u64> {
    connection.execute_batch(
        "INSERT INTO search_messages(search_messages) VALUES ('delete-all');
         DELETE FROM search_titles;
         UPDATE sessions SET searched_title = NULL, searched_row = NULL;
         UPDATE meta SET value = 0 WHERE name = 'searched'",
    )?;
    while search::search_index(connection)? {}
    count(connection, "SELECT count(*) FROM messages")
}

fn count(connection: &Connection, sql: &str) -> rusqlite::Result<u64> {
    connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
}
