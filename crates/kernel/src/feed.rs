//! Feeds: a session's live stream, from its one writer to any number of readers.
//!
//! The feed holds the session's latest events and the text that is being streamed. Readers pull: each keeps its own
//! place and reads late if it is slow, from memory while it can and from the store where it must, so a stalled
//! reader costs nobody anything.
//!
//! Events and streamed bytes have one order. Deltas are published before they are durable; an event only after its
//! commit. While a commit is under way a *barrier* holds back the bytes that come after its events, so every reader
//! sees the same order, and so a reader that has seen more bytes than an event's `pos` knows that a crash lost them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainspring_core::{AttemptId, Cursor, Event, MessageId, Position, RunId, SessionId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::meters::Meters;
use crate::store::{Chunk, Fence};

mod subscription;
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
    readers: AtomicUsize,
    dirty: UnboundedSender<Arc<Feed>>,
    message_bytes: usize,
    meters: Arc<Meters>,
}

#[derive(Debug)]
struct State {
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
    /// Deltas that are not counted yet, and up to where streamed bytes are.
    deltas: u64,
    counted: u64,
    thoughts: VecDeque<Thought>,
    thought_no: u64,
    closed: bool,
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

    /// Its text from byte `from` of the stream to byte `to`. Both lie between two deltas, so on a character's edge.
    fn slice(&self, from: u64, to: u64) -> &str {
        let offset = |pos: u64| {
            usize::try_from(pos.saturating_sub(self.start)).unwrap_or(usize::MAX).min(self.text.len())
        };
        self.text.get(offset(from)..offset(to)).unwrap_or_default()
    }
}

/// Streamed text of one message, block by block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenText {
    /// The message.
    pub message: MessageId,
    /// Its blocks: number and text.
    pub blocks: Vec<(u32, String)>,
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
    /// The feed of a session whose stream stands at `at`.
    pub(crate) fn new(
        fence: Fence,
        at: Position,
        dirty: UnboundedSender<Arc<Feed>>,
        message_bytes: usize,
        meters: Arc<Meters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session: fence.session,
            state: Mutex::new(State {
                fence,
                cursor: at.cursor,
                pos: at.pos,
                barrier: None,
                recent: VecDeque::new(),
                floor: at.cursor,
                text: VecDeque::new(),
                flushed: at.pos,
                is_dirty: false,
                writer: None,
                late: 0,
                deltas: 0,
                counted: at.pos,
                thoughts: VecDeque::new(),
                thought_no: 0,
                closed: false,
            }),
            wake: Notify::new(),
            readers: AtomicUsize::new(0),
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
        let mut state = self.state.lock();
        let state = &mut *state;
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
        if !std::mem::replace(&mut state.is_dirty, true) {
            // The flusher is gone only when the kernel is.
            let _ = self.dirty.send(self.clone());
        }
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
        let thought = Thought { no: state.thought_no, attempt: by, text: text.into() };
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
        (state.pos, open_texts(&state.text, u64::MAX))
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
        self.wake.notify_waiters();
    }

    /// Ends the feed: readers get what is left and then the end.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_waiters();
    }

    /// Takes over the durable text of a message that was being streamed when the process ended.
    pub(crate) fn restore(&self, chunks: Vec<Chunk>, run: Option<RunId>) {
        let mut state = self.state.lock();
        for chunk in chunks {
            state.text.push_back(Segment {
                start: chunk.pos,
                run,
                message: chunk.message,
                block: chunk.block,
                text: chunk.text,
            });
        }
    }

    /// The text that is not durable yet, for the flusher. It counts as durable from now on.
    pub(crate) fn unflushed(&self) -> Vec<Chunk> {
        let mut state = self.state.lock();
        let (from, to, fence) = (state.flushed, state.pos, state.fence);
        state.flushed = to;
        state.is_dirty = false;
        self.meters
            .streamed(std::mem::take(&mut state.deltas), to - std::mem::replace(&mut state.counted, to));
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
        let pos = state.barrier.unwrap_or(state.pos);
        (Position { cursor: state.cursor, pos }, open_texts(&state.text, pos))
    }

    /// How many readers there are.
    pub fn readers(&self) -> usize {
        self.readers.load(Ordering::Relaxed)
    }
}

fn open_texts(text: &VecDeque<Segment>, until: u64) -> Vec<OpenText> {
    let mut open: Vec<OpenText> = vec![];
    for segment in text.iter().filter(|segment| segment.start < until) {
        let slice = segment.slice(segment.start, until);
        if open.last().is_none_or(|last| last.message != segment.message) {
            open.push(OpenText { message: segment.message, blocks: vec![] });
        }
        let Some(last) = open.last_mut() else { continue };
        // In the order of their numbers, whichever began first.
        match last.blocks.binary_search_by_key(&segment.block, |(block, _)| *block) {
            Ok(at) => last.blocks[at].1.push_str(slice),
            Err(at) => last.blocks.insert(at, (segment.block, slice.to_owned())),
        }
    }
    open
}

#[cfg(test)]
mod tests;
