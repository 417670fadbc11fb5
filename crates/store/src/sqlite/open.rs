//! Opens a database file, and rejects an unusable one before writing anything.
//!
//! The bytes of the header are checked first, then whether the WAL belongs to the file, and then the tables. A new database is
//! created under another name and renamed when complete, so that a crash leaves either a complete database or none.
//!
//! A file beside the database, [`HISTORY`], records that there was one, so that a missing database is not mistaken for
//! a new state directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mainspring_core::Time;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::migrate::{self, SCHEMA_VERSION};
use super::wal::{self, Wal};
use super::{Durability, SqliteOptions, backup, check};
use crate::copy::UNFINISHED_COPY;

/// `MSPR`, in the header of every mainspring database.
const APPLICATION_ID: u32 = 0x4D53_5052;
/// Earlier versions could reset the WAL during a read, which corrupts the database silently.
const OLDEST_SQLITE: i32 = 3_051_003;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The number of prepared statements each connection caches: about as many as a connection uses.
const CACHED_STATEMENTS: usize = 128;
/// The suffix of the file that records that a database exists.
pub(super) const HISTORY: &str = "-history";
const HISTORY_TEXT: &str = "A mainspring database belongs beside this file. \
    If it is missing, mainspring refuses to start with an empty one. Remove this file to start anew.\n";

/// A database that cannot be opened. The file is unchanged.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the file and the details that the message shows")]
#[non_exhaustive]
pub enum OpenError {
    /// The path is not a file.
    #[error("{} is not a file: move it away, or choose another state directory", path.display())]
    NotAFile { path: PathBuf },
    /// The file is not a SQLite database.
    #[error("{} is not a database: move it away, or choose another state directory", path.display())]
    NotADatabase { path: PathBuf },
    /// The file is the database of another program.
    #[error("{} belongs to another program: move it away, or choose another state directory", path.display())]
    Foreign { path: PathBuf },
    /// A later version of mainspring wrote the file.
    #[error("{} was written by a newer mainspring (schema {found}, this one knows {known}): upgrade mainspring", path.display())]
    Newer { path: PathBuf, found: u32, known: u32 },
    /// The file is the target of a copy that has not ended.
    #[error(
        "{} is an unfinished copy of another store: run `mainspring store copy` again to finish it, or remove it with \
         `mainspring store discard`",
        path.display()
    )]
    UnfinishedCopy { path: PathBuf },
    /// The file is damaged.
    #[error("{} is damaged ({reason}): restore it from a backup, or move it away to start anew", path.display())]
    Corrupt { path: PathBuf, reason: String },
    /// The WAL beside the file belongs to another database.
    #[error(
        "{} does not belong to {}, which was replaced or restored beside it: to use the database as it is, move {} away; \
         or put the database back that it belongs to",
        wal.display(), path.display(), wal.display()
    )]
    StaleWal { path: PathBuf, wal: PathBuf },
    /// The file is missing or empty, but files beside it show that there was a database.
    #[error(
        "{} is missing or empty, but there was a database: put it back, or restore a backup; \
         to start anew, move {traces} away",
        path.display()
    )]
    Missing { path: PathBuf, traces: String },
    /// The file or its file system is read-only.
    #[error("{} is read-only: make it writable (chmod u+w), or remount its file system", path.display())]
    ReadOnly { path: PathBuf },
    /// The process lacks the permission to open the file.
    #[error("no permission to open {}: make it yours (chown, chmod u+rw)", path.display())]
    Permission { path: PathBuf },
    /// The disk is full.
    #[error("no space left for {}: free some and start again", path.display())]
    Full { path: PathBuf },
    /// Another process has the file locked.
    #[error("{} is in use by another process: stop it first", path.display())]
    Busy { path: PathBuf },
    /// The SQLite this program was built with lacks a feature or fix.
    #[error("this mainspring was built with SQLite {version}, which lacks {lacks}: use a release build")]
    Sqlite { version: String, lacks: String },
    /// Any other error.
    #[error("{} cannot be opened: check the file and its disk", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A database that is open for writing.
pub(super) struct Opened {
    pub(super) connection: Connection,
    /// True if the database was not closed normally and is too large to be checked before it is used.
    pub(super) check_due: bool,
}

/// Opens the write connection. Creates or migrates the database if necessary.
pub(super) fn open_writer(path: &Path, options: &SqliteOptions, now: Time) -> Result<Opened, OpenError> {
    check_sqlite()?;
    let found = examine(path)?;
    if found.is_none() {
        create(path, now)?;
    }
    let fail = |error| failed(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(fail)?;
    // SQLite forgets the parsed schema when `temp_store` changes after the check has used a temporary table.
    connection.execute_batch("PRAGMA busy_timeout = 5000; PRAGMA temp_store = MEMORY").map_err(fail)?;
    // Checked on the write connection: another connection would parse the schema once more. If the check fails, closing
    // the connection changes nothing, since the WAL has no transaction.
    if matches!(found, Some(Wal::Absent | Wal::Empty)) {
        check_tables(path, &connection)?;
    }
    let check_due = crash_check(path, &connection, found.is_some_and(|wal| wal != Wal::Absent), options)?;
    let version = migrate::version(&connection).map_err(fail)?;
    check_schema(path, version)?;
    if version < SCHEMA_VERSION {
        without_wal(&mut connection, |_| Ok(())).map_err(fail)?;
        backup::keep_before_migration(path, version).map_err(|error| io_failed(path, error))?;
        migrate::migrate(&mut connection, now).map_err(fail)?;
        backup::record_copy(&connection, now).map_err(fail)?;
    }
    configure(&connection, options).map_err(fail)?;
    history_write(path).map_err(|error| io_failed(path, error))?;
    Ok(Opened { connection, check_due })
}

/// Runs a change of the schema or of page numbers without a WAL: the token of a WAL that contains such a change could
/// not be compared with the token of the database. No other connection may be open.
pub(super) fn without_wal<T>(
    connection: &mut Connection,
    change: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL")?;
    change(connection)
}

/// Checks a database that was not closed normally. Returns true if it is too large to be checked now.
fn crash_check(
    path: &Path,
    connection: &Connection,
    unclean: bool,
    options: &SqliteOptions,
) -> Result<bool, OpenError> {
    let fail = |error| failed(path, error);
    // Closing must not merge the WAL into a damaged file.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(fail)?;
    let due = unclean || check::crash_check_due(connection).map_err(fail)?;
    let is_large = fs::metadata(path).is_ok_and(|file| file.len() > options.check_at_open_bytes);
    if due && !is_large {
        let problems = check::quick_check(connection).map_err(fail)?;
        if let Some(problem) = problems.into_iter().next() {
            return Err(OpenError::Corrupt { path: path.into(), reason: problem });
        }
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(fail)?;
    Ok(due && is_large)
}

/// Records beside the database that it exists.
fn history_write(path: &Path) -> io::Result<()> {
    let history = sibling(path, HISTORY);
    if history.exists() {
        return Ok(());
    }
    private_file(&history)?;
    fs::write(&history, HISTORY_TEXT)?;
    folder_sync(path)
}

/// Opens a read-only connection. The writer must be open.
pub(super) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = Connection::open_with_flags(path, flags)?;
        configure_statements(&connection)?;
        connection.execute_batch(
            "PRAGMA query_only = ON; PRAGMA busy_timeout = 5000; PRAGMA temp_store = MEMORY",
        )?;
        Ok(connection)
    };
    open().map_err(|error| failed(path, error))
}

fn configure(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    configure_statements(connection)?;
    let synchronous = match options.durability {
        Durability::Full => "FULL",
        Durability::Normal => "NORMAL",
    };
    connection.execute_batch(&format!(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = {synchronous};
         PRAGMA foreign_keys = ON;
         PRAGMA wal_autocheckpoint = 16000;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA cache_size = -16384;"
    ))
}

/// Caches compiled statements, and keeps SQLite from recompiling them.
fn configure_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    // Without this, the planner inspects bound values where a partial index might apply, and recompiles the statement
    // for every new value: most of the cost of a commit.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Reads the values in force, which may differ from the requested ones.
pub(super) fn pragmas(connection: &Connection) -> rusqlite::Result<Vec<(&'static str, i64)>> {
    let names = ["synchronous", "foreign_keys", "busy_timeout", "wal_autocheckpoint", "journal_size_limit"];
    let value = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    names.into_iter().map(|name| Ok((name, value(name)?))).collect()
}

/// Returns the state of the WAL if there is a database. Fails if the database is foreign, incomplete, damaged or missing, or
/// if its WAL belongs to another one. Changes nothing.
pub(super) fn inspect(path: &Path) -> Result<Option<Wal>, OpenError> {
    let found = examine(path)?;
    if matches!(found, Some(Wal::Absent | Wal::Empty)) {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(uri(path, "immutable=1"), flags);
        check_tables(path, &connection.map_err(|error| failed(path, error))?)?;
    }
    Ok(found)
}

/// Does what [`inspect`] does, without reading the tables.
fn examine(path: &Path) -> Result<Option<Wal>, OpenError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return check_new(path),
        Err(error) => return Err(io_failed(path, error)),
    };
    if !metadata.is_file() {
        return Err(OpenError::NotAFile { path: path.into() });
    }
    if metadata.permissions().readonly() {
        return Err(OpenError::ReadOnly { path: path.into() });
    }
    let mut file =
        OpenOptions::new().read(true).write(true).open(path).map_err(|error| io_failed(path, error))?;
    if metadata.len() == 0 {
        return check_new(path);
    }
    let mut header = [0; 100];
    let complete = file.read_exact(&mut header);
    if !header.starts_with(MAGIC) {
        return Err(OpenError::NotADatabase { path: path.into() });
    }
    complete.map_err(|_| OpenError::Corrupt { path: path.into(), reason: "its header is cut off".into() })?;
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if number(68) != APPLICATION_ID {
        return Err(OpenError::Foreign { path: path.into() });
    }
    let found = number(60);
    check_schema(path, found)?;
    let page_size = match u64::from(u16::from_be_bytes([header[16], header[17]])) {
        1 => 65536,
        size => size,
    };
    let base = wal::Base { page_size, schema_cookie: number(40), schema_version: found };
    let beside = sibling(path, "-wal");
    let wal = wal::examine(&mut file, base, &beside).map_err(|error| io_failed(&beside, error))?;
    match wal {
        Wal::Stale => return Err(OpenError::StaleWal { path: path.into(), wal: beside }),
        // After a crash the file is complete only with its WAL, which SQLite merges when it opens both.
        Wal::Belongs => {}
        Wal::Absent | Wal::Empty => {
            if u64::from(number(28)) * page_size > metadata.len() {
                return Err(OpenError::Corrupt { path: path.into(), reason: "its end is missing".into() });
            }
        }
    }
    Ok(Some(wal))
}

/// Fails if this version cannot use a database with this schema.
pub(super) fn check_schema(path: &Path, found: u32) -> Result<(), OpenError> {
    let path = path.to_path_buf();
    match found {
        UNFINISHED_COPY => Err(OpenError::UnfinishedCopy { path }),
        found if found > SCHEMA_VERSION => Err(OpenError::Newer { path, found, known: SCHEMA_VERSION }),
        _ => Ok(()),
    }
}

/// Reads the schema version from the header of a database file. It may be newer than the tables if a transaction was
/// interrupted.
pub(super) fn schema_in_header(path: &Path) -> io::Result<u32> {
    header_number(path, 60)
}

/// Reads the number of changes from the header of a database file that no process has open.
pub(super) fn change_counter(path: &Path) -> io::Result<u32> {
    header_number(path, 24)
}

fn header_number(path: &Path, at: usize) -> io::Result<u32> {
    let mut header = [0; 100];
    let mut file = File::open(path)?;
    let read = file.read(&mut header)?;
    let number = header[..read].get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    // A file without a whole header is not a database.
    Ok(number.map_or(0, u32::from_be_bytes))
}

/// Fails if files beside a missing or empty database show that there was one.
fn check_new(path: &Path) -> Result<Option<Wal>, OpenError> {
    let traces: Vec<String> = ["-wal", "-journal", HISTORY]
        .map(|suffix| sibling(path, suffix))
        .into_iter()
        .filter(|trace| fs::metadata(trace).is_ok_and(|file| file.len() > 0))
        .map(|trace| trace.display().to_string())
        .collect();
    match traces.is_empty() {
        true => Ok(None),
        false => Err(OpenError::Missing { path: path.into(), traces: traces.join(" and ") }),
    }
}

/// Reads the schema and a row of each small table.
fn check_tables(path: &Path, connection: &Connection) -> Result<(), OpenError> {
    let query = || {
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))?;
        connection.query_row("SELECT max(version) FROM schema_migrations", [], |row| row.get::<_, u32>(0))?;
        connection.query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0))
    };
    query().map(drop).map_err(|error| match error {
        // A table is missing or damaged.
        rusqlite::Error::SqliteFailure(code, reason) if code.code == ErrorCode::Unknown => {
            OpenError::Corrupt { path: path.into(), reason: reason.unwrap_or_else(|| code.to_string()) }
        }
        rusqlite::Error::InvalidColumnType(..) => {
            OpenError::Corrupt { path: path.into(), reason: error.to_string() }
        }
        error => failed(path, error),
    })
}

/// Creates a complete database under another name, then renames it.
pub(super) fn create(path: &Path, now: Time) -> Result<(), OpenError> {
    let draft = sibling(path, ".creating");
    let remove = |file: &Path| match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_failed(path, error)),
        _ => Ok(()),
    };
    // A crash may have left files of an earlier attempt.
    remove(&draft)?;
    remove(&sibling(&draft, "-journal"))?;
    private_file(&draft).map_err(|error| io_failed(path, error))?;
    let created = create_draft(&draft, now).map_err(|error| failed(path, error));
    let renamed = created.and_then(|()| fs::rename(&draft, path).map_err(|error| io_failed(path, error)));
    if renamed.is_err() {
        let _ = remove(&draft);
    }
    renamed?;
    folder_sync(path).map_err(|error| io_failed(path, error))
}

/// Makes new names in the folder of `path` durable.
pub(super) fn folder_sync(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all())
}

/// Creates a file that only its owner can read: it will hold private conversations.
pub(super) fn private_file(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

fn create_draft(draft: &Path, now: Time) -> rusqlite::Result<()> {
    let mut connection = Connection::open_with_flags(draft, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    migrate::migrate(&mut connection, now)?;
    connection.close().map_err(|(_, error)| error)
}

/// Fails if this SQLite is too old or lacks a feature. Every version since the oldest one has the other features that are
/// used: STRICT tables, partial indexes, upsert and savepoints.
fn check_sqlite() -> Result<(), OpenError> {
    let lacks = |lacks: &str| OpenError::Sqlite { version: rusqlite::version().into(), lacks: lacks.into() };
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(lacks("the WAL-reset fix of 3.51.3"));
    }
    let memory = Connection::open_in_memory().map_err(|_| lacks("in-memory databases"))?;
    let is_compiled = |option: &str| {
        let sql = "SELECT sqlite_compileoption_used(?1)";
        memory.query_row(sql, [option], |row| row.get::<_, bool>(0)).unwrap_or_default()
    };
    if !is_compiled("ENABLE_FTS5") {
        return Err(lacks("FTS5"));
    }
    match is_compiled("OMIT_JSON") {
        true => Err(lacks("JSON")),
        false => Ok(()),
    }
}

/// Returns `path` with `suffix` appended to its name.
pub(super) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Reads the journal mode from the header of a database file. Opening the file reports its errors.
pub(super) fn journal_mode(path: &Path) -> &'static str {
    let mut header = [0; 19];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    if read.is_ok() && header[18] == 2 { "wal" } else { "delete" }
}

/// Returns the URI of a database file, with a parameter of SQLite.
pub(super) fn uri(path: &Path, parameter: &str) -> String {
    let name = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    format!("file:{name}?{parameter}")
}

/// Maps an I/O error to an [`OpenError`].
pub(super) fn io_failed(path: &Path, error: io::Error) -> OpenError {
    let path = path.to_path_buf();
    match error.kind() {
        io::ErrorKind::PermissionDenied => OpenError::Permission { path },
        io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnly { path },
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => OpenError::Full { path },
        io::ErrorKind::IsADirectory => OpenError::NotAFile { path },
        _ => OpenError::Io { path, source: error.into() },
    }
}

/// Maps a SQLite error to an [`OpenError`].
pub(super) fn failed(path: &Path, error: rusqlite::Error) -> OpenError {
    let path = path.to_path_buf();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotADatabase { path },
        Some(ErrorCode::DatabaseCorrupt) => OpenError::Corrupt { path, reason: error.to_string() },
        Some(ErrorCode::ReadOnly) => OpenError::ReadOnly { path },
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            OpenError::Permission { path }
        }
        Some(ErrorCode::DiskFull) => OpenError::Full { path },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Busy { path },
        _ => OpenError::Io { path, source: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_connection_recompiles_its_statements() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.sqlite3");
        let writer = open_writer(&path, &SqliteOptions::default(), Time(0)).unwrap().connection;
        for connection in [&writer, &open_reader(&path).unwrap()] {
            assert!(connection.db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG).unwrap());
        }
    }

    #[test]
    fn a_full_disk_is_reported_as_full() {
        let full =
            rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None);
        let error = failed(Path::new("a.sqlite3"), full);
        assert_eq!(error.to_string(), "no space left for a.sqlite3: free some and start again");
    }
}
