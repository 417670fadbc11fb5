//! Feeds: a session's live stream, from one writer to any number of readers.
//!
//! A feed holds the session's latest events and the text that is being streamed. Readers pull: each keeps its own
//! position and reads from memory while it can, else from the store. A slow reader costs neither the writer nor the
//! other readers anything.
//!
//! Events and streamed bytes have one order. Deltas are published before they are durable, an event only after its
//! commit. During a commit a *barrier* holds back the bytes that come after the commit's events, so every reader sees
//! the same order. A commit stores the bytes before its events together with them, unless they are stored already. A
//! reader that has seen more bytes than an event's `pos` therefore knows that a crash lost exactly the bytes after
//! `pos` ([`mainspring_core::stream`]).
//!
//! ```text
//! loading ──▶ unloaded ◀──────▶ live        loading | unloaded | live ──▶ closed | failed
//!          (readers alone)  (with an actor)             unloaded | live ──▶ moved
//! ```
//!
//! A feed belongs to its session, not to its actor: readers keep it while the session is not in memory, and it
//! continues when the session is loaded again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use mainspring_api::OpenText;
use mainspring_core::stream::Stored;
use mainspring_core::{AttemptId, Cursor, Event, MessageId, NodeId, Position, RunId, SessionId, Visibility};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::error::Error;
use crate::meters::Meters;
use crate::store::{Chunk, Fence};

mod life;
mod subscription;
mod text;
pub(crate) use life::FeedStatus;
pub use life::SubscriptionMode;
pub use subscription::{Delta, Item, StoreChange, Subscription, Thought};
use text::Segment;
pub(crate) use text::open_texts;

/// Events that a feed keeps in memory for its readers; older ones are read from the store.
const RECENT_EVENTS_MAX: usize = 256;
/// Thoughts that a feed keeps for its present readers. They are never stored.
const RECENT_THOUGHTS_MAX: usize = 256;

/// A session's live stream.
#[derive(Debug)]
pub struct Feed {
    session: SessionId,
    state: Mutex<FeedState>,
    wake: Notify,
    readers: life::Readers,
    /// True while members of the session's org may read the session.
    org_readable: AtomicBool,
    dirty: UnboundedSender<Arc<Feed>>,
    message_bytes: usize,
    meters: Arc<Meters>,
}

#[derive(Debug)]
struct FeedState {
    phase: Phase,
    /// Number of times an actor has been attached.
    actor_generation: u64,
    fence: Fence,
    cursor: Cursor,
    pos: u64,
    barrier: Option<u64>,
    /// The events in the range (floor, cursor].
    recent: VecDeque<Arc<Event>>,
    floor: Cursor,
    text: VecDeque<Segment>,
    stored: Stored,
    is_dirty: bool,
    writer: Option<Writer>,
    late_calls: u64,
    /// Deltas not added to the meters yet, and their bytes.
    deltas: u64,
    delta_bytes: u64,
    thoughts: VecDeque<Thought>,
    thought_no: u64,
}

/// The phase of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// The stream's position is not known yet.
    Loading,
    /// The session is in memory, with an actor.
    Live,
    /// The session is not in memory; nothing is written.
    Unloaded,
    /// The session was deleted, or the process is stopping.
    Closed,
    /// Another process that shares the store is the home of the session now.
    Moved(NodeId),
    /// The session could not be loaded.
    Failed(Error),
}

/// The attempt that may write, and the message it is streaming.
#[derive(Debug)]
struct Writer {
    attempt: AttemptId,
    run: RunId,
    open: Option<MessageId>,
    bytes: usize,
}

/// Memory held by a feed. It grows neither with the number of readers nor with how slow they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FeedMemory {
    /// Events.
    pub events: usize,
    /// Bytes of text that is not in a message yet.
    pub bytes: usize,
    /// Thoughts.
    pub thoughts: usize,
    /// Readers.
    pub readers: usize,
}

/// Text that the flusher makes durable.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) range: Range<u64>,
    pub(crate) actor_generation: u64,
}

/// Why streamed text was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The attempt has ended or was replaced: it has lost its authority.
    #[error("the attempt has no authority any more")]
    Revoked,
    /// The message would exceed the size limit, in bytes.
    #[error("the message is larger than {0} bytes")]
    TooLarge(usize),
}

impl Feed {
    /// Creates a feed in the loading state.
    pub(crate) fn new(
        session: SessionId,
        dirty: UnboundedSender<Arc<Feed>>,
        message_bytes: usize,
        meters: Arc<Meters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session,
            state: Mutex::new(FeedState {
                phase: Phase::Loading,
                actor_generation: 0,
                fence: Fence { session, epoch: 0 },
                cursor: Cursor::START,
                pos: 0,
                barrier: None,
                recent: VecDeque::new(),
                floor: Cursor::START,
                text: VecDeque::new(),
                stored: Stored::default(),
                is_dirty: false,
                writer: None,
                late_calls: 0,
                deltas: 0,
                delta_bytes: 0,
                thoughts: VecDeque::new(),
                thought_no: 0,
            }),
            wake: Notify::new(),
            readers: life::Readers::default(),
            org_readable: AtomicBool::new(false),
            dirty,
            message_bytes,
            meters,
        })
    }

    /// Publishes `text` as part of block `block` of the message being written. Never waits for the disk.
    ///
    /// `fresh` generates the id of a new message, if none is being written.
    pub(crate) fn delta(
        self: &Arc<Self>,
        by: AttemptId,
        block: u32,
        text: &str,
        fresh: impl FnOnce() -> MessageId,
    ) -> Result<(), DeltaError> {
        if text.is_empty() {
            return Ok(());
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(writer) = state.writer.as_mut().filter(|writer| writer.attempt == by) else {
            self.count_late_call(&mut state.late_calls);
            return Err(DeltaError::Revoked);
        };
        if writer.bytes + text.len() > self.message_bytes {
            return Err(DeltaError::TooLarge(self.message_bytes));
        }
        let (run, message) = (writer.run, *writer.open.get_or_insert_with(fresh));
        writer.bytes += text.len();
        match state.text.back_mut() {
            Some(last) if last.message == message && last.block == block => last.text.push_str(text),
            _ => state.text.push_back(Segment {
                start: state.pos,
                run: Some(run),
                message,
                block,
                text: text.to_owned(),
            }),
        }
        state.pos += text.len() as u64;
        state.deltas += 1;
        state.delta_bytes += text.len() as u64;
        if !std::mem::replace(&mut state.is_dirty, true) {
            // Fails only while the kernel is being dropped.
            let _ = self.dirty.send(self.clone());
        }
        // Unlocks before waking: every woken reader takes the lock, and there may be thousands.
        drop(guard);
        self.wake.notify_waiters();
        Ok(())
    }

    /// Wakes the readers without a new item.
    pub(crate) fn wake_readers(&self) {
        self.wake.notify_waiters();
    }

    /// Publishes a thought to the present readers. It is never stored.
    pub(crate) fn thought(&self, by: AttemptId, text: &str) -> Result<(), DeltaError> {
        if text.len() > self.message_bytes {
            return Err(DeltaError::TooLarge(self.message_bytes));
        }
        let mut state = self.state.lock();
        if state.writer.as_ref().is_none_or(|writer| writer.attempt != by) {
            self.count_late_call(&mut state.late_calls);
            return Err(DeltaError::Revoked);
        }
        state.thought_no += 1;
        let at = Position { cursor: state.cursor, pos: state.pos };
        let thought = Thought { no: state.thought_no, attempt: by, text: text.into(), at };
        state.thoughts.push_back(thought);
        if state.thoughts.len() > RECENT_THOUGHTS_MAX {
            state.thoughts.pop_front();
        }
        self.wake.notify_waiters();
        Ok(())
    }

    /// Grants the right to stream to an attempt of a run, or revokes it.
    pub(crate) fn authorize(&self, writer: Option<(AttemptId, RunId)>) {
        self.state.lock().writer = writer.map(|(attempt, run)| Writer { attempt, run, open: None, bytes: 0 });
    }

    /// Counts a call of an attempt that has lost its authority.
    pub(crate) fn count_late(&self) {
        self.count_late_call(&mut self.state.lock().late_calls);
    }

    fn count_late_call(&self, late_calls: &mut u64) {
        *late_calls += 1;
        self.meters.late_calls.add(1);
    }

    /// Number of calls refused because their attempt had lost its authority.
    pub fn late_calls(&self) -> u64 {
        self.state.lock().late_calls
    }

    /// Begins a commit: holds back later bytes until the commit's events are published. Returns the stream's byte count.
    ///
    /// With `seal` the commit completes the messages being streamed: their text is returned and stays readable until
    /// [`Feed::publish`] drops it, and the next delta opens a new message.
    pub(crate) fn begin_commit(&self, seal: bool) -> (u64, Vec<OpenText>) {
        let mut state = self.state.lock();
        state.barrier = Some(state.pos);
        if !seal {
            return (state.pos, vec![]);
        }
        if let Some(writer) = &mut state.writer {
            writer.open = None;
            writer.bytes = 0;
        }
        (state.pos, state.open_texts(u64::MAX))
    }

    /// Reopens the sealed message after a commit that failed.
    pub(crate) fn reopen(&self) {
        let mut state = self.state.lock();
        let last = state.text.back().map(|segment| segment.message);
        let bytes =
            state.text.iter().filter(|segment| Some(segment.message) == last).map(|s| s.text.len()).sum();
        if let Some(writer) = state.writer.as_mut().filter(|writer| writer.open.is_none()) {
            writer.open = last;
            writer.bytes = bytes;
        }
    }

    /// Ends a commit: publishes its events and drops the text before position `completed`, which is in messages now.
    pub(crate) fn publish(&self, events: Vec<Arc<Event>>, completed: Option<u64>) {
        let mut state = self.state.lock();
        state.barrier = None;
        for event in events {
            state.cursor = event.cursor;
            state.recent.push_back(event);
        }
        while state.recent.len() > RECENT_EVENTS_MAX {
            if let Some(oldest) = state.recent.pop_front() {
                state.floor = oldest.cursor;
            }
        }
        if let Some(completed) = completed {
            while state.text.front().is_some_and(|segment| segment.start < completed) {
                state.text.pop_front();
            }
            state.stored.committed(completed);
        }
        drop(state);
        self.wake.notify_waiters();
    }

    /// Drops the events up to `floor`, which were pruned. Readers that have not seen them are reset.
    pub(crate) fn prune(&self, floor: Cursor) {
        let mut state = self.state.lock();
        state.floor = state.floor.max(floor);
        while state.recent.front().is_some_and(|event| event.cursor <= floor) {
            state.recent.pop_front();
        }
        self.wake.notify_waiters();
    }

    /// Takes the text that no batch has taken yet, for the flusher.
    pub(crate) fn take_unflushed(&self) -> Batch {
        let mut state = self.state.lock();
        let published = state.pos;
        let range = state.stored.take(published);
        state.is_dirty = false;
        self.meters.streamed(std::mem::take(&mut state.deltas), std::mem::take(&mut state.delta_bytes));
        Batch { chunks: state.chunks(&range), range, actor_generation: state.actor_generation }
    }

    /// Records whether the text of a batch is durable. Text that is not durable is taken again by the next batch.
    pub(crate) fn batch_ended(self: &Arc<Self>, range: &Range<u64>, actor_generation: u64, is_stored: bool) {
        let mut state = self.state.lock();
        // The session was loaded again from the store since the batch was taken: the batch was written under an
        // earlier fence, or not at all.
        if state.actor_generation != actor_generation {
            return;
        }
        if is_stored {
            return state.stored.batch_stored(range.end);
        }
        state.stored.batch_failed(range.start);
        if !std::mem::replace(&mut state.is_dirty, true) {
            let _ = self.dirty.send(self.clone());
        }
    }

    /// Returns the text that the commit in progress must store, so that the positions of its events cover stored text
    /// only.
    pub(crate) fn needed_by_commit(&self) -> Vec<Chunk> {
        let state = self.state.lock();
        state.chunks(&state.stored.needed_by_commit(state.at().pos))
    }

    /// True if all streamed text is stored.
    pub(crate) fn is_stored(&self) -> bool {
        let state = self.state.lock();
        state.stored.needed_by_commit(state.pos).is_empty()
    }

    /// Records that the commit in progress is durable, with the text before it.
    pub(crate) fn commit_stored(&self) {
        let mut state = self.state.lock();
        let pos = state.at().pos;
        state.stored.committed(pos);
    }

    /// The stream's position and the text being streamed, read atomically.
    pub(crate) fn snapshot(&self) -> (Position, Vec<OpenText>) {
        let state = self.state.lock();
        let at = state.at();
        (at, state.open_texts(at.pos))
    }

    /// Allows or stops reading by members of the session's org. Takes effect for everything published afterwards.
    pub(crate) fn set_visibility(&self, visibility: Visibility) {
        self.org_readable.store(visibility == Visibility::Org, Ordering::Release);
    }

    /// The stream's position.
    pub(crate) fn position(&self) -> Position {
        self.state.lock().at()
    }

    /// Memory held by this feed.
    pub(crate) fn memory_use(&self) -> FeedMemory {
        let state = self.state.lock();
        FeedMemory {
            events: state.recent.len(),
            bytes: state.text.iter().map(|segment| segment.text.len()).sum(),
            thoughts: state.thoughts.len(),
            readers: self.readers.total(),
        }
    }
}

impl FeedState {
    fn at(&self) -> Position {
        Position { cursor: self.cursor, pos: self.barrier.unwrap_or(self.pos) }
    }

    /// Returns the streamed text in a range of positions.
    fn chunks(&self, range: &Range<u64>) -> Vec<Chunk> {
        let newer = self.text.iter().rev().take_while(|segment| segment.end() > range.start).count();
        let segments = self.text.iter().skip(self.text.len() - newer);
        let chunk = |segment: &Segment| Chunk {
            fence: self.fence,
            pos: segment.start.max(range.start),
            message: segment.message,
            block: segment.block,
            text: segment.slice(range.start, range.end).to_owned(),
        };
        segments.map(chunk).filter(|chunk| !chunk.text.is_empty()).collect()
    }

    fn open_texts(&self, until: u64) -> Vec<OpenText> {
        let segments = self.text.iter().filter(|segment| segment.start < until);
        open_texts(
            segments.map(|segment| (segment.message, segment.block, segment.slice(segment.start, until))),
        )
    }
}
