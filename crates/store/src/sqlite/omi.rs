//! Imports the original daemon's database, `omi-agentd.sqlite3`, into an empty store.
//!
//! ```text
//! DIR/omi-agentd.sqlite3 + -wal ──copy──▶ source ──rows──▶ session ──commits──▶ one transaction ──▶ an empty store
//! ```
//!
//! The source file is never opened as a database, because opening a database in WAL mode can change it. The file and its
//! WAL are copied byte by byte, and the copy is read. Ids and event numbers are kept. Rows that violate this store's
//! rules are skipped and counted with the reason.
//!
//! Invariants: the source does not change; the store receives everything or nothing; each row of the source is either
//! imported or reported as skipped.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainspring_core::{
    ArtifactId, Body, DelegationStatus, EventId, Limits, NodeId, RunId, RunStatus, SessionId, Time,
};
use mainspring_kernel::ids::Ids;
use mainspring_kernel::store::{Commit, Fence, NewEvent, Row, StoreError};
use rusqlite::{Connection, OptionalExtension};

use super::apply::Prepared;
use super::columns::int;
use super::event_blocks::EventBlocks;
use super::open::{self, OpenError};
use super::{SqliteOptions, migrate, wal};

mod bindings;
mod copy;
mod events;
mod offer;
mod records;
mod report;
mod rows;
mod runs;
mod session;

pub use self::copy::DATABASE as OMI_DATABASE;
pub(super) use self::offer::offer;
pub use self::offer::{OmiOffer, omi_offer_without_store};
pub use self::report::{OmiNote, OmiReport};

/// An import that failed. The source did not change, and nothing of it is in the store.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the file and the details that the message shows")]
pub enum OmiError {
    /// The database does not exist.
    #[error("{} is not there: name the state directory of the original daemon", path.display())]
    Missing { path: PathBuf },
    /// Another process has the database open.
    #[error("{} is in use by process {pid}: stop the original daemon first", path.display())]
    Running { path: PathBuf, pid: i32 },
    /// The files changed during the copy.
    #[error("{} changed while it was copied: stop the process that writes it and try again", path.display())]
    Changed { path: PathBuf },
    /// The file is not a database of the original daemon.
    #[error("{} is not a database of the original daemon: {reason}", path.display())]
    Unfit { path: PathBuf, reason: String },
    /// A file cannot be read.
    #[error("{} cannot be read: check the file and its permissions", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The store has been used.
    #[error("{} holds {what} already: import into an empty state directory (--state-dir)", path.display())]
    NotEmpty { path: PathBuf, what: String },
    /// The store already contains an import.
    #[error("the original's sessions were imported into {} before: there is nothing to do", path.display())]
    Done { path: PathBuf },
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Writing to the store failed.
    #[error("writing to the store failed: {0}")]
    Store(#[from] StoreError),
}

impl OmiError {
    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "not_found",
            Self::Running { .. } => "source_in_use",
            Self::Changed { .. } => "source_changed",
            Self::Unfit { .. } => "source_unfit",
            Self::Io { .. } => "source_unreadable",
            Self::NotEmpty { .. } => "store_not_empty",
            Self::Done { .. } => "already_imported",
            Self::Open(_) => "store_unusable",
            Self::Store(_) => "unavailable",
        }
    }
}

/// The parameters of an import.
#[derive(Debug)]
pub struct OmiOptions<'a> {
    /// The adapter name to use for each adapter name of the original.
    pub adapters: &'a HashMap<String, String>,
    /// The hash and size of each artifact whose bytes are stored.
    pub kept: &'a HashMap<ArtifactId, (String, u64)>,
    /// Limits on titles and metadata.
    pub limits: &'a Limits,
    /// Generates the ids of rows that the original lacks.
    pub ids: &'a Ids,
    /// The time of the import.
    pub now: Time,
    /// Runs the whole import against a database in memory and discards it.
    pub dry_run: bool,
}

/// An artifact of the original and the location of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OmiArtifact {
    /// The artifact's id.
    pub id: ArtifactId,
    /// The location recorded by the original.
    pub uri: String,
    /// The size in bytes recorded by the original.
    pub size: Option<u64>,
}

/// A copy of the original's database, open for reading. Dropping this removes the copy.
#[derive(Debug)]
pub struct OmiSource {
    path: PathBuf,
    connection: Connection,
    // Declared last, so that it is dropped after the connection that reads it.
    _copy: copy::DatabaseCopy,
}

impl OmiSource {
    /// Copies the database of the state directory `folder` into a new folder within `scratch` and opens the copy.
    /// Fails while another process has the database open.
    pub fn open(folder: &Path, scratch: &Path) -> Result<Self, OmiError> {
        let path = folder.join(copy::DATABASE);
        let copy = copy::DatabaseCopy::create(&path, scratch)?;
        let connection = rows::open(&copy.database()).map_err(|error| unfit(&path, &error))?;
        rows::check(&connection).map_err(|reason| OmiError::Unfit { path: path.clone(), reason })?;
        Ok(Self { path, connection, _copy: copy })
    }

    /// Lists the artifacts that have a valid id.
    pub fn artifacts(&self) -> Result<Vec<OmiArtifact>, OmiError> {
        rows::artifacts(&self.connection).map_err(|error| unfit(&self.path, &error))
    }

    /// Imports everything into the empty store at `database`, or nothing. `progress` receives the number of sessions done
    /// and the total.
    pub fn import(
        &self,
        database: &Path,
        options: &OmiOptions<'_>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<OmiReport, OmiError> {
        let mut target = match options.dry_run {
            false => open::open_writer(database, &SqliteOptions::default(), options.now)?.connection,
            true => open_dry_run(database, options.now)?,
        };
        let fail = |error| OmiError::from(open::failed(database, error));
        let transaction = target.transaction().map_err(fail)?;
        check_empty(&transaction, database)?;
        wal::token_renew(&transaction).map_err(fail)?;
        let mut import = Import::new(self, &transaction, options)?;
        import.import_all(&mut progress)?;
        let Import { report, seq, .. } = import;
        let set_meta = |name: &str, value: i64| {
            transaction.execute(
                "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2",
                (name, value),
            )
        };
        set_meta(META_EVENT_SEQ, int(seq))
            .and_then(|_| set_meta(META_IMPORTED_AT, options.now.0))
            .map_err(fail)?;
        if !options.dry_run {
            transaction.commit().map_err(fail)?;
            target.close().map_err(|(_, error)| fail(error))?;
        }
        Ok(report)
    }
}

/// The row of `meta` that holds the time of the import.
const META_IMPORTED_AT: &str = "omi_imported";
/// The row of `meta` that holds the last event number ever assigned.
const META_EVENT_SEQ: &str = "event_seq";

/// Checks that the store at `database` is empty, if it exists, and opens a store in memory in its place.
fn open_dry_run(database: &Path, now: Time) -> Result<Connection, OmiError> {
    if database.exists() {
        check_empty(&open::open_reader(database)?, database)?;
    }
    let create = || {
        let mut memory = Connection::open_in_memory()?;
        migrate::migrate(&mut memory, now)?;
        Ok(memory)
    };
    Ok(create().map_err(|error| open::failed(database, error))?)
}

/// Fails if the store contains an import, a session, or the event numbers of deleted sessions.
fn check_empty(target: &Connection, path: &Path) -> Result<(), OmiError> {
    let fail = |error| OmiError::from(open::failed(path, error));
    let query_number = |sql: &str| target.query_row(sql, [], |row| row.get::<_, i64>(0));
    let meta = |name: &str| {
        let sql = "SELECT value FROM meta WHERE name = ?1";
        target.query_row(sql, [name], |row| row.get::<_, i64>(0)).optional()
    };
    if meta(META_IMPORTED_AT).map_err(fail)?.is_some() {
        return Err(OmiError::Done { path: path.into() });
    }
    let sessions = query_number("SELECT count(*) FROM sessions").map_err(fail)?;
    let last_seq = query_number("SELECT coalesce(max(event_seq), 0) FROM events")
        .and_then(|last| Ok(last.max(meta(META_EVENT_SEQ)?.unwrap_or(0))))
        .map_err(fail)?;
    let what = match (sessions, last_seq) {
        (0, 0) => return Ok(()),
        (0, _) => "the traces of deleted sessions".to_owned(),
        (1, _) => "a session".to_owned(),
        (sessions, _) => format!("{sessions} sessions"),
    };
    Err(OmiError::NotEmpty { path: path.into(), what })
}

fn unfit(path: &Path, error: &rusqlite::Error) -> OmiError {
    OmiError::Unfit { path: path.into(), reason: error.to_string() }
}

/// An import in progress.
struct Import<'a> {
    source: &'a OmiSource,
    target: &'a Connection,
    options: &'a OmiOptions<'a>,
    report: OmiReport,
    /// Recorded as the node of all attempts and bindings of the original.
    node: NodeId,
    /// The last event number assigned.
    seq: u64,
    /// The session and the final status of each imported run.
    runs: HashMap<RunId, (SessionId, RunStatus)>,
    artifacts: HashSet<ArtifactId>,
    /// Each adapter and native session that already belongs to a binding.
    natives: HashSet<(String, String)>,
    /// The delegations by id. Delegation events take their contents from these rows.
    delegations: BTreeMap<String, rows::DelegationRow>,
}

impl<'a> Import<'a> {
    fn new(
        source: &'a OmiSource,
        target: &'a Connection,
        options: &'a OmiOptions<'a>,
    ) -> Result<Self, OmiError> {
        let fail = |error: rusqlite::Error| unfit(&source.path, &error);
        let report = OmiReport::new(&source.connection).map_err(fail)?;
        let seq = rows::last_seq(&source.connection).map_err(fail)?;
        let delegations = rows::delegations(&source.connection).map_err(fail)?;
        let delegations = delegations.into_iter().map(|row| (row.id.clone(), row)).collect();
        Ok(Self {
            source,
            target,
            options,
            report,
            node: options.ids.node(),
            seq,
            runs: HashMap::new(),
            artifacts: HashSet::new(),
            natives: HashSet::new(),
            delegations,
        })
    }

    fn import_all(&mut self, progress: &mut impl FnMut(u64, u64)) -> Result<(), OmiError> {
        let fail = |error: rusqlite::Error| unfit(&self.source.path, &error);
        let sessions = rows::sessions(&self.source.connection).map_err(fail)?;
        let total = sessions.len() as u64;
        for (done, id) in sessions.into_iter().enumerate() {
            progress(done as u64, total);
            let rows = rows::SessionRows::read(&self.source.connection, &id).map_err(fail)?;
            self.import_session(&rows)?;
        }
        self.import_delegations()?;
        self.report.count_unreported();
        Ok(())
    }

    /// Imports the delegations after all sessions. An active delegation gets the final status of its child run.
    fn import_delegations(&mut self) -> Result<(), OmiError> {
        for row in std::mem::take(&mut self.delegations).into_values() {
            let Some(mut delegation) = row.delegation() else {
                self.report.skipped("delegations", "invalid id or mode", &row.id);
                continue;
            };
            let parent = self.runs.get(&delegation.parent_run);
            let child = self.runs.get(&delegation.child_run);
            let (Some((parent, _)), Some((child, status))) = (parent, child) else { continue };
            if (*parent, *child) != (delegation.parent_session, delegation.child_session) {
                self.report.skipped("delegations", "its runs belong to other sessions", &row.id);
                continue;
            }
            delegation.result = delegation.result.filter(|artifact| self.artifacts.contains(artifact));
            let mut events = vec![];
            if let Some(settled) = mainspring_core::delegation::follow_child(
                &delegation,
                *status,
                delegation.result,
                self.options.now,
            ) {
                delegation = settled;
                self.report.changed("delegations", "not ended: given the status of the child run", &row.id);
                let body =
                    Body::DelegationCompleted { delegation_id: delegation.id, status: delegation.status };
                events.push(self.event(Some(delegation.parent_run), body));
            }
            let session = delegation.parent_session;
            self.report.imported("delegations");
            self.commit(session, events, vec![Row::Delegation(Box::new(delegation))], None)?;
        }
        Ok(())
    }

    /// Builds an event that the original did not record.
    fn event(&self, run: Option<RunId>, body: Body) -> NewEvent {
        let (id, at) = (self.options.ids.event(), self.options.now);
        NewEvent { id, pos: 0, run, attempt: None, at, body }
    }

    /// Writes rows and events. The events are numbered from `seq`, or from the next free number if `seq` is `None`.
    fn commit(
        &mut self,
        session: SessionId,
        events: Vec<NewEvent>,
        rows: Vec<Row>,
        seq: Option<u64>,
    ) -> Result<(), OmiError> {
        let commit = Commit { fence: Fence { session, epoch: 0 }, events, rows };
        let prepared = Prepared::new(Arc::new(commit))?;
        let mut blocks = EventBlocks::default();
        match seq {
            Some(seq) => prepared.write(self.target, &mut seq.saturating_sub(1), &mut blocks)?,
            None => prepared.write(self.target, &mut self.seq, &mut blocks)?,
        };
        Ok(())
    }
}

/// The message of an error whose details the original did not record.
const UNRECORDED_ERROR: &str = "the original did not record what went wrong";

/// Parses an id of the original. `None` if it is not valid in this store.
fn id<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// Parses an event id, or generates a new one if it is not valid in this store.
fn event_id(text: &str, ids: &Ids) -> EventId {
    id(text).unwrap_or_else(|| ids.event())
}

/// Parses a delegation status. An unknown status becomes pending, so that the status of the child run decides.
fn delegation_status(name: &str) -> DelegationStatus {
    DelegationStatus::from_name(name).unwrap_or(DelegationStatus::Pending)
}
