//! What `doctor` wants to know of a database.

use rusqlite::{Connection, Result};

use super::migrate;

/// The health of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteCheck {
    /// The SQLite in use.
    pub sqlite_version: String,
    /// The last migration that was applied.
    pub schema_version: u32,
    /// What is wrong, as SQLite says it; empty when nothing is.
    pub problems: Vec<String>,
    /// How changes reach the file: `wal`.
    pub journal_mode: String,
    /// Bytes of one page.
    pub page_size: u64,
    /// Pages in all.
    pub pages: u64,
    /// Pages that hold nothing.
    pub free_pages: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Sessions that are not deleted.
    pub sessions: u64,
    /// Runs.
    pub runs: u64,
    /// Events.
    pub events: u64,
}

/// Looks at everything; `thorough` also compares every index with its table, which reads the whole file.
pub(super) fn check(connection: &Connection, thorough: bool, file_bytes: u64) -> Result<SqliteCheck> {
    let number =
        |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
    // A connection that searched before may remember an index as it was: a search makes it look again.
    for table in ["search_messages", "search_titles"] {
        let search = format!("SELECT count(*) FROM {table} WHERE {table} MATCH 'x'");
        connection.query_row(&search, [], |_| Ok(()))?;
    }
    let integrity = if thorough { "PRAGMA integrity_check(20)" } else { "PRAGMA quick_check(20)" };
    let mut problems = connection
        .prepare(integrity)?
        .query_map([], |row| row.get::<_, String>(0))?
        .collect::<Result<Vec<_>>>()?;
    problems.retain(|problem| problem != "ok");
    let mut foreign = connection.prepare("PRAGMA foreign_key_check")?;
    let mut rows = foreign.query([])?;
    while let Some(row) = rows.next()? {
        let (table, parent) = (row.get::<_, String>(0)?, row.get::<_, String>(2)?);
        problems.push(format!("a row of {table} refers to a row of {parent} that is not there"));
    }
    Ok(SqliteCheck {
        sqlite_version: rusqlite::version().into(),
        schema_version: migrate::version(connection)?,
        problems,
        journal_mode: connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?,
        page_size: number("PRAGMA page_size")?,
        pages: number("PRAGMA page_count")?,
        free_pages: number("PRAGMA freelist_count")?,
        file_bytes,
        sessions: number("SELECT count(*) FROM sessions WHERE status <> 'deleted'")?,
        runs: number("SELECT count(*) FROM runs")?,
        events: number("SELECT count(*) FROM events")?,
    })
}
