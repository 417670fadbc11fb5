//! Copies all data of one database into another one that is empty.
//!
//! ```text
//! source ──record by record──▶ target, one transaction ──read again──▶ the same hash ──▶ visible
//! ```
//!
//! Records with a form of their own in each store (sessions, runs, messages, …) travel as the types of `core`; the others
//! travel as rows of plain values. Ids, cursors, numbers of lines and the order of records are kept. A copy that ends early
//! leaves nothing: it is begun again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mainspring_core::{
    ApiKey, Artifact, Attempt, Binding, Delegation, Digest, Grant, Run, Session, SessionId, Step, Time,
};
use mainspring_kernel::store::{OpenToolCall, PlacedMessage, StoreError};

use crate::OpenError;

/// Records that are written at once.
const BATCH: usize = 500;

/// A database that can be copied, or copied into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyEnd {
    /// The file of a SQLite database.
    Sqlite(PathBuf),
    /// The URL of a PostgreSQL.
    Postgres(String),
}

/// Why a copy failed. The target is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The target holds data.
    #[error("{0} holds data already: copy into an empty database, or move those data away")]
    NotEmpty(String),
    /// The source does not exist.
    #[error("{0} does not exist: name the database to copy from")]
    NoSource(String),
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
    /// A PostgreSQL cannot be used.
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

/// The records that were copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyReport {
    /// The kinds of records with their numbers, in the order in which they were copied.
    pub records: Vec<(&'static str, u64)>,
}

impl CopyReport {
    /// The number of records of a kind.
    pub fn count(&self, table: &str) -> u64 {
        self.records.iter().find(|(name, _)| *name == table).map_or(0, |(_, count)| *count)
    }
}

/// Copies all data of `from` into `to`, and compares the written records with the source. `copy_blob` is called with
/// the hash of each artifact before the copy becomes visible, so that every artifact has its bytes.
///
/// The caller makes sure that no process uses a SQLite database of either; the lock of a PostgreSQL is taken here.
pub fn store_copy(
    from: &CopyEnd,
    to: &CopyEnd,
    now: Time,
    copy_blob: &mut dyn FnMut(&str) -> Result<(), CopyError>,
) -> Result<CopyReport, CopyError> {
    let mut source = open_source(from, now)?;
    let mut target = open_target(to, now)?;
    let mut records = vec![];
    for table in TABLES {
        let read = copy_table(&mut *source, &mut *target, table)?;
        let copied = fingerprint(&mut *target, table)?;
        if read != copied {
            return Err(CopyError::Differs { table: table.name, read: read.0, copied: copied.0 });
        }
        records.push((table.name, read.0));
    }
    let mut hashes = BTreeSet::new();
    for table in TABLES.iter().filter(|table| ["artifacts", INHERITED].contains(&table.name)) {
        source.read(table, &mut |record| {
            hashes.extend(content_hash(table, record));
            Ok(())
        })?;
    }
    hashes.iter().try_for_each(|hash| copy_blob(hash))?;
    let last = source.last_cursor()?;
    target.finish(last)?;
    Ok(CopyReport { records })
}

/// The hash of the bytes that an artifact, or one that a fork has inherited, refers to.
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

fn open_source(end: &CopyEnd, now: Time) -> Result<Box<dyn End>, CopyError> {
    match end {
        CopyEnd::Sqlite(path) => Ok(Box::new(crate::sqlite::copy::Source::open(path, now)?)),
        #[cfg(feature = "postgres")]
        CopyEnd::Postgres(url) => Ok(Box::new(crate::postgres::copy::PostgresEnd::source(url)?)),
        #[cfg(not(feature = "postgres"))]
        CopyEnd::Postgres(_) => Err(CopyError::NoPostgres),
    }
}

fn open_target(end: &CopyEnd, now: Time) -> Result<Box<dyn End>, CopyError> {
    match end {
        CopyEnd::Sqlite(path) => Ok(Box::new(crate::sqlite::copy::Target::create(path, now)?)),
        #[cfg(feature = "postgres")]
        CopyEnd::Postgres(url) => Ok(Box::new(crate::postgres::copy::PostgresEnd::target(url)?)),
        #[cfg(not(feature = "postgres"))]
        CopyEnd::Postgres(_) => Err(CopyError::NoPostgres),
    }
}

/// One of the two databases.
pub(crate) trait End {
    /// Calls `each` with the records of a table, in an order that is the same in every database.
    fn read(&mut self, table: &CopyTable, each: &mut Each<'_>) -> Result<(), CopyError>;
    /// Writes records of a table.
    fn write(&mut self, table: &CopyTable, records: Vec<Record>) -> Result<(), CopyError>;
    /// The last cursor that the database has ever given.
    fn last_cursor(&mut self) -> Result<i64, CopyError>;
    /// Makes the written records durable and visible. New events get cursors after `last`.
    fn finish(&mut self, last: i64) -> Result<(), CopyError>;
}

/// Takes the records of a table.
pub(crate) type Each<'a> = dyn FnMut(Record) -> Result<(), CopyError> + 'a;

/// A record in the form in which it is copied.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    Key(Box<ApiKey>),
    Session(Box<Session>),
    /// A run, and the last event before it.
    Run(Box<Run>, i64),
    Attempt(Box<Attempt>),
    Message(PlacedMessage),
    Step(Box<Step>),
    Effect(SessionId, Box<OpenToolCall>),
    Digest(SessionId, Box<Digest>),
    Binding(Box<Binding>),
    Grant(Box<Grant>),
    Artifact(Box<Artifact>),
    Delegation(Box<Delegation>),
    Values(Vec<Value>),
}

/// One value of a row without a type of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Bool(bool),
}

/// A kind of records.
pub(crate) struct CopyTable {
    /// The name in PostgreSQL.
    pub(crate) name: &'static str,
    /// The columns of records that travel as values: a letter for the type (`i` integer, `t` text, `b` bytes, `f` flag, `x`
    /// text that PostgreSQL has as bytes), the name, and after `=` the name in SQLite if that is another one. Empty for a
    /// type of `core`.
    pub(crate) columns: &'static str,
    /// The number of columns by which the records are ordered.
    pub(crate) key: usize,
}

/// One column of a [`CopyTable`].
pub(crate) struct Column<'a> {
    pub(crate) kind: u8,
    pub(crate) postgres: &'a str,
    pub(crate) sqlite: &'a str,
}

impl CopyTable {
    pub(crate) fn columns(&self) -> Vec<Column<'static>> {
        let column = |text: &'static str| {
            let (kind, name) = text.trim().split_once(' ').unwrap_or(("t", text));
            let (postgres, sqlite) = name.split_once('=').unwrap_or((name, name));
            Column { kind: kind.as_bytes()[0], postgres, sqlite }
        };
        self.columns.split(',').map(column).collect()
    }
}

const fn typed(name: &'static str) -> CopyTable {
    CopyTable { name, columns: "", key: 0 }
}

const fn values(name: &'static str, key: usize, columns: &'static str) -> CopyTable {
    CopyTable { name, columns, key }
}

/// The records that forks have inherited: they refer to bytes as artifacts do.
const INHERITED: &str = "inherited_artifacts";

/// All tables. A table comes after those that it refers to.
pub(crate) const TABLES: &[CopyTable] = &[
    values("owners", 1, "t owner_id, t org_id, i claimed_at=claimed_at_ms"),
    typed("api_keys"),
    values("key_spend", 2, "b key_id, i day, i cost_nanos, f at_least"),
    values(
        "agents",
        3,
        "t owner_id, t agent_id, i version, b hash, i created_at=created_at_ms, t definition=definition_json",
    ),
    values(
        "goal_types",
        2,
        "t owner_id, t name, i created_at=created_at_ms, i updated_at=updated_at_ms, t body=type_json",
    ),
    values("webhooks", 1, "b webhook_id, t owner_id, t body=webhook_json"),
    values("dead_letters", 2, "b webhook_id, i cursor=event_seq, t body=letter_json"),
    values("owner_state", 2, "t owner_id, t key, i version, i updated_at=updated_at_ms, t value"),
    values("owner_state_versions", 1, "t owner_id, i version, i keys"),
    values(
        "native_owners",
        2,
        "t adapter_id, t native_id=adapter_native_session_id, t owner_id, t native_key",
    ),
    values(
        "requests",
        3,
        "t owner_id, t operation, t key, b fingerprint, t answer, i created_at=created_at_ms",
    ),
    typed("sessions"),
    values(
        "lines",
        1,
        "i id, i line, b session_id, i parent_line, i parent_pos, i end_pos, f abandoned, b opened_by, i opened_cursor=opened_seq",
    ),
    typed("runs"),
    typed("attempts"),
    typed("messages"),
    typed("steps"),
    values("step_inputs", 2, "b session_id, t hash, t input"),
    typed("digests"),
    values("cursors", 3, "b session_id, i line, i pos, i to_line"),
    values("chunks", 2, "b session_id, i pos, b message_id, i block, x text"),
    typed("effects"),
    values("inbox", 1, "i id, b session_id, b event_id, i created_at=created_at_ms, t note=item"),
    typed("bindings"),
    typed("grants"),
    typed("artifacts"),
    values("blobs_loose", 1, "t content_hash"),
    typed("delegations"),
    values("retention", 1, "b session_id, i floor_cursor=floor_seq, i floor_pos, f pruned"),
    values(
        "session_state",
        1,
        "i id, b session_id, i line, i pos, f aside, i cursor=seq, t key, i version, i updated_at=updated_at_ms, t value",
    ),
    values("run_state", 2, "b run_id, t key, i version, i updated_at=updated_at_ms, t value"),
    values("state_history", 3, "t place, t key, i version, t change"),
    values("feedback", 3, "b session_id, b message_id, t owner_id, t body=feedback_json"),
    values("pins", 2, "t owner_id, b session_id, i pinned_at=pinned_at_ms"),
    values(INHERITED, 2, "b session_id, b artifact_id, t content_hash, i size_bytes, t body=artifact_json"),
    values("edge_records", 3, "t kind, t scope, t record_id, t body"),
    values(
        "events",
        1,
        "i cursor=event_seq, b event_id, b session_id, b run_id, b attempt_id, b message_id, t type, i pos, i created_at=created_at_ms, t payload",
    ),
    values("histories", 1, "i id, t token, i after_cursor=after_seq"),
    values("lost_events", 1, "i after_cursor=after_seq, i until_cursor=until_seq"),
];

/// The number of records and the hash of their content, in order.
type Fingerprint = (u64, [u8; 32]);

fn copy_table(
    source: &mut dyn End,
    target: &mut dyn End,
    table: &CopyTable,
) -> Result<Fingerprint, CopyError> {
    let (mut sum, mut count) = (blake3::Hasher::new(), 0);
    let mut batch = vec![];
    source.read(table, &mut |record| {
        add(&mut sum, &record);
        count += 1;
        batch.push(record);
        match batch.len() < BATCH {
            true => Ok(()),
            false => target.write(table, std::mem::take(&mut batch)),
        }
    })?;
    if !batch.is_empty() {
        target.write(table, batch)?;
    }
    Ok((count, *sum.finalize().as_bytes()))
}

fn fingerprint(end: &mut dyn End, table: &CopyTable) -> Result<Fingerprint, CopyError> {
    let (mut sum, mut count) = (blake3::Hasher::new(), 0);
    end.read(table, &mut |record| {
        add(&mut sum, &record);
        count += 1;
        Ok(())
    })?;
    Ok((count, *sum.finalize().as_bytes()))
}

fn add(sum: &mut blake3::Hasher, record: &Record) {
    if let Record::Key(key) = record {
        // The debug form leaves the hash out.
        sum.update(&key.hash);
    }
    sum.update(format!("{record:?}\n").as_bytes());
}

/// The error of one kind of records.
pub(crate) fn failed(table: &CopyTable) -> impl Fn(StoreError) -> CopyError + use<> {
    let table = table.name;
    move |source| CopyError::Store { table, source }
}

/// The error of a file.
pub(crate) fn io_failed(path: &Path) -> impl Fn(std::io::Error) -> CopyError + use<> {
    let path = path.to_owned();
    move |source| CopyError::Io { path: path.clone(), source }
}
