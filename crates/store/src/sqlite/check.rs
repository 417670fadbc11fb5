//! Checks the health of a database, for `doctor`.

use mainspring_kernel::store::StoreError;
use rusqlite::{Connection, OptionalExtension, Result};

use super::error::read_error;
use super::{ChecksumReport, SqliteStore, checksum, migrate};

/// The health of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteCheck {
    /// The version of SQLite in use.
    pub sqlite_version: String,
    /// The last migration applied.
    pub schema_version: u32,
    /// The problems SQLite reports, empty for a healthy database.
    pub problems: Vec<String>,
    /// The journal mode, normally `wal`.
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
    /// True if the database was not closed normally and has not been checked completely since.
    pub crash_check_due: bool,
}

impl SqliteStore {
    /// Checks the health of the database. `thorough` also compares every index with its table.
    pub async fn check(&self, thorough: bool) -> Result<SqliteCheck, StoreError> {
        let file_bytes = std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        self.read(move |connection| {
            check(connection, thorough, file_bytes).map_err(|error| read_error(&error))
        })
        .await
    }

    /// Compares every row that has a checksum with that checksum. Reads the whole database.
    pub async fn verify_checksums(&self) -> Result<ChecksumReport, StoreError> {
        self.read(|connection| checksum::verify(connection).map_err(|error| read_error(&error))).await
    }
}

/// Returns true if a check after a crash has not finished.
pub(super) fn crash_check_due(connection: &Connection) -> Result<bool> {
    let due = connection.query_row("SELECT 1 FROM meta WHERE name = 'crash_check_due'", [], |_| Ok(()));
    due.optional().map(|due| due.is_some())
}

/// Records whether a check after a crash is due.
pub(super) fn crash_check_write(connection: &Connection, due: bool) -> Result<()> {
    let sql = match due {
        true => "INSERT OR REPLACE INTO meta VALUES ('crash_check_due', 1)",
        false => "DELETE FROM meta WHERE name = 'crash_check_due'",
    };
    connection.execute(sql, []).map(drop)
}

/// Lists the problems that SQLite finds without comparing indexes with their tables. Reads the whole file.
pub(super) fn quick_check(connection: &Connection) -> Result<Vec<String>> {
    integrity_check(connection, "PRAGMA quick_check(20)")
}

/// Lists the problems of indexes, which can be rebuilt from their tables.
pub(super) fn index_problems(connection: &Connection) -> Result<Vec<String>> {
    let problems = integrity_check(connection, "PRAGMA integrity_check(100)")?;
    Ok(problems.into_iter().filter(|problem| problem.contains(" index ")).collect())
}

fn integrity_check(connection: &Connection, pragma: &str) -> Result<Vec<String>> {
    let mut statement = connection.prepare(pragma)?;
    let problems = statement.query_map([], |row| row.get::<_, String>(0))?;
    problems.filter(|problem| !matches!(problem, Ok(text) if text == "ok")).collect()
}

/// Checks the database. `thorough` also compares every index with its table.
pub(super) fn check(connection: &Connection, thorough: bool, file_bytes: u64) -> Result<SqliteCheck> {
    let query_number =
        |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
    // A connection may cache an outdated search index. A search refreshes it.
    for table in ["search_messages", "search_titles"] {
        // Databases of early versions have no search index.
        let exists = connection.query_row("SELECT 1 FROM sqlite_schema WHERE name = ?1", [table], |_| Ok(()));
        if exists.optional()?.is_none() {
            continue;
        }
        let search = format!("SELECT count(*) FROM {table} WHERE {table} MATCH 'x'");
        connection.query_row(&search, [], |_| Ok(()))?;
    }
    let mut problems = match thorough {
        true => integrity_check(connection, "PRAGMA integrity_check(20)")?,
        false => quick_check(connection)?,
    };
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
        crash_check_due: crash_check_due(connection)?,
    })
}
