//! The methods of the store. Commits and streamed text go to the writers. The other methods use a connection
//! of the pool, most of them through a function of `read` or `change`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use mainspring_core::quota::OwnerPool;
use mainspring_core::{
    ApiKey, Artifact, ArtifactAge, ArtifactId, Attempt, AttemptId, Binding, Cursor, DeadLetter, Delegation,
    Digest, Event, Feedback, Grant, GrantId, History, KeyId, Line, LineId, MessageId, NodeId, Point,
    Position, Rows, Run, RunId, Session, SessionId, Spend, StateChange, StateEntry, StateOutcome, StateSlot,
    Step, Time, Usage, WaitId, Webhook, WebhookId,
};
use mainspring_kernel::board::LiveStatus;
use mainspring_kernel::search::Query;
use mainspring_kernel::store::{
    AgentRow, AnnouncedWait, ArtifactPage, BlobClaim, BlobPurpose, Chunk, Commit, DatabaseMeters,
    DelegationsOf, EdgeChange, EdgeRecord, Fence, FoundMessages, GoalTypeRow, GrantPage, IdPage, InboxItem,
    KeyPage, KeyRef, Loaded, LostEvents, OwnerBlock, OwnerState, OwnerUsage, PlacedMessage, Request, RunPage,
    SessionLine, SessionPage, SessionRef, StateAt, StateHistoryOf, Store, StoreError, TreeRow, TreeState,
    Unfinished, WebhookChange,
};

use super::read::{access, events, ids, records, runs, search, sessions, state, tree, tree_state};
use super::writer::{EVENT_BITS, pause};
use super::{PostgresStore, blobs, change, owner_blocks};
use crate::Fault;

/// The longest pause of `owner_events` while it waits for older transactions.
const FEED_PAUSE_MAX_MS: u64 = 200;

/// Runs a function that reads by one statement.
macro_rules! read {
    ($store:expr, $read:path $(, $argument:expr)*) => {{
        let reader = $store.reader().await?;
        let found = $read(&reader $(, $argument)*).await;
        reader.done();
        found
    }};
}

/// Runs a function that reads by several statements, which must see the same state.
macro_rules! snapshot {
    ($store:expr, $read:path $(, $argument:expr)*) => {{
        let reader = $store.reader().await?;
        reader.begin_snapshot().await?;
        let found = $read(&reader $(, $argument)*).await;
        reader.batch("COMMIT").await?;
        reader.done();
        found
    }};
}

/// Runs a function in a transaction, which is rolled back if it fails.
macro_rules! change {
    ($store:expr, $change:path $(, $argument:expr)*) => {{
        $store.shared.check_writable()?;
        let reader = $store.reader().await?;
        reader.begin_change(&$store.shared).await?;
        let changed = $change(&reader $(, $argument)*).await;
        reader.batch(if changed.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
        reader.done();
        changed
    }};
}

#[async_trait]
impl Store for PostgresStore {
    async fn commit(&self, commit: Arc<Commit>) -> Result<Vec<Cursor>, StoreError> {
        Fault::CommitPanics.panic_if_in(&mut self.shared.fault.lock());
        if commit.events.len() >= 1 << EVENT_BITS {
            return Err(StoreError::Corrupt(format!(
                "a commit of {} events is too large",
                commit.events.len()
            )));
        }
        let cursors = self.inlets[self.inlet(commit.fence)].commit(commit).await?;
        // An agent or a tool starts after a commit. A server that was paused may have lost its lease.
        self.shared.check_held()?;
        Ok(cursors)
    }

    async fn chunks_write(&self, chunks: Vec<Chunk>) -> Result<(), StoreError> {
        let mut parts: Vec<Vec<Chunk>> = self.inlets.iter().map(|_| vec![]).collect();
        for chunk in chunks {
            parts[self.inlet(chunk.fence)].push(chunk);
        }
        for (inlet, part) in self.inlets.iter().zip(parts).filter(|(_, part)| !part.is_empty()) {
            inlet.chunks_write(part).await?;
        }
        Ok(())
    }

    async fn lease_take(&self, session: SessionId, node: NodeId) -> Result<Fence, StoreError> {
        let fence = match self.shared.home.get() {
            Some(_) => change!(self, change::lease_take_home, session, node),
            None => change!(self, change::lease_take, session, node),
        }?;
        self.shared.dropped.lock().insert(session, (fence.epoch, 0));
        Ok(fence)
    }

    async fn lease_release(&self, fence: Fence) -> Result<(), StoreError> {
        self.shared.forget(fence);
        match self.shared.home.get() {
            Some(_) => change!(self, change::lease_release_home, fence),
            None => change!(self, change::lease_release, fence),
        }
    }

    async fn home_find(&self, session: SessionId) -> Result<Option<NodeId>, StoreError> {
        match self.shared.home.get() {
            Some(_) => read!(self, sessions::home_find, session),
            None => Ok(None),
        }
    }

    async fn home_claim(&self, session: SessionId) -> Result<(), StoreError> {
        match self.shared.home.get() {
            Some(home) => change!(self, change::home_claim, session, *home),
            None => Ok(()),
        }
    }

    async fn home_assign(&self, session: SessionId, node: NodeId) -> Result<bool, StoreError> {
        match self.shared.home.get() {
            Some(home) => {
                let assigned = change!(self, change::home_assign, session, *home, node);
                self.shared.written.notify_one();
                assigned
            }
            None => Ok(false),
        }
    }

    async fn home_give(&self, fence: Fence, node: NodeId, has_work: bool) -> Result<bool, StoreError> {
        if self.shared.home.get().is_none() {
            return Ok(false);
        }
        let is_given = change!(self, change::home_give, fence, node, has_work)?;
        if is_given {
            self.shared.forget(fence);
            self.shared.written.notify_one();
        }
        Ok(is_given)
    }

    async fn homes_free(&self, kept: &[SessionId]) -> Result<(), StoreError> {
        match self.shared.home.get() {
            Some(home) => change!(self, change::homes_free, *home, kept),
            None => Ok(()),
        }
    }

    async fn owner_block_take(
        &self,
        pool: OwnerPool,
        owner: &str,
        limit: usize,
        wanted: usize,
    ) -> Result<usize, StoreError> {
        match self.shared.home.get() {
            Some(home) => change!(self, owner_blocks::take, *home, pool, owner, (limit, wanted)),
            None => Ok(limit),
        }
    }

    async fn owner_blocks_wanted(
        &self,
        of: &[(OwnerPool, String)],
    ) -> Result<HashMap<(OwnerPool, String), usize>, StoreError> {
        match self.shared.home.get() {
            Some(home) => read!(self, owner_blocks::wanted, *home, of),
            None => Ok(HashMap::new()),
        }
    }

    async fn owner_blocks_write(&self, blocks: &[OwnerBlock]) -> Result<(), StoreError> {
        match self.shared.home.get() {
            Some(home) => change!(self, owner_blocks::write, *home, blocks),
            None => Ok(()),
        }
    }

    async fn inbox_at_home(&self) -> Result<Vec<SessionId>, StoreError> {
        match self.shared.home.get() {
            Some(home) => read!(self, sessions::inbox_at_home, *home),
            None => Ok(vec![]),
        }
    }

    async fn wait_announce(&self, wait: &AnnouncedWait) -> Result<(), StoreError> {
        match self.shared.home.get() {
            Some(home) => change!(self, change::wait_announce, wait, *home),
            None => Ok(()),
        }
    }

    async fn wait_withdraw(&self, wait: WaitId) -> Result<(), StoreError> {
        match self.shared.home.get() {
            Some(_) => change!(self, change::wait_withdraw, wait),
            None => Ok(()),
        }
    }

    async fn waits_announced(&self) -> Result<Vec<AnnouncedWait>, StoreError> {
        match self.shared.home.get() {
            Some(_) => read!(self, sessions::waits_announced),
            None => Ok(vec![]),
        }
    }

    async fn live_elsewhere(&self) -> Result<Vec<(Session, LiveStatus)>, StoreError> {
        match self.shared.home.get() {
            Some(home) => read!(self, sessions::live_elsewhere, *home),
            None => Ok(vec![]),
        }
    }

    async fn health(&self) -> Result<(), StoreError> {
        self.shared.check_held()?;
        let reader = self.reader().await?;
        reader.rows("SELECT 1", &[]).await?;
        reader.done();
        Ok(())
    }

    async fn database_meters(&self) -> Option<DatabaseMeters> {
        Some(self.meters().await)
    }

    async fn check_writable(&self) -> Result<(), StoreError> {
        self.shared.check_writable()?;
        let reader = self.reader().await?;
        reader.write("UPDATE meta SET value = value WHERE name = 'boot'", &[]).await?;
        reader.done();
        Ok(())
    }

    async fn session_purge(&self, session: SessionId) -> Result<bool, StoreError> {
        change!(self, change::session_purge, session)
    }

    async fn events_prune(&self, session: SessionId) -> Result<bool, StoreError> {
        change!(self, change::events_prune, session)
    }

    async fn requests_forget(&self, before: Time) -> Result<(), StoreError> {
        let reader = self.reader().await?;
        reader.write("DELETE FROM requests WHERE created_at < $1", &[&before.0]).await?;
        reader.done();
        Ok(())
    }

    async fn unfinished(&self) -> Result<Unfinished, StoreError> {
        match self.shared.home.get() {
            None => snapshot!(self, sessions::unfinished, None),
            // The leader recovers sessions without a home.
            Some(_) if !self.shared.leads.load(Ordering::Acquire) => Ok(Unfinished::default()),
            Some(home) => snapshot!(self, sessions::unfinished, Some(*home)),
        }
    }

    async fn session_load(&self, session: SessionId) -> Result<Option<Loaded>, StoreError> {
        Fault::LoadPanics.panic_if_in(&mut self.shared.fault.lock());
        let epoch = self.shared.dropped.lock().get(&session).map_or(0, |(epoch, _)| *epoch);
        snapshot!(self, sessions::session_load, session, epoch)
    }

    async fn session_find(&self, owner: &str, by: &SessionRef) -> Result<Option<Session>, StoreError> {
        read!(self, sessions::session_find, owner, by)
    }

    async fn session_page(&self, page: &SessionPage) -> Result<Rows<(Session, Option<Run>)>, StoreError> {
        read!(self, sessions::session_page, page)
    }

    async fn session_exists(&self, session: SessionId) -> Result<bool, StoreError> {
        let reader = self.reader().await?;
        let sql = "SELECT 1 FROM sessions WHERE session_id = $1";
        let exists = reader.exists(sql, &[&session.as_bytes().as_slice()]).await?;
        reader.done();
        Ok(exists)
    }

    async fn session_forks(&self, session: SessionId) -> Result<Vec<SessionId>, StoreError> {
        read!(self, sessions::session_forks, session)
    }

    async fn session_usage(&self, session: SessionId) -> Result<(u64, Usage), StoreError> {
        read!(self, sessions::session_usage, session)
    }

    async fn delegated_usage(&self, session: SessionId) -> Result<(u64, Usage), StoreError> {
        read!(self, sessions::delegated_usage, session)
    }

    async fn id_page(&self, page: &IdPage) -> Result<Option<Vec<[u8; 16]>>, StoreError> {
        snapshot!(self, ids::id_page, page)
    }

    async fn bindings(
        &self,
        session: SessionId,
        adapter: Option<&str>,
        after: Option<(&str, u32)>,
        limit: usize,
    ) -> Result<Vec<Binding>, StoreError> {
        read!(self, records::bindings, session, adapter, after, limit)
    }

    async fn inbox(&self, session: SessionId) -> Result<Vec<InboxItem>, StoreError> {
        read!(self, sessions::inbox, session)
    }

    async fn run_get(&self, run: RunId) -> Result<Option<Run>, StoreError> {
        read!(self, runs::run_get, run)
    }

    async fn run_by_request(
        &self,
        owner: &str,
        client: &str,
        request: &str,
    ) -> Result<Option<Run>, StoreError> {
        read!(self, runs::run_by_request, owner, client, request)
    }

    async fn run_page(&self, page: &RunPage) -> Result<Rows<Run>, StoreError> {
        read!(self, runs::run_page, page)
    }

    async fn runs_live(&self, owner: &str, org: Option<&str>) -> Result<Rows<Run>, StoreError> {
        read!(self, runs::runs_live, owner, org)
    }

    async fn attempts(&self, run: RunId) -> Result<Rows<Attempt>, StoreError> {
        read!(self, runs::attempts, run)
    }

    async fn attempt_get(&self, attempt: AttemptId) -> Result<Option<Attempt>, StoreError> {
        read!(self, runs::attempt_get, attempt)
    }

    async fn grants(&self, session: SessionId, run: RunId) -> Result<Vec<Grant>, StoreError> {
        read!(self, records::grants, session, run)
    }

    async fn grant_get(&self, id: GrantId) -> Result<Option<Grant>, StoreError> {
        read!(self, records::grant_get, id)
    }

    async fn grant_page(&self, page: &GrantPage) -> Result<Vec<Grant>, StoreError> {
        read!(self, records::grant_page, page)
    }

    async fn steps(&self, run: RunId) -> Result<Rows<Step>, StoreError> {
        read!(self, runs::steps, run)
    }

    async fn step_input(&self, session: SessionId, hash: &str) -> Result<Option<String>, StoreError> {
        read!(self, runs::step_input, session, hash)
    }

    async fn delegations(&self, of: &DelegationsOf) -> Result<Vec<Delegation>, StoreError> {
        read!(self, records::delegations, of)
    }

    async fn request_get(
        &self,
        owner: &str,
        operation: &str,
        key: &str,
    ) -> Result<Option<Request>, StoreError> {
        read!(self, runs::request_get, owner, operation, key)
    }

    async fn events_after(
        &self,
        session: SessionId,
        run: Option<RunId>,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        snapshot!(self, events::events_after, session, run, after, limit)
    }

    async fn owner_events(
        &self,
        owner: &str,
        types: Option<&[&'static str]>,
        after: Cursor,
        limit: usize,
    ) -> Result<(Vec<Event>, Cursor), StoreError> {
        let base = self.shared.base.load(Ordering::Acquire);
        let (mut target, mut waited, mut wait_ms) = (None, 0, 1);
        loop {
            let page = snapshot!(self, events::owner_events, base, owner, types, after, limit)?;
            let target = *target.get_or_insert(page.behind);
            let is_complete = page.behind.is_none() || target.is_some_and(|target| page.scanned_to >= target);
            if is_complete || waited >= self.feed_wait_ms {
                return Ok((page.events, page.scanned_to));
            }
            pause(wait_ms).await;
            (waited, wait_ms) = (waited + wait_ms, (wait_ms * 2).min(FEED_PAUSE_MAX_MS));
        }
    }

    async fn event_last(&self) -> Result<Cursor, StoreError> {
        read!(self, events::event_last)
    }

    async fn lost_events(&self) -> Result<Vec<LostEvents>, StoreError> {
        read!(self, events::lost_events)
    }

    async fn histories(&self) -> Result<Vec<History>, StoreError> {
        read!(self, events::histories)
    }

    async fn event_before(&self, session: SessionId, before: Cursor) -> Result<Option<Position>, StoreError> {
        snapshot!(self, events::event_before, session, before)
    }

    async fn path(
        &self,
        tip: Point,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Rows<PlacedMessage>, StoreError> {
        snapshot!(self, tree::path, tip, before, limit)
    }

    async fn message_get(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
        snapshot!(self, tree::message_get, session, message)
    }

    async fn digest(&self, session: SessionId, tip: Point) -> Result<Option<Digest>, StoreError> {
        snapshot!(self, tree::digest, session, tip)
    }

    async fn lines_to_root(
        &self,
        session: SessionId,
        line: LineId,
        limit: usize,
    ) -> Result<Vec<SessionLine>, StoreError> {
        snapshot!(self, tree::lines_to_root, session, line, limit)
    }

    async fn leaf(
        &self,
        session: SessionId,
        at: Point,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError> {
        snapshot!(self, tree::leaf, session, at)
    }

    async fn children(
        &self,
        session: SessionId,
        at: Option<Point>,
        limit: usize,
    ) -> Result<Vec<MessageId>, StoreError> {
        snapshot!(self, tree::children, session, at, limit)
    }

    async fn tree_row(&self, session: SessionId, message: MessageId) -> Result<Option<TreeRow>, StoreError> {
        snapshot!(self, tree::tree_row, session, message)
    }

    async fn tree_page(
        &self,
        session: SessionId,
        after: Option<Point>,
        limit: usize,
    ) -> Result<Rows<TreeRow>, StoreError> {
        snapshot!(self, tree::tree_page, session, after, limit)
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
        snapshot!(self, search::search_titles, owner, query, before, limit)
    }

    async fn owners_sharing(&self, org: &str) -> Result<Vec<String>, StoreError> {
        read!(self, search::owners_sharing, org)
    }

    async fn search_messages(
        &self,
        owner: &str,
        query: &Query,
        before: Option<u64>,
        limit: usize,
    ) -> Result<FoundMessages, StoreError> {
        snapshot!(self, search::search_messages, owner, query, before, limit)
    }

    async fn state_get(&self, at: &StateAt, key: &str) -> Result<StateSlot, StoreError> {
        snapshot!(self, state::state_get, at, key)
    }

    async fn state_page(
        &self,
        at: &StateAt,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Rows<StateEntry>, StoreError> {
        snapshot!(self, state::state_page, at, after, limit)
    }

    async fn state_count(&self, at: &StateAt) -> Result<usize, StoreError> {
        snapshot!(self, state::state_count, at)
    }

    async fn state_put(&self, put: OwnerState) -> Result<StateOutcome, StoreError> {
        change!(self, change::state_put, &put)
    }

    async fn state_history(
        &self,
        of: &StateHistoryOf,
        key: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Rows<StateChange>, StoreError> {
        read!(self, state::state_history, of, key, before, limit)
    }

    async fn state_changes(
        &self,
        of: &StateHistoryOf,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Rows<StateChange>, StoreError> {
        let after = after.unwrap_or_default();
        read!(self, tree_state::state_changes, of, &after, limit)
    }

    async fn tree_state(
        &self,
        session: SessionId,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Rows<TreeState>, StoreError> {
        let after = after.unwrap_or_default();
        snapshot!(self, tree_state::tree_state, session, &after, limit)
    }

    async fn line_orders(&self, session: SessionId) -> Result<Vec<(LineId, i64)>, StoreError> {
        read!(self, tree_state::line_orders, session)
    }

    async fn artifact_get(&self, artifact: ArtifactId) -> Result<Option<Artifact>, StoreError> {
        read!(self, records::artifact_get, artifact)
    }

    async fn artifact_page(&self, page: &ArtifactPage) -> Result<Rows<Artifact>, StoreError> {
        read!(self, records::artifact_page, page)
    }

    async fn artifact_ages(
        &self,
        after: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Vec<ArtifactAge>, StoreError> {
        read!(self, records::artifact_ages, after, limit)
    }

    async fn artifacts_named(&self) -> Result<HashSet<ArtifactId>, StoreError> {
        snapshot!(self, records::artifacts_named)
    }

    async fn memory_candidates(
        &self,
        after: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Vec<Artifact>, StoreError> {
        read!(self, records::memory_candidates, after, limit)
    }

    async fn blob_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, u64)>, StoreError> {
        read!(self, records::blob_page, after, limit)
    }

    async fn blob_loose(&self, limit: usize) -> Result<Vec<String>, StoreError> {
        read!(self, records::blob_loose, limit)
    }

    async fn blob_is_used(&self, hash: &str) -> Result<bool, StoreError> {
        let is_used = change!(self, change::blob_is_used, hash)?;
        // The caller removes unused bytes. A server that was paused may have lost its lease.
        self.shared.check_held()?;
        Ok(is_used)
    }

    async fn blob_claim(&self, claim: &BlobClaim) -> Result<bool, StoreError> {
        let Some(home) = self.shared.home.get() else { return Ok(true) };
        for _ in 0..blobs::CLAIM_ATTEMPTS {
            if change!(self, blobs::claim, claim, *home)? {
                return Ok(true);
            }
            if claim.purpose == BlobPurpose::Remove {
                break;
            }
            pause(blobs::CLAIM_PAUSE_MS).await;
        }
        Ok(false)
    }

    async fn blob_release(&self, claim: ArtifactId) -> Result<(), StoreError> {
        match self.shared.home.get() {
            Some(_) => change!(self, blobs::release, claim),
            None => Ok(()),
        }
    }

    async fn processes_at_work(&self) -> Result<Vec<NodeId>, StoreError> {
        match self.shared.home.get() {
            Some(_) => read!(self, blobs::processes),
            None => Ok(vec![]),
        }
    }

    async fn blob_forget(&self, hash: &str) -> Result<(), StoreError> {
        let reader = self.reader().await?;
        reader.write("DELETE FROM blobs_loose WHERE content_hash = $1", &[&hash]).await?;
        reader.done();
        Ok(())
    }

    async fn key_write(&self, key: &ApiKey, request: Option<&Request>) -> Result<(), StoreError> {
        Fault::CommitPanics.panic_if_in(&mut self.shared.fault.lock());
        let fault = self.shared.fault.lock().take_if(|fault| *fault != Fault::LoadPanics);
        match fault {
            Some(Fault::DiskFull) => Err(StoreError::Full(Fault::DiskFull.message())),
            Some(Fault::WritePanics) => Err(StoreError::Corrupt(Fault::WritePanics.message())),
            Some(Fault::CommitFails) => Err(StoreError::Unavailable(Fault::CommitFails.message())),
            Some(fault) => {
                change!(self, change::key_write, key, request)?;
                Err(StoreError::Unavailable(fault.message()))
            }
            None => change!(self, change::key_write, key, request),
        }
    }

    async fn key_find(&self, by: &KeyRef) -> Result<Option<ApiKey>, StoreError> {
        read!(self, access::key_find, by)
    }

    async fn key_page(&self, page: &KeyPage) -> Result<Vec<ApiKey>, StoreError> {
        read!(self, access::key_page, page)
    }

    async fn owner_outside_org(&self, owner: &str, org: &str) -> Result<bool, StoreError> {
        read!(self, access::owner_outside_org, owner, org)
    }

    async fn owner_claim(&self, owner: &str, org: Option<&str>, at: Time) -> Result<bool, StoreError> {
        change!(self, change::owner_claim, owner, org, at)
    }

    async fn owner_org(&self, owner: &str) -> Result<Option<String>, StoreError> {
        snapshot!(self, access::owner_org, owner)
    }

    async fn owner_known(&self, owner: &str) -> Result<bool, StoreError> {
        read!(self, access::owner_known, owner)
    }

    async fn org_known(&self, org: &str) -> Result<bool, StoreError> {
        read!(self, access::org_known, org)
    }

    async fn key_spend(&self, key: KeyId, day: i64) -> Result<Spend, StoreError> {
        read!(self, access::key_spend, key, day)
    }

    async fn agent_write(&self, agent: &AgentRow) -> Result<bool, StoreError> {
        change!(self, change::agent_write, agent)
    }

    async fn agent_delete(&self, owner: &str, id: &str, version: u32) -> Result<bool, StoreError> {
        change!(self, change::agent_delete, owner, id, version)
    }

    async fn agent_find(
        &self,
        owner: &str,
        id: &str,
        version: Option<u32>,
    ) -> Result<Option<AgentRow>, StoreError> {
        read!(self, access::agent_find, owner, id, version)
    }

    async fn agent_page(
        &self,
        owner: &str,
        after: Option<&(String, u32)>,
        limit: usize,
    ) -> Result<Vec<AgentRow>, StoreError> {
        read!(self, access::agent_page, owner, after, limit)
    }

    async fn agent_count(&self, owner: &str) -> Result<usize, StoreError> {
        read!(self, access::agent_count, owner)
    }

    async fn feedback_list(
        &self,
        session: SessionId,
        message: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<Feedback>, StoreError> {
        read!(self, records::feedback_list, session, message, limit)
    }

    async fn artifact_heirs(&self, artifact: ArtifactId) -> Result<Vec<Artifact>, StoreError> {
        read!(self, records::artifact_heirs, artifact)
    }

    async fn artifacts_inherited(&self, fork: SessionId) -> Result<Vec<Artifact>, StoreError> {
        read!(self, records::artifacts_inherited, fork)
    }

    async fn pins(&self, owner: &str) -> Result<Vec<(SessionId, Time)>, StoreError> {
        read!(self, records::pins, owner)
    }

    async fn runs_planned(&self, session: SessionId, limit: usize) -> Result<Rows<Run>, StoreError> {
        read!(self, runs::runs_planned, session, limit)
    }

    async fn goal_type_write(&self, row: &GoalTypeRow) -> Result<bool, StoreError> {
        change!(self, change::goal_type_write, row)
    }

    async fn edge_write(&self, edge: &EdgeChange) -> Result<bool, StoreError> {
        change!(self, change::edge_write, edge)
    }

    async fn edge_record(
        &self,
        kind: &'static str,
        scope: &str,
        id: &str,
    ) -> Result<Option<EdgeRecord>, StoreError> {
        read!(self, access::edge_record, kind, scope, id)
    }

    async fn edge_records(
        &self,
        kind: &'static str,
        scope: Option<&str>,
    ) -> Result<Vec<EdgeRecord>, StoreError> {
        read!(self, access::edge_records, kind, scope)
    }

    async fn goal_types(&self, owner: &str) -> Result<Vec<GoalTypeRow>, StoreError> {
        read!(self, access::goal_types, owner)
    }

    async fn webhook_write(&self, change: &WebhookChange) -> Result<bool, StoreError> {
        change!(self, change::webhook_write, change)
    }

    async fn webhooks(&self, owner: Option<&str>) -> Result<Vec<Webhook>, StoreError> {
        read!(self, access::webhooks, owner)
    }

    async fn dead_letters(
        &self,
        webhook: WebhookId,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        read!(self, access::dead_letters, webhook, after, limit)
    }

    async fn owner_usage(&self, owner: &str) -> Result<OwnerUsage, StoreError> {
        read!(self, access::owner_usage, owner)
    }
}
