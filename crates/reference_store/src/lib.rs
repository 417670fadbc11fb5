//! The reference store: in memory, and simple enough to be verified by reading.
//!
//! A commit is applied to a copy of all tables, which is checked and then replaces the original. This is slow on
//! purpose. Tests compare the durable stores with this store, and tests of the kernel use it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::{
    ApiKey, Artifact, ArtifactAge, ArtifactId, Attempt, AttemptId, Binding, Cursor, DeadLetter, Delegation,
    Digest, Event, Feedback, Grant, GrantId, History, KeyId, Line, LineId, MessageId, NodeId, Point,
    Position, Rows, Run, RunId, Session, SessionId, SessionStatus, Spend, StateChange, StateEntry,
    StateOutcome, StateSlot, Step, Time, Usage, Webhook, WebhookId,
};
use mainspring_kernel::search::Query;
use mainspring_kernel::store::{
    AgentRow, ArtifactPage, Chunk, Commit, DelegationsOf, EdgeChange, EdgeRecord, Fence, FoundMessages,
    GoalTypeRow, GrantPage, IdPage, InboxItem, KeyPage, KeyRef, Loaded, LostEvents, OwnerState, OwnerUsage,
    PlacedMessage, Request, Row, RunPage, SessionLine, SessionPage, SessionRef, StateAt, StateHistoryOf,
    Store, StoreError, TreeRow, TreeState, Unfinished, WebhookChange,
};
use mainspring_store::Fault;
use parking_lot::Mutex;

use self::tables::Tables;

mod agents;
mod apply;
mod check;
mod data;
mod edge;
mod feedback;
mod goal_types;
mod grants;
mod ids;
mod inherited;
mod keys;
mod pins;
mod purge;
mod read;
mod search;
mod state_history;
mod tables;
mod tree;
mod tree_state;
mod webhooks;

/// A store that loses its contents when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    tables: Tables,
    leases: HashMap<SessionId, Lease>,
    last_epoch: u64,
    fault: Option<Fault>,
    reads: u64,
    lost: Vec<LostEvents>,
    is_full: bool,
    has_unreadable_runs: bool,
    has_unreadable_sessions: bool,
    fails_owner_events: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lease {
    epoch: u64,
    /// Streamed text before this position is stored in messages already. Late chunks of that text are ignored.
    dropped_before: u64,
}

impl MemoryStore {
    /// Skips the cursors up to `until`, as a restore from a backup does.
    #[doc(hidden)]
    pub fn lose_events(&self, until: Cursor) {
        let mut inner = self.inner.lock();
        let after = Cursor(inner.tables.seq);
        inner.lost.push(LostEvents { after, until });
        inner.tables.seq = until.0;
    }

    /// Simulates a full disk until it is called with false.
    #[doc(hidden)]
    pub fn set_full(&self, is_full: bool) {
        self.inner.lock().is_full = is_full;
    }

    /// Makes every [`Store::run_get`] fail until it is called with false. Lists of runs can still be read.
    #[doc(hidden)]
    pub fn set_runs_unreadable(&self, unreadable: bool) {
        self.inner.lock().has_unreadable_runs = unreadable;
    }

    /// Makes every load of a session fail until it is called with false.
    #[doc(hidden)]
    pub fn set_sessions_unreadable(&self, unreadable: bool) {
        self.inner.lock().has_unreadable_sessions = unreadable;
    }

    /// Makes the next read of an owner's events fail.
    #[doc(hidden)]
    pub fn fail_owner_events(&self) {
        self.inner.lock().fails_owner_events = true;
    }

    /// True if the next read of an owner's events will fail.
    #[doc(hidden)]
    pub fn fails_owner_events(&self) -> bool {
        self.inner.lock().fails_owner_events
    }

    /// Injects `fault` into the next commit, or into the next write of an owner's state, a key, a webhook, a
    /// goal type, an agent or an edge record if that comes first. [`Fault::LoadPanics`] applies to the next
    /// load of a session instead.
    #[doc(hidden)]
    pub fn inject_fault(&self, fault: Fault) {
        self.inner.lock().fault = Some(fault);
    }

    /// Returns the number of reads so far, not counting loads of whole sessions.
    #[doc(hidden)]
    pub fn reads(&self) -> u64 {
        self.inner.lock().reads
    }

    fn read<T>(&self, read: impl FnOnce(&Tables) -> T) -> Result<T, StoreError> {
        let mut inner = self.inner.lock();
        inner.reads += 1;
        Ok(read(&inner.tables))
    }
}

impl Inner {
    fn is_current(&self, fence: Fence) -> bool {
        self.leases.get(&fence.session).is_some_and(|lease| lease.epoch == fence.epoch)
    }

    fn commit(&mut self, commit: &Commit) -> Result<Vec<Cursor>, StoreError> {
        self.with_fault(|inner| inner.commit_checked(commit))
    }

    /// Runs `write` under the injected fault, if there is one.
    fn with_fault<T>(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // A fault applies to the next write even if the write would be refused, as in the commit groups of the durable
        // stores.
        Fault::CommitPanics.panic_if_in(&mut self.fault);
        let fault = self.fault.take_if(|fault| *fault != Fault::LoadPanics);
        if self.is_full || fault == Some(Fault::DiskFull) {
            return Err(StoreError::Full(Fault::DiskFull.message()));
        }
        if fault == Some(Fault::CommitFails) {
            return Err(StoreError::Unavailable(Fault::CommitFails.message()));
        }
        if fault == Some(Fault::WritePanics) {
            return Err(StoreError::Corrupt(Fault::WritePanics.message()));
        }
        let result = write(self);
        if fault == Some(Fault::OutcomeUnknown) {
            return Err(StoreError::Unavailable(Fault::OutcomeUnknown.message()));
        }
        result
    }

    fn commit_checked(&mut self, commit: &Commit) -> Result<Vec<Cursor>, StoreError> {
        if !self.is_current(commit.fence) {
            return Err(StoreError::Fenced);
        }
        let mut next = self.tables.clone();
        let cursors = next.apply(commit)?;
        next.check()?;
        self.tables = next;
        for row in &commit.rows {
            if let (Row::ChunksDrop(before), Some(lease)) = (row, self.leases.get_mut(&commit.fence.session))
            {
                lease.dropped_before = lease.dropped_before.max(*before);
            }
        }
        Ok(cursors)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, commit: Arc<Commit>) -> Result<Vec<Cursor>, StoreError> {
        self.inner.lock().commit(&commit)
    }

    async fn chunks_write(&self, chunks: Vec<Chunk>) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        if inner.is_full {
            return Err(StoreError::Full(Fault::DiskFull.message()));
        }
        for chunk in chunks {
            let lease = inner.leases.get(&chunk.fence.session).copied().unwrap_or_default();
            let is_complete = inner.tables.messages.contains_key(&chunk.message);
            if inner.is_current(chunk.fence) && chunk.pos >= lease.dropped_before && !is_complete {
                inner.tables.chunks.entry((chunk.fence.session, chunk.pos)).or_insert(chunk);
            }
        }
        Ok(())
    }

    async fn check_writable(&self) -> Result<(), StoreError> {
        match self.inner.lock().is_full {
            true => Err(StoreError::Full(Fault::DiskFull.message())),
            false => Ok(()),
        }
    }

    async fn lease_take(&self, session: SessionId, _node: NodeId) -> Result<Fence, StoreError> {
        let mut inner = self.inner.lock();
        inner.last_epoch += 1;
        let epoch = inner.last_epoch;
        inner.leases.insert(session, Lease { epoch, dropped_before: 0 });
        Ok(Fence { session, epoch })
    }

    async fn lease_release(&self, fence: Fence) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        if inner.is_current(fence) {
            inner.leases.remove(&fence.session);
        }
        Ok(())
    }

    async fn health(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn session_purge(&self, session: SessionId) -> Result<bool, StoreError> {
        self.inner.lock().tables.purge(session);
        Ok(false)
    }

    async fn events_prune(&self, session: SessionId) -> Result<bool, StoreError> {
        self.inner.lock().tables.prune(session);
        Ok(false)
    }

    async fn requests_forget(&self, before: Time) -> Result<(), StoreError> {
        self.inner.lock().tables.requests.retain(|_, request| request.at >= before);
        Ok(())
    }

    async fn unfinished(&self) -> Result<Unfinished, StoreError> {
        self.read(Tables::unfinished)
    }

    async fn session_load(&self, session: SessionId) -> Result<Option<Loaded>, StoreError> {
        let mut inner = self.inner.lock();
        Fault::LoadPanics.panic_if_in(&mut inner.fault);
        if inner.has_unreadable_sessions {
            return Err(StoreError::Unavailable("the injected fault of reads".into()));
        }
        let epoch = inner.leases.get(&session).map_or(0, |lease| lease.epoch);
        Ok(inner.tables.session_load(Fence { session, epoch }))
    }

    async fn session_find(&self, owner: &str, by: &SessionRef) -> Result<Option<Session>, StoreError> {
        self.read(|tables| tables.session_find(owner, by))
    }

    async fn session_page(&self, page: &SessionPage) -> Result<Rows<(Session, Option<Run>)>, StoreError> {
        self.read(|tables| tables.session_page(page).into())
    }

    async fn run_get(&self, run: RunId) -> Result<Option<Run>, StoreError> {
        if self.inner.lock().has_unreadable_runs {
            return Err(StoreError::Unavailable("the injected fault of reads".into()));
        }
        self.read(|tables| tables.run_get(run))
    }

    async fn run_by_request(
        &self,
        owner: &str,
        client: &str,
        request: &str,
    ) -> Result<Option<Run>, StoreError> {
        self.read(|tables| tables.run_by_request(owner, client, request))
    }

    async fn run_page(&self, page: &RunPage) -> Result<Rows<Run>, StoreError> {
        self.read(|tables| tables.run_page(page).into())
    }

    async fn attempts(&self, run: RunId) -> Result<Rows<Attempt>, StoreError> {
        self.read(|tables| {
            let of_run = tables.attempts.range((run, 0)..=(run, u32::MAX));
            of_run.map(|(_, attempt)| Ok(attempt.clone())).collect()
        })
    }

    async fn attempt_get(&self, attempt: AttemptId) -> Result<Option<Attempt>, StoreError> {
        self.read(|tables| tables.attempts.values().find(|found| found.id == attempt).cloned())
    }

    async fn bindings(
        &self,
        session: SessionId,
        adapter: Option<&str>,
        after: Option<(&str, u32)>,
        limit: usize,
    ) -> Result<Vec<Binding>, StoreError> {
        self.read(|tables| {
            let is_after = |binding: &&Binding| {
                let name = binding.adapter.as_str();
                after.is_none_or(|(adapter, generation)| {
                    name > adapter || (name == adapter && binding.generation < generation)
                })
            };
            let all = tables.bindings.values().filter(|binding| binding.session == session).filter(is_after);
            let mut bindings: Vec<Binding> =
                all.filter(|binding| adapter.is_none_or(|name| binding.adapter == name)).cloned().collect();
            bindings.sort_by(|a, b| (&a.adapter, b.generation).cmp(&(&b.adapter, a.generation)));
            bindings.truncate(limit);
            bindings
        })
    }

    async fn grants(&self, session: SessionId, run: RunId) -> Result<Vec<Grant>, StoreError> {
        self.read(|tables| tables.grants_of(session, run))
    }

    async fn grant_get(&self, id: GrantId) -> Result<Option<Grant>, StoreError> {
        self.read(|tables| tables.grant_get(id))
    }

    async fn grant_page(&self, page: &GrantPage) -> Result<Vec<Grant>, StoreError> {
        self.read(|tables| tables.grant_page(page))
    }

    async fn inbox(&self, session: SessionId) -> Result<Vec<InboxItem>, StoreError> {
        self.read(|tables| tables.inbox(session))
    }

    async fn delegations(&self, of: &DelegationsOf) -> Result<Vec<Delegation>, StoreError> {
        self.read(|tables| tables.delegations(*of))
    }

    async fn id_page(&self, page: &IdPage) -> Result<Option<Vec<[u8; 16]>>, StoreError> {
        self.read(|tables| tables.id_page(page))?
    }

    async fn session_usage(&self, session: SessionId) -> Result<(u64, Usage), StoreError> {
        self.read(|tables| {
            let runs = tables.runs.values().filter(|run| run.session == session);
            runs.fold((0, Usage::default()), |(count, sum), run| (count + 1, sum + run.usage))
        })
    }

    async fn runs_live(&self, owner: &str, org: Option<&str>) -> Result<Rows<Run>, StoreError> {
        self.read(|tables| tables.runs_live(owner, org).into())
    }

    async fn delegated_usage(&self, session: SessionId) -> Result<(u64, Usage), StoreError> {
        self.read(|tables| tables.delegated_usage(session))
    }

    async fn steps(&self, run: RunId) -> Result<Rows<Step>, StoreError> {
        self.read(|tables| {
            let mut steps: Vec<Step> =
                tables.steps.values().filter(|step| step.run == run).cloned().collect();
            steps.sort_by_key(|step| (step.no, step.completed_at, step.id));
            steps.into()
        })
    }

    async fn step_input(&self, session: SessionId, hash: &str) -> Result<Option<String>, StoreError> {
        self.read(|tables| tables.step_inputs.get(&(session, hash.to_owned())).cloned())
    }

    async fn digest(&self, session: SessionId, tip: Point) -> Result<Option<Digest>, StoreError> {
        self.read(|tables| tables.digest(session, tip))?
    }

    async fn request_get(
        &self,
        owner: &str,
        operation: &str,
        key: &str,
    ) -> Result<Option<Request>, StoreError> {
        self.read(|tables| tables.requests.get(&(owner.into(), operation.into(), key.into())).cloned())
    }

    async fn events_after(
        &self,
        session: SessionId,
        run: Option<RunId>,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        self.read(|tables| tables.events_after(session, run, after, limit))?
    }

    async fn owner_events(
        &self,
        owner: &str,
        types: Option<&[&'static str]>,
        after: Cursor,
        limit: usize,
    ) -> Result<(Vec<Event>, Cursor), StoreError> {
        if std::mem::take(&mut self.inner.lock().fails_owner_events) {
            return Err(StoreError::Unavailable("the injected fault of reads".into()));
        }
        self.read(|tables| tables.owner_events(owner, types, after, limit))?
    }

    async fn histories(&self) -> Result<Vec<History>, StoreError> {
        Ok(vec![])
    }

    async fn lost_events(&self) -> Result<Vec<LostEvents>, StoreError> {
        Ok(self.inner.lock().lost.clone())
    }

    async fn event_last(&self) -> Result<Cursor, StoreError> {
        self.read(|tables| Cursor(tables.seq))
    }

    async fn event_before(&self, session: SessionId, before: Cursor) -> Result<Option<Position>, StoreError> {
        self.read(|tables| tables.event_before(session, before))
    }

    async fn path(
        &self,
        tip: Point,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Rows<PlacedMessage>, StoreError> {
        Ok(self.read(|tables| tables.path(tip, before, limit))??.into())
    }

    async fn message_get(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
        self.read(|tables| tables.message_get(session, message))?
    }

    async fn lines_to_root(
        &self,
        session: SessionId,
        line: LineId,
        limit: usize,
    ) -> Result<Vec<SessionLine>, StoreError> {
        self.read(|tables| tables.lines_to_root(session, line, limit))?
    }

    async fn leaf(
        &self,
        session: SessionId,
        at: Point,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
        self.read(|tables| tables.leaf(session, at))?
    }

    async fn children(
        &self,
        session: SessionId,
        at: Option<Point>,
        limit: usize,
    ) -> Result<Vec<MessageId>, StoreError> {
        self.read(|tables| tables.children(session, at, limit))?
    }

    async fn search_index(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn search_titles(
        &self,
        owner: &str,
        query: &Query,
        before: Option<(Time, SessionId)>,
        limit: usize,
    ) -> Result<Rows<Session>, StoreError> {
        self.read(|tables| tables.search_titles(owner, query, before, limit).into())
    }

    async fn owners_sharing(&self, org: &str) -> Result<Vec<String>, StoreError> {
        self.read(|tables| tables.owners_sharing(org))
    }

    async fn search_messages(
        &self,
        owner: &str,
        query: &Query,
        before: Option<u64>,
        limit: usize,
    ) -> Result<FoundMessages, StoreError> {
        self.read(|tables| {
            let rows = tables.search_messages(owner, query, before, limit).into();
            FoundMessages { rows, searched_to: None }
        })
    }

    async fn session_exists(&self, session: SessionId) -> Result<bool, StoreError> {
        self.read(|tables| tables.sessions.contains_key(&session))
    }

    async fn session_forks(&self, session: SessionId) -> Result<Vec<SessionId>, StoreError> {
        self.read(|tables| {
            let is_fork = |fork: &&Session| fork.forked_from.is_some_and(|origin| origin.session == session);
            let owner = tables.sessions.get(&session).map(|session| &session.owner);
            let forks = tables.sessions.values().filter(|fork| fork.status != SessionStatus::Deleted);
            let forks = forks.filter(|fork| owner == Some(&fork.owner));
            forks.filter(is_fork).map(|fork| fork.id).collect()
        })
    }

    async fn tree_row(&self, session: SessionId, message: MessageId) -> Result<Option<TreeRow>, StoreError> {
        self.read(|tables| tables.tree_row(session, message))?
    }

    async fn tree_page(
        &self,
        session: SessionId,
        after: Option<Point>,
        limit: usize,
    ) -> Result<Rows<TreeRow>, StoreError> {
        Ok(self.read(|tables| tables.tree_page(session, after, limit))??.into())
    }

    async fn state_get(&self, at: &StateAt, key: &str) -> Result<StateSlot, StoreError> {
        self.read(|tables| tables.state_get(at, key))?
    }

    async fn state_page(
        &self,
        at: &StateAt,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Rows<StateEntry>, StoreError> {
        let mut entries = self.read(|tables| tables.state_all(at))??;
        entries.retain(|entry| after.is_none_or(|after| entry.key.as_str() > after));
        entries.truncate(limit);
        Ok(entries.into())
    }

    async fn state_count(&self, at: &StateAt) -> Result<usize, StoreError> {
        Ok(self.read(|tables| tables.state_all(at))??.len())
    }

    async fn state_put(&self, put: OwnerState) -> Result<StateOutcome, StoreError> {
        self.inner.lock().with_fault(|inner| Ok(inner.tables.state_put(put)?))
    }

    async fn state_history(
        &self,
        of: &StateHistoryOf,
        key: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Rows<StateChange>, StoreError> {
        self.read(|tables| tables.state_history(of, key, before, limit).into())
    }

    async fn state_changes(
        &self,
        of: &StateHistoryOf,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Rows<StateChange>, StoreError> {
        self.read(|tables| tables.state_changes(of, after.as_ref(), limit).into())
    }

    async fn tree_state(
        &self,
        session: SessionId,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Rows<TreeState>, StoreError> {
        Ok(self.read(|tables| tables.tree_state(session, after.as_ref(), limit))??.into())
    }

    async fn line_orders(&self, session: SessionId) -> Result<Vec<(LineId, i64)>, StoreError> {
        self.read(|tables| tables.line_orders(session))?
    }

    async fn artifact_get(&self, artifact: ArtifactId) -> Result<Option<Artifact>, StoreError> {
        self.read(|tables| tables.artifact_get(artifact))
    }

    async fn artifact_page(&self, page: &ArtifactPage) -> Result<Rows<Artifact>, StoreError> {
        self.read(|tables| tables.artifact_page(page).into())
    }

    async fn artifact_ages(
        &self,
        after: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Vec<ArtifactAge>, StoreError> {
        self.read(|tables| tables.artifact_ages(after, limit))
    }

    async fn artifacts_named(&self) -> Result<HashSet<ArtifactId>, StoreError> {
        self.read(Tables::artifacts_named)
    }

    async fn memory_candidates(
        &self,
        after: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Vec<Artifact>, StoreError> {
        self.read(|tables| tables.memory_candidates(after, limit))
    }

    async fn blob_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, u64)>, StoreError> {
        self.read(|tables| tables.blob_page(after, limit))
    }

    async fn blob_is_used(&self, hash: &str) -> Result<bool, StoreError> {
        let mut inner = self.inner.lock();
        let claimed = inner.tables.blob_is_used(hash);
        if claimed {
            inner.tables.loose_blobs.remove(hash);
        }
        Ok(claimed)
    }

    async fn blob_loose(&self, limit: usize) -> Result<Vec<String>, StoreError> {
        self.read(|tables| tables.loose_blobs.iter().take(limit).cloned().collect())
    }

    async fn blob_forget(&self, hash: &str) -> Result<(), StoreError> {
        self.inner.lock().tables.loose_blobs.remove(hash);
        Ok(())
    }

    async fn key_write(&self, key: &ApiKey, request: Option<&Request>) -> Result<(), StoreError> {
        self.inner.lock().with_fault(|inner| {
            let mut next = inner.tables.clone();
            request.map_or(Ok(()), |request| next.request_apply(request))?;
            next.keys.insert(key.id, key.clone());
            next.check()?;
            inner.tables = next;
            Ok(())
        })
    }

    async fn key_find(&self, by: &KeyRef) -> Result<Option<ApiKey>, StoreError> {
        self.read(|tables| tables.key_find(by))
    }

    async fn key_page(&self, page: &KeyPage) -> Result<Vec<ApiKey>, StoreError> {
        self.read(|tables| tables.key_page(page))
    }

    async fn webhook_write(&self, change: &WebhookChange) -> Result<bool, StoreError> {
        self.inner.lock().with_fault(|inner| Ok(inner.tables.webhook_write(change)))
    }

    async fn webhooks(&self, owner: Option<&str>) -> Result<Vec<Webhook>, StoreError> {
        self.read(|tables| tables.webhooks(owner))
    }

    async fn dead_letters(
        &self,
        webhook: WebhookId,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.read(|tables| tables.dead_letters(webhook, after, limit))
    }

    async fn feedback_list(
        &self,
        session: SessionId,
        message: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<Feedback>, StoreError> {
        self.read(|tables| tables.feedback_list(session, message, limit))
    }

    async fn artifact_heirs(&self, artifact: ArtifactId) -> Result<Vec<Artifact>, StoreError> {
        self.read(|tables| tables.inherited_by_id(artifact))
    }

    async fn artifacts_inherited(&self, fork: SessionId) -> Result<Vec<Artifact>, StoreError> {
        self.read(|tables| tables.inherited_of(fork))
    }

    async fn pins(&self, owner: &str) -> Result<Vec<(SessionId, Time)>, StoreError> {
        self.read(|tables| tables.pins(owner))
    }

    async fn runs_planned(&self, session: SessionId, limit: usize) -> Result<Rows<Run>, StoreError> {
        self.read(|tables| tables.runs_planned(session, limit).into())
    }

    async fn goal_type_write(&self, row: &GoalTypeRow) -> Result<bool, StoreError> {
        self.inner.lock().with_fault(|inner| Ok(inner.tables.goal_type_write(row)))
    }

    async fn edge_write(&self, change: &EdgeChange) -> Result<bool, StoreError> {
        self.inner.lock().with_fault(|inner| Ok(inner.tables.edge_write(change)))
    }

    async fn edge_record(
        &self,
        kind: &'static str,
        scope: &str,
        id: &str,
    ) -> Result<Option<EdgeRecord>, StoreError> {
        self.read(|tables| tables.edge_record(kind, scope, id))
    }

    async fn edge_records(
        &self,
        kind: &'static str,
        scope: Option<&str>,
    ) -> Result<Vec<EdgeRecord>, StoreError> {
        self.read(|tables| tables.edge_records(kind, scope))
    }

    async fn goal_types(&self, owner: &str) -> Result<Vec<GoalTypeRow>, StoreError> {
        self.read(|tables| tables.goal_types(owner))
    }

    async fn agent_write(&self, agent: &AgentRow) -> Result<bool, StoreError> {
        self.inner.lock().with_fault(|inner| inner.tables.agent_write(agent))
    }

    async fn agent_delete(&self, owner: &str, id: &str, version: u32) -> Result<bool, StoreError> {
        self.inner.lock().with_fault(|inner| Ok(inner.tables.agent_delete(owner, id, version)))
    }

    async fn agent_find(
        &self,
        owner: &str,
        id: &str,
        version: Option<u32>,
    ) -> Result<Option<AgentRow>, StoreError> {
        self.read(|tables| tables.agent_find(owner, id, version))
    }

    async fn agent_page(
        &self,
        owner: &str,
        after: Option<&(String, u32)>,
        limit: usize,
    ) -> Result<Vec<AgentRow>, StoreError> {
        self.read(|tables| tables.agent_page(owner, after, limit))
    }

    async fn agent_count(&self, owner: &str) -> Result<usize, StoreError> {
        self.read(|tables| tables.agents.keys().filter(|(agent_owner, ..)| agent_owner == owner).count())
    }

    async fn owner_usage(&self, owner: &str) -> Result<OwnerUsage, StoreError> {
        self.read(|tables| tables.owner_usage(owner))
    }

    async fn owner_outside_org(&self, owner: &str, org: &str) -> Result<bool, StoreError> {
        self.read(|tables| tables.owner_outside_org(owner, org))
    }

    async fn owner_claim(&self, owner: &str, org: Option<&str>, _at: Time) -> Result<bool, StoreError> {
        Ok(self.inner.lock().tables.owner_claim(owner, org))
    }

    async fn owner_org(&self, owner: &str) -> Result<Option<String>, StoreError> {
        self.read(|tables| tables.owner_org(owner))
    }

    async fn owner_known(&self, owner: &str) -> Result<bool, StoreError> {
        self.read(|tables| {
            tables.owners.contains_key(owner)
                || tables.keys.values().any(|key| key.owner == owner)
                || tables.sessions.values().any(|session| session.owner == owner)
        })
    }

    async fn org_known(&self, org: &str) -> Result<bool, StoreError> {
        self.read(|tables| {
            let mut orgs = tables.owners.values().chain(tables.keys.values().map(|key| &key.org));
            orgs.any(|known| known.as_deref() == Some(org))
        })
    }

    async fn key_spend(&self, key: KeyId, day: i64) -> Result<Spend, StoreError> {
        self.read(|tables| tables.spends.get(&(key, day)).copied().unwrap_or_default())
    }
}
