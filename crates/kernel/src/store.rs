//! The store: durable storage behind the kernel.
//!
//! Sessions change only through [`Store::commit`], which writes rows and events together. A commit writes one session,
//! named by its fence, and may add notes to the inboxes of other sessions. API keys, agents and owner state belong to no
//! session and have methods of their own. The store holds no rules: it stores the rows that the rules in `core` produce.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::quota::OwnerPool;
use mainspring_core::{
    ApiKey, Artifact, ArtifactAge, ArtifactId, Attempt, AttemptId, Binding, Body, Cursor, Damage, DeadLetter,
    Delegation, DelegationId, Digest, Event, Feedback, Grant, GrantId, History, KeyId, Line, LineId,
    MessageId, NodeId, Point, Position, Rows, Run, RunId, Session, SessionId, Spend, StateChange, StateEntry,
    StateOutcome, StateSlot, Step, Time, Usage, VersionMismatch, WaitId, Webhook, WebhookId,
};

mod blobs;
mod commit;
mod data;
mod database_meters;
mod edge;
mod goals;
mod ids;
mod inbox;
mod keys;
mod sessions;
mod tree;
mod waits;
mod webhooks;
use crate::board::LiveStatus;
use crate::search::Query;
pub use blobs::{BlobClaim, BlobPurpose};
pub use commit::{
    Chunk, Commit, EndedToolCall, Fence, NativeClaim, NativeOwner, NewEvent, NewId, OpenToolCall, Request,
    Row, StepInputRow,
};
pub use data::{
    ArtifactPage, OwnerState, StateAt, StateChangeRow, StateHistoryOf, StatePlace, StateRow, TreeState,
};
pub use database_meters::DatabaseMeters;
pub use edge::{EdgeChange, EdgeRecord};
pub use goals::GoalTypeRow;
pub use ids::{IdPage, IdsOf};
pub use inbox::{InboxItem, Note};
pub use keys::{AgentRow, KeyPage, KeyRef};
pub use sessions::{
    GrantPage, Loaded, Pin, PinnedBy, RunPage, SessionPage, SessionRef, SessionsOf, Unfinished,
};
pub use tree::{FoundMessage, FoundMessages, PlacedMessage, SessionLine, TreeRow};
pub use waits::AnnouncedWait;
pub use webhooks::WebhookChange;

/// Durable storage of one mainspring process, or of a cluster of them.
///
/// Reads see every commit that has returned. A list names its damaged rows beside the intact ones; a page holds as many
/// intact rows as were asked for. A damaged event is replaced by `event.damaged`. Every other read of a damaged row fails
/// with [`StoreError::Corrupt`].
///
/// Each method may be called from any task. Where a method takes `after` or `before`, results begin past that item, which
/// is how callers read page by page.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    // Writing sessions.

    /// Makes `commit` durable: every row and every event of it, or nothing.
    ///
    /// Returns the cursor of each event, in order; they are greater than every cursor returned before for the
    /// session. When this returns `Ok`, the events are visible to [`Store::events_after`].
    async fn commit(&self, commit: Arc<Commit>) -> Result<Vec<Cursor>, StoreError>;

    /// Makes streamed text durable, for many sessions at once. Commits have priority.
    ///
    /// Drops a chunk whose fence is void or whose message is complete. Writing a chunk again changes nothing.
    async fn chunks_write(&self, chunks: Vec<Chunk>) -> Result<(), StoreError>;

    /// Takes the lease of `session`: voids every fence returned for it before. Refused while the session has its home at
    /// another process, or if it has none and this process may not become its home.
    async fn lease_take(&self, session: SessionId, node: NodeId) -> Result<Fence, StoreError>;

    /// Releases a lease: voids `fence` and frees the memory of the lease. A lease taken since is not affected.
    async fn lease_release(&self, fence: Fence) -> Result<(), StoreError>;

    /// Finds the home of a session, the only process that can take its lease, if several processes share the store. In
    /// a store that one process at a time uses, sessions have no home.
    async fn home_find(&self, session: SessionId) -> Result<Option<NodeId>, StoreError> {
        let _ = session;
        Ok(None)
    }

    /// Makes this process the home of a session, unless another process is its home or this process may not become it.
    async fn home_claim(&self, session: SessionId) -> Result<(), StoreError> {
        let _ = session;
        Ok(())
    }

    /// Makes the process `node` the home of a session that no process has in memory, unless a process other than this
    /// one is its home. `node` then has to load the session. Returns true if `node` is the home now.
    async fn home_assign(&self, session: SessionId, node: NodeId) -> Result<bool, StoreError> {
        let _ = (session, node);
        Ok(false)
    }

    /// Makes the process `node` the home of a session whose lease this process has: voids `fence`. If the session
    /// `has_work`, `node` has to load it. Returns false, and changes nothing, if `node` cannot become the home or the
    /// lease is void.
    async fn home_give(&self, fence: Fence, node: NodeId, has_work: bool) -> Result<bool, StoreError> {
        let _ = (fence, node, has_work);
        Ok(false)
    }

    /// Gives up being the home of the sessions that are not in memory, except for those in `kept`.
    async fn homes_free(&self, kept: &[SessionId]) -> Result<(), StoreError> {
        let _ = kept;
        Ok(())
    }

    /// Enlarges the block that this process has of an owner's `limit`: up to `wanted`, as far as the blocks of the
    /// other processes that share the store allow. Never makes the block smaller. Returns its size.
    async fn owner_block_take(
        &self,
        pool: OwnerPool,
        owner: &str,
        limit: usize,
        wanted: usize,
    ) -> Result<usize, StoreError> {
        let _ = (pool, owner, wanted);
        Ok(limit)
    }

    /// Counts, for each of these limits of owners, the other processes that want a larger block than they have.
    async fn owner_blocks_wanted(
        &self,
        of: &[(OwnerPool, String)],
    ) -> Result<HashMap<(OwnerPool, String), usize>, StoreError> {
        let _ = of;
        Ok(HashMap::new())
    }

    /// Records the blocks of this process, which are not larger than before. Removes blocks of which the process
    /// neither holds nor wants anything.
    async fn owner_blocks_write(&self, blocks: &[OwnerBlock]) -> Result<(), StoreError> {
        let _ = blocks;
        Ok(())
    }

    /// Lists the sessions that other processes have in memory, with their activity.
    async fn live_elsewhere(&self) -> Result<Vec<(Session, LiveStatus)>, StoreError> {
        Ok(vec![])
    }

    /// Lists the sessions whose home is this process and that it has to load, because another process has put notes
    /// into their inbox or has made this process their home.
    async fn inbox_at_home(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(vec![])
    }

    /// Announces a wait to the other processes that share the store. The announcement does not outlive this process.
    async fn wait_announce(&self, wait: &AnnouncedWait) -> Result<(), StoreError> {
        let _ = wait;
        Ok(())
    }

    /// Removes an announced wait.
    async fn wait_withdraw(&self, wait: WaitId) -> Result<(), StoreError> {
        let _ = wait;
        Ok(())
    }

    /// Lists the waits that all processes have announced.
    async fn waits_announced(&self) -> Result<Vec<AnnouncedWait>, StoreError> {
        Ok(vec![])
    }

    /// Checks that reads are answered, and that commits are written to the place from which the next start reads.
    async fn health(&self) -> Result<(), StoreError>;

    /// Reads the meters of a database server; `None` for a database that is part of this process.
    async fn database_meters(&self) -> Option<DatabaseMeters> {
        None
    }

    /// Makes a write without effect, to find out whether commits can be written.
    async fn check_writable(&self) -> Result<(), StoreError>;

    /// Removes some rows of a deleted session. Returns true while there are more.
    async fn session_purge(&self, session: SessionId) -> Result<bool, StoreError>;

    /// Removes some of a session's pruned events. Returns true while there are more.
    async fn events_prune(&self, session: SessionId) -> Result<bool, StoreError>;

    /// Removes the requests made before `before`.
    async fn requests_forget(&self, before: Time) -> Result<(), StoreError>;

    // Sessions.

    /// Lists the sessions that a starting kernel has to handle.
    async fn unfinished(&self) -> Result<Unfinished, StoreError>;

    /// Loads everything that a session's actor needs, without the history.
    async fn session_load(&self, session: SessionId) -> Result<Option<Loaded>, StoreError>;

    /// Finds a session: by id among all owners, by any other name among the sessions of `owner`. Deleted sessions are
    /// not found.
    async fn session_find(&self, owner: &str, by: &SessionRef) -> Result<Option<Session>, StoreError>;

    /// Lists sessions by latest activity, each with its latest run.
    async fn session_page(&self, page: &SessionPage) -> Result<Rows<(Session, Option<Run>)>, StoreError>;

    /// True if a session has this id, including a deleted one that is not purged completely.
    async fn session_exists(&self, session: SessionId) -> Result<bool, StoreError>;

    /// Lists the sessions of the same owner that were forked from this one.
    async fn session_forks(&self, session: SessionId) -> Result<Vec<SessionId>, StoreError>;

    /// Sums the usage of all runs of a session, on every branch. Returns their number and the sum.
    async fn session_usage(&self, session: SessionId) -> Result<(u64, Usage), StoreError>;

    /// Sums the usage of the runs that runs of a session have delegated to in other sessions, directly or through others.
    /// Returns their number and the sum. A run that was deleted has an unknown usage.
    async fn delegated_usage(&self, session: SessionId) -> Result<(u64, Usage), StoreError>;

    /// Lists ids between two others, in order. `None` if [`IdPage::visit`] ends the search before the page is full.
    async fn id_page(&self, page: &IdPage) -> Result<Option<Vec<[u8; 16]>>, StoreError>;

    /// Lists the bindings of a session, by adapter, newest generation first. With `adapter`, only bindings of that
    /// adapter. `after` pages past the binding of that adapter and generation.
    async fn bindings(
        &self,
        session: SessionId,
        adapter: Option<&str>,
        after: Option<(&str, u32)>,
        limit: usize,
    ) -> Result<Vec<Binding>, StoreError>;

    /// Lists the notes that other sessions left for this one, in order.
    async fn inbox(&self, session: SessionId) -> Result<Vec<InboxItem>, StoreError>;

    // Runs.

    /// Gets a run. Runs of deleted sessions are not found.
    async fn run_get(&self, run: RunId) -> Result<Option<Run>, StoreError>;

    /// Finds the run that `owner` requested under this client and request id.
    async fn run_by_request(
        &self,
        owner: &str,
        client: &str,
        request: &str,
    ) -> Result<Option<Run>, StoreError>;

    /// Lists runs of one owner, newest first.
    async fn run_page(&self, page: &RunPage) -> Result<Rows<Run>, StoreError>;

    /// Lists the unfinished runs of the sessions that belong to `owner` or that members of `org` may read, oldest first.
    /// The cost grows with the number of unfinished runs of all owners, not with the number of stored runs.
    async fn runs_live(&self, owner: &str, org: Option<&str>) -> Result<Rows<Run>, StoreError>;

    /// Lists the attempts of a run, oldest first.
    async fn attempts(&self, run: RunId) -> Result<Rows<Attempt>, StoreError>;

    /// Gets an attempt by its id alone.
    async fn attempt_get(&self, attempt: AttemptId) -> Result<Option<Attempt>, StoreError>;

    /// Lists the grants that apply to a run of `session`, its own and the session's, oldest first.
    async fn grants(&self, session: SessionId, run: RunId) -> Result<Vec<Grant>, StoreError>;

    /// Finds a grant of a session that is not deleted.
    async fn grant_get(&self, id: GrantId) -> Result<Option<Grant>, StoreError>;

    /// Lists the grants of an owner's sessions, newest first.
    async fn grant_page(&self, page: &GrantPage) -> Result<Vec<Grant>, StoreError>;

    /// Lists the model calls of a run, oldest first.
    async fn steps(&self, run: RunId) -> Result<Rows<Step>, StoreError>;

    /// Gets the input of steps of a session, as JSON, by its hash.
    async fn step_input(&self, session: SessionId, hash: &str) -> Result<Option<String>, StoreError>;

    /// Lists delegations, oldest first.
    async fn delegations(&self, of: &DelegationsOf) -> Result<Vec<Delegation>, StoreError>;

    /// Finds an answered request by its idempotency key.
    async fn request_get(
        &self,
        owner: &str,
        operation: &str,
        key: &str,
    ) -> Result<Option<Request>, StoreError>;

    // Events.

    /// Lists events of a session after `after`, in order. With `run`, only events of that run.
    ///
    /// Fails with [`StoreError::Pruned`] if one of them may have been pruned.
    async fn events_after(
        &self,
        session: SessionId,
        run: Option<RunId>,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError>;

    /// Lists events of all sessions of an owner after `after`, in order. With `types`, only events of those types.
    /// Pruned events are left out, and for a deleted session all but its deletion.
    ///
    /// Also returns the cursor up to which events were scanned: every matching event up to there is returned, and there
    /// may be more after it. A store may stop before the latest events while an open transaction could still add earlier
    /// ones.
    async fn owner_events(
        &self,
        owner: &str,
        types: Option<&[&'static str]>,
        after: Cursor,
        limit: usize,
    ) -> Result<(Vec<Event>, Cursor), StoreError>;

    /// The largest cursor given to any event so far, including removed ones.
    async fn event_last(&self) -> Result<Cursor, StoreError>;

    /// Lists the ranges of cursors that were lost when the store was restored from a backup. They do not change while
    /// the store is open.
    async fn lost_events(&self) -> Result<Vec<LostEvents>, StoreError>;

    /// Lists the latest histories of the store, oldest first: the last one is that of this process. Empty if the store
    /// does not outlive the process. The list does not change while the store is open.
    async fn histories(&self) -> Result<Vec<History>, StoreError>;

    /// The position of a session's last event before `before`.
    async fn event_before(&self, session: SessionId, before: Cursor) -> Result<Option<Position>, StoreError>;

    // The tree of messages.

    /// Lists the last `limit` messages of the path to `tip` that lie above depth `before`, root first.
    async fn path(
        &self,
        tip: Point,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Rows<PlacedMessage>, StoreError>;

    /// Gets a message that `session` sees, with its line.
    async fn message_get(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError>;

    /// Finds the digest above `tip` on its path that covers the most messages. A digest counts if it was made by `session`
    /// or by the session that opened the digest's line.
    async fn digest(&self, session: SessionId, tip: Point) -> Result<Option<Digest>, StoreError>;

    /// Lists `line` and its ancestor lines towards the root, at most `limit`, with the cursors of `session` on them.
    async fn lines_to_root(
        &self,
        session: SessionId,
        line: LineId,
        limit: usize,
    ) -> Result<Vec<SessionLine>, StoreError>;

    /// Finds the leaf that the cursors of `session` lead to from `at`, and its line if the session has opened it.
    async fn leaf(
        &self,
        session: SessionId,
        at: Point,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError>;

    /// Lists the ids of the first `limit` children of `at` that `session` sees, or its roots: the next message on the
    /// same line, then those on other lines in the order in which the lines were opened. Abandoned messages are left out.
    async fn children(
        &self,
        session: SessionId,
        at: Option<Point>,
        limit: usize,
    ) -> Result<Vec<MessageId>, StoreError>;

    /// Gets a message that `session` sees in its tree, with its neighbours.
    async fn tree_row(&self, session: SessionId, message: MessageId) -> Result<Option<TreeRow>, StoreError>;

    /// Lists the tree that `session` sees after `after`: line by line in the order in which the lines were opened,
    /// parents before children.
    async fn tree_page(
        &self,
        session: SessionId,
        after: Option<Point>,
        limit: usize,
    ) -> Result<Rows<TreeRow>, StoreError>;

    // Search.

    /// Adds some new messages and titles to the search index. Returns true while there are more. Text that is not
    /// indexed yet is found too, only more slowly.
    async fn search_index(&self) -> Result<bool, StoreError>;

    /// Lists sessions of `owner` whose title matches `query`, by latest activity, after the session `before`.
    async fn search_titles(
        &self,
        owner: &str,
        query: &Query,
        before: Option<(Time, SessionId)>,
        limit: usize,
    ) -> Result<Rows<Session>, StoreError>;

    /// Lists the owners who share sessions with an org.
    async fn owners_sharing(&self, org: &str) -> Result<Vec<String>, StoreError>;

    /// Lists messages of `owner`'s sessions that match `query`, newest first, before arrival number `before`. Searches a
    /// bounded number of messages, and returns where it stopped.
    async fn search_messages(
        &self,
        owner: &str,
        query: &Query,
        before: Option<u64>,
        limit: usize,
    ) -> Result<FoundMessages, StoreError>;

    // State.

    /// Gets the entry of a key, and the version for the next change of the key.
    async fn state_get(&self, at: &StateAt, key: &str) -> Result<StateSlot, StoreError>;

    /// Lists state entries by key, after the key `after`.
    async fn state_page(
        &self,
        at: &StateAt,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Rows<StateEntry>, StoreError>;

    /// Number of state keys that have a value.
    async fn state_count(&self, at: &StateAt) -> Result<usize, StoreError>;

    /// Sets or removes a key of an owner's state, atomically, by [`mainspring_core::state::decide`].
    ///
    /// Fails with [`StoreError::VersionMismatch`] if the key's version is not the expected one.
    async fn state_put(&self, put: OwnerState) -> Result<StateOutcome, StoreError>;

    /// Lists the changes of a key that are kept, newest first; with `before`, only those of earlier versions.
    async fn state_history(
        &self,
        of: &StateHistoryOf,
        key: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Rows<StateChange>, StoreError>;

    /// Lists the changes of all keys that are kept, by key and version.
    async fn state_changes(
        &self,
        of: &StateHistoryOf,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Rows<StateChange>, StoreError>;

    /// Lists the entries of a session's state on all branches, by key and version. A fork's list includes the inherited
    /// entries that the fork sees, unless the fork has an entry of its own with the same key and version.
    async fn tree_state(
        &self,
        session: SessionId,
        after: Option<(String, u64)>,
        limit: usize,
    ) -> Result<Rows<TreeState>, StoreError>;

    /// Lists the lines of a session's tree that have messages, each with its order, as in [`TreeState::order`].
    async fn line_orders(&self, session: SessionId) -> Result<Vec<(LineId, i64)>, StoreError>;

    // Artifacts and the hashes of their bytes.

    /// Gets an artifact. Artifacts of deleted sessions are not found.
    async fn artifact_get(&self, artifact: ArtifactId) -> Result<Option<Artifact>, StoreError>;

    /// Lists the copies of an artifact that forks have inherited, without those of deleted forks.
    async fn artifact_heirs(&self, artifact: ArtifactId) -> Result<Vec<Artifact>, StoreError>;

    /// Lists the artifacts that a fork has inherited.
    async fn artifacts_inherited(&self, fork: SessionId) -> Result<Vec<Artifact>, StoreError>;

    /// Lists artifacts of one session, newest first.
    async fn artifact_page(&self, page: &ArtifactPage) -> Result<Rows<Artifact>, StoreError>;

    /// Lists the age and size of all artifacts, oldest first, after an artifact.
    async fn artifact_ages(
        &self,
        after: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Vec<ArtifactAge>, StoreError>;

    /// Finds the artifacts that messages, delegations, state and raw responses of steps name. Reads all of these rows.
    async fn artifacts_named(&self) -> Result<HashSet<ArtifactId>, StoreError>;

    /// Lists memory candidates that were not decided, oldest first, after a candidate.
    async fn memory_candidates(
        &self,
        after: Option<(Time, ArtifactId)>,
        limit: usize,
    ) -> Result<Vec<Artifact>, StoreError>;

    /// Lists the hashes of all artifacts, each with its size in bytes, in order, after the hash `after`.
    async fn blob_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, u64)>, StoreError>;

    /// Lists some loose hashes: the hashes of removed artifacts. Another artifact may still use the same hash.
    async fn blob_loose(&self, limit: usize) -> Result<Vec<String>, StoreError>;

    /// True if an artifact uses this hash. If so, the hash is no longer loose; both happen atomically.
    async fn blob_is_used(&self, hash: &str) -> Result<bool, StoreError>;

    /// Removes a hash from the loose ones, after its bytes were removed.
    async fn blob_forget(&self, hash: &str) -> Result<(), StoreError>;

    /// Claims bytes for this process, so that no process stores the bytes of a hash while another one that shares the store
    /// removes them. Returns false if that is not possible now; a claim to store first waits for some time. After an error
    /// the claim may exist. The claims of a process end with its lease.
    async fn blob_claim(&self, claim: &BlobClaim) -> Result<bool, StoreError> {
        let _ = claim;
        Ok(true)
    }

    /// Releases a claim, if it exists.
    async fn blob_release(&self, claim: ArtifactId) -> Result<(), StoreError> {
        let _ = claim;
        Ok(())
    }

    /// Lists the processes that share the store with this one at this moment.
    async fn processes_at_work(&self) -> Result<Vec<NodeId>, StoreError> {
        Ok(vec![])
    }

    // API keys.

    /// Makes an API key durable, inserted or replaced, together with the request that made it.
    async fn key_write(&self, key: &ApiKey, request: Option<&Request>) -> Result<(), StoreError>;

    /// Finds an API key, valid or not.
    async fn key_find(&self, by: &KeyRef) -> Result<Option<ApiKey>, StoreError>;

    /// Lists API keys, newest first.
    async fn key_page(&self, page: &KeyPage) -> Result<Vec<ApiKey>, StoreError>;

    /// True if `owner` has a session or a key that does not belong to `org`.
    async fn owner_outside_org(&self, owner: &str, org: &str) -> Result<bool, StoreError>;

    /// Claims `owner` for `org`, or for no org, unless it was claimed before. Returns true if it belongs to `org` now.
    ///
    /// An unclaimed owner that has keys or sessions belongs to the org of the oldest of them. The check and the claim are
    /// atomic: of two orgs that claim an owner at the same time, one gets it.
    async fn owner_claim(&self, owner: &str, org: Option<&str>, at: Time) -> Result<bool, StoreError>;

    /// The org that `owner` belongs to: the one that has claimed it, else that of its oldest key or session.
    async fn owner_org(&self, owner: &str) -> Result<Option<String>, StoreError>;

    /// True if `owner` was claimed, or has a key or a session, including a deleted one.
    async fn owner_known(&self, owner: &str) -> Result<bool, StoreError>;

    /// True if an owner or a key belongs to `org`.
    async fn org_known(&self, org: &str) -> Result<bool, StoreError>;

    /// The cost of a key's runs in a day, by [`mainspring_core::day_of`].
    async fn key_spend(&self, key: KeyId, day: i64) -> Result<Spend, StoreError>;

    // Agents.

    /// Stores a version of an owner's agent. Returns false if the same definition is stored already.
    ///
    /// Fails with a conflict if the version has a different definition, even if it was deleted.
    async fn agent_write(&self, agent: &AgentRow) -> Result<bool, StoreError>;

    /// Deletes a version of an owner's agent. Returns false if there is none.
    async fn agent_delete(&self, owner: &str, id: &str, version: u32) -> Result<bool, StoreError>;

    /// Finds a version of an owner's agent; the latest if `version` is `None`.
    async fn agent_find(
        &self,
        owner: &str,
        id: &str,
        version: Option<u32>,
    ) -> Result<Option<AgentRow>, StoreError>;

    /// Lists an owner's agents by id and version, after `after`.
    async fn agent_page(
        &self,
        owner: &str,
        after: Option<&(String, u32)>,
        limit: usize,
    ) -> Result<Vec<AgentRow>, StoreError>;

    /// Number of versions that an owner has made, including deleted ones.
    async fn agent_count(&self, owner: &str) -> Result<usize, StoreError>;

    /// Lists the feedback of a session, or on one of its messages, by message and reader.
    async fn feedback_list(
        &self,
        session: SessionId,
        message: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<Feedback>, StoreError>;

    /// Lists the sessions that a reader has pinned, and when, by id.
    async fn pins(&self, owner: &str) -> Result<Vec<(SessionId, Time)>, StoreError>;

    /// Lists the last `limit` runs of a session that have goals or tasks, oldest first.
    async fn runs_planned(&self, session: SessionId, limit: usize) -> Result<Rows<Run>, StoreError>;

    // Goal types.

    /// Stores a goal type of an owner. Replaces an earlier type with the same name, and keeps its time of creation.
    /// Returns false if there was an earlier type.
    async fn goal_type_write(&self, row: &GoalTypeRow) -> Result<bool, StoreError>;

    /// Lists the goal types of an owner by name.
    async fn goal_types(&self, owner: &str) -> Result<Vec<GoalTypeRow>, StoreError>;

    // Records of edges.

    /// Applies a change of the records of edges. Returns false if it has no effect.
    async fn edge_write(&self, change: &EdgeChange) -> Result<bool, StoreError>;

    /// Gets one record.
    async fn edge_record(
        &self,
        kind: &'static str,
        scope: &str,
        id: &str,
    ) -> Result<Option<EdgeRecord>, StoreError>;

    /// Lists the records of a kind, of one scope if it is given, by scope and id.
    async fn edge_records(
        &self,
        kind: &'static str,
        scope: Option<&str>,
    ) -> Result<Vec<EdgeRecord>, StoreError>;

    // Webhooks.

    /// Applies a change of webhooks. Returns false if it has no effect.
    async fn webhook_write(&self, change: &WebhookChange) -> Result<bool, StoreError>;

    /// Lists the webhooks of `owner`, or of all owners, by id.
    async fn webhooks(&self, owner: Option<&str>) -> Result<Vec<Webhook>, StoreError>;

    /// Lists the dead letters of a webhook after the event `after`, in the order of the events.
    async fn dead_letters(
        &self,
        webhook: WebhookId,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError>;

    /// Sums the stored data of an owner. The cost does not depend on its amount.
    async fn owner_usage(&self, owner: &str) -> Result<OwnerUsage, StoreError>;
}

/// The stored data of an owner, in sessions that are not purged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerUsage {
    /// Bytes of messages, as JSON, and of artifacts.
    pub bytes: u64,
    /// Number of artifacts.
    pub artifacts: u64,
}

/// The parts of an owner's limit that one of the processes that share a store holds and wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerBlock {
    /// The limit.
    pub pool: OwnerPool,
    /// The owner.
    pub owner: String,
    /// The part that the process may use.
    pub held: usize,
    /// The part that the process wants.
    pub wanted: usize,
}

/// Why the store failed, by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A unique value exists already. Nothing changed.
    #[error("{0}")]
    Conflict(Unique),
    /// Another process has taken the lease of the session. Nothing changed.
    #[error("another writer has taken over this session")]
    Fenced,
    /// The session has its home at another process, which shares the store. Nothing changed.
    #[error("the session has its home at another server of the cluster")]
    HeldElsewhere {
        /// The process.
        node: NodeId,
    },
    /// The session has no home, and a later version has changed the tables: no process of this version may become its home.
    /// Nothing changed.
    #[error(
        "a server of a later version has changed the tables: this one goes on with its own sessions and takes no others; \
         start it again with the later version"
    )]
    LaterVersion,
    /// The stored version is not the expected one. Nothing changed.
    #[error(transparent)]
    VersionMismatch(#[from] VersionMismatch),
    /// The session's events up to this position are pruned. Nothing changed.
    #[error("the events up to {0} are gone")]
    Pruned(Position),
    /// Stored data is inconsistent. Nothing changed.
    #[error("{0}")]
    Corrupt(String),
    /// The stored data was deleted, moved or replaced while the store was open. Nothing changed.
    #[error("{0}")]
    Lost(String),
    /// The disk is full. The outcome is unknown: look it up before answering.
    #[error("{0}")]
    Full(String),
    /// The outcome is unknown: look it up before answering.
    #[error("{0}")]
    Unavailable(String),
}

impl From<Damage> for StoreError {
    fn from(damage: Damage) -> Self {
        Self::Corrupt(damage.message)
    }
}

/// Returns the events if each can be read. Fails with the first damage.
pub(crate) fn all_readable(events: Vec<Event>) -> Result<Vec<Event>, StoreError> {
    let damage = events.iter().find_map(|event| match &event.body {
        Body::EventDamaged { message, .. } => Some(StoreError::Corrupt(message.clone())),
        _ => None,
    });
    damage.map_or(Ok(events), Err)
}

impl StoreError {
    /// True if the change may have been made nevertheless.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Unavailable(_))
    }
}

/// The cursors of events that were lost with a restore: those after `after` and before `until`. No event has such a
/// cursor, but a reader may still send one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostEvents {
    /// The last cursor before the lost ones.
    pub after: Cursor,
    /// The cursor after which new events begin. No event has it.
    pub until: Cursor,
}

impl LostEvents {
    /// Returns true if `cursor` is that of a lost event.
    pub fn contains(&self, cursor: Cursor) -> bool {
        cursor > self.after && cursor < self.until
    }
}

/// A value that must be unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unique {
    /// `(owner, client, request)` of runs.
    RunRequest,
    /// An id asserted by [`Row::NewId`].
    Id,
    /// `(owner, operation, key)` of requests.
    RequestKey,
    /// A name of a session: key, external reference or legacy alias.
    SessionName,
    /// A version of an agent.
    Agent,
    /// Any other constraint. The kernel should have prevented the conflict.
    Other,
}

impl std::fmt::Display for Unique {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RunRequest => "a run with this client id and request id exists already",
            Self::Id => "an object with this id exists already",
            Self::RequestKey => "this idempotency key was used already",
            Self::SessionName => "a session with this key, reference or alias exists already",
            Self::Agent => "this version of the agent exists already",
            Self::Other => {
                "the database refused rows that contradict others, which is a bug or damage: the log names the rule, \
                 `mainspring doctor` checks the database"
            }
        })
    }
}

/// Selects delegations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelegationsOf {
    /// The delegation with this id.
    Id(DelegationId),
    /// The delegations that this run of this session has made.
    Parent(SessionId, RunId),
    /// The delegation that created this run.
    Child(RunId),
}
