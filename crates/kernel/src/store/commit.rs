//! Commits: the rows and events that become durable together.

use std::sync::Arc;

pub use mainspring_core::run::round::{EndedToolCall, OpenToolCall};
use mainspring_core::{
    Artifact, ArtifactId, Attempt, AttemptId, Binding, Body, Delegation, Digest, EventId, Feedback, Grant,
    KeyId, Line, LineId, Message, MessageId, Point, Position, Run, RunId, Session, SessionId, Spend, Step,
    Time,
};

use super::{InboxItem, Pin, StateChangeRow, StateRow};

/// The right to write one session. It becomes void when the lease is taken again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The session.
    pub session: SessionId,
    /// Number of the lease; grows each time the lease is taken.
    pub epoch: u64,
}

/// Rows and events of one session that become durable together.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// The session that is written, and the right to write it.
    pub fence: Fence,
    /// Events, in order.
    pub events: Vec<NewEvent>,
    /// Changed rows.
    pub rows: Vec<Row>,
}

/// An event that has no cursor yet.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// Id of the event.
    pub id: EventId,
    /// The session's count of streamed bytes.
    pub pos: u64,
    /// The run of the event.
    pub run: Option<RunId>,
    /// The attempt of the event.
    pub attempt: Option<AttemptId>,
    /// When the event happened.
    pub at: Time,
    /// Content of the event. The text of a completed message is stored once, in the message's row.
    pub body: Body,
}

/// One changed row. A row with an id is inserted, or replaced if it exists.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// Asserts that an id is unused. If it is used, the commit fails with a conflict.
    NewId(NewId),
    /// A session.
    Session(Arc<Session>),
    /// A run. Its owner, names, fingerprint and place never change.
    Run(Arc<Run>),
    /// An attempt.
    Attempt(Box<Attempt>),
    /// A model call.
    Step(Box<Step>),
    /// An input of steps of this session. The same hash always stands for the same content.
    StepInput(Arc<StepInputRow>),
    /// Erases the private data of a run's steps, once the run has ended.
    StepsSeal(RunId),
    /// A digest of older messages of a path. At most one per point.
    Digest(Box<Digest>),
    /// A new message, with its point if it has one yet.
    Message(Arc<Message>, Option<Point>),
    /// Gives a stored prompt its point and completes it.
    MessagePlace(MessageId, Point),
    /// A line of the tree, including its end.
    Line(Line),
    /// The line to follow from a point; none to follow the point's own line.
    Cursor(Point, Option<LineId>),
    /// Streamed text that the positions of the commit's events cover, and that may not be stored yet. Replaces chunks at
    /// the same positions.
    Chunks(Vec<Chunk>),
    /// Drops the session's chunks before this position. Their text is in messages now.
    ChunksDrop(u64),
    /// Hides the session's events up to this position from every reader. The position only grows.
    Floor(Position),
    /// A tool call that has begun or ended, and whose result no message holds yet.
    ToolCall(Box<OpenToolCall>),
    /// Removes the tool call with this id: a message holds its result, or will never hold one.
    ToolCallSettled(RunId, String),
    /// A request that was answered.
    Request(Box<Request>),
    /// A note for another session's inbox. Dropped if that session is gone or deleted.
    Inbox(SessionId, InboxItem),
    /// Removes a note from this session's inbox.
    InboxTaken(EventId),
    /// A binding.
    Binding(Box<Binding>),
    /// The owner of a native session, unless it has one already.
    NativeOwner(Box<NativeOwner>),
    /// Adds to the spend of an API key on a day.
    Spend(KeyId, i64, Spend),
    /// Feedback of a reader on a message, in place of the earlier one.
    Feedback(Box<Feedback>),
    /// A change of a reader's pins.
    Pin(Box<Pin>),
    /// A grant.
    Grant(Box<Grant>),
    /// An artifact, whose bytes are durable.
    Artifact(Box<Artifact>),
    /// The copy of an artifact that this session, a fork, has inherited.
    InheritedArtifact(Box<Artifact>),
    /// Removes an artifact of this session. Its hash becomes loose.
    ArtifactGone(ArtifactId),
    /// An entry of state.
    State(Box<StateRow>),
    /// A change of state, for the history of its key, which keeps the last
    /// [`HISTORY_CHANGES`](mainspring_core::state::HISTORY_CHANGES).
    StateChange(Box<StateChangeRow>),
    /// An entry of state of an imported session, written at this order instead of now ([`TreeState::order`](super::TreeState)).
    StateAtOrder(Box<StateRow>, i64),
    /// The order at which a line of an imported session was opened.
    LineOrder(LineId, i64),
    /// Moves the entry of this key from a point without a message to the point before.
    StateBack(Point, String),
    /// A delegation. Written by the child's session; dropped if the parent's session is gone or deleted.
    Delegation(Box<Delegation>),
}

/// The input of steps of a session, besides messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepInputRow {
    /// The BLAKE3 hash of the JSON, in hexadecimal digits.
    pub hash: String,
    /// The canonical JSON of a [`mainspring_core::StepInput`].
    pub json: String,
}

/// The owner of a native session. It stays when the session that opened the native one is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeOwner {
    /// The adapter.
    pub adapter: String,
    /// The runtime's id of the native session.
    pub native: String,
    /// The owner.
    pub owner: String,
    /// The way in which the owner obtained the native session.
    pub claim: NativeClaim,
}

/// The way in which an owner obtained a native session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativeClaim {
    /// An agent has opened it. The agent is trusted.
    Opened,
    /// A caller has named it. The commit fails with a conflict if another owner has it, through any adapter and in any
    /// spelling: adapters may start the same program, which has one set of sessions.
    Adopted,
    /// As [`Self::Adopted`], and the commit also fails if an agent has not opened it for this owner through this adapter.
    AdoptedAgain,
}

/// An id that must be unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum NewId {
    Session(SessionId),
    Run(RunId),
    Message(MessageId),
    Artifact(ArtifactId),
}

/// An answered request, stored so that the same request gets the same answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Owner of the request.
    pub owner: String,
    /// Name of the operation.
    pub operation: String,
    /// The caller's idempotency key.
    pub key: String,
    /// Hash of the request's content.
    pub fingerprint: [u8; 16],
    /// Id of the created object.
    pub answer: String,
    /// When the request was made.
    pub at: Time,
}

impl Request {
    /// Time for which a request and its answer are kept: a day.
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
    /// Position of the first byte in the session's stream.
    pub pos: u64,
    /// The message that the text will be part of.
    pub message: MessageId,
    /// Number of the block within the message.
    pub block: u32,
    /// The text.
    pub text: String,
}
