//! Rebuilds the parts of a database that other parts determine.
//!
//! Rebuilt are indexes and the search index; removed are choices of branches that are missing. A row whose content is
//! damaged is neither: nothing else holds it.

use std::path::Path;

use rusqlite::Connection;

use super::backup::open_alone;
use super::open::{self, OpenError};
use super::{check, search, wal};

/// A part that was rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Repaired {
    /// The part, for people.
    pub what: &'static str,
    /// The number of rows that were rebuilt or removed.
    pub rows: u64,
}

/// Repairs a database that no process has open. Rows with damaged content stay as they are.
pub fn database_repair(path: &Path) -> Result<Vec<Repaired>, OpenError> {
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
    connection.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
    let rebuilt = rebuild(&connection).and_then(|rebuilt| {
        wal::token_renew(&connection)?;
        connection.execute_batch("COMMIT")?;
        Ok(rebuilt)
    });
    repaired.extend(rebuilt.map_err(fail)?);
    Ok(repaired)
}

const INDEXES: &str = "SELECT count(*) FROM sqlite_schema WHERE type = 'index'";

fn rebuild(connection: &Connection) -> rusqlite::Result<Vec<Repaired>> {
    let cursors = connection.execute(
        "DELETE FROM cursors WHERE NOT EXISTS (SELECT 1 FROM lines WHERE lines.line = cursors.to_line)",
        [],
    )?;
    let texts = search_rebuild(connection)?;
    let repaired = [("choices of missing branches", cursors as u64), ("texts of the search index", texts)];
    let repaired = repaired.into_iter().filter(|(_, rows)| *rows > 0);
    Ok(repaired.map(|(what, rows)| Repaired { what, rows }).collect())
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
