//! Copies all data of one database into another one that is empty.
//!
//! ```text
//! source ──range of records──▶ target ──read back: same hash──▶ committed with the mark ──▶ next range
//!                                         all ranges and artifacts copied ──▶ mark removed: a complete store
//! ```
//!
//! The mark records how far the copy is. Records that the stores keep in different forms (sessions, runs, messages, …)
//! are copied as the types of `core`, the others as rows of plain values. Ids, cursors and the order of records stay
//! the same. An interrupted copy continues after the last committed range.
//!
//! Invariant: a target with the mark is never opened as a store, and the records that its mark counts are equal to
//! those of the source.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mainspring_core::Time;
use mainspring_kernel::store::StoreError;

use crate::{OpenError, Verification};

mod mark;
mod table;
mod tables;

pub(crate) use mark::{Mark, Position, SourceState, TableMark, UNFINISHED_COPY};
pub(crate) use tables::{Column, CopyTable, Record, TABLES, Value};

/// The tables whose records name blobs by their hash.
const WITH_BYTES: &[&str] = &["artifacts", tables::INHERITED];

/// A database that can be copied, or copied into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyEnd {
    /// The file of a SQLite database.
    Sqlite(PathBuf),
    /// The URL of a PostgreSQL database.
    Postgres(String),
}

/// Why a copy failed. The target is unchanged or an unfinished copy; only if the verification failed is it a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The target holds data.
    #[error("{0} holds data already: copy into an empty database, or move those data away")]
    NotEmpty(String),
    /// The source does not exist.
    #[error("{0} does not exist: name the database to copy from")]
    NoSource(String),
    /// The target is an unfinished copy of another source.
    #[error(
        "{0} is an unfinished copy of another store: name that store to finish it, or remove the copy with \
         `mainspring store discard`"
    )]
    OfAnother(String),
    /// There is no unfinished copy to remove.
    #[error("{0} is not an unfinished copy: nothing was removed")]
    NotACopy(String),
    /// The source has damaged records. Nothing was copied.
    #[error(
        "{name} has damaged records ({records}) and was not copied: see `mainspring repair --help`. The first: {first}"
    )]
    Damaged {
        /// The source.
        name: String,
        /// The number of damaged records.
        records: usize,
        /// The first of them.
        first: String,
    },
    /// The target differs from the source after the copy.
    #[error("{table}: the copy has {copied} records with another content than the {read} that were read")]
    Differs {
        /// The kind of records.
        table: &'static str,
        /// The number of records that were read.
        read: u64,
        /// The number of records in the target.
        copied: u64,
    },
    /// The bytes of an artifact cannot be copied.
    #[error("the bytes of the artifact with the hash {hash} are {problem}")]
    Blob {
        /// The hash.
        hash: String,
        /// The problem of the bytes.
        problem: &'static str,
    },
    /// A SQLite database cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A PostgreSQL database cannot be reached.
    #[cfg(feature = "postgres")]
    #[error("{address} cannot be used")]
    Unreachable {
        /// The address, without a password.
        address: String,
        /// The problem.
        source: crate::PostgresError,
    },
    /// A PostgreSQL database cannot be used.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Postgres(#[from] crate::PostgresError),
    /// This program was built without PostgreSQL.
    #[error("this program was built without the feature `postgres`")]
    NoPostgres,
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A record cannot be read or written.
    #[error("{table}: {source}")]
    Store {
        /// The kind of records.
        table: &'static str,
        /// The error of the store.
        #[source]
        source: StoreError,
    },
}

impl CopyError {
    /// Removes the address from the error, for a message that already names the database.
    pub fn without_address(self) -> Self {
        match self {
            #[cfg(feature = "postgres")]
            Self::Unreachable { source, .. } => Self::Postgres(source),
            other => other,
        }
    }
}

/// The amount of data that a copy handles at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOptions {
    /// Records that are written by one statement, at most.
    pub batch_records: usize,
    /// Records that are compared and kept in one transaction, at most. An interrupted copy repeats at most this many.
    pub range_records: u64,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self { batch_records: 500, range_records: 10_000 }
    }
}

/// A step of a copy. The function that receives it may stop the copy with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyStep<'a> {
    /// The target is an unfinished copy of the source with this number of records, which are not copied again.
    Continues(u64),
    /// The target is an unfinished copy that cannot be continued, for this reason. It is emptied.
    BeginsAgain(&'a str),
    /// More records of this kind are about to be written; this number of them is written already.
    Writes(&'static str, u64),
    /// This number of records of a kind is written, compared and kept.
    Keeps(&'static str, u64),
    /// The bytes with this hash belong to the target: the receiver copies them.
    Blob(&'a str),
    /// Everything is written: the target is about to become a store.
    Completes,
    /// The target is a store, and is about to be verified.
    Verifies,
}

/// Receives the steps of a copy.
pub type CopySteps<'a> = dyn FnMut(CopyStep<'_>) -> Result<(), CopyError> + 'a;

/// The result of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyReport {
    /// The kinds of records with their numbers, in the order in which they were copied.
    pub records: Vec<(&'static str, u64)>,
    /// The number of records among them that an earlier, interrupted copy had written.
    pub kept: u64,
    /// The verification of the target. The source has the same findings, since the records are equal.
    pub verified: Vec<Verification>,
}

impl CopyReport {
    /// The number of records of a kind.
    pub fn count(&self, table: &str) -> u64 {
        self.records.iter().find(|(name, _)| *name == table).map_or(0, |(_, count)| *count)
    }

    /// The number of all records.
    pub fn total(&self) -> u64 {
        self.records.iter().map(|(_, count)| count).sum()
    }
}

/// Copies all data of `from` into `to`, compares the written records with the source, and verifies the target. Continues a
/// copy that ended early.
///
/// The caller makes sure that no process uses a SQLite database of the two; the lock of a PostgreSQL database is taken
/// here.
pub fn store_copy(
    from: &CopyEnd,
    to: &CopyEnd,
    options: CopyOptions,
    now: Time,
    steps: &mut CopySteps<'_>,
) -> Result<CopyReport, CopyError> {
    let mut source = open_source(from, now)?;
    let mut target = open_target(to, now)?;
    let mut mark = begin(&mut *source, &mut *target, steps)?;
    let kept = mark.records();
    for table in TABLES {
        table::copy(&mut *source, &mut *target, table, &mut mark, options, steps)?;
    }
    blob_hashes(&mut *source)?.iter().try_for_each(|hash| steps(CopyStep::Blob(hash)))?;
    steps(CopyStep::Completes)?;
    target.finish(mark.source.last_cursor)?;
    steps(CopyStep::Verifies)?;
    let verified = target.verify()?;
    let count = |table: &CopyTable| mark.tables.get(table.name).map_or(0, |table| table.records);
    let records = TABLES.iter().map(|table| (table.name, count(table))).collect();
    Ok(CopyReport { records, kept, verified })
}

/// Copies a database at one instant into the new SQLite file `to`, without API keys.
#[cfg(feature = "postgres")]
pub(crate) fn snapshot_copy(
    source: &mut dyn Source,
    to: &Path,
    now: Time,
) -> Result<crate::CopySummary, CopyError> {
    let mut target = crate::sqlite::copy::SqliteTarget::open(to, now)?;
    let mut mark = Mark::new(source.state()?, target.schema());
    target.begin(&mark)?;
    // A key that is revoked after a backup must not become valid again with a restore.
    for table in TABLES.iter().filter(|table| table.name != "api_keys") {
        table::copy(source, &mut target, table, &mut mark, CopyOptions::default(), &mut |_| Ok(()))?;
    }
    target.finish(mark.source.last_cursor)?;
    Ok(crate::sqlite::copy::summary(to)?)
}

/// Removes an unfinished copy, so that its target is empty. Returns the number of records that it had.
///
/// The caller makes sure that no process uses a SQLite database; the lock of a PostgreSQL database is taken here.
pub fn copy_discard(target: &CopyEnd, now: Time) -> Result<u64, CopyError> {
    let opened = match target {
        CopyEnd::Sqlite(_) => open_target(target, now),
        #[cfg(feature = "postgres")]
        CopyEnd::Postgres(url) => crate::postgres::copy::PostgresDatabase::unfinished(url)
            .map(|end| Box::new(end) as Box<dyn Target>),
        #[cfg(not(feature = "postgres"))]
        CopyEnd::Postgres(_) => Err(CopyError::NoPostgres),
    };
    let mut opened = match opened {
        Err(CopyError::NotEmpty(name)) => return Err(CopyError::NotACopy(name)),
        opened => opened?,
    };
    let Some(mark) = opened.mark()? else { return Err(CopyError::NotACopy(opened.name())) };
    opened.discard()?;
    Ok(mark.records())
}

/// Finds where an unfinished copy continues, or begins one.
fn begin(
    source: &mut dyn Source,
    target: &mut dyn Target,
    steps: &mut CopySteps<'_>,
) -> Result<Mark, CopyError> {
    let state = source.state()?;
    let schema = target.schema();
    match target.mark()? {
        None => {}
        Some(mark) if mark.source != state && !source.has_history(&mark.source.history)? => {
            return Err(CopyError::OfAnother(target.name()));
        }
        Some(mark) if mark.source != state => {
            steps(CopyStep::BeginsAgain("the source has changed since"))?;
        }
        Some(mark) if mark.schema != schema => {
            steps(CopyStep::BeginsAgain("another version of mainspring began it"))?;
        }
        Some(mark) => {
            steps(CopyStep::Continues(mark.records()))?;
            target.resume()?;
            return Ok(mark);
        }
    }
    let mark = Mark::new(state, schema);
    target.begin(&mark)?;
    Ok(mark)
}

/// Returns the hashes of all artifacts, also of those that forks have inherited.
fn blob_hashes(source: &mut dyn Source) -> Result<BTreeSet<String>, CopyError> {
    let mut hashes = BTreeSet::new();
    for table in TABLES.iter().filter(|table| WITH_BYTES.contains(&table.name)) {
        source.read(table, None, &mut |record, _| {
            hashes.extend(content_hash(table, record));
            Ok(())
        })?;
    }
    Ok(hashes)
}

fn content_hash(table: &CopyTable, record: Record) -> Option<String> {
    match record {
        Record::Artifact(artifact) => artifact.content_hash,
        Record::Values(values) => {
            let at = table.columns().iter().position(|column| column.postgres == "content_hash")?;
            match values.into_iter().nth(at)? {
                Value::Text(hash) => hash,
                _ => None,
            }
        }
        _ => None,
    }
}

fn open_source(end: &CopyEnd, now: Time) -> Result<Box<dyn Source>, CopyError> {
    match end {
        CopyEnd::Sqlite(path) => Ok(Box::new(crate::sqlite::copy::SqliteSource::open(path, now)?)),
        #[cfg(feature = "postgres")]
        CopyEnd::Postgres(url) => Ok(Box::new(crate::postgres::copy::PostgresDatabase::source(url)?)),
        #[cfg(not(feature = "postgres"))]
        CopyEnd::Postgres(_) => Err(CopyError::NoPostgres),
    }
}

fn open_target(end: &CopyEnd, now: Time) -> Result<Box<dyn Target>, CopyError> {
    match end {
        CopyEnd::Sqlite(path) => Ok(Box::new(crate::sqlite::copy::SqliteTarget::open(path, now)?)),
        #[cfg(feature = "postgres")]
        CopyEnd::Postgres(url) => Ok(Box::new(crate::postgres::copy::PostgresDatabase::target(url)?)),
        #[cfg(not(feature = "postgres"))]
        CopyEnd::Postgres(_) => Err(CopyError::NoPostgres),
    }
}

/// A database whose records can be read.
pub(crate) trait Reads {
    /// Calls `each` with the records of a table after a position, in an order that is the same in every database.
    fn read(
        &mut self,
        table: &CopyTable,
        after: Option<&Position>,
        each: &mut Each<'_>,
    ) -> Result<(), CopyError>;
}

/// The database that is copied.
pub(crate) trait Source: Reads {
    /// Identifies the content of the database.
    fn state(&mut self) -> Result<SourceState, CopyError>;
    /// Returns whether the database has, or had, the history with this token.
    fn has_history(&mut self, token: &str) -> Result<bool, CopyError>;
}

/// The database that is copied into.
pub(crate) trait Target: Reads {
    /// The name for errors.
    fn name(&self) -> String;
    /// The version of the tables that this program makes.
    fn schema(&self) -> u64;
    /// The mark of an unfinished copy; `None` for an empty database.
    fn mark(&mut self) -> Result<Option<Mark>, CopyError>;
    /// Empties the database, makes its tables, and writes the mark.
    fn begin(&mut self, mark: &Mark) -> Result<(), CopyError>;
    /// Prepares to write records after those of the mark.
    fn resume(&mut self) -> Result<(), CopyError>;
    /// Writes records of a table.
    fn write(&mut self, table: &CopyTable, records: Vec<Record>) -> Result<(), CopyError>;
    /// Makes the records that were written durable, together with the mark that counts them.
    fn keep(&mut self, mark: &Mark) -> Result<(), CopyError>;
    /// Removes the mark: makes the database a store. New events get cursors after `last`.
    fn finish(&mut self, last: i64) -> Result<(), CopyError>;
    /// Verifies the store, after it was finished.
    fn verify(&mut self) -> Result<Vec<Verification>, CopyError>;
    /// Removes an unfinished copy.
    fn discard(&mut self) -> Result<(), CopyError>;
}

/// Takes the records of a table, with their positions in the database that is read.
pub(crate) type Each<'a> = dyn FnMut(Record, Position) -> Result<(), CopyError> + 'a;

/// Converts an error of the store into the error of a table.
pub(crate) fn failed(table: &CopyTable) -> impl Fn(StoreError) -> CopyError + use<> {
    let table = table.name;
    move |source| CopyError::Store { table, source }
}

/// Converts an I/O error into the error of a file.
pub(crate) fn io_failed(path: &Path) -> impl Fn(std::io::Error) -> CopyError + use<> {
    let path = path.to_owned();
    move |source| CopyError::Io { path: path.clone(), source }
}
