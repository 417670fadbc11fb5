//! Group commit: each writer connection takes the commits that wait for it, and writes them in one transaction.
//!
//! ```text
//! queue ──take──▶ BEGIN, lock leases, read epochs ──▶ drop fenced ──▶ write all, COMMIT ──▶ answer
//!                 one round trip                                      one round trip
//! ```
//!
//! A session belongs to one writer, by its id, so that its commits do not overtake each other. A writer does not wait
//! for a batch to fill: commits that arrive while it writes form its next batch. If the server refuses a batch, each of
//! its commits is written alone, so that only the commit that caused the refusal fails.
//!
//! Invariant: a commit is answered only after its outcome is known. If the connection breaks at COMMIT, the outcome is
//! looked up on another connection (`outcome.rs`).

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mainspring_core::binding::native_key;
use mainspring_core::{Cursor, NodeId, SessionId};
use mainspring_kernel::boot_time::boot_time_ms;
use mainspring_kernel::store::{Chunk, Commit, Fence, NewId, Row, StoreError, Unique};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::{Client, Error};

use super::batch::statements;
use super::connect::Connector;
use super::error::{describe, is_refusal, write_error};
use super::meters::{self, BatchMeters};
use super::outcome::{Outcome, Trace, Transaction, writer_name};
use super::rows::{Op, chunk_op, ops};
use super::tables::{Statement, Table};
use super::values::{get_id, get_u64, typed};
use crate::Fault;

/// The lower bits of a cursor, which number the events of one transaction.
pub(super) const EVENT_BITS: u32 = 14;
/// The maximum number of commits in one transaction.
const BATCH_COMMITS: usize = 64;
/// The number of attempts to write a batch of which nothing was stored, for a reason that may be temporary.
const ATTEMPTS: usize = 3;

/// The first number of the locks of new ids and native sessions: the bytes of "msid". Locks with two numbers never
/// conflict with locks with one number.
const CLAIM_LOCKS: i32 = 0x6d73_6964;

/// State that the writers share with the store.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Added to transaction ids, so that cursors grow when a dump is restored into another server.
    pub(super) base: std::sync::atomic::AtomicU64,
    /// For each leased session, the epoch of its lease and the position before which its streamed text has become messages.
    pub(super) dropped: Mutex<HashMap<SessionId, (u64, u64)>>,
    pub(super) fault: Mutex<Option<Fault>>,
    pub(super) is_full: std::sync::atomic::AtomicBool,
    /// Set once another server has taken the database, or may take it.
    pub(super) lost: std::sync::atomic::AtomicBool,
    /// Notified when `lost` is set.
    pub(super) lost_notice: Notify,
    /// The boot number of this server. Servers that execute sessions at the same time have the same number.
    pub(super) boot: std::sync::atomic::AtomicI64,
    /// The id of this server, if it has joined the servers at work (`homes.rs`).
    pub(super) home: std::sync::OnceLock<NodeId>,
    /// True while this server, one of several at work, has the lease of the database.
    pub(super) leads: std::sync::atomic::AtomicBool,
    /// Notified after commits, if this server is one of several at work.
    pub(super) written: Notify,
    /// Milliseconds after which the database ends an idle transaction of this server; 0 for never. A paused server must
    /// not keep its locks, for which the next server would wait.
    pub(super) idle_limit_ms: std::sync::atomic::AtomicU64,
    /// The time since the machine's start until which this server may act; 0 if nothing limits it.
    pub(super) acts_until_ms: std::sync::atomic::AtomicU64,
    /// Counts the transactions of writers.
    pub(super) batches: BatchMeters,
}

impl Shared {
    /// The cursor before the first event of a transaction.
    pub(super) fn before(&self, xid: u64) -> u64 {
        ((xid + self.base.load(std::sync::atomic::Ordering::Acquire)) << EVENT_BITS) - 1
    }

    /// Forgets what is known about the streamed text of a session, unless the session has a newer lease than `fence`.
    pub(super) fn forget(&self, fence: Fence) {
        let mut dropped = self.dropped.lock();
        if dropped.get(&fence.session).is_some_and(|(epoch, _)| *epoch == fence.epoch) {
            dropped.remove(&fence.session);
        }
    }

    /// Fails once another server has taken the database, or may take it.
    pub(super) fn check_held(&self) -> Result<(), StoreError> {
        use std::sync::atomic::Ordering::Acquire;
        let until = self.acts_until_ms.load(Acquire);
        // Checked here and not only by the task that renews the lease: after a pause of the process, any task may run
        // first.
        let is_over = until != 0 && boot_time_ms() >= until;
        let taken =
            "another server has this database, or may take it: use that one, or stop it and restart this one";
        match is_over || self.lost.load(Acquire) {
            true => Err(StoreError::Lost(taken.into())),
            false => Ok(()),
        }
    }

    /// The statement that begins a transaction which locks rows.
    pub(super) fn begin(&self) -> String {
        match self.idle_limit_ms.load(std::sync::atomic::Ordering::Acquire) {
            0 => "BEGIN".to_owned(),
            ms => format!("BEGIN; SET LOCAL idle_in_transaction_session_timeout = {ms}"),
        }
    }

    /// Returns the milliseconds for which this server may still act.
    pub(super) fn left_ms(&self) -> u64 {
        self.acts_until_ms.load(std::sync::atomic::Ordering::Acquire).saturating_sub(boot_time_ms())
    }

    /// Ends all writes of this server.
    pub(super) fn lose(&self, reason: &str) {
        // Leaving the cluster sets `lost` too, and is no error.
        if !self.lost.swap(true, std::sync::atomic::Ordering::AcqRel) {
            tracing::error!(reason, "this server may not write the database any more");
            self.lost_notice.notify_waiters();
        }
    }

    /// Fails while writes are impossible.
    pub(super) fn check_writable(&self) -> Result<(), StoreError> {
        self.check_held()?;
        match self.is_full.load(std::sync::atomic::Ordering::Acquire) {
            true => Err(StoreError::Full(Fault::DiskFull.message())),
            false => Ok(()),
        }
    }
}

/// A commit that waits for its answer.
struct Job {
    commit: Arc<Commit>,
    answer: oneshot::Sender<Result<Vec<Cursor>, StoreError>>,
}

/// Streamed text that waits to be written.
struct ChunkJob {
    chunks: Vec<Chunk>,
    answer: oneshot::Sender<Result<(), StoreError>>,
}

#[derive(Default)]
struct Queue {
    commits: VecDeque<Job>,
    chunks: VecDeque<ChunkJob>,
    is_closed: bool,
}

/// The queue of one writer.
#[derive(Default)]
pub(super) struct Inlet {
    queue: Mutex<Queue>,
    wake: Notify,
}

impl Inlet {
    pub(super) async fn commit(&self, commit: Arc<Commit>) -> Result<Vec<Cursor>, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.push(|queue| queue.commits.push_back(Job { commit, answer }))?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    pub(super) async fn chunks_write(&self, chunks: Vec<Chunk>) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        self.push(|queue| queue.chunks.push_back(ChunkJob { chunks, answer }))?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    fn push(&self, add: impl FnOnce(&mut Queue)) -> Result<(), StoreError> {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return Err(closed());
        }
        add(&mut queue);
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    /// Ends the writer after its queue is empty.
    pub(super) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.wake.notify_one();
    }
}

pub(super) fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

/// One writer connection.
pub(super) struct Writer {
    /// The number of the writer among those of the store.
    pub(super) number: usize,
    pub(super) connector: Connector,
    pub(super) inlet: Arc<Inlet>,
    pub(super) shared: Arc<Shared>,
    pub(super) client: Option<Client>,
}

/// Why a batch was not written.
enum BatchError {
    /// The server refused it; nothing changed.
    Refused(StoreError),
    /// The connection broke, and nothing changed.
    Broken(String),
    /// The outcome could not be determined.
    Unknown(String),
}

/// Why the sessions of a batch were not locked. Nothing was written.
enum LockError {
    /// The database refused, or the connection broke.
    Failed(Error),
    /// The database has given an invalid answer.
    Corrupt(StoreError),
}

impl From<Error> for LockError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Parses a transaction id. A wrong one would produce cursors that exist already.
fn parse_xid(text: &str) -> Result<u64, LockError> {
    let damaged =
        || LockError::Corrupt(StoreError::Corrupt(format!("PostgreSQL has no transaction id {text:?}")));
    text.parse().ok().filter(|xid| *xid > 0).ok_or_else(damaged)
}

/// The statement that serializes transactions that assert the same new id or record an owner of the same native session,
/// so that the second one finds what the first has written. Claims share a few locks: an import asserts many, and the
/// database has room for some thousand.
fn claim_locks(commits: &[Arc<Commit>]) -> Option<String> {
    let native = |row: &Row| match row {
        Row::NativeOwner(owner) => Some(native_key(&owner.native).bytes().fold(0, u8::wrapping_add)),
        _ => None,
    };
    let natives = commits.iter().flat_map(|commit| &commit.rows).filter_map(native);
    let ids = commits.iter().flat_map(|commit| new_ids(commit)).map(|id| id[15]);
    let locks: BTreeSet<u8> = ids.chain(natives).collect();
    let each: Vec<String> = locks.iter().map(|lock| format!("({lock})")).collect();
    // Taken in the same order in each transaction, and after the leases, so that transactions cannot deadlock.
    (!each.is_empty()).then(|| {
        format!("SELECT pg_advisory_xact_lock({CLAIM_LOCKS}, n) FROM (VALUES {}) AS u(n)", each.join(", "))
    })
}

/// A transaction that holds the locks of its sessions.
struct Locked {
    xid: u64,
    epochs: HashMap<SessionId, u64>,
}

impl Writer {
    /// Writes the queued commits and streamed text, until the store is closed.
    pub(super) async fn run(mut self) {
        loop {
            let jobs = self.take_commits();
            let is_idle = jobs.is_empty();
            if !is_idle {
                self.commit_batch(jobs).await;
            }
            // After each batch of commits, so that streamed text is written under load too.
            let chunks = self.inlet.queue.lock().chunks.pop_front();
            if let Some(job) = chunks {
                let written = self.chunks_write(&job.chunks).await;
                let _ = job.answer.send(written);
            } else if is_idle {
                if self.inlet.queue.lock().is_closed {
                    return;
                }
                self.inlet.wake.notified().await;
            }
        }
    }

    /// Takes the next commits: at most one per session, in order.
    fn take_commits(&self) -> Vec<Job> {
        let mut queue = self.inlet.queue.lock();
        let mut sessions = std::collections::HashSet::new();
        let (mut taken, mut left, mut events) = (vec![], VecDeque::new(), 0);
        while let Some(job) = queue.commits.pop_front() {
            events += job.commit.events.len();
            let fits = taken.len() < BATCH_COMMITS && (taken.is_empty() || events < 1 << EVENT_BITS);
            if fits && sessions.insert(job.commit.fence.session) {
                taken.push(job);
            } else {
                // A later commit of the same session must not overtake this one.
                sessions.insert(job.commit.fence.session);
                events -= job.commit.events.len();
                left.push_back(job);
            }
        }
        queue.commits = left;
        taken
    }

    async fn commit_batch(&mut self, jobs: Vec<Job>) {
        let fault = self.shared.fault.lock().take_if(|fault| *fault != Fault::LoadPanics);
        if let Err(error) = self.shared.check_writable() {
            jobs.into_iter().for_each(|job| drop(job.answer.send(Err(error.clone()))));
            return;
        }
        if fault == Some(Fault::DiskFull) {
            let full = StoreError::Full(Fault::DiskFull.message());
            jobs.into_iter().for_each(|job| drop(job.answer.send(Err(full.clone()))));
            return;
        }
        let mut jobs = jobs;
        if fault == Some(Fault::WritePanics) && !jobs.is_empty() {
            let first = jobs.remove(0);
            let _ = first.answer.send(Err(StoreError::Corrupt(Fault::WritePanics.message())));
        }
        let commits: Vec<Arc<Commit>> = jobs.iter().map(|job| Arc::clone(&job.commit)).collect();
        let mut results = self.commit_all(&commits, fault).await;
        if let Some(fault @ (Fault::CommitFails | Fault::OutcomeUnknown)) = fault {
            results.fill(Err(StoreError::Unavailable(fault.message())));
        }
        for (job, result) in jobs.into_iter().zip(results) {
            let _ = job.answer.send(result);
        }
    }

    /// Writes the commits together, or each alone if the server refuses that.
    async fn commit_all(
        &mut self,
        commits: &[Arc<Commit>],
        fault: Option<Fault>,
    ) -> Vec<Result<Vec<Cursor>, StoreError>> {
        let together = self.commit_group(commits, fault).await;
        match together {
            Ok(results) => results,
            Err(StoreError::Unavailable(reason)) => {
                vec![Err(StoreError::Unavailable(reason)); commits.len()]
            }
            Err(error) if commits.len() == 1 => vec![Err(error)],
            Err(_) => {
                let mut results = vec![];
                for commit in commits {
                    let alone = self.commit_group(std::slice::from_ref(commit), fault).await;
                    results.extend(alone.unwrap_or_else(|error| vec![Err(error)]));
                }
                results
            }
        }
    }

    /// Writes the commits in one transaction. Tries again, if necessary on a new connection, if nothing was stored for a
    /// reason that may be temporary.
    async fn commit_group(
        &mut self,
        commits: &[Arc<Commit>],
        fault: Option<Fault>,
    ) -> Result<Vec<Result<Vec<Cursor>, StoreError>>, StoreError> {
        let mut reason = String::new();
        for _ in 0..ATTEMPTS {
            let client = match self.client().await {
                Ok(client) => client,
                Err(error) => {
                    reason = describe(&error);
                    continue;
                }
            };
            let group = self.group(&client);
            let started = meters::start();
            let written = group.write(commits, fault == Some(Fault::CommitFails)).await;
            match written {
                Ok(results) => {
                    self.shared.batches.add(commits.len(), started);
                    self.client = Some(client);
                    return Ok(results);
                }
                Err(BatchError::Refused(error)) => {
                    // The transaction has ended, so the connection can be used again.
                    self.client = Some(client);
                    if !matches!(error, StoreError::Unavailable(_)) {
                        return Err(error);
                    }
                    reason = error.to_string();
                }
                Err(BatchError::Broken(message)) => reason = message,
                Err(BatchError::Unknown(message)) => return Err(StoreError::Unavailable(message)),
            }
        }
        Err(StoreError::Unavailable(reason))
    }

    fn group<'a>(&'a self, client: &'a Client) -> Group<'a> {
        Group { number: self.number, connector: &self.connector, shared: &self.shared, client }
    }

    async fn client(&mut self) -> Result<Client, Error> {
        match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => Ok(client),
            None => self.connector.connect().await,
        }
    }

    async fn chunks_write(&mut self, chunks: &[Chunk]) -> Result<(), StoreError> {
        self.shared.check_writable()?;
        let client = self.client().await.map_err(|error| write_error(&error))?;
        let group = self.group(&client);
        group.chunks_write(chunks).await.map_err(|error| match error {
            LockError::Failed(error) => write_error(&error),
            LockError::Corrupt(error) => error,
        })?;
        self.client = Some(client);
        Ok(())
    }
}

/// A batch that is being written.
struct Group<'a> {
    /// The number of the writer.
    number: usize,
    connector: &'a Connector,
    shared: &'a Shared,
    client: &'a Client,
}

impl Group<'_> {
    async fn write(
        &self,
        commits: &[Arc<Commit>],
        is_undone: bool,
    ) -> Result<Vec<Result<Vec<Cursor>, StoreError>>, BatchError> {
        let fences: Vec<Fence> = commits.iter().map(|commit| commit.fence).collect();
        let (locked, mut used) = match self.lock(&fences, commits).await {
            Ok(locked) => locked,
            Err(LockError::Failed(error)) => return Err(BatchError::Broken(describe(&error))),
            Err(LockError::Corrupt(error)) => {
                self.rollback().await?;
                return Err(BatchError::Refused(error));
            }
        };
        let Some(locked) = locked else {
            self.rollback().await?;
            return Ok(vec![Err(StoreError::Fenced); commits.len()]);
        };
        let mut before = self.shared.before(locked.xid);
        let (mut results, mut written) = (vec![], vec![]);
        for commit in commits {
            if locked.epochs.get(&commit.fence.session) != Some(&commit.fence.epoch) {
                results.push(Err(StoreError::Fenced));
                continue;
            }
            let new = new_ids(commit);
            if new.iter().any(|id| used.contains(id)) {
                results.push(Err(StoreError::Conflict(Unique::Id)));
                continue;
            }
            match ops(commit, before) {
                Ok(ops) => {
                    written.push(ops);
                    // Another commit of this batch may assert the same id.
                    used.extend(new);
                }
                Err(error) => {
                    results.push(Err(error));
                    continue;
                }
            }
            let cursors = (1..=commit.events.len() as u64).map(|n| Cursor(before + n));
            results.push(Ok(cursors.collect()));
            before += commit.events.len() as u64;
        }
        if written.is_empty() {
            self.rollback().await?;
            return Ok(results);
        }
        let transaction = Transaction { xid: locked.xid, trace: self.trace(commits, &results) };
        let mut statements = statements(written);
        statements.extend(transaction.trace_statement());
        self.finish(&transaction, &statements, is_undone).await?;
        self.note_dropped(commits, &results);
        if self.shared.home.get().is_some() {
            self.shared.written.notify_one();
        }
        Ok(results)
    }

    /// Names the evidence that later proves that the commits are stored: the first event of any of them, else a row.
    fn trace(&self, commits: &[Arc<Commit>], results: &[Result<Vec<Cursor>, StoreError>]) -> Trace {
        let first = |(commit, result): (&Arc<Commit>, &Result<Vec<Cursor>, StoreError>)| {
            Some(Trace::Event(*result.as_ref().ok()?.first()?, commit.events.first()?.id))
        };
        commits.iter().zip(results).find_map(first).unwrap_or_else(|| {
            let boot = self.shared.boot.load(std::sync::atomic::Ordering::Acquire);
            Trace::Row(writer_name(boot, self.shared.home.get(), self.number))
        })
    }

    /// Begins the transaction, locks the leases in the order of ids and then the claims, and finds the ids that commits
    /// assert to be new but are used. Returns no lock if no session has a lease.
    async fn lock(
        &self,
        fences: &[Fence],
        commits: &[Arc<Commit>],
    ) -> Result<(Option<Locked>, Vec<[u8; 16]>), LockError> {
        let sessions: Vec<Vec<u8>> = fences.iter().map(|fence| fence.session.as_bytes().to_vec()).collect();
        let lock =
            "SELECT session_id, epoch, pg_current_xact_id()::text FROM leases WHERE session_id = ANY ($1)
                    ORDER BY session_id FOR UPDATE";
        let new: Vec<Vec<u8>> =
            commits.iter().flat_map(|commit| new_ids(commit)).map(|id| id.to_vec()).collect();
        let used = "SELECT session_id FROM sessions WHERE session_id = ANY ($1) UNION ALL
                    SELECT run_id FROM runs WHERE run_id = ANY ($1) UNION ALL
                    SELECT message_id FROM messages WHERE message_id = ANY ($1) UNION ALL
                    SELECT artifact_id FROM artifacts WHERE artifact_id = ANY ($1)";
        let (lock_params, used_params) = (typed(&[&sessions]), typed(&[&new]));
        let (begin, claim) = (self.shared.begin(), claim_locks(commits));
        // The first poll sends the statements in this order.
        let (begun, rows, claimed, used) = tokio::join!(
            self.client.batch_execute(&begin),
            self.client.query_typed(lock, &lock_params),
            async {
                match &claim {
                    None => Ok(()),
                    Some(claim) => self.client.batch_execute(claim).await,
                }
            },
            async {
                match new.is_empty() {
                    true => Ok(vec![]),
                    false => self.client.query_typed(used, &used_params).await,
                }
            },
        );
        begun?;
        claimed?;
        let (rows, used) = (rows?, used?);
        let mut locked: Option<Locked> = None;
        for row in &rows {
            let xid = parse_xid(row.try_get(2)?)?;
            let locked = locked.get_or_insert_with(|| Locked { xid, epochs: HashMap::new() });
            if let (Ok(session), Ok(epoch)) = (get_id(row, 0), get_u64(row, 1)) {
                locked.epochs.insert(SessionId::from_bytes(session), epoch);
            }
        }
        Ok((locked, used.iter().filter_map(|row| get_id(row, 0).ok()).collect()))
    }

    /// Sends all statements and COMMIT at once.
    async fn finish(
        &self,
        transaction: &Transaction,
        statements: &[Statement],
        is_undone: bool,
    ) -> Result<(), BatchError> {
        let params: Vec<_> = statements
            .iter()
            .map(|statement| {
                let params: Vec<_> = statement.columns.iter().map(super::values::Column::param).collect();
                typed(&params)
            })
            .collect();
        type Sent<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;
        let mut sent: Vec<Sent<'_>> = vec![];
        for (statement, params) in statements.iter().zip(&params) {
            sent.push(Box::pin(
                async move { self.client.execute_typed(statement.sql, params).await.map(drop) },
            ));
        }
        let end = if is_undone { "ROLLBACK" } else { "COMMIT" };
        sent.push(Box::pin(self.client.batch_execute(end)));
        let first_error = in_order(sent).await;
        match first_error {
            None => Ok(()),
            // After a refused statement, COMMIT rolls back.
            Some(error) if is_refusal(&error) && !self.client.is_closed() => {
                Err(BatchError::Refused(write_error(&error)))
            }
            Some(error) => match transaction.look_up(self.connector).await {
                Outcome::Committed => Ok(()),
                Outcome::Lost => Err(BatchError::Broken(describe(&error))),
                Outcome::Unknown => Err(BatchError::Unknown(describe(&error))),
            },
        }
    }

    async fn rollback(&self) -> Result<(), BatchError> {
        self.client.batch_execute("ROLLBACK").await.map_err(|error| BatchError::Broken(describe(&error)))
    }

    /// Records that streamed text has become messages.
    fn note_dropped(&self, commits: &[Arc<Commit>], results: &[Result<Vec<Cursor>, StoreError>]) {
        let mut dropped = self.shared.dropped.lock();
        for (commit, _) in commits.iter().zip(results).filter(|(_, result)| result.is_ok()) {
            for row in &commit.rows {
                if let (Row::ChunksDrop(before), Some((_, known))) =
                    (row, dropped.get_mut(&commit.fence.session))
                {
                    *known = (*known).max(*before);
                }
            }
        }
    }

    async fn chunks_write(&self, chunks: &[Chunk]) -> Result<(), LockError> {
        let fences: Vec<Fence> = chunks.iter().map(|chunk| chunk.fence).collect();
        let (locked, _) = self.lock(&fences, &[]).await?;
        let epochs = locked.map(|locked| locked.epochs).unwrap_or_default();
        let written: Vec<Op> = {
            let dropped = self.shared.dropped.lock();
            let is_kept = |chunk: &&Chunk| {
                let before = dropped.get(&chunk.fence.session).map_or(0, |(_, before)| *before);
                epochs.get(&chunk.fence.session) == Some(&chunk.fence.epoch) && chunk.pos >= before
            };
            let kept = chunks.iter().filter(is_kept);
            kept.map(|chunk| chunk_op(chunk.fence.session, chunk, Table::ChunksNew)).collect()
        };
        for statement in statements(vec![written]) {
            let params: Vec<_> = statement.columns.iter().map(super::values::Column::param).collect();
            self.client.execute_typed(statement.sql, &typed(&params)).await?;
        }
        Ok(self.client.batch_execute("COMMIT").await?)
    }
}

/// The ids that a commit asserts to be new.
fn new_ids(commit: &Commit) -> Vec<[u8; 16]> {
    let new_id = |row: &Row| match row {
        Row::NewId(NewId::Session(id)) => Some(*id.as_bytes()),
        Row::NewId(NewId::Run(id)) => Some(*id.as_bytes()),
        Row::NewId(NewId::Message(id)) => Some(*id.as_bytes()),
        Row::NewId(NewId::Artifact(id)) => Some(*id.as_bytes()),
        _ => None,
    };
    commit.rows.iter().filter_map(new_id).collect()
}

/// Waits `ms` milliseconds.
#[expect(clippy::disallowed_methods, reason = "the database's time passes in tests with a manual clock too")]
pub(super) async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Starts all futures in order, which sends their statements in order, and waits for all. Returns the first error.
async fn in_order<F: Future<Output = Result<(), Error>> + Unpin>(futures: Vec<F>) -> Option<Error> {
    let mut waiting: Vec<Option<F>> = futures.into_iter().map(Some).collect();
    let mut errors: Vec<Option<Error>> = waiting.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_done = true;
        for (slot, error) in waiting.iter_mut().zip(&mut errors) {
            let Some(future) = slot else { continue };
            match Pin::new(future).poll(context) {
                Poll::Ready(result) => {
                    *error = result.err();
                    *slot = None;
                }
                Poll::Pending => is_done = false,
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    errors.into_iter().flatten().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_id_that_is_not_a_number_is_corrupt() {
        assert_eq!(parse_xid("4711").ok(), Some(4711));
        for text in ["", "0", "-1", "4711x", "99999999999999999999"] {
            let refused = matches!(parse_xid(text), Err(LockError::Corrupt(StoreError::Corrupt(_))));
            assert!(refused, "{text:?}");
        }
    }
}
