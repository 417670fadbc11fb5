//! A read-only handle on a database, which changes no file of the state directory.
//!
//! | state of the database | how it is read |
//! |---|---|
//! | a process uses it | through the shared memory of its WAL, as by any reader |
//! | closed normally | as an immutable file: SQLite creates no `-wal` and `-shm` |
//! | left by a crash, with `-wal` and `-shm` | with a WAL index in memory (`readonly_shm`) |
//! | left by a crash in another state | from a copy in a temporary folder |

use std::fs::{self, DirBuilder};
use std::io;
use std::path::{Path, PathBuf};

use mainspring_kernel::store::StoreError;
use rusqlite::{Connection, OpenFlags};

use super::check::{self, SqliteCheck};
use super::open::{self, OpenError, sibling};
use super::wal::Wal;
use super::{OmiOffer, error, migrate, omi, read};
use crate::copy::UNFINISHED_COPY;

/// A database that is only read. Opening, using and dropping it changes no file.
#[derive(Debug)]
pub struct SqliteView {
    path: PathBuf,
    is_served: bool,
    /// The mode in the header of the file: a connection that reads the file as immutable reports another one.
    journal_mode: &'static str,
    connection: Connection,
    /// Removed after the connection is closed.
    _copy: Option<Copied>,
}

/// The unfinished runs of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnfinishedRuns {
    /// Runs that the next process can start at once.
    pub queued: u64,
    /// Queued runs behind one that waits for an answer.
    pub blocked: u64,
    /// Runs that wait for an answer.
    pub waiting: u64,
    /// Runs that were executing.
    pub executing: u64,
}

impl SqliteView {
    /// Opens the database at `path`. `is_served`: another process has it open.
    pub fn open(path: &Path, is_served: bool) -> Result<Self, OpenError> {
        // Read before the connection is opened: closing a file releases all locks that the process has on it.
        let journal_mode = open::journal_mode(path);
        // Another process may be copying into the database.
        let is_copy = open::schema_in_header(path).is_ok_and(|schema| schema == UNFINISHED_COPY);
        if is_copy {
            return Err(OpenError::UnfinishedCopy { path: path.into() });
        }
        let (connection, copy) = match is_served {
            true => (open::open_reader(path)?, None),
            false => open_closed(path)?,
        };
        let view = Self { path: path.into(), is_served, journal_mode, connection, _copy: copy };
        // The header may be from an interrupted transaction, which SQLite has rolled back now.
        if view.schema_version()? == UNFINISHED_COPY {
            return Err(OpenError::UnfinishedCopy { path: path.into() });
        }
        Ok(view)
    }

    /// True if another process had the database open, and may change it.
    pub fn is_served(&self) -> bool {
        self.is_served
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the last migration that was applied to the database.
    pub fn schema_version(&self) -> Result<u32, OpenError> {
        migrate::version(&self.connection).map_err(|error| open::failed(&self.path, error))
    }

    /// Checks the health of the database, of any schema. `thorough` also compares every index with its table.
    pub fn check(&self, thorough: bool) -> Result<SqliteCheck, OpenError> {
        let file_bytes = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        let check = check::check(&self.connection, thorough, file_bytes);
        let check = check.map_err(|error| open::failed(&self.path, error))?;
        Ok(SqliteCheck { journal_mode: self.journal_mode.into(), ..check })
    }

    /// Finds a database of the original daemon that lies in the store's folder and was not imported into the store.
    pub fn omi_offer(&self) -> Option<OmiOffer> {
        omi::offer(&self.path, Some(&self.connection))
    }

    /// Counts the unfinished runs.
    pub fn unfinished_runs(&self) -> Result<UnfinishedRuns, StoreError> {
        let sql = "WITH live AS (
                     SELECT session_id, status FROM runs WHERE status NOT IN
                       ('succeeded', 'failed', 'cancelled', 'timed_out', 'orphaned')),
                   waiting AS (
                     SELECT session_id FROM live WHERE status IN ('waiting_input', 'waiting_approval'))
                   SELECT count(*) FILTER (WHERE status = 'queued' AND session_id NOT IN waiting),
                          count(*) FILTER (WHERE status = 'queued' AND session_id IN waiting),
                          count(*) FILTER (WHERE status IN ('waiting_input', 'waiting_approval')),
                          count(*) FILTER (WHERE status IN ('starting', 'running', 'cancelling'))
                   FROM live";
        let counts = self.connection.query_row(sql, [], |row| {
            let number = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
            Ok(UnfinishedRuns {
                queued: number(0)?,
                blocked: number(1)?,
                waiting: number(2)?,
                executing: number(3)?,
            })
        });
        counts.map_err(|error| error::read_error(&error))
    }

    /// Returns hashes and sizes of the contents of artifacts, ordered by hash, after `after`.
    pub fn blob_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, u64)>, StoreError> {
        read::artifacts::blob_page(&self.connection, after.unwrap_or_default(), limit)
    }
}

/// Opens a database that no process has open.
fn open_closed(path: &Path) -> Result<(Connection, Option<Copied>), OpenError> {
    let Some(wal) = open::inspect(path)? else {
        return Err(OpenError::Missing { path: path.into(), traces: "the state directory".into() });
    };
    let exists = |suffix| fs::metadata(sibling(path, suffix)).is_ok_and(|file| file.len() > 0);
    let parameter = match wal {
        // SQLite rolls an interrupted migration back when it opens the file.
        _ if exists("-journal") => return open_copy(path),
        Wal::Absent | Wal::Empty => "immutable=1",
        Wal::Belongs | Wal::Stale if exists("-shm") => "readonly_shm=1",
        Wal::Belongs | Wal::Stale => return open_copy(path),
    };
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = Connection::open_with_flags(open::uri(path, parameter), flags)?;
        connection.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY")?;
        Ok(connection)
    };
    open().map(|connection| (connection, None)).map_err(|error| open::failed(path, error))
}

/// Copies the database and its journals, and opens the copy.
fn open_copy(path: &Path) -> Result<(Connection, Option<Copied>), OpenError> {
    let copy = Copied::new(path).map_err(|error| open::io_failed(path, error))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(copy.0.join(COPY), flags);
    let connection = connection.map_err(|error| open::failed(path, error))?;
    Ok((connection, Some(copy)))
}

/// The name of the database in a temporary folder.
const COPY: &str = "copy.sqlite3";

/// A temporary folder with a copy of a database. Dropping it removes the folder.
#[derive(Debug)]
struct Copied(PathBuf);

impl Copied {
    fn new(path: &Path) -> io::Result<Self> {
        let copied = Self(private_folder()?);
        for suffix in ["", "-wal", "-journal"] {
            match fs::copy(sibling(path, suffix), copied.0.join(format!("{COPY}{suffix}"))) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !suffix.is_empty() => {}
                done => drop(done?),
            }
        }
        Ok(copied)
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Creates a folder for temporary files that only this user can read.
fn private_folder() -> io::Result<PathBuf> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let mut number = 0;
    loop {
        let folder = std::env::temp_dir().join(format!("mainspring-{}-{number}", std::process::id()));
        match builder.create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1_000 => number += 1,
            Err(error) => return Err(error),
        }
    }
}
