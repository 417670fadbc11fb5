//! The writer: one thread, one write connection, every change.
//!
//! ```text
//! queue ──take all──▶ BEGIN ─▶ [savepoint, check fence, write, release | roll back]… ─▶ COMMIT ──▶ answers
//! ```
//!
//! A commit that is alone in its group needs no savepoint: the transaction is its own.
//!
//! The writer never waits for company: what is queued when it is free makes up the next group. Fences are checked
//! here and leases are given out here, after the group's commit, so that whoever holds a new lease reads all that
//! was written under the old one.
//!
//! Invariant: no answer leaves before the transaction it speaks of has ended.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use mainspring_core::{ApiKey, Cursor, SessionId, StateOutcome, Time};
use mainspring_kernel::store::{AgentRow, Chunk, Fence, OwnerState, Request, Row, StoreError};
use parking_lot::Mutex;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::apply::Prepared;
use super::columns::{Id, int};
use super::error::of_write;
use super::queue::Queue;
use super::search;
use super::write::request_write;
use super::write_records::key_write;
use super::{agents, data, purge};
use crate::Fault;

/// How many bits of an epoch count the leases of one boot.
const LEASE_BITS: u32 = 24;

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// Work that goes first.
#[derive(Debug)]
pub(super) enum Job {
    Commit(Prepared, Answer<Vec<Cursor>>),
    Lease(SessionId, Answer<Fence>),
    Purge(SessionId, Answer<bool>),
    /// Removes some pruned events; true while there are more.
    Prune(SessionId, Answer<bool>),
    /// Forgets some requests; true while there are more.
    Forget(Time, Answer<bool>),
    State(OwnerState, Answer<StateOutcome>),
    /// Forgets a loose hash if an artifact names it; true if one does.
    Claimed(String, Answer<bool>),
    /// Forgets a loose hash.
    Settled(String, Answer<bool>),
    /// Takes some messages and titles into the search index; true while there are more.
    Search(Answer<bool>),
    Key(Box<(ApiKey, Option<Request>)>, Answer<()>),
    /// Keeps a version of an agent; false if it is there.
    Agent(Box<AgentRow>, Answer<bool>),
    /// Deletes a version of an owner's agent; false if there is none.
    AgentDelete((String, String, u32), Answer<bool>),
}

/// Streamed text.
#[derive(Debug)]
pub(super) struct ChunkJob {
    pub(super) chunks: Vec<Chunk>,
    pub(super) answer: Answer<()>,
}

/// What the writer shares with the rest of the store.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) queue: Queue<Job, ChunkJob>,
    pub(super) leases: Mutex<HashMap<SessionId, Lease>>,
    pub(super) fault: Mutex<Option<Fault>>,
}

/// Who may write a session. In memory only: the state directory's lock makes this process the only writer, and
/// each boot begins with higher epochs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) epoch: u64,
    /// Streamed text before this position is in messages: a chunk that comes late is dropped.
    dropped: u64,
}

impl Shared {
    fn is_current(&self, fence: Fence) -> bool {
        self.leases.lock().get(&fence.session).is_some_and(|lease| lease.epoch == fence.epoch)
    }
}

struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.queue.close();
        // Dropping a job answers it: the store is closed.
        while self.0.queue.take().is_some() {}
    }
}

/// The thread's own state.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) connection: Connection,
    /// This start's number; none before or after has it.
    pub(super) boot: u64,
    /// The last cursor that was given out.
    pub(super) seq: u64,
}

/// An answer that is held back until its transaction has ended.
enum Done {
    Commit(Answer<Vec<Cursor>>, Result<Vec<Cursor>, StoreError>),
    Lease(Answer<Fence>, Result<Fence, StoreError>),
    More(Answer<bool>, Result<bool, StoreError>),
    State(Answer<StateOutcome>, Result<StateOutcome, StoreError>),
    Key(Answer<()>, Result<(), StoreError>),
}

impl Done {
    fn send(self, failure: Option<&StoreError>) {
        fn settle<T>(answer: Answer<T>, result: Result<T, StoreError>, failure: Option<&StoreError>) {
            // Whoever asked may have gone away.
            let _ = answer.send(match failure {
                Some(failure) => Err(failure.clone()),
                None => result,
            });
        }
        match self {
            Self::Commit(answer, result) => settle(answer, result, failure),
            // A lease is no part of the transaction: it holds whatever became of that.
            Self::Lease(answer, result) => settle(answer, result, None),
            Self::More(answer, result) => settle(answer, result, failure),
            Self::State(answer, result) => settle(answer, result, failure),
            Self::Key(answer, result) => settle(answer, result, failure),
        }
    }
}

impl Writer {
    /// Writes until the queue is closed and empty, then leaves one tidy file behind.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        // However this thread ends, nobody waits for it afterwards.
        let _closing = Closing(&shared);
        while let Some(batch) = shared.queue.take() {
            if !batch.urgent.is_empty() {
                self.group_write(batch.urgent);
            }
            if !batch.lazy.is_empty() {
                self.chunks_write(batch.lazy);
            }
        }
        if let Err(error) = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            tracing::warn!(%error, "the last checkpoint failed; the next start makes up for it");
        }
    }

    fn group_write(&mut self, jobs: VecDeque<Job>) {
        let mut done = Vec::with_capacity(jobs.len());
        let mut drops = vec![];
        let mut failure = None;
        let strikes =
            |job: &Job| matches!(job, Job::Commit(..) | Job::Key(..) | Job::Agent(..) | Job::AgentDelete(..));
        let fault = self.shared.fault.lock().take_if(|_| jobs.iter().any(strikes));
        if fault == Some(Fault::DiskFull) {
            self.pages_limit(false);
        }
        let is_write = |job: &&Job| !matches!(job, Job::Lease(..));
        let alone = jobs.iter().filter(is_write).count() == 1;
        for job in jobs {
            if let Job::Lease(session, answer) = job {
                done.push(Done::Lease(answer, self.lease_take(session)));
                continue;
            }
            let begun = match &failure {
                None if self.connection.is_autocommit() => self.execute("BEGIN IMMEDIATE"),
                _ => Ok(()),
            };
            if let Err(error) = begun {
                failure = Some(StoreError::Unavailable(error.to_string()));
            }
            if failure.is_none() {
                done.push(self.job_write(job, alone, &mut drops));
                // Some errors (a full disk, for one) make SQLite roll back everything, savepoints and all.
                if self.connection.is_autocommit() && !alone {
                    failure = Some(StoreError::Unavailable("SQLite rolled the transaction back".into()));
                }
            } else {
                done.push(job.unanswered());
            }
        }
        if !self.connection.is_autocommit() {
            failure = self.finish(fault).err();
        }
        if fault == Some(Fault::DiskFull) {
            self.pages_limit(true);
        }
        match &failure {
            None => self.drops_note(&drops),
            Some(failure) => tracing::error!(%failure, commits = done.len(), "a group of commits failed"),
        }
        for done in done {
            done.send(failure.as_ref());
        }
    }

    fn job_write(&mut self, job: Job, alone: bool, drops: &mut Vec<(SessionId, u64)>) -> Done {
        match job {
            Job::Commit(prepared, answer) => {
                let fence = prepared.commit.fence;
                if !self.shared.is_current(fence) {
                    return Done::Commit(answer, Err(StoreError::Fenced));
                }
                let mut seq = self.seq;
                let result = self.undoable(alone, |connection| prepared.write(connection, &mut seq));
                if result.is_ok() {
                    self.seq = seq;
                    drops.extend(prepared.commit.rows.iter().filter_map(|row| match row {
                        Row::ChunksDrop(before) => Some((fence.session, *before)),
                        _ => None,
                    }));
                }
                Done::Commit(answer, result)
            }
            Job::Purge(session, answer) => {
                let seq = self.seq;
                let result = self.undoable(alone, |connection| {
                    purge::session_purge(connection, session, seq).map_err(|error| of_write(&error))
                });
                Done::More(answer, result)
            }
            Job::Prune(session, answer) => {
                let seq = self.seq;
                let result = self.undoable(alone, |connection| {
                    purge::events_prune(connection, session, seq).map_err(|error| of_write(&error))
                });
                Done::More(answer, result)
            }
            Job::Forget(before, answer) => {
                let result = self.undoable(alone, |connection| {
                    purge::requests_forget(connection, before).map_err(|error| of_write(&error))
                });
                Done::More(answer, result)
            }
            Job::State(put, answer) => {
                let result = self.undoable(alone, |connection| data::state_put(connection, &put));
                Done::State(answer, result)
            }
            Job::Claimed(hash, answer) => {
                let result = self.undoable(alone, |connection| {
                    data::blob_is_used(connection, &hash).map_err(|error| of_write(&error))
                });
                Done::More(answer, result)
            }
            Job::Settled(hash, answer) => {
                let result = self.undoable(alone, |connection| {
                    data::blob_forget(connection, &hash).map_err(|error| of_write(&error))
                });
                Done::More(answer, result)
            }
            Job::Search(answer) => {
                let index = |connection: &Connection| {
                    search::search_index(connection).map_err(|error| of_write(&error))
                };
                Done::More(answer, self.undoable(alone, index))
            }
            Job::Key(written, answer) => {
                let (key, request) = *written;
                let result = self.undoable(alone, |connection| {
                    // First, so that a request made again is known as that.
                    request.iter().try_for_each(|request| request_write(connection, request))?;
                    Ok(key_write(connection, &key)?)
                });
                Done::Key(answer, result)
            }
            Job::Agent(agent, answer) => {
                let result = self.undoable(alone, |connection| agents::agent_write(connection, &agent));
                Done::More(answer, result)
            }
            Job::AgentDelete(agent, answer) => {
                let result = self.undoable(alone, |connection| {
                    agents::agent_delete(connection, &agent).map_err(|error| of_write(&error))
                });
                Done::More(answer, result)
            }
            // The group gives leases out itself.
            Job::Lease(session, answer) => Done::Lease(answer, self.lease_take(session)),
        }
    }

    /// Does all of `write` or nothing: in a savepoint, or with all of the transaction if it is `alone` in it.
    fn undoable<T>(
        &self,
        alone: bool,
        write: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if alone {
            let result = write(&self.connection);
            if result.is_err() && !self.connection.is_autocommit() {
                self.execute("ROLLBACK").map_err(|error| StoreError::Unavailable(error.to_string()))?;
            }
            return result;
        }
        self.execute("SAVEPOINT one").map_err(|error| of_write(&error))?;
        match write(&self.connection) {
            Ok(value) => self.execute("RELEASE one").map(|()| value).map_err(|error| of_write(&error)),
            Err(failure) => {
                if !self.connection.is_autocommit() {
                    let undone = self.execute("ROLLBACK TO one").and_then(|()| self.execute("RELEASE one"));
                    undone.map_err(|error| StoreError::Unavailable(error.to_string()))?;
                }
                Err(failure)
            }
        }
    }

    /// Commits the transaction, or makes sure that it is gone.
    fn finish(&self, fault: Option<Fault>) -> Result<(), StoreError> {
        let result = match fault {
            Some(Fault::CommitFails) => Err(StoreError::Unavailable(Fault::CommitFails.message())),
            _ => self.execute("COMMIT").map_err(|error| StoreError::Unavailable(error.to_string())),
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

    /// Lets the file grow, or not a page more: to SQLite, that is a full disk.
    fn pages_limit(&self, grow: bool) {
        let limit = if grow { Ok(i64::from(u32::MAX - 1)) } else { self.page_count() };
        let limited = limit.and_then(|pages| {
            self.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
        });
        if let Err(error) = limited {
            tracing::error!(%error, "a fault could not be injected");
        }
    }

    fn page_count(&self) -> rusqlite::Result<i64> {
        self.connection.pragma_query_value(None, "page_count", |row| row.get(0))
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }

    fn lease_take(&self, session: SessionId) -> Result<Fence, StoreError> {
        let first = self.boot << LEASE_BITS;
        let mut leases = self.shared.leases.lock();
        let epoch = leases.get(&session).map_or(first, |lease| lease.epoch) + 1;
        if epoch >= first + (1 << LEASE_BITS) {
            return Err(StoreError::Unavailable("this session was taken too often: restart".into()));
        }
        leases.insert(session, Lease { epoch, dropped: 0 });
        Ok(Fence { session, epoch })
    }

    fn drops_note(&self, drops: &[(SessionId, u64)]) {
        let mut leases = self.shared.leases.lock();
        for (session, before) in drops {
            if let Some(lease) = leases.get_mut(session) {
                lease.dropped = lease.dropped.max(*before);
            }
        }
    }

    fn chunks_write(&self, jobs: VecDeque<ChunkJob>) {
        let result = self.chunks_try(&jobs).map_err(|error| StoreError::Unavailable(error.to_string()));
        if result.is_err() && !self.connection.is_autocommit() {
            let _ = self.execute("ROLLBACK");
        }
        for job in jobs {
            let _ = job.answer.send(result.clone());
        }
    }

    fn chunks_try(&self, jobs: &VecDeque<ChunkJob>) -> rusqlite::Result<()> {
        self.execute("BEGIN IMMEDIATE")?;
        let mut insert = self.connection.prepare_cached(
            "INSERT OR IGNORE INTO chunks (session_id, pos, message_id, block, text) SELECT ?1, ?2, ?3, ?4, ?5 \
             WHERE NOT EXISTS (SELECT 1 FROM messages WHERE message_id = ?3)",
        )?;
        let leases = self.shared.leases.lock();
        for chunk in jobs.iter().flat_map(|job| &job.chunks) {
            let lease = leases.get(&chunk.fence.session).filter(|lease| lease.epoch == chunk.fence.epoch);
            // The commit that completes a message overtakes its last chunks; even one whose outcome was not known,
            // and whose drop was therefore not noted, has left the message.
            if lease.is_some_and(|lease| chunk.pos >= lease.dropped) {
                let (session, message) = (chunk.fence.session.bytes(), chunk.message.bytes());
                insert.execute(params![session, int(chunk.pos), message, chunk.block, chunk.text])?;
            }
        }
        drop(leases);
        self.execute("COMMIT")
    }
}

impl Job {
    /// The answer to a job that was not even tried, since its group has failed.
    fn unanswered(self) -> Done {
        let failed = || StoreError::Unavailable("not tried".into());
        match self {
            Self::Commit(_, answer) => Done::Commit(answer, Err(failed())),
            Self::Lease(_, answer) => Done::Lease(answer, Err(failed())),
            Self::Purge(_, answer)
            | Self::Prune(_, answer)
            | Self::Forget(_, answer)
            | Self::Settled(_, answer)
            | Self::Search(answer)
            | Self::Agent(_, answer)
            | Self::AgentDelete(_, answer)
            | Self::Claimed(_, answer) => Done::More(answer, Err(failed())),
            Self::State(_, answer) => Done::State(answer, Err(failed())),
            Self::Key(_, answer) => Done::Key(answer, Err(failed())),
        }
    }
}
