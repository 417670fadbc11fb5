//! Checks the health of a database, for `doctor`.

use rusqlite::{Connection, Result};

use super::migrate;

/// The health of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteCheck {
    /// The version of SQLite in use.
    pub sqlite_version: String,
    /// The last migration applied.
    pub schema_version: u32,
    /// The problems SQLite reports, empty for a healthy database.
    pub problems: Vec<String>,
    /// The journal mode, which is `wal`.
    pub journal_mode: String,
    /// The size of a page in bytes.
    pub page_size: u64,
    /// The number of pages.
    pub pages: u64,
    /// The number of unused pages.
    pub free_pages: u64,
    /// The size of the file in bytes.
    pub file_bytes: u64,
    /// The number of sessions that are not deleted.
    pub sessions: u64,
    /// The number of runs.
    pub runs: u64,
    /// The number of events.
    pub events: u64,
}

/// Checks the database. `thorough` also compares every index with its table, which reads the whole file.
pub(super) fn check(connection: &Connection, thorough: bool, file_bytes: u64) -> Result<SqliteCheck> {
    let query_number =
        |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
    // A connection may cache an outdated search index. A search refreshes it.
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
    let mut foreign_keys = connection.prepare("PRAGMA foreign_key_check")?;
    let mut rows = foreign_keys.query([])?;
    while let Some(row) = rows.next()? {
        let (table, parent) = (row.get::<_, String>(0)?, row.get::<_, String>(2)?);
        problems.push(format!("a row of {table} refers to a row of {parent} that does not exist"));
    }
    Ok(SqliteCheck {
        sqlite_version: rusqlite::version().into(),
        schema_version: migrate::version(connection)?,
        problems,
        journal_mode: connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?,
        page_size: query_number("PRAGMA page_size")?,
        pages: query_number("PRAGMA page_count")?,
        free_pages: query_number("PRAGMA freelist_count")?,
        file_bytes,
        sessions: query_number("SELECT count(*) FROM sessions WHERE status <> 'deleted'")?,
        runs: query_number("SELECT count(*) FROM runs")?,
        events: query_number("SELECT count(*) FROM events")?,
    })
}
