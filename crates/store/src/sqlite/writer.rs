//! The writer thread: makes every change, over one connection.
//!
//! ```text
//! queue ──take all──▶ BEGIN ─▶ [savepoint, check fence, write, release | roll back]… ─▶ COMMIT ──▶ answers
//! ```
//!
//! A commit that is alone in its group needs no savepoint: a failure rolls back the transaction. The first transaction
//! of each WAL also renews the token of `wal.rs`. Steps of the search index are transactions of their own, in the
//! pauses between groups; they are not synced, since a step that is lost is repeated.
//!
//! The writer does not wait for a group to fill: all jobs that are queued when it is free form the next group. It also
//! checks fences and issues leases. A new lease is sent after the group's commit, so that its holder reads everything
//! written under the old one.
//!
//! Invariant: no answer is sent before its transaction has ended.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use mainspring_core::{ApiKey, Cursor, SessionId, StateOutcome, Time};
use mainspring_kernel::contain::contain_call;
use mainspring_kernel::store::{
    AgentRow, Chunk, EdgeChange, Fence, GoalTypeRow, OwnerState, Request, Row, StoreError, WebhookChange,
};
use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::apply::Prepared;
use super::checkpointer::{Due, Passes, Plan};
use super::columns::{Id, int};
use super::edge;
use super::error::{panicked, transaction_error, write_error};
use super::event_blocks::EventBlocks;
use super::failure_log::{FailureLog, LogLine};
use super::files::Files;
use super::goal_types;
use super::owners;
use super::queue::{Background, Queue};
use super::read::chunk_columns;
use super::readers::{IDLE, release_memory};
use super::search::{IndexStep, Unindexed};
use super::usage::{self, COUNTED_AT_ONCE};
use super::wal::{self, FrameCounts, WalIndex};
use super::write::request_write;
use super::write_records::key_write;
use super::{Durability, agents, check, checksum, data, purge, search, webhooks};
use crate::Fault;

/// The number of low bits of an epoch, which count the leases of one boot. No boot issues as many as fit.
pub(super) const LEASE_BITS: u32 = 40;

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// A job that runs before streamed text is written.
#[derive(Debug)]
pub(super) enum Job {
    Commit(Prepared, Answer<Vec<Cursor>>),
    Lease(SessionId, Answer<Fence>),
    Purge(SessionId, Answer<bool>),
    /// Removes some pruned events. Answers true while there are more.
    EventsPrune(SessionId, Answer<bool>),
    /// Removes some expired requests. Answers true while there are more.
    RequestsForget(Time, Answer<bool>),
    StatePut(OwnerState, Answer<StateOutcome>),
    /// Removes a hash from the loose hashes if an artifact refers to it. Answers whether an artifact does.
    BlobClaimed(String, Answer<bool>),
    /// Removes a hash from the loose hashes. Answers whether it was one of them.
    BlobSettled(String, Answer<bool>),
    KeyWrite(Box<(ApiKey, Option<Request>)>, Answer<()>),
    /// Claims an owner for an org. Answers whether the owner belongs to the org.
    OwnerClaim((String, Option<String>, Time), Answer<bool>),
    /// Stores a version of an agent. Answers false if it exists.
    AgentWrite(Box<AgentRow>, Answer<bool>),
    /// Deletes a version of an owner's agent. Answers false if there is none.
    AgentDelete((String, String, u32), Answer<bool>),
    /// Changes webhooks. Answers whether the change has an effect.
    Webhook(Box<WebhookChange>, Answer<bool>),
    /// Stores a goal type. Answers false if it replaces one.
    GoalType(Box<GoalTypeRow>, Answer<bool>),
    /// Changes a record of an edge. Answers whether the change has an effect.
    Edge(Box<EdgeChange>, Answer<bool>),
    /// Records that the check after a crash has passed.
    CrashChecked(Answer<()>),
    /// Writes a row that nothing reads.
    Probe(Answer<()>),
}

/// A job that writes streamed text.
#[derive(Debug)]
pub(super) struct ChunkJob {
    pub(super) chunks: Vec<Chunk>,
    pub(super) answer: Answer<()>,
}

/// A job that adds messages and titles to the search index. Answers true while there are more.
#[derive(Debug)]
pub(super) struct IndexJob {
    pub(super) text: Unindexed,
    pub(super) answer: Answer<bool>,
}

/// The state that the writer thread shares with the store.
#[derive(Debug)]
pub(super) struct Shared {
    files: Files,
    pub(super) queue: Queue<Job, ChunkJob, IndexJob>,
    pub(super) leases: Mutex<HashMap<SessionId, Lease>>,
    pub(super) fault: Mutex<Option<Fault>>,
    /// True while a test simulates a full disk.
    pub(super) is_full: AtomicBool,
    /// The damage that a check in the background has found.
    damage: OnceLock<String>,
}

/// The right to write a session. Kept in memory only: the lock of the state directory makes this process the only
/// writer, and each boot starts with higher epochs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) epoch: u64,
    /// Streamed text before this position is in messages. Chunks of it that arrive late are ignored.
    dropped_before: u64,
}

impl Shared {
    pub(super) fn new(files: Files) -> Self {
        Self {
            files,
            queue: Queue::default(),
            leases: Mutex::default(),
            fault: Mutex::default(),
            is_full: AtomicBool::new(false),
            damage: OnceLock::new(),
        }
    }

    /// Forgets a lease, unless the session has a newer one.
    pub(super) fn lease_release(&self, fence: Fence) {
        let mut leases = self.leases.lock();
        if leases.get(&fence.session).is_some_and(|lease| lease.epoch == fence.epoch) {
            leases.remove(&fence.session);
            // Gives memory back after a peak.
            if leases.len() < leases.capacity() / 4 {
                leases.shrink_to_fit();
            }
        }
    }

    /// Refuses all further writes: they could be lost, or increase the damage.
    pub(super) fn set_damaged(&self, path: &str, problem: &str) {
        tracing::error!(path, problem, "the database is damaged; nothing is written any more");
        let remedy = "restore it from a backup, or move it away to start anew";
        let _ = self.damage.set(format!("{path} is damaged ({problem}): {remedy}"));
    }

    /// Fails if the database must not be written.
    pub(super) fn check_writable(&self) -> Result<(), StoreError> {
        match self.damage.get() {
            Some(damage) => Err(StoreError::Corrupt(damage.clone())),
            None => self.files.check(),
        }
    }

    fn is_current(&self, fence: Fence) -> bool {
        self.leases.lock().get(&fence.session).is_some_and(|lease| lease.epoch == fence.epoch)
    }
}

/// Closes the queue when dropped.
struct CloseOnDrop<'a>(&'a Shared);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.queue.close();
        // Dropping a job answers it with an error: the store is closed.
        while self.0.queue.take().is_some() {}
    }
}

fn is_full(error: &StoreError) -> bool {
    matches!(error, StoreError::Full(_))
}

/// The state of the writer thread.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) connection: Connection,
    /// Dropped after the connection.
    pub(super) wal_index: WalIndex,
    /// The frames of the WAL when the last transaction began.
    pub(super) frames: FrameCounts,
    pub(super) plan: Plan,
    pub(super) passes: Arc<Passes>,
    pub(super) durability: Durability,
    /// Whether the connection syncs at COMMIT. Not used unless `durability` is `Full`.
    pub(super) is_synced: bool,
    /// The epoch of the last lease. Each boot starts with higher ones.
    pub(super) last_epoch: u64,
    /// The last cursor assigned.
    pub(super) seq: u64,
    pub(super) failures: FailureLog,
    pub(super) event_blocks: EventBlocks,
    /// The messages written since the last count of what owners store; some of them may be counted or not stored.
    pub(super) uncounted_messages: usize,
}

/// An answer that is sent when its transaction has ended.
enum PendingAnswer {
    Commit(Answer<Vec<Cursor>>, Result<Vec<Cursor>, StoreError>),
    Lease(Answer<Fence>, Result<Fence, StoreError>),
    Flag(Answer<bool>, Result<bool, StoreError>),
    State(Answer<StateOutcome>, Result<StateOutcome, StoreError>),
    Done(Answer<()>, Result<(), StoreError>),
}

impl PendingAnswer {
    /// Returns the error of the job, if it failed.
    fn error(&self) -> Option<&StoreError> {
        match self {
            Self::Commit(_, result) => result.as_ref().err(),
            Self::Lease(_, result) => result.as_ref().err(),
            Self::Flag(_, result) => result.as_ref().err(),
            Self::State(_, result) => result.as_ref().err(),
            Self::Done(_, result) => result.as_ref().err(),
        }
    }

    /// Sends the result, or `failure` if the transaction failed.
    fn send(self, failure: Option<&StoreError>) {
        fn send<T>(answer: Answer<T>, result: Result<T, StoreError>, failure: Option<&StoreError>) {
            // The caller may have stopped waiting.
            let _ = answer.send(match failure {
                Some(failure) => Err(failure.clone()),
                None => result,
            });
        }
        match self {
            Self::Commit(answer, result) => send(answer, result, failure),
            // A lease is not part of the transaction and stays valid if the transaction fails.
            Self::Lease(answer, result) => send(answer, result, None),
            Self::Flag(answer, result) => send(answer, result, failure),
            Self::State(answer, result) => send(answer, result, failure),
            Self::Done(answer, result) => send(answer, result, failure),
        }
    }
}

impl Writer {
    /// Runs jobs until the queue is closed and empty, then merges the WAL into the file.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        // If this thread panics, callers must not wait for it forever.
        let _close = CloseOnDrop(&shared);
        loop {
            if !shared.queue.wait(IDLE) {
                release_memory(&self.connection);
                mainspring_heap::release();
            }
            let Some(batch) = shared.queue.take() else { break };
            if !batch.urgent.is_empty() {
                self.group_write(batch.urgent);
            }
            if !batch.lazy.is_empty() {
                self.chunks_write(batch.lazy);
            }
            if let Some(step) = batch.background {
                self.index_write(step);
            }
            self.merge_if_due();
        }
        self.close();
    }

    /// Merges the WAL into the file, unless the file was moved or replaced: SQLite would delete the WAL of the file
    /// that is there now.
    fn close(&self) {
        let closed = match self.shared.files.check() {
            Ok(()) => self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"),
            Err(lost) => {
                tracing::error!(%lost, "the database is closed without its last checkpoint");
                self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop)
            }
        };
        if let Err(error) = closed {
            tracing::warn!(%error, "the last checkpoint failed; the next start repeats it");
        }
    }

    /// Merges the WAL into the database, or requests that, if it is due.
    fn merge_if_due(&mut self) {
        let is_idle = self.shared.queue.urgent_len() == 0;
        let waits = match self.plan.next(self.frames, is_idle) {
            Due::Nothing => return,
            Due::Pass => return self.passes.request(),
            Due::LastPass => false,
            Due::LongPass => true,
        };
        let passed = self.shared.check_writable().map(|()| self.passes.make(&self.connection, waits));
        if let Ok(Err(error)) = passed {
            tracing::warn!(%error, "the WAL cannot be merged into the database now; it grows until it can");
        }
    }

    /// Indexes some text. A step that stops for urgent work is continued later.
    fn index_write(&mut self, step: Background<IndexJob>) {
        let Background { work: mut job, yields } = step;
        let shared = Arc::clone(&self.shared);
        let is_urgent = || yields && shared.queue.urgent_len() > 0;
        let begun = self.begin(false);
        let indexed = begun.and_then(|()| {
            let step = search::search_index(&self.connection, &mut job.text, is_urgent);
            step.and_then(|step| self.execute("COMMIT").map(|()| step))
                .map_err(|error| transaction_error(&error))
        });
        if indexed.is_err() && !self.connection.is_autocommit() {
            let _ = self.execute("ROLLBACK");
        }
        match indexed {
            Ok(IndexStep::Stopped) => shared.queue.resume_background(job),
            // The caller may have stopped waiting.
            Ok(IndexStep::Done { has_more }) => drop(job.answer.send(Ok(has_more))),
            Err(error) => drop(job.answer.send(Err(error))),
        }
    }

    fn group_write(&mut self, jobs: VecDeque<Job>) {
        let mut answers = Vec::with_capacity(jobs.len());
        let mut chunk_drops = vec![];
        let mut failure = None;
        let takes_fault = |job: &Job| {
            matches!(
                job,
                Job::Commit(..)
                    | Job::KeyWrite(..)
                    | Job::AgentWrite(..)
                    | Job::AgentDelete(..)
                    | Job::Webhook(..)
                    | Job::GoalType(..)
                    | Job::Edge(..)
            )
        };
        let fault = self
            .shared
            .fault
            .lock()
            .take_if(|fault| *fault != Fault::LoadPanics && jobs.iter().any(takes_fault));
        if fault == Some(Fault::DiskFull) {
            self.set_file_growth(false);
        }
        let mut write_panics = fault == Some(Fault::WritePanics);
        let is_write = |job: &&Job| !matches!(job, Job::Lease(..));
        let alone = jobs.iter().filter(is_write).count() == 1;
        for job in jobs {
            if let Job::Lease(session, answer) = job {
                answers.push(PendingAnswer::Lease(answer, Ok(self.lease_take(session))));
                continue;
            }
            let begun = match &failure {
                None if self.connection.is_autocommit() => self.begin(true),
                _ => Ok(()),
            };
            if let Err(error) = begun {
                failure = Some(error);
            }
            if failure.is_none() {
                let panics = matches!(job, Job::Commit(..)) && std::mem::take(&mut write_panics);
                answers.push(self.job_write(job, alone, panics, &mut chunk_drops));
                // Some errors, such as a full disk, make SQLite roll back the whole transaction.
                if self.connection.is_autocommit() && !alone {
                    let rolled_back = || StoreError::Unavailable("SQLite rolled the transaction back".into());
                    let full = answers.last().and_then(PendingAnswer::error).filter(|error| is_full(error));
                    failure = Some(full.cloned().unwrap_or_else(rolled_back));
                }
            } else {
                answers.push(job.into_failed());
            }
        }
        if !self.connection.is_autocommit() {
            failure = self.messages_count().and_then(|()| self.finish(fault)).err();
        }
        if fault == Some(Fault::DiskFull) {
            self.set_file_growth(true);
        }
        match failure {
            None => self.record_chunk_drops(&chunk_drops),
            Some(_) => self.event_blocks.forget(),
        }
        if answers.iter().any(|answer| !matches!(answer, PendingAnswer::Lease(..))) {
            // The failure of a job that was alone in its group is only in its answer.
            let of_jobs =
                answers.iter().filter_map(PendingAnswer::error).find(|error| error.is_outcome_unknown());
            self.log_outcome(failure.as_ref().or(of_jobs).cloned().as_ref());
        }
        for answer in answers {
            answer.send(failure.as_ref());
        }
    }

    /// Counts the new messages for the usage of their owners, if there are enough of them. If that fails, a later group
    /// tries again. Fails if SQLite rolled the transaction back.
    fn messages_count(&mut self) -> Result<(), StoreError> {
        if self.uncounted_messages < COUNTED_AT_ONCE {
            return Ok(());
        }
        match self.atomically_sql(false, usage::messages_count) {
            Ok(()) => self.uncounted_messages = 0,
            Err(error) if self.connection.is_autocommit() => return Err(error),
            Err(error) => tracing::warn!(%error, "the messages that owners store cannot be counted now"),
        }
        Ok(())
    }

    /// Logs that groups of commits begin to fail, still fail, or succeed again.
    fn log_outcome(&mut self, failure: Option<&StoreError>) {
        let line = match failure {
            Some(_) => self.failures.failed(),
            None => self.failures.succeeded(),
        };
        match (line, failure) {
            (Some(LogLine::Failed(1)), Some(error)) => tracing::error!(%error, "a group of commits failed"),
            (Some(LogLine::Failed(groups)), Some(error)) => {
                tracing::error!(%error, groups, "groups of commits still fail");
            }
            (Some(LogLine::Recovered(groups)), None) => {
                tracing::info!(groups, "commits are written again after groups that failed");
            }
            _ => {}
        }
    }

    /// Writes a commit, unless its lease has ended. `panics` is a fault of a test.
    fn commit_write(
        &mut self,
        prepared: &Prepared,
        alone: bool,
        panics: bool,
        chunk_drops: &mut Vec<(SessionId, u64)>,
    ) -> Result<Vec<Cursor>, StoreError> {
        let fence = prepared.commit.fence;
        if !self.shared.is_current(fence) {
            return Err(StoreError::Fenced);
        }
        let (mut seq, mut blocks) = (self.seq, std::mem::take(&mut self.event_blocks));
        let cursors = self.atomically(alone, |connection| {
            let cursors = prepared.write(connection, &mut seq, &mut blocks);
            assert!(!panics, "{}", Fault::WritePanics.message());
            cursors
        })?;
        // Not reached after a failure: `event_blocks` then stays empty, so that blocks whose rows were rolled back are
        // written again.
        self.event_blocks = blocks;
        self.seq = seq;
        let is_message = |row: &&Row| matches!(row, Row::Message(..));
        self.uncounted_messages += prepared.commit.rows.iter().filter(is_message).count();
        chunk_drops.extend(prepared.commit.rows.iter().filter_map(|row| match row {
            Row::ChunksDrop(before) => Some((fence.session, *before)),
            _ => None,
        }));
        Ok(cursors)
    }

    fn job_write(
        &mut self,
        job: Job,
        alone: bool,
        panics: bool,
        chunk_drops: &mut Vec<(SessionId, u64)>,
    ) -> PendingAnswer {
        match job {
            Job::Commit(prepared, answer) => {
                let result = self.commit_write(&prepared, alone, panics, chunk_drops);
                PendingAnswer::Commit(answer, result)
            }
            Job::Purge(session, answer) => {
                let seq = self.seq;
                let result =
                    self.atomically_sql(alone, |connection| purge::session_purge(connection, session, seq));
                PendingAnswer::Flag(answer, result)
            }
            Job::EventsPrune(session, answer) => {
                let seq = self.seq;
                let result =
                    self.atomically_sql(alone, |connection| purge::events_prune(connection, session, seq));
                PendingAnswer::Flag(answer, result)
            }
            Job::RequestsForget(before, answer) => {
                let result =
                    self.atomically_sql(alone, |connection| purge::requests_forget(connection, before));
                PendingAnswer::Flag(answer, result)
            }
            Job::StatePut(put, answer) => {
                let result = self.atomically(alone, |connection| data::state_put(connection, &put));
                PendingAnswer::State(answer, result)
            }
            Job::BlobClaimed(hash, answer) => {
                let result = self.atomically_sql(alone, |connection| data::blob_is_used(connection, &hash));
                PendingAnswer::Flag(answer, result)
            }
            Job::BlobSettled(hash, answer) => {
                let result = self.atomically_sql(alone, |connection| data::blob_forget(connection, &hash));
                PendingAnswer::Flag(answer, result)
            }
            Job::KeyWrite(written, answer) => {
                let result = self.atomically(alone, |connection| key_write_once(connection, &written));
                PendingAnswer::Done(answer, result)
            }
            Job::OwnerClaim((owner, org, at), answer) => {
                let claim =
                    |connection: &Connection| owners::owner_claim(connection, &owner, org.as_deref(), at);
                PendingAnswer::Flag(answer, self.atomically_sql(alone, claim))
            }
            Job::AgentWrite(agent, answer) => {
                let result = self.atomically(alone, |connection| agents::agent_write(connection, &agent));
                PendingAnswer::Flag(answer, result)
            }
            Job::AgentDelete(agent, answer) => {
                let result =
                    self.atomically_sql(alone, |connection| agents::agent_delete(connection, &agent));
                PendingAnswer::Flag(answer, result)
            }
            Job::Webhook(change, answer) => {
                let write = |connection: &Connection| webhooks::webhook_write(connection, &change);
                PendingAnswer::Flag(answer, self.atomically(alone, write))
            }
            Job::GoalType(row, answer) => {
                let write = |connection: &Connection| goal_types::goal_type_write(connection, &row);
                PendingAnswer::Flag(answer, self.atomically(alone, write))
            }
            Job::Edge(change, answer) => {
                let write = |connection: &Connection| edge::edge_write(connection, &change);
                PendingAnswer::Flag(answer, self.atomically(alone, write))
            }
            Job::CrashChecked(answer) => {
                let write = |connection: &Connection| check::crash_check_write(connection, false);
                PendingAnswer::Done(answer, self.atomically_sql(alone, write))
            }
            Job::Probe(answer) => {
                // SQLite would not write a row that stays the same.
                let sql = "INSERT INTO meta VALUES ('probes', 1) \
                           ON CONFLICT (name) DO UPDATE SET value = value + 1";
                let write = |connection: &Connection| connection.prepare_cached(sql)?.execute([]).map(drop);
                PendingAnswer::Done(answer, self.atomically_sql(alone, write))
            }
            // Unreachable: `group_write` issues leases itself.
            Job::Lease(session, answer) => PendingAnswer::Lease(answer, Ok(self.lease_take(session))),
        }
    }

    /// Begins a transaction, whose COMMIT is synced if `is_synced` is set and `durability` is `Full`. A transaction
    /// that may be the first of a WAL renews the token, by which a later start recognizes the database that the WAL
    /// belongs to.
    fn begin(&mut self, is_synced: bool) -> Result<(), StoreError> {
        self.shared.check_writable()?;
        if self.shared.is_full.load(Ordering::Acquire) {
            return Err(StoreError::Full(Fault::DiskFull.message()));
        }
        let unavailable = |error: rusqlite::Error| transaction_error(&error);
        self.set_synced(is_synced).map_err(unavailable)?;
        self.execute("BEGIN IMMEDIATE").map_err(unavailable)?;
        let frames = self.wal_index.frames();
        self.frames = frames.unwrap_or_default();
        // A token that is renewed without need does no harm.
        let renew = frames.is_none_or(FrameCounts::may_restart);
        if renew && let Err(error) = wal::token_renew(&self.connection) {
            let _ = self.execute("ROLLBACK");
            return Err(unavailable(error));
        }
        Ok(())
    }

    /// Sets whether a COMMIT is synced. Changes nothing unless `durability` is `Full`.
    fn set_synced(&mut self, is_synced: bool) -> rusqlite::Result<()> {
        if self.durability == Durability::Full && self.is_synced != is_synced {
            let level = if is_synced { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.is_synced = is_synced;
        }
        Ok(())
    }

    /// Like [`Self::atomically`], for a `write` that only SQLite can refuse.
    fn atomically_sql<T>(
        &self,
        alone: bool,
        write: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.atomically(alone, |connection| write(connection).map_err(|error| write_error(&error)))
    }

    /// Runs all of `write` or nothing: in a savepoint, or in the whole transaction if the job is `alone` in it.
    fn atomically<T>(
        &self,
        alone: bool,
        write: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let write = |connection: &Connection| {
            // A write that panics is undone like one that fails, and the writer goes on with the next.
            contain_call(|| write(connection)).unwrap_or_else(|panic| Err(panicked("a write", &panic)))
        };
        if alone {
            let result = write(&self.connection);
            if result.is_err() && !self.connection.is_autocommit() {
                self.execute("ROLLBACK").map_err(|error| transaction_error(&error))?;
            }
            return result;
        }
        self.execute("SAVEPOINT one").map_err(|error| write_error(&error))?;
        match write(&self.connection) {
            Ok(value) => self.execute("RELEASE one").map(|()| value).map_err(|error| write_error(&error)),
            Err(failure) => {
                if !self.connection.is_autocommit() {
                    let undone = self.execute("ROLLBACK TO one").and_then(|()| self.execute("RELEASE one"));
                    undone.map_err(|error| transaction_error(&error))?;
                }
                Err(failure)
            }
        }
    }

    /// Commits the transaction, or rolls it back.
    fn finish(&self, fault: Option<Fault>) -> Result<(), StoreError> {
        let result = match fault {
            Some(Fault::CommitFails) => Err(StoreError::Unavailable(Fault::CommitFails.message())),
            _ => self.execute("COMMIT").map_err(|error| transaction_error(&error)),
        };
        if !self.connection.is_autocommit()
            && let Err(error) = self.execute("ROLLBACK")
        {
            tracing::error!(%error, "a transaction can be neither committed nor rolled back");
        }
        match fault {
            Some(Fault::OutcomeUnknown) => Err(StoreError::Unavailable(Fault::OutcomeUnknown.message())),
            _ => result,
        }
    }

    /// Allows the file to grow, or limits it to its current size to simulate a full disk.
    fn set_file_growth(&self, allowed: bool) {
        let limit = if allowed { Ok(i64::from(u32::MAX - 1)) } else { self.page_count() };
        let limited = limit.and_then(|pages| {
            self.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
        });
        if let Err(error) = limited {
            tracing::error!(%error, "cannot inject a fault");
        }
    }

    fn page_count(&self) -> rusqlite::Result<i64> {
        self.connection.pragma_query_value(None, "page_count", |row| row.get(0))
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }

    /// Issues a lease. Epochs are unique among all sessions, so that a released lease need not be remembered.
    fn lease_take(&mut self, session: SessionId) -> Fence {
        self.last_epoch += 1;
        let epoch = self.last_epoch;
        self.shared.leases.lock().insert(session, Lease { epoch, dropped_before: 0 });
        Fence { session, epoch }
    }

    fn record_chunk_drops(&self, drops: &[(SessionId, u64)]) {
        let mut leases = self.shared.leases.lock();
        for (session, before) in drops {
            if let Some(lease) = leases.get_mut(session) {
                lease.dropped_before = lease.dropped_before.max(*before);
            }
        }
    }

    fn chunks_write(&mut self, jobs: VecDeque<ChunkJob>) {
        let begun = self.begin(true);
        let result =
            begun.and_then(|()| self.chunks_insert(&jobs).map_err(|error| transaction_error(&error)));
        if result.is_err() && !self.connection.is_autocommit() {
            let _ = self.execute("ROLLBACK");
        }
        for job in jobs {
            let _ = job.answer.send(result.clone());
        }
    }

    fn chunks_insert(&self, jobs: &VecDeque<ChunkJob>) -> rusqlite::Result<()> {
        let mut insert = self.connection.prepare_cached(concat!(
            "INSERT OR IGNORE INTO chunks (",
            chunk_columns!(),
            ", session_id) SELECT ?1, ?2, ?3, ?4, ?5, ?6 \
                 WHERE NOT EXISTS (SELECT 1 FROM messages WHERE message_id = ?2)"
        ))?;
        let leases = self.shared.leases.lock();
        for chunk in jobs.iter().flat_map(|job| &job.chunks) {
            let lease = leases.get(&chunk.fence.session).filter(|lease| lease.epoch == chunk.fence.epoch);
            // The commit that completes a message may overtake its last chunks. If the outcome of that commit was
            // unknown, the drop was not recorded, but the insert finds the message.
            if lease.is_some_and(|lease| chunk.pos >= lease.dropped_before) {
                let columns = params![int(chunk.pos), chunk.message.bytes(), chunk.block, chunk.text];
                let session = chunk.fence.session.bytes();
                checksum::execute(&mut insert, &[(&checksum::CHUNK, columns)], params![session])?;
            }
        }
        drop(leases);
        self.execute("COMMIT")
    }
}

/// Writes a key together with the request that made it.
fn key_write_once(
    connection: &Connection,
    (key, request): &(ApiKey, Option<Request>),
) -> Result<(), StoreError> {
    // The request is written first, so that a repeated one is reported as a repetition.
    request.iter().try_for_each(|request| request_write(connection, request))?;
    Ok(key_write(connection, key)?)
}

impl Job {
    /// Builds the answer of a job that was not run because its group had failed.
    fn into_failed(self) -> PendingAnswer {
        let error = || StoreError::Unavailable("the group of commits failed".into());
        match self {
            Self::Commit(_, answer) => PendingAnswer::Commit(answer, Err(error())),
            Self::Lease(_, answer) => PendingAnswer::Lease(answer, Err(error())),
            Self::Purge(_, answer)
            | Self::EventsPrune(_, answer)
            | Self::RequestsForget(_, answer)
            | Self::BlobSettled(_, answer)
            | Self::OwnerClaim(_, answer)
            | Self::AgentWrite(_, answer)
            | Self::AgentDelete(_, answer)
            | Self::Webhook(_, answer)
            | Self::GoalType(_, answer)
            | Self::Edge(_, answer)
            | Self::BlobClaimed(_, answer) => PendingAnswer::Flag(answer, Err(error())),
            Self::StatePut(_, answer) => PendingAnswer::State(answer, Err(error())),
            Self::KeyWrite(_, answer) | Self::CrashChecked(answer) | Self::Probe(answer) => {
                PendingAnswer::Done(answer, Err(error()))
            }
        }
    }
}
