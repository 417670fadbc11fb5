//! The durable store: one SQLite file, one writer thread, a few readers.
//!
//! ```text
//! tasks ──commits──▶ queue ──▶ writer thread ──▶ one write connection ──▶ WAL
//!       ──reads────▶ readers (threads, read-only connections) ◀──────────┘
//! ```
//!
//! Invariant: a commit returns after its transaction has ended, and every read that starts later sees it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use async_trait::async_trait;
use mainspring_core::{
    ApiKey, Artifact, ArtifactAge, ArtifactId, Attempt, AttemptId, Binding, Cursor, DeadLetter, Delegation,
    Digest, Event, Feedback, Grant, GrantId, History, KeyId, Line, LineId, MessageId, NodeId, Point,
    Position, Rows, Run, RunId, Session, SessionId, Spend, StateChange, StateEntry, StateOutcome, StateSlot,
    Step, Time, Usage, Webhook, WebhookId,
};
use mainspring_kernel::search::Query;
use mainspring_kernel::store::{
    AgentRow, ArtifactPage, Chunk, Commit, DelegationsOf, EdgeChange, EdgeRecord, Fence, FoundMessages,
    GoalTypeRow, GrantPage, IdPage, InboxItem, KeyPage, KeyRef, Loaded, LostEvents, OwnerState, OwnerUsage,
    PlacedMessage, Request, RunPage, SessionLine, SessionPage, SessionRef, StateAt, StateHistoryOf, Store,
    StoreError, TreeRow, TreeState, Unfinished, WebhookChange,
};
use rusqlite::Connection;
use tokio::sync::oneshot;

use self::apply::Prepared;
use self::checker::Checker;
use self::checkpointer::Checkpointer;
use self::readers::Readers;
use self::writer::{Answer, ChunkJob, IndexJob, Job, Shared};
use crate::Fault;

mod agents;
mod apply;
mod backup;
mod boot;
mod check;
mod checker;
mod checkpointer;
mod checksum;
mod columns;
pub(crate) mod copy;
mod data;
mod digests;
mod edge;
mod error;
mod event_blocks;
mod failure_log;
mod feedback;
mod files;
mod goal_types;
mod inherited;
mod migrate;
mod omi;
mod open;
mod options;
mod owners;
mod pins;
mod probes;
mod purge;
mod queue;
mod read;
mod readers;
mod repair;
mod search;
mod start;
mod state;
mod state_history;
mod steps;
mod usage;
mod verify;
mod view;
mod wal;
mod webhooks;
mod write;
mod write_records;
mod writer;

pub use self::backup::{CopySummary, RestoredCursors, database_restore, database_vacuum};
pub use self::check::SqliteCheck;
pub use self::checksum::ChecksumReport;
pub use self::migrate::SCHEMA_VERSION;
pub use self::omi::{
    OMI_DATABASE, OmiArtifact, OmiError, OmiNote, OmiOffer, OmiOptions, OmiReport, OmiSource,
    omi_offer_without_store,
};
pub use self::open::OpenError;
pub use self::options::{Durability, SqliteOptions};
pub use self::repair::{Repaired, database_repair};
pub use self::verify::{Verification, Verified};
pub use self::view::{SqliteView, UnfinishedRuns};

/// A store in one SQLite file.
///
/// The caller must own the state directory, so that no other process writes the file. Dropping the store writes all
/// queued commits and merges the WAL into the file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    shared: Arc<Shared>,
    pragmas: Vec<(&'static str, i64)>,
    checker: Option<Checker>,
    /// Dropped before the writer, so that no reader blocks the last checkpoint.
    readers: Option<Readers>,
    /// Dropped before the writer, which closes the database.
    checkpointer: Option<Checkpointer>,
    writer: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Finds a database of the original daemon that lies in the store's folder and was not imported into the store.
    pub async fn omi_offer(&self) -> Option<OmiOffer> {
        let path = self.path.clone();
        self.read(move |connection| Ok(omi::offer(&path, Some(connection)))).await.ok().flatten()
    }

    /// Writes all queued commits and closes the file, as dropping does.
    pub fn close(self) {
        drop(self);
    }

    /// Runs `read` on a reader thread.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(readers) = &self.readers else { return Err(closed()) };
        match readers.read(read).await {
            // An unused connection opens its files only now: report why the store cannot be used, if that is known.
            Err(StoreError::Unavailable(reason)) => {
                Err(self.shared.check_writable().err().unwrap_or(StoreError::Unavailable(reason)))
            }
            result => result,
        }
    }

    /// Queues a job for the writer thread and waits for its answer.
    async fn submit<T>(&self, job: impl FnOnce(Answer<T>) -> Job) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.shared.queue.push_urgent(job(answer)).map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.checker = None;
        self.readers = None;
        self.checkpointer = None;
        self.shared.queue.close();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the writer thread panicked");
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

#[async_trait]
impl Store for SqliteStore {
    async fn commit(&self, commit: Arc<Commit>) -> Result<Vec<Cursor>, StoreError> {
        Fault::CommitPanics.panic_if_in(&mut self.shared.fault.lock());
        let prepared = Prepared::new(commit)?;
        self.submit(|answer| Job::Commit(prepared, answer)).await
    }

    async fn chunks_write(&self, chunks: Vec<Chunk>) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        self.shared.queue.push_lazy(ChunkJob { chunks, answer }).map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn lease_take(&self, session: SessionId, _node: NodeId) -> Result<Fence, StoreError> {
        self.submit(|answer| Job::Lease(session, answer)).await
    }

    async fn lease_release(&self, fence: Fence) -> Result<(), StoreError> {
        self.shared.lease_release(fence);
        Ok(())
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.shared.check_writable()?;
        self.read(read::events::event_last).await.map(drop)
    }

    async fn check_writable(&self) -> Result<(), StoreError> {
        self.submit(Job::Probe).await
    }

    async fn session_purge(&self, session: SessionId) -> Result<bool, StoreError> {
        self.submit(|answer| Job::Purge(session, answer)).await
    }

    async fn events_prune(&self, session: SessionId) -> Result<bool, StoreError> {
        self.submit(|answer| Job::EventsPrune(session, answer)).await
    }

    async fn requests_forget(&self, before: Time) -> Result<(), StoreError> {
        // Most starts find no expired requests: then nothing is written.
        let has_expired = move |connection: &Connection| {
            purge::has_expired_requests(connection, before).map_err(|error| error::read_error(&error))
        };
        if self.read(has_expired).await? {
            while self.submit(|answer| Job::RequestsForget(before, answer)).await? {}
        }
        Ok(())
    }

    async fn unfinished(&self) -> Result<Unfinished, StoreError> {
        self.read(read::sessions::unfinished).await
    }

    async fn session_load(&self, session: SessionId) -> Result<Option<Loaded>, StoreError> {
        Fault::LoadPanics.panic_if_in(&mut self.shared.fault.lock());
        let epoch = self.shared.leases.lock().get(&session).map_or(0, |lease| lease.epoch);
        self.read(move |connection| read::sessions::session_load(connection, session, epoch)).await
    }

    async fn session_find(&self, owner: &str, by: &SessionRef) -> Result<Option<Session>, StoreError> {
        let (owner, by) = (owner.to_owned(), by.clone());
        self.read(move |connection| read::sessions::session_find(connection, &owner, &by)).await
    }

    async fn session_page(&self, page: &SessionPage) -> Result<Rows<(Session, Option<Run>)>, StoreError> {
        let page = page.clone();
        self.read(move |connection| read::sessions::session_page(connection, &page)).await
    }

    async fn run_get(&self, run: RunId) -> Result<Option<Run>, StoreError> {
        self.read(move |connection| read::runs::run_get(connection, run)).await
    }

    async fn run_by_request(
        &self,
        owner: &str,
        client: &str,
        request: &str,
    ) -> Result<Option<Run>, StoreError> {
        let (owner, client, request) = (owner.to_owned(), client.to_owned(), request.to_owned());
        self.read(move |connection| read::runs::run_by_request(connection, &owner, &client, &request)).await
    }

    async fn run_page(&self, page: &RunPage) -> Result<Rows<Run>, StoreError> {
        let page = page.clone();
        self.read(move |connection| read::runs::run_page(connection, &page)).await
    }

    async fn attempts(&self, run: RunId) -> Result<Rows<Attempt>, StoreError> {
        self.read(move |connection| read::runs::attempts(connection, run)).await
    }

    async fn attempt_get(&self, attempt: AttemptId) -> Result<Option<Attempt>, StoreError> {
        self.read(move |connection| read::runs::attempt_get(connection, attempt)).await
    }

    async fn bindings(
        &self,
        session: SessionId,
        adapter: Option<&str>,
        after: Option<(&str, u32)>,
        limit: usize,
    ) -> Result<Vec<Binding>, StoreError> {
        let adapter = adapter.map(str::to_owned);
        let after = after.map(|(adapter, generation)| (adapter.to_owned(), generation));
        self.read(move |connection| {
            read::bindings::bindings(connection, session, adapter.as_deref(), after, limit)
        })
        .await
    }

    async fn grants(&self, session: SessionId, run: RunId) -> Result<Vec<Grant>, StoreError> {
        self.read(move |connection| read::grants::grants(connection, session, run)).await
    }

    async fn grant_get(&self, id: GrantId) -> Result<Option<Grant>, StoreError> {
        self.read(move |connection| read::grants::grant_get(connection, id)).await
    }

    async fn grant_page(&self, page: &GrantPage) -> Result<Vec<Grant>, StoreError> {
        let page = page.clone();
        self.read(move |connection| read::grants::grant_page(connection, &page)).await
    }

    async fn inbox(&self, session: SessionId) -> Result<Vec<InboxItem>, StoreError> {
        self.read(move |connection| read::sessions::inbox(connection, session)).await
    }

    async fn delegations(&self, of: &DelegationsOf) -> Result<Vec<Delegation>, StoreError> {
        let of = *of;
        self.read(move |connection| read::delegations::delegations(connection, of)).await
    }

    async fn id_page(&self, page: &IdPage) -> Result<Option<Vec<[u8; 16]>>, StoreError> {
        let page = page.clone();
        self.read(move |connection| read::ids::id_page(connection, &page)).await
    }

    async fn session_usage(&self, session: SessionId) -> Result<(u64, Usage), StoreError> {
        self.read(move |connection| read::runs::session_usage(connection, session)).await
    }

    async fn runs_live(&self, owner: &str, org: Option<&str>) -> Result<Rows<Run>, StoreError> {
        let (owner, org) = (owner.to_owned(), org.map(str::to_owned));
        self.read(move |connection| read::sessions::runs_live_of(connection, &owner, org.as_deref())).await
    }

    async fn delegated_usage(&self, session: SessionId) -> Result<(u64, Usage), StoreError> {
        self.read(move |connection| read::runs::delegated_usage(connection, session)).await
    }

    async fn steps(&self, run: RunId) -> Result<Rows<Step>, StoreError> {
        self.read(move |connection| steps::steps(connection, run)).await
    }

    async fn step_input(&self, session: SessionId, hash: &str) -> Result<Option<String>, StoreError> {
        let hash = hash.to_owned();
        self.read(move |connection| steps::step_input(connection, session, &hash)).await
    }

    async fn digest(&self, session: SessionId, tip: Point) -> Result<Option<Digest>, StoreError> {
        self.read(move |connection| digests::digest(connection, session, tip)).await
    }

    async fn request_get(
        &self,
        owner: &str,
        operation: &str,
        key: &str,
    ) -> Result<Option<Request>, StoreError> {
        let (owner, operation, key) = (owner.to_owned(), operation.to_owned(), key.to_owned());
        self.read(move |connection| read::runs::request_get(connection, &owner, &operation, &key)).await
    }

    async fn events_after(
        &self,
        session: SessionId,
        run: Option<RunId>,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        self.read(move |connection| read::events::events_after(connection, session, run, after, limit)).await
    }

    async fn owner_events(
        &self,
        owner: &str,
        types: Option<&[&'static str]>,
        after: Cursor,
        limit: usize,
    ) -> Result<(Vec<Event>, Cursor), StoreError> {
        let (owner, types) = (owner.to_owned(), types.map(<[_]>::to_vec));
        self.read(move |connection| {
            read::events::owner_events(connection, &owner, types.as_deref(), after, limit)
        })
        .await
    }

    async fn lost_events(&self) -> Result<Vec<LostEvents>, StoreError> {
        self.read(read::events::lost_events).await
    }

    async fn histories(&self) -> Result<Vec<History>, StoreError> {
        self.read(read::events::histories).await
    }

    async fn event_last(&self) -> Result<Cursor, StoreError> {
        self.read(read::events::event_last).await
    }

    async fn event_before(&self, session: SessionId, before: Cursor) -> Result<Option<Position>, StoreError> {
        self.read(move |connection| read::events::event_before(connection, session, before)).await
    }

    async fn path(
        &self,
        tip: Point,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Rows<PlacedMessage>, StoreError> {
        self.read(move |connection| read::tree::path(connection, tip, before, limit)).await
    }

    async fn message_get(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
        self.read(move |connection| read::tree::message_get(connection, session, message)).await
    }

    async fn lines_to_root(
        &self,
        session: SessionId,
        line: LineId,
        limit: usize,
    ) -> Result<Vec<SessionLine>, StoreError> {
        self.read(move |connection| read::tree::lines_to_root(connection, session, line, limit)).await
    }

    async fn leaf(
        &self,
        session: SessionId,
        at: Point,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
        self.read(move |connection| read::tree::leaf(connection, session, at)).await
    }

    async fn children(
        &self,
        session: SessionId,
        at: Option<Point>,
        limit: usize,
    ) -> Result<Vec<MessageId>, StoreError> {
        self.read(move |connection| read::tree::children(connection, session, at, limit)).await
    }

    async fn search_index(&self) -> Result<bool, StoreError> {
        let unindexed = |connection: &Connection| {
            search::unindexed(connection).map_err(|error| error::read_error(&error))
        };
        match self.read(unindexed).await? {
            Some(text) => {
                let (answer, answered) = oneshot::channel();
                self.shared.queue.push_background(IndexJob { text, answer }).map_err(|_| closed())?;
                answered.await.unwrap_or_else(|_| Err(closed()))
            }
            None => Ok(false),
        }
    }

    async fn search_titles(
        &self,
        owner: &str,
        query: &Query,
        before: Option<(Time, SessionId)>,
        limit: usize,
    ) -> Result<Rows<Session>, StoreError> {
        let (owner, query) = (owner.to_owned(), query.clone());
        self.read(move |connection| read::search::search_titles(connection, &owner, &query, before, limit))
            .await
    }

    async fn owners_sharing(&self, org: &str) -> Result<Vec<String>, StoreError> {
        let org = org.to_owned();
        self.read(move |connection| read::sessions::owners_sharing(connection, &org)).await
    }

    async fn search_messages(
        &self,
        owner: &str,
        query: &Query,
        before: Option<u64>,
        limit: usize,
    ) -> Result<FoundMessages, StoreError> {
        let (owner, query) = (owner.to_owned(), query.clone());
        let read = move |connection: &Connection| {
            read::search::search_messages(connection, &owner, &query, before, limit)
        };
        self.read(read).await
    }

    async fn session_exists(&self, session: SessionId) -> Result<bool, StoreError> {
        self.read(move |connection| read::sessions::session_exists(connection, session)).await
    }

    async fn session_forks(&self, session: SessionId) -> Result<Vec<SessionId>, StoreError> {
        self.read(move |connection| read::sessions::session_forks(connection, session)).await
    }

    async fn tree_row(&self, session: SessionId, message: MessageId) -> Result<Option<TreeRow>, StoreError> {
        self.read(move |connection| read::tree::tree_row(connection, session, message)).await
    }

    async fn tree_page(
        &self,
        session: SessionId,
        after: Option<Point>,
        limit: usize,
    ) -> Result<Rows<TreeRow>, StoreError> {
        self.read(move |connection| read::tree::tree_page(connection, session, after, limit)).await
    }

    async fn state_get(&self, at: &StateAt, key: &str) -> Result<StateSlot, StoreError> {
        let (at, key) = (at.clone(), key.to_owned());
        self.read(move |connection| read::data::state_get(connection, &at, &key)).await
    }

    async fn state_page(
        &self,
        at: &StateAt,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Rows<StateEntry>, StoreError> {
        let (at, after) = (at.clone(), after.unwrap_or_default().to_owned());
        self.read(move |connection| read::data::state_page(connection, &at, &after, limit)).await
    }

    async fn state_count(&self, at: &StateAt) -> Result<usize, StoreError> {
        let at = at.clone();
        self.read(move |connection| read::data::state_count(connection, &at)).await
    }

    async fn state_put(&self, put: OwnerState) -> Result<StateOutcome, StoreError> {
        self.submit(|answer| Job::StatePut(put, answer)).await
    }

    async fn state_history(
        &self,
        of: &StateHistoryOf,
        key: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Rows<StateChange>, StoreError> {
        let (of, key) = (of.clone(), key.to_owned());
        self.read(move |connection| state_history::state_history(connection, &of, &key, before, limit)).await
    }

    async fn state_changes(
        &self,
        of: &StateHistoryOf,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Rows<StateChange>, StoreError> {
        let (of, after) = (of.clone(), after.unwrap_or_default());
        self.read(move |connection| state_history::state_changes(connection, &of, &after, limit)).await
    }

    async fn tree_state(
        &self,
        session: SessionId,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Rows<TreeState>, StoreError> {
        let after = after.unwrap_or_default();
        self.read(move |connection| read::tree_state::tree_state(connection, session, &after, limit)).await
    }

    async fn line_orders(&self, session: SessionId) -> Result<Vec<(LineId, i64)>, StoreError> {
        self.read(move |connection| read::tree_state::line_orders(connection, session)).await
    }

    async fn artifact_get(&self, artifact: ArtifactId) -> Result<Option<Artifact>, StoreError> {
        self.read(move |connection| read::artifacts::artifact_get(connection, artifact)).await
    }

    async fn artifact_page(&self, page: &ArtifactPage) -> Result<Rows<Artifact>, StoreError> {
        let page = page.clone();
        self.read(move |connection| read::artifacts::artifact_page(connection, &page)).await
    }

    async fn artifact_ages(
        &self,
        after: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Vec<ArtifactAge>, StoreError> {
        self.read(move |connection| read::artifacts::artifact_ages(connection, after, limit)).await
    }

    async fn artifacts_named(&self) -> Result<HashSet<ArtifactId>, StoreError> {
        self.read(read::artifacts::artifacts_named).await
    }

    async fn memory_candidates(
        &self,
        after: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Vec<Artifact>, StoreError> {
        self.read(move |connection| read::artifacts::memory_candidates(connection, after, limit)).await
    }

    async fn blob_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, u64)>, StoreError> {
        let after = after.unwrap_or_default().to_owned();
        self.read(move |connection| read::artifacts::blob_page(connection, &after, limit)).await
    }

    async fn blob_is_used(&self, hash: &str) -> Result<bool, StoreError> {
        self.submit(|answer| Job::BlobClaimed(hash.to_owned(), answer)).await
    }

    async fn blob_loose(&self, limit: usize) -> Result<Vec<String>, StoreError> {
        self.read(move |connection| read::artifacts::blob_loose(connection, limit)).await
    }

    async fn blob_forget(&self, hash: &str) -> Result<(), StoreError> {
        self.submit(|answer| Job::BlobSettled(hash.to_owned(), answer)).await.map(drop)
    }

    async fn key_write(&self, key: &ApiKey, request: Option<&Request>) -> Result<(), StoreError> {
        let written = Box::new((key.clone(), request.cloned()));
        self.submit(|answer| Job::KeyWrite(written, answer)).await
    }

    async fn key_find(&self, by: &KeyRef) -> Result<Option<ApiKey>, StoreError> {
        let by = *by;
        self.read(move |connection| read::keys::key_find(connection, by)).await
    }

    async fn key_page(&self, page: &KeyPage) -> Result<Vec<ApiKey>, StoreError> {
        let page = page.clone();
        self.read(move |connection| read::keys::key_page(connection, &page)).await
    }

    async fn webhook_write(&self, change: &WebhookChange) -> Result<bool, StoreError> {
        self.submit(|answer| Job::Webhook(Box::new(change.clone()), answer)).await
    }

    async fn webhooks(&self, owner: Option<&str>) -> Result<Vec<Webhook>, StoreError> {
        let owner = owner.map(str::to_owned);
        self.read(move |connection| webhooks::webhooks(connection, owner.as_deref())).await
    }

    async fn dead_letters(
        &self,
        webhook: WebhookId,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.read(move |connection| webhooks::dead_letters(connection, webhook, after, limit)).await
    }

    async fn feedback_list(
        &self,
        session: SessionId,
        message: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<Feedback>, StoreError> {
        self.read(move |connection| feedback::feedback_list(connection, session, message, limit)).await
    }

    async fn artifact_heirs(&self, artifact: ArtifactId) -> Result<Vec<Artifact>, StoreError> {
        self.read(move |connection| inherited::inherited_by_id(connection, artifact)).await
    }

    async fn artifacts_inherited(&self, fork: SessionId) -> Result<Vec<Artifact>, StoreError> {
        self.read(move |connection| inherited::inherited_of(connection, fork)).await
    }

    async fn pins(&self, owner: &str) -> Result<Vec<(SessionId, Time)>, StoreError> {
        let owner = owner.to_owned();
        self.read(move |connection| pins::pins(connection, &owner)).await
    }

    async fn runs_planned(&self, session: SessionId, limit: usize) -> Result<Rows<Run>, StoreError> {
        self.read(move |connection| goal_types::runs_planned(connection, session, limit)).await
    }

    async fn goal_type_write(&self, row: &GoalTypeRow) -> Result<bool, StoreError> {
        self.submit(|answer| Job::GoalType(Box::new(row.clone()), answer)).await
    }

    async fn edge_write(&self, change: &EdgeChange) -> Result<bool, StoreError> {
        self.submit(|answer| Job::Edge(Box::new(change.clone()), answer)).await
    }

    async fn edge_record(
        &self,
        kind: &'static str,
        scope: &str,
        id: &str,
    ) -> Result<Option<EdgeRecord>, StoreError> {
        let (scope, id) = (scope.to_owned(), id.to_owned());
        self.read(move |connection| edge::edge_record(connection, kind, &scope, &id)).await
    }

    async fn edge_records(
        &self,
        kind: &'static str,
        scope: Option<&str>,
    ) -> Result<Vec<EdgeRecord>, StoreError> {
        let scope = scope.map(str::to_owned);
        self.read(move |connection| edge::edge_records(connection, kind, scope.as_deref())).await
    }

    async fn goal_types(&self, owner: &str) -> Result<Vec<GoalTypeRow>, StoreError> {
        let owner = owner.to_owned();
        self.read(move |connection| goal_types::goal_types(connection, &owner)).await
    }

    async fn agent_write(&self, agent: &AgentRow) -> Result<bool, StoreError> {
        self.submit(|answer| Job::AgentWrite(Box::new(agent.clone()), answer)).await
    }

    async fn agent_delete(&self, owner: &str, id: &str, version: u32) -> Result<bool, StoreError> {
        let agent = (owner.to_owned(), id.to_owned(), version);
        self.submit(|answer| Job::AgentDelete(agent, answer)).await
    }

    async fn agent_find(
        &self,
        owner: &str,
        id: &str,
        version: Option<u32>,
    ) -> Result<Option<AgentRow>, StoreError> {
        let (owner, id) = (owner.to_owned(), id.to_owned());
        self.read(move |connection| agents::agent_find(connection, &owner, &id, version)).await
    }

    async fn agent_page(
        &self,
        owner: &str,
        after: Option<&(String, u32)>,
        limit: usize,
    ) -> Result<Vec<AgentRow>, StoreError> {
        let (owner, after) = (owner.to_owned(), after.cloned());
        self.read(move |connection| agents::agent_page(connection, &owner, after.as_ref(), limit)).await
    }

    async fn agent_count(&self, owner: &str) -> Result<usize, StoreError> {
        let owner = owner.to_owned();
        self.read(move |connection| agents::agent_count(connection, &owner)).await
    }

    async fn owner_usage(&self, owner: &str) -> Result<OwnerUsage, StoreError> {
        let owner = owner.to_owned();
        self.read(move |connection| usage::owner_usage(connection, &owner)).await
    }

    async fn owner_outside_org(&self, owner: &str, org: &str) -> Result<bool, StoreError> {
        let (owner, org) = (owner.to_owned(), org.to_owned());
        self.read(move |connection| read::keys::owner_outside_org(connection, &owner, &org)).await
    }

    async fn owner_claim(&self, owner: &str, org: Option<&str>, at: Time) -> Result<bool, StoreError> {
        let claim = (owner.to_owned(), org.map(str::to_owned), at);
        self.submit(|answer| Job::OwnerClaim(claim, answer)).await
    }

    async fn owner_org(&self, owner: &str) -> Result<Option<String>, StoreError> {
        let owner = owner.to_owned();
        self.read(move |connection| read::keys::owner_org(connection, &owner)).await
    }

    async fn owner_known(&self, owner: &str) -> Result<bool, StoreError> {
        let owner = owner.to_owned();
        self.read(move |connection| read::keys::owner_known(connection, &owner)).await
    }

    async fn org_known(&self, org: &str) -> Result<bool, StoreError> {
        let org = org.to_owned();
        self.read(move |connection| read::keys::org_known(connection, &org)).await
    }

    async fn key_spend(&self, key: KeyId, day: i64) -> Result<Spend, StoreError> {
        self.read(move |connection| {
            owners::spend_read(connection, key, day).map_err(|error| error::read_error(&error))
        })
        .await
    }
}
