//! Feeds: a session's live stream, from its one writer to any number of readers.
//!
//! The feed holds the session's latest events and the text that is being streamed. Readers pull: each keeps its own
//! place and reads late if it is slow, from memory while it can and from the store where it must, so a stalled
//! reader costs nobody anything.
//!
//! Events and streamed bytes have one order. Deltas are published before they are durable; an event only after its
//! commit. While a commit is under way a *barrier* holds back the bytes that come after its events, so every reader
//! sees the same order, and so a reader that has seen more bytes than an event's `pos` knows that a crash lost them.
//!
//! ```text
//! loading ──found──▶ away ◀──────▶ live ──▶ closed        loading | away | live ──▶ failed
//!                 (readers alone)  (with an actor)
//! ```
//!
//! A feed belongs to its session, not to its actor: readers keep theirs while the session is not in memory, and it goes
//! on when the session comes back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainspring_api::OpenBlock;
pub use mainspring_api::OpenText;
use mainspring_core::{AttemptId, Cursor, Event, MessageId, Position, RunId, SessionId, Visibility};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::error::Error;
use crate::meters::Meters;
use crate::store::{Chunk, Fence};

mod life;
mod subscription;
pub(crate) use life::Standing;
pub use life::SubscriptionMode;
pub use subscription::{Delta, Item, Subscription, Thought};

/// How many events a feed keeps in memory for its readers; older ones are read from the store.
const RECENT: usize = 256;
/// How many thoughts a feed keeps: they are shown to whoever is there, and to nobody later.
const THOUGHTS: usize = 256;

/// A session's live stream.
#[derive(Debug)]
pub struct Feed {
    session: SessionId,
    state: Mutex<State>,
    wake: Notify,
    readers: life::Readers,
    /// Whether others than the owner may read.
    shown: AtomicBool,
    dirty: UnboundedSender<Arc<Feed>>,
    message_bytes: usize,
    meters: Arc<Meters>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// How often an actor has taken the feed up.
    tenures: u64,
    fence: Fence,
    cursor: Cursor,
    pos: u64,
    barrier: Option<u64>,
    /// The events in (floor, cursor].
    recent: VecDeque<Arc<Event>>,
    floor: Cursor,
    text: VecDeque<Segment>,
    flushed: u64,
    is_dirty: bool,
    writer: Option<Writer>,
    late: u64,
    /// Deltas that are not counted yet, and their bytes.
    deltas: u64,
    delta_bytes: u64,
    thoughts: VecDeque<Thought>,
    thought_no: u64,
}

/// Whether anybody writes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Where the stream stands is not known yet.
    Loading,
    /// The session is in memory.
    Live,
    /// The session is not in memory; nothing happens in it until it is.
    Away,
    /// The session is gone, or the process stops.
    Closed,
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

#[derive(Debug)]
struct Segment {
    start: u64,
    run: Option<RunId>,
    message: MessageId,
    block: u32,
    text: String,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start + self.text.len() as u64
    }

    /// Its text from byte `from` of the stream to byte `to`. Both lie on a character's edge.
    fn slice(&self, from: u64, to: u64) -> &str {
        let offset = |pos: u64| {
            usize::try_from(pos.saturating_sub(self.start)).unwrap_or(usize::MAX).min(self.text.len())
        };
        self.text.get(offset(from)..offset(to)).unwrap_or_default()
    }
}

/// How much a feed holds in memory. It does not grow with its readers, nor with how slow they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Events.
    pub events: usize,
    /// Bytes of text that is not in a message yet.
    pub bytes: usize,
    /// Thoughts.
    pub thoughts: usize,
    /// Who reads.
    pub readers: usize,
}

/// Why a delta was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The attempt has no authority any more: it ended, or another one took over.
    #[error("the attempt has no authority any more")]
    Revoked,
    /// The message has become larger than allowed.
    #[error("the message is larger than {0} bytes")]
    TooLarge(usize),
}

impl Feed {
    /// The feed of a session of which nothing is known yet.
    pub(crate) fn new(
        session: SessionId,
        dirty: UnboundedSender<Arc<Feed>>,
        message_bytes: usize,
        meters: Arc<Meters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session,
            state: Mutex::new(State {
                phase: Phase::Loading,
                tenures: 0,
                fence: Fence { session, epoch: 0 },
                cursor: Cursor::START,
                pos: 0,
                barrier: None,
                recent: VecDeque::new(),
                floor: Cursor::START,
                text: VecDeque::new(),
                flushed: 0,
                is_dirty: false,
                writer: None,
                late: 0,
                deltas: 0,
                delta_bytes: 0,
                thoughts: VecDeque::new(),
                thought_no: 0,
            }),
            wake: Notify::new(),
            readers: life::Readers::default(),
            shown: AtomicBool::new(false),
            dirty,
            message_bytes,
            meters,
        })
    }

    /// Streams `text` as part of block `block` of the message being written. Never waits for the disk.
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
            self.late_call(&mut state.late);
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
            // The flusher is gone only when the kernel is.
            let _ = self.dirty.send(self.clone());
        }
        // Whoever wakes wants the lock, and there may be thousands of them.
        drop(guard);
        self.wake.notify_waiters();
        Ok(())
    }

    /// Shows a thought to whoever is there. It is kept nowhere.
    pub(crate) fn thought(&self, by: AttemptId, text: &str) -> Result<(), DeltaError> {
        if text.len() > self.message_bytes {
            return Err(DeltaError::TooLarge(self.message_bytes));
        }
        let mut state = self.state.lock();
        if state.writer.as_ref().is_none_or(|writer| writer.attempt != by) {
            self.late_call(&mut state.late);
            return Err(DeltaError::Revoked);
        }
        state.thought_no += 1;
        let at = Position { cursor: state.cursor, pos: state.pos };
        let thought = Thought { no: state.thought_no, attempt: by, text: text.into(), at };
        state.thoughts.push_back(thought);
        if state.thoughts.len() > THOUGHTS {
            state.thoughts.pop_front();
        }
        self.wake.notify_waiters();
        Ok(())
    }

    /// Gives an attempt of a run the right to stream; nobody if none.
    pub(crate) fn authorize(&self, writer: Option<(AttemptId, RunId)>) {
        self.state.lock().writer = writer.map(|(attempt, run)| Writer { attempt, run, open: None, bytes: 0 });
    }

    /// Counts a late call of an attempt without authority.
    pub(crate) fn count_late(&self) {
        self.late_call(&mut self.state.lock().late);
    }

    fn late_call(&self, late: &mut u64) {
        *late += 1;
        self.meters.late_calls.add(1);
    }

    /// How many late calls were refused.
    pub fn late(&self) -> u64 {
        self.state.lock().late
    }

    /// Begins a commit: bytes that come from now on are held back until its events are published. Returns the count
    /// of bytes so far.
    ///
    /// With `seal` the commit completes what is being streamed: the text so far is returned, stays readable until
    /// [`Feed::publish`] drops it, and the next delta opens a new message.
    pub(crate) fn hold(&self, seal: bool) -> (u64, Vec<OpenText>) {
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

    /// Begins again after a commit that failed: the sealed message is open again.
    pub(crate) fn unseal(&self) {
        let mut state = self.state.lock();
        let last = state.text.back().map(|segment| segment.message);
        let bytes =
            state.text.iter().filter(|segment| Some(segment.message) == last).map(|s| s.text.len()).sum();
        if let Some(writer) = state.writer.as_mut().filter(|writer| writer.open.is_none()) {
            writer.open = last;
            writer.bytes = bytes;
        }
    }

    /// Ends a commit: publishes its events, if it has any, and drops the text before `completed`.
    pub(crate) fn publish(&self, events: Vec<Arc<Event>>, completed: Option<u64>) {
        let mut state = self.state.lock();
        state.barrier = None;
        for event in events {
            state.cursor = event.cursor;
            state.recent.push_back(event);
        }
        while state.recent.len() > RECENT {
            if let Some(oldest) = state.recent.pop_front() {
                state.floor = oldest.cursor;
            }
        }
        if let Some(completed) = completed {
            while state.text.front().is_some_and(|segment| segment.start < completed) {
                state.text.pop_front();
            }
            state.flushed = state.flushed.max(completed);
        }
        drop(state);
        self.wake.notify_waiters();
    }

    /// The events up to `floor` are gone for good: who has not seen them learns it from the store.
    pub(crate) fn prune(&self, floor: Cursor) {
        let mut state = self.state.lock();
        state.floor = state.floor.max(floor);
        while state.recent.front().is_some_and(|event| event.cursor <= floor) {
            state.recent.pop_front();
        }
        self.wake.notify_waiters();
    }

    /// The text that is not durable yet, for the flusher. It counts as durable from now on.
    pub(crate) fn unflushed(&self) -> Vec<Chunk> {
        let mut state = self.state.lock();
        let (from, to, fence) = (state.flushed, state.pos, state.fence);
        state.flushed = to;
        state.is_dirty = false;
        self.meters.streamed(std::mem::take(&mut state.deltas), std::mem::take(&mut state.delta_bytes));
        let newer = state.text.iter().rev().take_while(|segment| segment.end() > from).count();
        let segments = state.text.iter().skip(state.text.len() - newer);
        let chunk = |segment: &Segment| Chunk {
            fence,
            pos: segment.start.max(from),
            message: segment.message,
            block: segment.block,
            text: segment.slice(from, to).to_owned(),
        };
        segments.map(chunk).filter(|chunk| !chunk.text.is_empty()).collect()
    }

    /// The flusher could not write the bytes from `from` on: they are not durable after all.
    pub(crate) fn reflush(self: &Arc<Self>, from: u64) {
        let mut state = self.state.lock();
        state.flushed = state.flushed.min(from);
        if !std::mem::replace(&mut state.is_dirty, true) {
            let _ = self.dirty.send(self.clone());
        }
    }

    /// Where the stream stands and the text that is being streamed, at one instant.
    pub(crate) fn now(&self) -> (Position, Vec<OpenText>) {
        let state = self.state.lock();
        let at = state.at();
        (at, state.open_texts(at.pos))
    }

    /// Lets others than the owner read, or no more: they get nothing of what is published from now on.
    pub(crate) fn show_guests(&self, visibility: Visibility) {
        self.shown.store(visibility == Visibility::Org, Ordering::Release);
    }

    /// Where the stream stands.
    pub(crate) fn at(&self) -> Position {
        self.state.lock().at()
    }

    /// How much it holds.
    pub(crate) fn held(&self) -> Held {
        let state = self.state.lock();
        Held {
            events: state.recent.len(),
            bytes: state.text.iter().map(|segment| segment.text.len()).sum(),
            thoughts: state.thoughts.len(),
            readers: self.readers.all(),
        }
    }
}

impl State {
    fn at(&self) -> Position {
        Position { cursor: self.cursor, pos: self.barrier.unwrap_or(self.pos) }
    }

    fn open_texts(&self, until: u64) -> Vec<OpenText> {
        let segments = self.text.iter().filter(|segment| segment.start < until);
        open_texts(
            segments.map(|segment| (segment.message, segment.block, segment.slice(segment.start, until))),
        )
    }
}

/// Puts stretches of text together, message by message: its id, the block's number, the text.
pub(crate) fn open_texts<'a>(stretches: impl Iterator<Item = (MessageId, u32, &'a str)>) -> Vec<OpenText> {
    let mut open: Vec<OpenText> = vec![];
    for (message, block, text) in stretches {
        if open.last().is_none_or(|last| last.message_id != message) {
            open.push(OpenText { message_id: message, blocks: vec![] });
        }
        let Some(last) = open.last_mut() else { continue };
        // In the order of their numbers, whichever began first.
        match last.blocks.binary_search_by_key(&block, |open| open.block) {
            Ok(at) => last.blocks[at].text.push_str(text),
            Err(at) => last.blocks.insert(at, OpenBlock { block, text: text.to_owned() }),
        }
    }
    open
}
