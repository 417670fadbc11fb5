//! The original daemon's database, `omi-agentd.sqlite3`, taken in once.
//!
//! ```text
//! DIR/omi-agentd.sqlite3 + -wal ──copy──▶ source ──rows──▶ session ──commits──▶ one transaction ──▶ an empty store
//! ```
//!
//! The file itself is never opened as a database, since that could change it: it is copied byte by byte together with its
//! WAL, and the copy is read. Ids and the numbers of events stay; what our rules do not allow is left, counted and said.
//!
//! Invariants: the source is as it was; the store has all of it or nothing; each row of the source is either taken or
//! left with a reason.

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
use super::open::{self, OpenError};
use super::{SqliteOptions, migrate};

mod bindings;
mod copy;
mod events;
mod report;
mod rows;
mod session;

pub use self::copy::DATABASE as OMI_DATABASE;
pub use self::report::{OmiLeft, OmiReport};

/// Why the original's database is not taken in. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "every variant names the file, and its message says the rest")]
pub enum OmiError {
    /// There is none.
    #[error("{} is not there: name the state directory of the original daemon", path.display())]
    Missing { path: PathBuf },
    /// The original has it open.
    #[error("{} is in use by process {pid}: stop the original daemon first", path.display())]
    Running { path: PathBuf, pid: i32 },
    /// Somebody wrote it while it was copied.
    #[error("{} changed while it was copied: stop whoever writes it, and try again", path.display())]
    Changed { path: PathBuf },
    /// It is a database, but not that one.
    #[error("{} is not a database of the original daemon: {reason}", path.display())]
    Unfit { path: PathBuf, reason: String },
    /// It cannot be read.
    #[error("{} cannot be read: check the file and its permissions", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The store holds something.
    #[error("{} holds {what} already: import into an empty state directory (--state-dir)", path.display())]
    NotEmpty { path: PathBuf, what: String },
    /// It was done before.
    #[error("the original's sessions were imported into {} before: there is nothing to do", path.display())]
    Done { path: PathBuf },
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store did not take it.
    #[error("the store did not take it: {0}")]
    Store(#[from] StoreError),
}

impl OmiError {
    /// A stable code.
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

/// What an import goes by.
#[derive(Debug)]
pub struct OmiOptions<'a> {
    /// What the original called adapters, and what they are called here.
    pub adapters: &'a HashMap<String, String>,
    /// Artifacts whose bytes are kept, each with their hash and size.
    pub kept: &'a HashMap<ArtifactId, (String, u64)>,
    /// What is too much.
    pub limits: &'a Limits,
    /// Where new ids come from.
    pub ids: &'a Ids,
    /// The moment of the import.
    pub now: Time,
    /// Do everything, and keep nothing of it.
    pub dry_run: bool,
}

/// An artifact of the original: where its bytes may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OmiArtifact {
    /// Its id.
    pub id: ArtifactId,
    /// Where the original says its bytes are.
    pub uri: String,
    /// How many it says there are.
    pub size: Option<u64>,
}

/// A copy of the original's database, open for reading. It goes with this.
#[derive(Debug)]
pub struct OmiSource {
    path: PathBuf,
    connection: Connection,
    // Dropped after the connection that reads in it.
    _copy: copy::Copied,
}

impl OmiSource {
    /// Copies the database of the state directory `folder` into a new folder within `scratch`, and opens the copy.
    /// Refused while the original runs.
    pub fn open(folder: &Path, scratch: &Path) -> Result<Self, OmiError> {
        let path = folder.join(copy::DATABASE);
        let copy = copy::Copied::make(&path, scratch)?;
        let connection = rows::open(&copy.database()).map_err(|error| unfit(&path, &error))?;
        rows::check(&connection).map_err(|reason| OmiError::Unfit { path: path.clone(), reason })?;
        Ok(Self { path, connection, _copy: copy })
    }

    /// Its artifacts, as far as their ids are ours.
    pub fn artifacts(&self) -> Result<Vec<OmiArtifact>, OmiError> {
        rows::artifacts(&self.connection).map_err(|error| unfit(&self.path, &error))
    }

    /// Takes everything into the store at `database`, which must be empty: all of it, or nothing. `progress` hears how many
    /// sessions of how many are done.
    pub fn import(
        &self,
        database: &Path,
        options: &OmiOptions<'_>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<OmiReport, OmiError> {
        let mut target = match options.dry_run {
            false => open::open_writer(database, &SqliteOptions::default(), options.now)?,
            true => {
                if database.exists() {
                    check_empty(&open::open_reader(database)?, database)?;
                }
                let made = || {
                    let mut memory = Connection::open_in_memory()?;
                    migrate::migrate(&mut memory, options.now)?;
                    Ok(memory)
                };
                made().map_err(|error| open::failed(database, error))?
            }
        };
        let fail = |error| OmiError::from(open::failed(database, error));
        let transaction = target.transaction().map_err(fail)?;
        check_empty(&transaction, database)?;
        let mut import = Import::begin(self, &transaction, options)?;
        import.everything(&mut progress)?;
        let Import { report, seq, .. } = import;
        let mark = |name: &str, value: i64| {
            transaction.execute(
                "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2",
                (name, value),
            )
        };
        mark(SEQUENCE, int(seq)).and_then(|_| mark(MARK, options.now.0)).map_err(fail)?;
        if !options.dry_run {
            transaction.commit().map_err(fail)?;
            target.close().map_err(|(_, error)| fail(error))?;
        }
        Ok(report)
    }
}

/// In `meta`: when an import was made.
const MARK: &str = "omi_imported";
/// In `meta`: the last number that an event has had.
const SEQUENCE: &str = "event_seq";

/// Refuses a store that was used.
fn check_empty(target: &Connection, path: &Path) -> Result<(), OmiError> {
    let fail = |error| OmiError::from(open::failed(path, error));
    let number = |sql: &str| target.query_row(sql, [], |row| row.get::<_, i64>(0));
    let meta = |name: &str| {
        let sql = "SELECT value FROM meta WHERE name = ?1";
        target.query_row(sql, [name], |row| row.get::<_, i64>(0)).optional()
    };
    if meta(MARK).map_err(fail)?.is_some() {
        return Err(OmiError::Done { path: path.into() });
    }
    let sessions = number("SELECT count(*) FROM sessions").map_err(fail)?;
    let used = number("SELECT coalesce(max(event_seq), 0) FROM events")
        .and_then(|last| Ok(last.max(meta(SEQUENCE)?.unwrap_or(0))))
        .map_err(fail)?;
    let what = match (sessions, used) {
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

/// An import under way.
struct Import<'a> {
    source: &'a OmiSource,
    target: &'a Connection,
    options: &'a OmiOptions<'a>,
    report: OmiReport,
    /// What stands for the process that the original was.
    node: NodeId,
    /// The last number given to an event.
    seq: u64,
    /// What became of each run.
    runs: HashMap<RunId, (SessionId, RunStatus)>,
    artifacts: HashSet<ArtifactId>,
    /// Native sessions that a binding stands for, by the adapter that knows them.
    natives: HashSet<(String, String)>,
    /// Events say of delegations what their rows say.
    delegations: BTreeMap<String, rows::DelegationRow>,
}

impl<'a> Import<'a> {
    fn begin(
        source: &'a OmiSource,
        target: &'a Connection,
        options: &'a OmiOptions<'a>,
    ) -> Result<Self, OmiError> {
        let fail = |error: rusqlite::Error| unfit(&source.path, &error);
        let report = OmiReport::of(&source.connection).map_err(fail)?;
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

    fn everything(&mut self, progress: &mut impl FnMut(u64, u64)) -> Result<(), OmiError> {
        let fail = |error: rusqlite::Error| unfit(&self.source.path, &error);
        let sessions = rows::sessions(&self.source.connection).map_err(fail)?;
        let all = sessions.len() as u64;
        for (done, id) in sessions.into_iter().enumerate() {
            progress(done as u64, all);
            let read = rows::SessionRows::read(&self.source.connection, &id).map_err(fail)?;
            self.session(&read)?;
        }
        self.delegated()?;
        self.report.settle();
        Ok(())
    }

    /// Delegations, once every session is there. What had not ended ends as its child has.
    fn delegated(&mut self) -> Result<(), OmiError> {
        for row in std::mem::take(&mut self.delegations).into_values() {
            let Some(mut delegation) = row.delegation() else {
                self.report.left("delegations", "its ids or its mode are not ours", &row.id);
                continue;
            };
            let parent = self.runs.get(&delegation.parent_run);
            let child = self.runs.get(&delegation.child_run);
            let (Some((parent, _)), Some((child, status))) = (parent, child) else { continue };
            if (*parent, *child) != (delegation.parent_session, delegation.child_session) {
                self.report.left("delegations", "its runs belong to other sessions", &row.id);
                continue;
            }
            delegation.result = delegation.result.filter(|artifact| self.artifacts.contains(artifact));
            let mut events = vec![];
            if let Some(settled) =
                mainspring_core::delegation::follow_child(&delegation, *status, self.options.now)
            {
                delegation = settled;
                self.report.changed("delegations", "not ended: ended as the child has", &row.id);
                let body =
                    Body::DelegationCompleted { delegation_id: delegation.id, status: delegation.status };
                events.push(self.event(Some(delegation.parent_run), body));
            }
            let session = delegation.parent_session;
            self.report.took("delegations");
            self.commit(session, events, vec![Row::Delegation(Box::new(delegation))], None)?;
        }
        Ok(())
    }

    /// An event of the import itself.
    fn event(&self, run: Option<RunId>, body: Body) -> NewEvent {
        let (id, at) = (self.options.ids.event(), self.options.now);
        NewEvent { id, pos: 0, run, attempt: None, at, body }
    }

    /// Writes rows and events. The events have the number `seq` and those after it; the next free ones if none is given.
    fn commit(
        &mut self,
        session: SessionId,
        events: Vec<NewEvent>,
        rows: Vec<Row>,
        seq: Option<u64>,
    ) -> Result<(), OmiError> {
        let commit = Commit { fence: Fence { session, epoch: 0 }, events, rows };
        let prepared = Prepared::of(Arc::new(commit))?;
        match seq {
            Some(seq) => prepared.write(self.target, &mut seq.saturating_sub(1))?,
            None => prepared.write(self.target, &mut self.seq)?,
        };
        Ok(())
    }
}

/// An id of the original, if it is one of ours.
fn id<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// An event's id; a new one if it is none of ours.
fn event_id(text: &str, ids: &Ids) -> EventId {
    id(text).unwrap_or_else(|| ids.event())
}

/// Where a delegation of the original stood; pending if that is not known, so that its child decides.
fn delegation_status(name: &str) -> DelegationStatus {
    DelegationStatus::from_name(name).unwrap_or(DelegationStatus::Pending)
}
