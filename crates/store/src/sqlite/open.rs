//! Opening a database file: what may be wrong with it, found out before anything is written.
//!
//! Looking comes first, at the bytes of the header and then through a connection that cannot write, since merely
//! opening a file in WAL mode can change it. A new database is made under another name and renamed when it is
//! whole, so that a crash leaves either a database or none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mainspring_core::Time;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::migrate::{self, SCHEMA_VERSION};
use super::{Durability, SqliteOptions};

/// `MSPR`, in the header of every database of ours.
const APPLICATION_ID: u32 = 0x4D53_5052;
/// Before it, a WAL could be reset while it was read: silent corruption.
const OLDEST_SQLITE: i32 = 3_051_003;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Prepared statements each connection keeps; there are some 60 in all.
const STATEMENTS: usize = 128;

/// Why a database cannot be opened. The file is as it was.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "every variant names the file, and its message says the rest")]
pub enum OpenError {
    /// Something that is not a file stands there.
    #[error("{} is not a file: move it away, or choose another state directory", path.display())]
    NotAFile { path: PathBuf },
    /// It is not a SQLite database.
    #[error("{} is not a database: move it away, or choose another state directory", path.display())]
    NotADatabase { path: PathBuf },
    /// It is the database of another program.
    #[error("{} belongs to another program: move it away, or choose another state directory", path.display())]
    Foreign { path: PathBuf },
    /// A later mainspring wrote it.
    #[error("{} was written by a newer mainspring (schema {found}, this one knows {known}): upgrade mainspring", path.display())]
    Newer { path: PathBuf, found: u32, known: u32 },
    /// It is damaged.
    #[error("{} is damaged ({reason}): restore it from a backup, or move it away to start anew", path.display())]
    Corrupt { path: PathBuf, reason: String },
    /// It must not be written.
    #[error("{} is read-only: make it writable (chmod u+w), or remount its file system", path.display())]
    ReadOnly { path: PathBuf },
    /// It may not be opened.
    #[error("no permission to open {}: make it yours (chown, chmod u+rw)", path.display())]
    Permission { path: PathBuf },
    /// The disk is full.
    #[error("no space left for {}: free some and start again", path.display())]
    Full { path: PathBuf },
    /// Another process writes it.
    #[error("{} is in use by another process: stop it first", path.display())]
    Busy { path: PathBuf },
    /// This program was built with a SQLite that cannot be trusted with the file.
    #[error("this mainspring was built with SQLite {version}, which lacks {lacks}: use a release build")]
    Sqlite { version: String, lacks: String },
    /// Anything else.
    #[error("{} cannot be opened: check the file and its disk", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Opens the write connection, making or migrating the database where needed.
pub(super) fn open_writer(path: &Path, options: &SqliteOptions, now: Time) -> Result<Connection, OpenError> {
    sqlite_probe()?;
    if !inspect(path)? {
        create(path, now)?;
    }
    let fail = |error| failed(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(fail)?;
    configure(&connection, options).map_err(fail)?;
    let found = migrate::version(&connection).map_err(fail)?;
    if found > SCHEMA_VERSION {
        return Err(OpenError::Newer { path: path.into(), found, known: SCHEMA_VERSION });
    }
    if found < SCHEMA_VERSION {
        migrate::migrate(&mut connection, now).map_err(fail)?;
        // So that the header of the file itself tells an older program that it is too old.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(fail)?;
    }
    Ok(connection)
}

/// Opens one connection that cannot write. The writer must be open.
pub(super) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = Connection::open_with_flags(path, flags)?;
        statements_keep(&connection)?;
        connection.execute_batch(
            "PRAGMA query_only = ON; PRAGMA busy_timeout = 5000; PRAGMA temp_store = MEMORY",
        )?;
        Ok(connection)
    };
    open().map_err(|error| failed(path, error))
}

fn configure(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    statements_keep(connection)?;
    let synchronous = match options.durability {
        Durability::Full => "FULL",
        Durability::Normal => "NORMAL",
    };
    connection.execute_batch(&format!(
        "PRAGMA busy_timeout = 5000;
         PRAGMA journal_mode = WAL;
         PRAGMA synchronous = {synchronous};
         PRAGMA foreign_keys = ON;
         PRAGMA wal_autocheckpoint = 2000;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA temp_store = MEMORY;
         PRAGMA cache_size = -16384;"
    ))
}

/// A statement is compiled once, and stays as it was compiled.
fn statements_keep(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Otherwise the planner looks at bound values where a partial index might fit, and compiles the statement anew
    // whenever another value is bound: most of the cost of a commit.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// What is in force, not what was asked for.
pub(super) fn pragmas(connection: &Connection) -> rusqlite::Result<Vec<(&'static str, i64)>> {
    let names = ["synchronous", "foreign_keys", "busy_timeout", "wal_autocheckpoint", "journal_size_limit"];
    let value = |name| connection.pragma_query_value(None, name, |row| row.get(0));
    names.into_iter().map(|name| Ok((name, value(name)?))).collect()
}

/// Tells whether there is a database, and refuses what is not ours or not whole. Changes nothing.
fn inspect(path: &Path) -> Result<bool, OpenError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
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
        return Ok(false);
    }
    let mut header = [0; 100];
    let whole = file.read_exact(&mut header);
    if !header.starts_with(MAGIC) {
        return Err(OpenError::NotADatabase { path: path.into() });
    }
    whole.map_err(|_| OpenError::Corrupt { path: path.into(), reason: "its header is cut off".into() })?;
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if number(68) != APPLICATION_ID {
        return Err(OpenError::Foreign { path: path.into() });
    }
    let found = number(60);
    if found > SCHEMA_VERSION {
        return Err(OpenError::Newer { path: path.into(), found, known: SCHEMA_VERSION });
    }
    // After a crash the file is whole only together with its WAL, which SQLite puts together when it opens both.
    let wal = fs::metadata(sibling(path, "-wal")).is_ok_and(|wal| wal.len() > 0);
    if !wal {
        let page_size = match u64::from(u16::from_be_bytes([header[16], header[17]])) {
            1 => 65536,
            size => size,
        };
        if u64::from(number(28)) * page_size > metadata.len() {
            return Err(OpenError::Corrupt { path: path.into(), reason: "its end is missing".into() });
        }
        look(path)?;
    }
    Ok(true)
}

/// Reads the schema and a row of each small table through a connection that cannot write.
fn look(path: &Path) -> Result<(), OpenError> {
    let name = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let look = || {
        let connection = Connection::open_with_flags(format!("file:{name}?immutable=1"), flags)?;
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))?;
        connection.query_row("SELECT max(version) FROM schema_migrations", [], |row| row.get::<_, u32>(0))?;
        connection.query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0))
    };
    look().map(drop).map_err(|error| match error {
        // A table of ours is missing, or holds what it cannot hold.
        rusqlite::Error::SqliteFailure(code, reason) if code.code == ErrorCode::Unknown => {
            OpenError::Corrupt { path: path.into(), reason: reason.unwrap_or_else(|| code.to_string()) }
        }
        rusqlite::Error::InvalidColumnType(..) => {
            OpenError::Corrupt { path: path.into(), reason: error.to_string() }
        }
        error => failed(path, error),
    })
}

/// Makes a whole database under another name, then gives it its own.
fn create(path: &Path, now: Time) -> Result<(), OpenError> {
    let draft = sibling(path, ".creating");
    let remove = |file: &Path| match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_failed(path, error)),
        _ => Ok(()),
    };
    // What a crash left of an earlier try.
    remove(&draft)?;
    remove(&sibling(&draft, "-journal"))?;
    private_file(&draft).map_err(|error| io_failed(path, error))?;
    let made = draft_make(&draft, now).map_err(|error| failed(path, error));
    let placed = made.and_then(|()| fs::rename(&draft, path).map_err(|error| io_failed(path, error)));
    if placed.is_err() {
        let _ = remove(&draft);
    }
    placed?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| io_failed(path, error))
}

/// Only its owner may read what people told their agents.
fn private_file(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

fn draft_make(draft: &Path, now: Time) -> rusqlite::Result<()> {
    let mut connection = Connection::open_with_flags(draft, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    migrate::migrate(&mut connection, now)?;
    connection.close().map_err(|(_, error)| error)
}

/// Makes sure that this SQLite can do what is asked of it.
fn sqlite_probe() -> Result<(), OpenError> {
    let lacks = |lacks: &str| OpenError::Sqlite { version: rusqlite::version().into(), lacks: lacks.into() };
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(lacks("the WAL-reset fix of 3.51.3"));
    }
    let features = [
        (
            "STRICT tables",
            "CREATE TABLE probe (id INTEGER PRIMARY KEY, name TEXT, n INTEGER NOT NULL) STRICT",
        ),
        ("partial indexes", "CREATE UNIQUE INDEX probe_uq ON probe(name) WHERE name IS NOT NULL"),
        (
            "upsert",
            "INSERT INTO probe VALUES (1, 'a', 1) ON CONFLICT (id) DO UPDATE SET n = n + 1 WHERE n = 1",
        ),
        ("JSON", "INSERT INTO probe SELECT 2, value ->> '$.a', 2 FROM json_each('[{\"a\":\"b\"}]')"),
        ("FTS5", "CREATE VIRTUAL TABLE words USING fts5(text, content = '', contentless_delete = 1)"),
        ("savepoints", "SAVEPOINT one; DELETE FROM probe; ROLLBACK TO one; RELEASE one"),
    ];
    let memory = Connection::open_in_memory().map_err(|_| lacks("in-memory databases"))?;
    for (feature, sql) in features {
        memory.execute_batch(sql).map_err(|_| lacks(feature))?;
    }
    Ok(())
}

/// The file beside `path` whose name has `suffix` added.
fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn io_failed(path: &Path, error: io::Error) -> OpenError {
    let path = path.to_path_buf();
    match error.kind() {
        io::ErrorKind::PermissionDenied => OpenError::Permission { path },
        io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnly { path },
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => OpenError::Full { path },
        io::ErrorKind::IsADirectory => OpenError::NotAFile { path },
        _ => OpenError::Io { path, source: error.into() },
    }
}

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
    fn every_connection_keeps_its_statements() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.sqlite3");
        let writer = open_writer(&path, &SqliteOptions::default(), Time(0)).unwrap();
        for connection in [&writer, &open_reader(&path).unwrap()] {
            assert!(connection.db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG).unwrap());
        }
    }

    #[test]
    fn a_full_disk_is_called_that() {
        let full =
            rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None);
        let error = failed(Path::new("a.sqlite3"), full);
        assert_eq!(error.to_string(), "no space left for a.sqlite3: free some and start again");
    }
}
