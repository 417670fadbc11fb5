//! Copies of a whole database: for a backup, from a backup, and before a migration.
//!
//! A backup is made with `VACUUM INTO` over a read-only connection. It reads one snapshot in one read transaction, so
//! that the copy is consistent and commits go on meanwhile, also those of another process. SQLite's backup API would
//! start again after each commit of another process. The copy has no free pages, and every row was read: a damaged page
//! fails the backup instead of being copied.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use mainspring_core::{Cursor, Time};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::columns::int;
use super::open::{self, OpenError, sibling};
use super::view::SqliteView;
use super::{check, checksum, migrate, wal};

/// The smallest number of cursors that a restored database skips.
const SKIPPED_CURSORS: u64 = 1 << 32;
/// The first cursor of a restored database is at least the time of the restore in milliseconds, multiplied by this number.
/// SQLite cannot commit more events in a millisecond, so a later restore begins after all cursors of an earlier one.
const CURSORS_PER_MS: u64 = 1 << 10;
/// The cursors that are skipped for each millisecond since the backup was made. The backup may have been restored into
/// a PostgreSQL database before, which uses 2^14 cursors per transaction: this number allows for 2,000 transactions a
/// second.
const CURSORS_PER_MS_OF_AGE: u64 = 1 << 15;
/// The maximum number of cursors that are skipped for the age of a backup, reached after about a year: JavaScript must
/// be able to represent all cursors exactly.
const MAX_SKIPPED_BY_AGE: u64 = 1 << 50;
/// The time after which a copy from before a migration is removed.
const COPY_KEPT_MS: i64 = 7 * 24 * 60 * 60 * 1_000;
/// The part of the name of a copy from before a migration that precedes the schema version.
const BEFORE_MIGRATION: &str = ".schema-";

/// The content of a copied database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySummary {
    /// The last migration applied.
    pub schema_version: u32,
    /// The last cursor given to an event.
    pub last_cursor: Cursor,
    /// The number of sessions that are not deleted.
    pub sessions: u64,
    /// The number of runs.
    pub runs: u64,
    /// The number of events.
    pub events: u64,
}

/// The cursors that a restore skips: events that were lost may have had them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoredCursors {
    /// The last cursor in the backup.
    pub last: Cursor,
    /// The cursor after which new events begin.
    pub continues_after: Cursor,
}

impl SqliteView {
    /// Copies the database as it is at one instant to the new file `to`, without API keys. Does not block commits.
    pub fn copy_to(&self, to: &Path) -> Result<CopySummary, OpenError> {
        let fail = |error| open::failed(to, error);
        open::private_file(to).map_err(|error| open::io_failed(to, error))?;
        let name = to.to_string_lossy();
        self.connection().execute_batch("PRAGMA query_only = OFF").map_err(fail)?;
        let copied = self.connection().execute("VACUUM INTO ?1", [&name]);
        self.connection().execute_batch("PRAGMA query_only = ON").map_err(fail)?;
        copied.map_err(fail)?;
        let summary = strip(to).map_err(fail)?;
        sync(to).map_err(|error| open::io_failed(to, error))?;
        Ok(summary)
    }
}

/// Removes the API keys from a copy, and summarizes its content.
fn strip(path: &Path) -> rusqlite::Result<CopySummary> {
    let copy = open_alone(path)?;
    // A key that is revoked after the backup must not become valid again with a restore.
    if has_table(&copy, "api_keys")? {
        copy.execute_batch("PRAGMA secure_delete = ON; DELETE FROM api_keys")?;
    }
    summarize(&copy)
}

/// Summarizes the content of a database.
pub(super) fn summarize(copy: &Connection) -> rusqlite::Result<CopySummary> {
    let count = |sql: &str| copy.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
    Ok(CopySummary {
        schema_version: migrate::version(copy)?,
        last_cursor: last_cursor(copy)?,
        sessions: count("SELECT count(*) FROM sessions WHERE status <> 'deleted'")?,
        runs: count("SELECT count(*) FROM runs")?,
        events: count("SELECT count(*) FROM events")?,
    })
}

/// Makes a copied database ready to be used in place of a lost one: checks it, migrates it, and skips the cursors that
/// lost events may have had since the copy was `made`.
pub fn database_restore(path: &Path, made: Time, now: Time) -> Result<RestoredCursors, OpenError> {
    let fail = |error| open::failed(path, error);
    if open::inspect(path)?.is_none() {
        return Err(OpenError::NotADatabase { path: path.into() });
    }
    let mut connection = open_alone(path).map_err(fail)?;
    if let Some(reason) = check::quick_check(&connection).map_err(fail)?.into_iter().next() {
        return Err(OpenError::Corrupt { path: path.into(), reason });
    }
    migrate::migrate(&mut connection, now).map_err(fail)?;
    let last = last_cursor(&connection).map_err(fail)?;
    let by_time = now.0.max(0).cast_unsigned().saturating_mul(CURSORS_PER_MS);
    let by_age = now.since(made).saturating_mul(CURSORS_PER_MS_OF_AGE).min(MAX_SKIPPED_BY_AGE);
    let continues_after = Cursor(by_time.max(last.0 + SKIPPED_CURSORS) + by_age);
    let skip = || {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        connection.execute(
            "INSERT INTO lost_events VALUES (?1, ?2)",
            params![int(last.0), int(continues_after.0)],
        )?;
        connection
            .execute("INSERT OR REPLACE INTO meta VALUES ('event_seq', ?1)", [int(continues_after.0)])?;
        wal::token_renew(&connection)?;
        connection.execute_batch("COMMIT")
    };
    skip().map_err(fail)?;
    drop(connection);
    sync(path).map_err(|error| open::io_failed(path, error))?;
    Ok(RestoredCursors { last, continues_after })
}

/// Rewrites a database without its free pages. No process may have it open. Returns its old and new size.
pub fn database_vacuum(path: &Path) -> Result<(u64, u64), OpenError> {
    let fail = |error| open::failed(path, error);
    if open::inspect(path)?.is_none() {
        return Err(OpenError::Missing { path: path.into(), traces: "the state directory".into() });
    }
    let size = || fs::metadata(path).map_or(0, |file| file.len());
    let before = size();
    let mut connection = open_alone(path).map_err(fail)?;
    if migrate::version(&connection).map_err(fail)? == migrate::SCHEMA_VERSION {
        let transaction = connection.transaction().map_err(fail)?;
        checksum::fill(&transaction).and_then(|_| transaction.commit()).map_err(fail)?;
    }
    // VACUUM moves pages, which must not go through a WAL.
    open::without_wal(&mut connection, |connection| connection.execute_batch("VACUUM")).map_err(fail)?;
    drop(connection);
    sync(path).map_err(|error| open::io_failed(path, error))?;
    Ok((before, size()))
}

/// Copies a database before its schema is migrated from `version`. The caller has merged the WAL, so the copy of the file
/// is complete.
pub(super) fn keep_before_migration(path: &Path, version: u32) -> io::Result<()> {
    let copy = sibling(path, &format!("{BEFORE_MIGRATION}{version}"));
    let draft = sibling(&copy, ".partial");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let copied = fs::copy(path, &draft).and_then(|_| File::open(&draft)?.sync_all());
    if copied.is_err() {
        let _ = fs::remove_file(&draft);
    }
    copied?;
    fs::rename(&draft, &copy)?;
    open::folder_sync(path)
}

/// Records when a copy was made before a migration.
pub(super) fn record_copy(connection: &Connection, now: Time) -> rusqlite::Result<()> {
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('copy_made_at_ms', ?1)", [now.0]).map(drop)
}

/// Removes the copies from before migrations, once the latest is old enough.
pub(super) fn remove_old_copies(path: &Path, connection: &Connection, now: Time) -> rusqlite::Result<()> {
    let sql = "SELECT value FROM meta WHERE name = 'copy_made_at_ms'";
    let made = connection.query_row(sql, [], |row| row.get::<_, i64>(0)).optional()?;
    if made.is_none_or(|made| now.0.saturating_sub(made) < COPY_KEPT_MS) {
        return Ok(());
    }
    for copy in copies(path) {
        if let Err(error) = fs::remove_file(&copy) {
            tracing::warn!(%error, copy = %copy.display(), "cannot remove an old copy of the database");
        }
    }
    connection.execute("DELETE FROM meta WHERE name = 'copy_made_at_ms'", []).map(drop)
}

/// Lists the copies beside the database.
fn copies(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return vec![] };
    let prefix = format!("{}{BEFORE_MIGRATION}", name.to_string_lossy());
    let Ok(entries) = fs::read_dir(folder) else { return vec![] };
    let names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    names.filter(|path| is_copy(path, &prefix)).collect()
}

fn is_copy(path: &Path, prefix: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let version = name.strip_prefix(prefix);
    version.is_some_and(|version| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Opens a database that nothing else has open, with a rollback journal.
pub(super) fn open_alone(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch(
        "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY;
         PRAGMA foreign_keys = ON",
    )?;
    Ok(connection)
}

/// Returns the last cursor given to an event, also to one that was removed.
pub(super) fn last_cursor(connection: &Connection) -> rusqlite::Result<Cursor> {
    let sql = "SELECT max(coalesce((SELECT value FROM meta WHERE name = 'event_seq'), 0),
                          coalesce((SELECT max(event_seq) FROM events), 0))";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([], |row| row.get::<_, i64>(0)).map(|seq| Cursor(seq.cast_unsigned()))
}

fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    connection.query_row(sql, [name], |_| Ok(())).optional().map(|found| found.is_some())
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
