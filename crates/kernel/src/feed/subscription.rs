//! Subscriptions: a reader's position in a feed.
//!
//! Invariant: a reader gets every event exactly once and in order, and every streamed byte exactly once, as a delta
//! or within the `message.completed` that replaces its deltas.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainspring_core::stream::truncated_at;
use mainspring_core::{AttemptId, Body, Cursor, Event, LiveEvent, MessageId, Position, RunId, SessionId};

use super::{Feed, FeedState, Phase, SubscriptionMode};
use crate::error::Error;
use crate::kernel::{Shared, Snapshot};
use crate::pins::mark;
use crate::store::StoreError;
use crate::store_health::StoreWatch;

/// Events read from the store at a time.
const PAGE_EVENTS: usize = 256;

/// Largest text of one delta, so that a reader that does not consume it holds little memory.
const DELTA_MAX_BYTES: usize = 64 << 10;

/// A reader of a session's stream. Dropping it unsubscribes.
pub struct Subscription {
    feed: Arc<Feed>,
    shared: Arc<Shared>,
    mode: SubscriptionMode,
    at: Position,
    backlog: VecDeque<Arc<Event>>,
    thought: u64,
    /// True if the reader is not the session's owner: it may read only while the session is visible to its org.
    needs_org_access: bool,
    /// The owner id of the reader. A reset shows the pins of this reader.
    reader: Option<String>,
    /// Skips streamed text and thoughts.
    events_only: bool,
    /// The next item is a reset: the reader's position does not exist any more.
    restarts: bool,
    store: StoreWatch,
}

/// One item of a session's stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// An event.
    Event(Arc<Event>),
    /// Streamed text.
    Delta(Delta),
    /// A thought. It is sent live only and never stored.
    Thought(Thought),
    /// A crash lost text after this position that this reader has already received.
    Truncated(Position),
    /// The store cannot be written, or can be written again. Sent live only.
    Store(Position, StoreChange),
    /// Events that this reader had not received were pruned, or its position is of another history. The reader starts
    /// again from this snapshot, and gets everything after it.
    Reset(Box<Snapshot>),
}

/// A change of the store's availability for writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChange {
    /// Nothing can be stored: commands are refused, and the ends of runs wait.
    Failed {
        /// The stable code.
        code: &'static str,
        /// The error, for people.
        message: String,
    },
    /// The store can be written again.
    Recovered,
}

impl StoreChange {
    /// The type and payload of the event.
    pub fn body(&self) -> Body {
        match self {
            Self::Failed { code, message } => {
                Body::StoreFailed { code: (*code).into(), message: message.clone() }
            }
            Self::Recovered => Body::StoreRecovered {},
        }
    }
}

/// Streamed text of a message that is not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    /// The run, if it is still known.
    pub run: Option<RunId>,
    /// The message.
    pub message: MessageId,
    /// Number of the block within the message.
    pub block: u32,
    /// The text.
    pub text: String,
    /// The resume point right after this text.
    pub position: Position,
}

/// Reasoning text of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thought {
    pub(super) no: u64,
    /// The attempt that produced it.
    pub attempt: AttemptId,
    /// The text.
    pub text: Arc<str>,
    /// Position of the stream when it was published.
    pub(super) at: Position,
}

impl Item {
    /// Wraps a delta, a truncation or a store change in a live event; `None` for events, thoughts and resets.
    pub fn live(&self, session: SessionId) -> Option<LiveEvent> {
        match self {
            Self::Delta(delta) => {
                let (message_id, block, text) = (delta.message, delta.block, delta.text.clone());
                let body = Body::MessageDelta { message_id, block, text };
                Some(LiveEvent { position: delta.position, session, run: delta.run, body })
            }
            Self::Truncated(position) => {
                let body = Body::MessageTruncated { pos: position.pos };
                Some(LiveEvent { position: *position, session, run: None, body })
            }
            Self::Store(position, change) => {
                Some(LiveEvent { position: *position, session, run: None, body: change.body() })
            }
            Self::Event(_) | Self::Thought(_) | Self::Reset(_) => None,
        }
    }
}

/// Next step of a reader.
enum ReadStep {
    Ready(Item),
    Load,
    Wait,
    End,
    Fail(Error),
}

impl Subscription {
    /// Makes a reader, which the caller has already counted in the feed. Its position is set by [`Subscription::resume`].
    pub(crate) fn new(feed: Arc<Feed>, shared: Arc<Shared>, mode: SubscriptionMode) -> Self {
        let thought = feed.state.lock().thought_no;
        let store = StoreWatch::new(&shared.store_health);
        Self {
            feed,
            shared,
            mode,
            at: Position::START,
            backlog: VecDeque::new(),
            thought,
            needs_org_access: false,
            reader: None,
            events_only: false,
            restarts: false,
            store,
        }
    }

    /// Sets the position after which the reader continues.
    pub(crate) fn resume(mut self, at: Position) -> Self {
        self.at = at;
        self
    }

    /// Begins with a reset. `now` is the present position.
    pub(crate) fn restart(mut self, now: Position) -> Self {
        self.restarts = true;
        self.resume(now)
    }

    /// Begins the stream with a reset, because the reader's position is of another history.
    pub fn restarted(self) -> Self {
        let now = self.feed.position();
        self.restart(now)
    }

    /// True if the next item is a reset.
    pub fn is_restarting(&self) -> bool {
        self.restarts
    }

    /// Sets the reader, and whether it is not the session's owner.
    pub(crate) fn with_reader(mut self, reader: &str, needs_org_access: bool) -> Self {
        self.reader = Some(reader.to_owned());
        self.needs_org_access = needs_org_access;
        self
    }

    /// Skips streamed text and thoughts: [`Subscription::next`] returns events and resets only.
    pub(crate) fn events_only(mut self) -> Self {
        self.events_only = true;
        self
    }

    pub(crate) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Whether this subscription keeps the session in memory.
    pub fn mode(&self) -> SubscriptionMode {
        self.mode
    }

    /// Changes the mode. An unloaded session is loaded for its new controller.
    pub fn set_mode(&mut self, mode: SubscriptionMode) {
        let before = std::mem::replace(&mut self.mode, mode);
        if before != mode {
            self.shared.change_mode(&self.feed, before, mode);
        }
    }

    /// Number of calls that were refused because their attempt had lost its authority, since the feed was created.
    pub fn late_calls(&self) -> u64 {
        self.feed.late_calls()
    }

    /// The session this subscription reads.
    pub fn session(&self) -> SessionId {
        self.feed.session
    }

    /// The resume point. A later subscription from here misses nothing and sees nothing twice.
    pub fn position(&self) -> Position {
        self.at
    }

    /// Waits for the next item; `None` once the session is deleted or this reader may no longer read it. Ends with
    /// [`Error::Elsewhere`] if the session moves to another process. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Item, Error>> {
        // Boxed, like the reading of events: both are rare, and would enlarge the future of every waiting reader.
        if self.restarts {
            return Some(Box::pin(self.reset()).await);
        }
        loop {
            let feed = self.feed.clone();
            // Created before the checks, so that a change after them wakes this reader.
            let notified = feed.wake.notified();
            if !self.events_only
                && let Some(change) = self.store.change()
            {
                return Some(Ok(Item::Store(self.at, change)));
            }
            match self.next_step() {
                ReadStep::Ready(item) => return Some(Ok(item)),
                ReadStep::Wait => notified.await,
                ReadStep::End => return None,
                ReadStep::Fail(error) => return Some(Err(error)),
                ReadStep::Load => {
                    if let ControlFlow::Break(end) = Box::pin(self.load_events()).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Reads the next page of events from the store. Breaks with the result of [`Subscription::next`] if the page is
    /// empty, pruned or cannot be read.
    async fn load_events(&mut self) -> ControlFlow<Option<Result<Item, Error>>> {
        let store = &self.shared.store;
        match store.events_after(self.feed.session, None, self.at.cursor, PAGE_EVENTS).await {
            // The session was deleted with all events up to the floor: nothing more will come.
            Ok(events) if events.is_empty() => ControlFlow::Break(None),
            Ok(events) => {
                self.backlog.extend(events.into_iter().map(Arc::new));
                ControlFlow::Continue(())
            }
            Err(StoreError::Pruned(_)) => ControlFlow::Break(Some(self.reset().await)),
            Err(error) => ControlFlow::Break(Some(Err(error.into()))),
        }
    }

    async fn reset(&mut self) -> Result<Item, Error> {
        let mut snapshot = self.shared.snapshot(&self.feed).await?;
        if let Some(reader) = &self.reader {
            let pins = self.shared.pins.of(&*self.shared.store, reader).await?;
            mark(&mut snapshot.session, &pins);
        }
        self.at = snapshot.position;
        self.restarts = false;
        Ok(Item::Reset(Box::new(snapshot)))
    }

    fn next_step(&mut self) -> ReadStep {
        let feed = self.feed.clone();
        let state = feed.state.lock();
        match &state.phase {
            Phase::Loading => return ReadStep::Wait,
            Phase::Failed(error) => return ReadStep::Fail(error.clone()),
            Phase::Live | Phase::Unloaded | Phase::Closed | Phase::Moved(_) => {}
        }
        if self.needs_org_access && !feed.org_readable.load(Ordering::Acquire) {
            return ReadStep::End;
        }
        while self.backlog.front().is_some_and(|event| event.cursor <= self.at.cursor) {
            self.backlog.pop_front();
        }
        let event = match self.backlog.front() {
            Some(event) => Some(event.clone()),
            None if self.at.cursor < state.floor => return ReadStep::Load,
            None => event_after(&state, self.at.cursor),
        };
        if self.events_only {
            return self.step_event(event, &state.phase);
        }
        let limit = match &event {
            Some(event) => event.pos,
            None => state.barrier.unwrap_or(state.pos),
        };
        if let Some(stored) = truncated_at(self.at.pos, limit) {
            self.at.pos = stored;
            return ReadStep::Ready(Item::Truncated(self.at));
        }
        // Most readers have seen the latest thought.
        let thought = match state.thought_no > self.thought {
            true => state.thoughts.iter().find(|thought| thought.no > self.thought),
            false => None,
        };
        let until = thought.map_or(limit, |thought| limit.min(thought.at.pos.max(self.at.pos)));
        if let Some(delta) = self.next_delta(&state, until) {
            return ReadStep::Ready(Item::Delta(delta));
        }
        // A thought follows the text and events that preceded it. If that text has left memory, the thought comes
        // before the message that holds the text.
        if let Some(thought) = thought.filter(|thought| thought.at.pos <= limit)
            && event.as_ref().is_none_or(|event| event.cursor > thought.at.cursor)
        {
            self.thought = thought.no;
            return ReadStep::Ready(Item::Thought(thought.clone()));
        }
        self.step_event(event, &state.phase)
    }

    fn step_event(&mut self, event: Option<Arc<Event>>, phase: &Phase) -> ReadStep {
        match event {
            Some(event) => {
                self.at = event.position();
                ReadStep::Ready(Item::Event(event))
            }
            None => match phase {
                Phase::Closed => ReadStep::End,
                Phase::Moved(node) => ReadStep::Fail(Error::Elsewhere { node: *node }),
                _ => ReadStep::Wait,
            },
        }
    }

    /// Takes the next streamed text before position `limit`. Text that has left memory is in a completed message, whose
    /// event is still to come.
    fn next_delta(&mut self, state: &FeedState, limit: u64) -> Option<Delta> {
        let segment = match state.text.back() {
            // Most readers have seen everything before the last segment.
            Some(last) if last.start <= self.at.pos => (last.end() > self.at.pos).then_some(last),
            _ => state.text.get(state.text.partition_point(|segment| segment.end() <= self.at.pos)),
        };
        let segment = segment.filter(|segment| segment.start < limit)?;
        let from = segment.start.max(self.at.pos);
        let text = segment.slice(from, segment.end().min(limit));
        let text = text[..text.floor_char_boundary(DELTA_MAX_BYTES)].to_owned();
        self.at.pos = from + text.len() as u64;
        (!text.is_empty()).then_some(Delta {
            run: segment.run,
            message: segment.message,
            block: segment.block,
            text,
            position: self.at,
        })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.unsubscribe(&self.feed, self.mode);
    }
}

fn event_after(state: &FeedState, cursor: Cursor) -> Option<Arc<Event>> {
    // Most readers have seen the latest event.
    if state.cursor <= cursor {
        return None;
    }
    let first = state.recent.partition_point(|event| event.cursor <= cursor);
    state.recent.get(first).cloned()
}
