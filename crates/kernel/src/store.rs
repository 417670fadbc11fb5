//! The store: where facts become durable.
//!
//! One verb changes sessions, [`Store::commit`]: rows and events together or not at all. A commit writes one session,
//! named by its fence, and may put items into other sessions' inboxes. Keys belong to no session and have a verb of
//! their own. No rule lives behind this trait; it stores
//! the image that the rules in `core` have made.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::{
    AgentDefinition, ApiKey, Artifact, ArtifactId, Attempt, AttemptId, Binding, Body, Cursor, Delegation,
    DelegationId, Digest, Event, EventId, ExternalRef, Grant, KeyId, LegacyAlias, Line, LineId, Message,
    MessageId, NodeId, Point, Position, Run, RunId, RunStatus, Session, SessionId, SessionStatus, StateEntry,
    StateOutcome, StateSlot, Step, Time, VersionMismatch,
};

mod data;
mod inbox;
use crate::search::Query;
pub use data::{ArtifactPage, OwnerState, StateAt, StatePlace, StateRow};
pub use inbox::{InboxItem, Note};

/// Durable storage of one mainspring, or of a cluster of them.
///
/// Reads see every commit that has returned. Each method may be called from any task.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Makes `commit` durable: every row and every event of it, or nothing.
    ///
    /// Returns the cursor of each event, in order; they are greater than every cursor returned before for the
    /// session. When this returns `Ok`, the events are visible to [`Store::events_after`].
    async fn commit(&self, commit: Arc<Commit>) -> Result<Vec<Cursor>, StoreError>;

    /// Makes streamed text durable, for many sessions at once. Lifecycle commits go first.
    ///
    /// A chunk whose fence is no longer current, or whose message is whole, is dropped; writing a chunk again changes
    /// nothing.
    async fn chunks_write(&self, chunks: Vec<Chunk>) -> Result<(), StoreError>;

    /// Takes the right to write `session`: every fence given out for it before is void from now on.
    async fn lease_take(&self, session: SessionId, node: NodeId) -> Result<Fence, StoreError>;

    /// Removes some of what is left of a deleted session; true while there is more.
    async fn session_purge(&self, session: SessionId) -> Result<bool, StoreError>;

    /// Forgets requests made before `before`.
    async fn requests_forget(&self, before: Time) -> Result<(), StoreError>;

    /// The sessions that have runs which have not ended, and those whose purge is not finished.
    async fn unfinished(&self) -> Result<Unfinished, StoreError>;

    /// All that a session's actor needs, without its history.
    async fn session_load(&self, session: SessionId) -> Result<Option<Loaded>, StoreError>;

    /// The session that `by` names: an id one of any owner, a name one of `owner`'s. Deleted ones are not found.
    async fn session_find(&self, owner: &str, by: &SessionRef) -> Result<Option<Session>, StoreError>;

    /// Sessions, the latest activity first, each with its latest run.
    async fn session_page(&self, page: &SessionPage) -> Result<Vec<(Session, Option<Run>)>, StoreError>;

    /// One run. Those of deleted sessions are not found.
    async fn run_get(&self, run: RunId) -> Result<Option<Run>, StoreError>;

    /// The run that `owner` asked for under this name.
    async fn run_by_request(
        &self,
        owner: &str,
        client: &str,
        request: &str,
    ) -> Result<Option<Run>, StoreError>;

    /// Runs of one owner, the newest first.
    async fn run_page(&self, page: &RunPage) -> Result<Vec<Run>, StoreError>;

    /// The attempts of one run, the first first.
    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>, StoreError>;

    /// The bindings of one session, by adapter and the newest generation first; of `adapter` alone if it is given, and only
    /// those after the binding of an adapter and generation.
    async fn bindings(
        &self,
        session: SessionId,
        adapter: Option<&str>,
        after: Option<(&str, u32)>,
        limit: usize,
    ) -> Result<Vec<Binding>, StoreError>;

    /// The grants that hold for a run of `session`: its own and those of the session, the oldest first.
    async fn grants(&self, session: SessionId, run: RunId) -> Result<Vec<Grant>, StoreError>;

    /// The model calls of one run, the first first.
    async fn steps(&self, run: RunId) -> Result<Vec<Step>, StoreError>;

    /// What stands for messages above `tip` on its path: the one that stands for the most. Those that count are the
    /// session's own, and on each line those of the session that opened it.
    async fn digest(&self, session: SessionId, tip: Point) -> Result<Option<Digest>, StoreError>;

    /// What was answered to a request, if it is remembered.
    async fn request_get(
        &self,
        owner: &str,
        operation: &str,
        key: &str,
    ) -> Result<Option<Request>, StoreError>;

    /// Removes some of the events that a session has pruned; true while there is more.
    async fn events_prune(&self, session: SessionId) -> Result<bool, StoreError>;

    /// Events of a session after `after`, in order; those of `run` alone if it is given.
    ///
    /// Refused with [`StoreError::Pruned`] if one of them may have been pruned.
    async fn events_after(
        &self,
        session: SessionId,
        run: Option<RunId>,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError>;

    /// Events of all of an owner's sessions after `after`, in order; of these `types` alone if they are given. Of deleted
    /// sessions only that they were; what was pruned is left out.
    ///
    /// Gives up to where it has looked: there may be more after it, and nothing before it that is not given.
    async fn owner_events(
        &self,
        owner: &str,
        types: Option<&[&'static str]>,
        after: Cursor,
        limit: usize,
    ) -> Result<(Vec<Event>, Cursor), StoreError>;

    /// Where the last of all events stands, or stood if it is gone.
    async fn event_last(&self) -> Result<Cursor, StoreError>;

    /// Where the last event of a session before `before` stands.
    async fn event_before(&self, session: SessionId, before: Cursor) -> Result<Option<Position>, StoreError>;

    /// The last `limit` messages of the path to `tip` that lie above depth `before`, root first.
    async fn path(
        &self,
        tip: Point,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Vec<PlacedMessage>, StoreError>;

    /// One message that `session` sees, with its line.
    async fn message_get(
        &self,
        session: SessionId,
        message: MessageId,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError>;

    /// `line` and the lines that it hangs beneath, towards the root, at most `limit`, with `session`'s cursors on them.
    async fn strands(
        &self,
        session: SessionId,
        line: LineId,
        limit: usize,
    ) -> Result<Vec<Strand>, StoreError>;

    /// The leaf that `session`'s cursors lead to from `at`, and its line if that is the session's own.
    async fn leaf(
        &self,
        session: SessionId,
        at: Point,
    ) -> Result<Option<(PlacedMessage, Option<Line>)>, StoreError>;

    /// The first `limit` messages that `session` sees beneath `at`, or its roots: the one that goes straight on, then
    /// those of other lines in the order of their opening. Abandoned ones are left out.
    async fn children(
        &self,
        session: SessionId,
        at: Option<Point>,
        limit: usize,
    ) -> Result<Vec<PlacedMessage>, StoreError>;

    /// One message that `session` sees in its tree, and what stands around it.
    async fn tree_row(&self, session: SessionId, message: MessageId) -> Result<Option<TreeRow>, StoreError>;

    /// What `session` sees of its tree after `after`: line by line in the order of opening, parents before children.
    async fn tree_page(
        &self,
        session: SessionId,
        after: Option<Point>,
        limit: usize,
    ) -> Result<Vec<TreeRow>, StoreError>;

    /// Prepares some of what was written since for search; true while there is more. What is not prepared yet is found
    /// as well, only more slowly.
    async fn search_index(&self) -> Result<bool, StoreError>;

    /// Sessions of `owner` whose title holds what `query` looks for, the latest activity first.
    async fn search_titles(
        &self,
        owner: &str,
        query: &Query,
        limit: usize,
    ) -> Result<Vec<Session>, StoreError>;

    /// Messages of `owner`'s sessions that hold what `query` looks for, the latest first, before `before`.
    async fn search_messages(
        &self,
        owner: &str,
        query: &Query,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Found>, StoreError>;

    /// The notes that other sessions left for this one, in order.
    async fn inbox(&self, session: SessionId) -> Result<Vec<InboxItem>, StoreError>;

    /// Delegations, the oldest first.
    async fn delegations(&self, of: &DelegationsOf) -> Result<Vec<Delegation>, StoreError>;

    /// True when there is a session of this id, also a deleted one of which something is left.
    async fn session_known(&self, session: SessionId) -> Result<bool, StoreError>;

    /// The sessions of the same owner that were forked from this one.
    async fn session_forks(&self, session: SessionId) -> Result<Vec<SessionId>, StoreError>;

    /// What there is under a key of state.
    async fn state_get(&self, at: &StateAt, key: &str) -> Result<StateSlot, StoreError>;

    /// Entries of state in the order of their keys, those after `after`.
    async fn state_page(
        &self,
        at: &StateAt,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<StateEntry>, StoreError>;

    /// How many keys of state hold something.
    async fn state_count(&self, at: &StateAt) -> Result<usize, StoreError>;

    /// Changes state of an owner if what is expected is there; by [`mainspring_core::state::decide`], in one step.
    async fn state_put(&self, put: OwnerState) -> Result<Result<StateOutcome, VersionMismatch>, StoreError>;

    /// One artifact. Those of deleted sessions are not found.
    async fn artifact_get(&self, artifact: ArtifactId) -> Result<Option<Artifact>, StoreError>;

    /// Artifacts of one session, the newest first.
    async fn artifact_page(&self, page: &ArtifactPage) -> Result<Vec<Artifact>, StoreError>;

    /// The hashes that artifacts name, and how many bytes each is to have, in order, those after `after`.
    async fn blob_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, u64)>, StoreError>;

    /// True if an artifact names this hash, which then is not loose any more; in one step.
    async fn blob_claimed(&self, hash: &str) -> Result<bool, StoreError>;

    /// Some of the hashes that an artifact named which is gone. Others may name them still.
    async fn blob_loose(&self, limit: usize) -> Result<Vec<String>, StoreError>;

    /// The bytes of a hash that nothing names are gone: it is not loose any more.
    async fn blob_settled(&self, hash: &str) -> Result<(), StoreError>;
    /// Makes an API key durable, inserted or replaced where it exists, together with the request that asked for it.
    async fn key_write(&self, key: &ApiKey, request: Option<&Request>) -> Result<(), StoreError>;

    /// One API key, whether it is valid or not.
    async fn key_find(&self, by: &KeyRef) -> Result<Option<ApiKey>, StoreError>;

    /// API keys, the newest first.
    async fn key_page(&self, page: &KeyPage) -> Result<Vec<ApiKey>, StoreError>;

    /// Keeps a version of an owner's agent; false if the very same is there. What was said under its name before, and is
    /// not the same, is a conflict, also if it was deleted.
    async fn agent_write(&self, agent: &AgentRow) -> Result<bool, StoreError>;

    /// Deletes what a version says; false if there is none.
    async fn agent_delete(&self, owner: &str, id: &str, version: u32) -> Result<bool, StoreError>;

    /// A version of an owner's agent; the latest if none is named.
    async fn agent_find(
        &self,
        owner: &str,
        id: &str,
        version: Option<u32>,
    ) -> Result<Option<AgentRow>, StoreError>;

    /// An owner's agents by id and version, those after `after`.
    async fn agent_page(
        &self,
        owner: &str,
        after: Option<&(String, u32)>,
        limit: usize,
    ) -> Result<Vec<AgentRow>, StoreError>;

    /// How many versions an owner has made, the deleted ones included.
    async fn agent_count(&self, owner: &str) -> Result<usize, StoreError>;

    /// True when `owner` has a session or a key that is not of `org`.
    async fn owner_elsewhere(&self, owner: &str, org: &str) -> Result<bool, StoreError>;
}

/// Why the store did not do as told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Something that must be unique exists already. Nothing changed.
    #[error("conflict on {0:?}")]
    Conflict(Unique),
    /// Somebody else has taken the right to write this session. Nothing changed.
    #[error("another writer has taken over this session")]
    Fenced,
    /// The session's events up to here are gone. Nothing changed.
    #[error("the events up to {0} are gone")]
    Pruned(Position),
    /// What is stored does not make sense. Nothing changed.
    #[error("{0}")]
    Corrupt(String),
    /// It could not be done, and whether it was done is not known: look before answering.
    #[error("{0}")]
    Unavailable(String),
}

/// What must be unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unique {
    /// `(owner, client, request)` of runs.
    RunRequest,
    /// An id that was said to be new.
    Id,
    /// `(owner, operation, key)` of requests.
    RequestKey,
    /// A name a session is found by: key, external reference or legacy alias.
    SessionName,
    /// A version of an agent that says something else.
    Agent,
    /// Anything else: a rule was broken above, and this was the second line of defence.
    Other,
}

/// The right to write one session: void once another has been given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The session.
    pub session: SessionId,
    /// Grows each time the right is taken.
    pub epoch: u64,
}

/// Rows and events that become durable together.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// The session that is written, and the right to.
    pub fence: Fence,
    /// What happened, in order.
    pub events: Vec<NewEvent>,
    /// The image of it.
    pub rows: Vec<Row>,
}

/// An event that has no cursor yet.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// Its id.
    pub id: EventId,
    /// The session's count of streamed bytes.
    pub pos: u64,
    /// The run it belongs to.
    pub run: Option<RunId>,
    /// The attempt it belongs to.
    pub attempt: Option<AttemptId>,
    /// When it happened.
    pub at: Time,
    /// What happened. The text of a completed message is stored once, in its row.
    pub body: Body,
}

/// One changed row. What has an id is inserted, or replaced where it exists.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// Nothing has this id yet: if something has, the commit is a conflict.
    Fresh(Fresh),
    /// A session.
    Session(Box<Session>),
    /// A run. Its owner, names, fingerprint and place never change.
    Run(Box<Run>),
    /// An attempt.
    Attempt(Box<Attempt>),
    /// A model call.
    Step(Box<Step>),
    /// The run has ended: what its steps kept for it alone is erased.
    StepsSeal(RunId),
    /// What stands for messages of the path where a model is shown it. At most one at a point.
    Digest(Box<Digest>),
    /// A new message, with its place if it has one yet.
    Message(Arc<Message>, Option<Point>),
    /// A stored prompt takes its place and is completed.
    MessagePlace(MessageId, Point),
    /// A line; its end is its image too.
    Line(Line),
    /// The line to follow from a point; none for the point's own.
    Cursor(Point, Option<LineId>),
    /// The session's streamed text before this position is in messages now.
    ChunksDrop(u64),
    /// The session's events up to here are gone for every reader from now on. It only ever rises.
    Floor(Position),
    /// A tool call that has begun.
    Effect(Effect),
    /// The tool call of this id has an outcome.
    EffectEnd(RunId, String),
    /// A request that was answered.
    Request(Box<Request>),
    /// A note for another session's inbox. Dropped if that session is gone or deleted.
    Inbox(SessionId, InboxItem),
    /// Removes a note from this session's inbox.
    InboxTaken(EventId),
    /// A binding.
    Binding(Box<Binding>),
    /// A grant.
    Grant(Box<Grant>),
    /// An artifact. Its bytes are durable.
    Artifact(Box<Artifact>),
    /// An artifact of this session is no more; its hash becomes loose.
    ArtifactGone(ArtifactId),
    /// A piece of state.
    State(Box<StateRow>),
    /// What was written under this key where no message came belongs to the message before.
    StateBack(Point, String),
    /// A delegation. Written by the child's session; dropped if the parent's session is gone or deleted.
    Delegation(Box<Delegation>),
}

/// An id that is said to be new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Fresh {
    Session(SessionId),
    Run(RunId),
    Message(MessageId),
    Artifact(ArtifactId),
}

/// A tool call that has begun and has no outcome yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The run.
    pub run: RunId,
    /// The call's id, which is the tool's idempotency key.
    pub tool_use_id: String,
    /// The tool.
    pub name: String,
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

/// A request that was answered, so that the same one gets the same answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Who asked.
    pub owner: String,
    /// Which verb.
    pub operation: String,
    /// The caller's key.
    pub key: String,
    /// The hash of what was asked.
    pub fingerprint: [u8; 16],
    /// The id of what was made.
    pub answer: String,
    /// When.
    pub at: Time,
}

impl Request {
    /// Milliseconds that a request and its answer are kept: a day.
    pub const RETENTION_MS: u64 = 24 * 60 * 60 * 1_000;

    /// The time of the oldest request that is kept at `now`. Earlier requests are forgotten.
    pub const fn oldest_kept(now: Time) -> Time {
        Time(now.0.saturating_sub_unsigned(Self::RETENTION_MS))
    }
}

/// Streamed text that is not in a message yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The session, and the right to write it.
    pub fence: Fence,
    /// Where its first byte stands in the session's stream.
    pub pos: u64,
    /// The message it will be part of.
    pub message: MessageId,
    /// Which block of it.
    pub block: u32,
    /// The text.
    pub text: String,
}

/// All that a session's actor needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The session.
    pub session: Session,
    /// Its runs that have not ended, in the order of acceptance, each with its latest attempt.
    pub runs: Vec<(Run, Option<Attempt>)>,
    /// The latest run, ended or not.
    pub latest: Option<Run>,
    /// The lines of the tip and of the runs' pens.
    pub lines: Vec<Line>,
    /// Streamed text that is not in a message, in order.
    pub chunks: Vec<Chunk>,
    /// Tool calls without an outcome.
    pub effects: Vec<Effect>,
    /// The notes that other sessions left, in order.
    pub inbox: Vec<InboxItem>,
    /// Delegations that are not settled and whose parent or child is one of `runs`.
    pub delegations: Vec<Delegation>,
    /// The last event of the session.
    pub cursor: Cursor,
    /// The session's count of streamed bytes, as far as it is durable.
    pub pos: u64,
    /// Up to where its events are gone.
    pub floor: Option<Position>,
}

/// What a start has to look at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unfinished {
    /// Sessions with runs that have not ended, or with something in their inbox.
    pub live: Vec<SessionId>,
    /// Deleted sessions of which something is left.
    pub deleted: Vec<SessionId>,
    /// Sessions with events that are gone for every reader and not removed yet.
    pub compacted: Vec<SessionId>,
}

/// How a session is named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SessionRef {
    /// By id.
    Id(SessionId),
    /// By the caller's key.
    Key(String),
    /// By what it stands for.
    External(ExternalRef),
    /// By a compatibility alias.
    Legacy(LegacyAlias),
}

/// Which sessions to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPage {
    /// Whose.
    pub whose: Whose,
    /// Only those that are kept at hand, or only the others.
    pub pinned: Option<bool>,
    /// Only these.
    pub status: Option<SessionStatus>,
    /// Only these.
    pub surface_kind: Option<String>,
    /// Only those before this one in the order.
    pub before: Option<(Time, SessionId)>,
    /// How many.
    pub limit: usize,
}

/// Whose sessions to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// All of this owner's.
    Owner(String),
    /// What everybody of this org may read.
    Org(String),
}

/// A version of an agent that an owner has made.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentRow {
    /// Whose.
    pub owner: String,
    /// The hash of what it says.
    pub hash: [u8; 32],
    /// What it says.
    pub definition: AgentDefinition,
    /// When it was made.
    pub created_at: Time,
}

/// How an API key is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRef {
    /// By id.
    Id(KeyId),
    /// By the hash of its secret.
    Hash([u8; 32]),
}

/// Which API keys to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPage {
    /// Only this org's.
    pub org: Option<String>,
    /// Only those before this one in the order.
    pub before: Option<(Time, KeyId)>,
    /// How many.
    pub limit: usize,
}

/// Which runs to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    /// Whose.
    pub owner: String,
    /// Only this session's.
    pub session: Option<SessionId>,
    /// Only these.
    pub status: Option<RunStatus>,
    /// Only those before this one in the order.
    pub before: Option<(Time, RunId)>,
    /// How many.
    pub limit: usize,
}

/// A message and its place in the tree; none for a prompt whose run has not started.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedMessage {
    /// The message.
    pub message: Arc<Message>,
    /// Its place.
    pub point: Option<Point>,
}

/// A message that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Its place in the order of arrival.
    pub place: u64,
    /// The session whose tree it stands in.
    pub session: SessionId,
    /// The message.
    pub message: Arc<Message>,
    /// The title of its session.
    pub title: Option<String>,
}

/// A line as one session walks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strand {
    /// The line.
    pub line: Line,
    /// True when the session has opened it.
    pub own: bool,
    /// The session's cursors on it: at a depth, the line to follow from there, where that is not this one.
    pub cursors: BTreeMap<u32, LineId>,
}

/// A message of a session's tree, and what stands around it.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeRow {
    /// The message.
    pub message: Arc<Message>,
    /// Its place.
    pub point: Point,
    /// True when its line was rolled back.
    pub abandoned: bool,
    /// The message above.
    pub parent: Option<MessageId>,
    /// The place of that.
    pub above: Option<Point>,
    /// True when a cursor of the session leads from there to here.
    pub followed: bool,
    /// The message beneath that the session's cursor leads to, or that goes straight on.
    pub cursor: Option<MessageId>,
}
