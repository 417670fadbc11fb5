//! Subscriptions: a reader's place in a feed.
//!
//! Invariant: a reader gets every event exactly once and in order, and every streamed byte exactly once, as a delta
//! or within the `message.completed` that replaces its deltas.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainspring_core::{AttemptId, Body, Cursor, Event, LiveEvent, MessageId, Position, RunId, SessionId};

use super::{Feed, Phase, State, SubscriptionMode};
use crate::error::Error;
use crate::kernel::{Shared, Snapshot};
use crate::store::StoreError;

/// How many events are read from the store at a time.
const PAGE: usize = 256;

/// How much text a reader is given at a time, so that one who does not take it holds little.
const STRETCH: usize = 64 << 10;

/// A reader's place in a session's stream. Dropping it is leaving.
pub struct Subscription {
    feed: Arc<Feed>,
    shared: Arc<Shared>,
    mode: SubscriptionMode,
    at: Position,
    backlog: VecDeque<Arc<Event>>,
    thought: u64,
    /// Reads what another owner shows, for as long as it is shown.
    guest: bool,
    /// Skips streamed text and thoughts.
    events_only: bool,
}

/// One thing a reader gets.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// An event.
    Event(Arc<Event>),
    /// Streamed text.
    Delta(Delta),
    /// A thought: shown live, never again.
    Thought(Thought),
    /// A crash lost text after this position that this reader had been shown.
    Truncated(Position),
    /// What this reader had not seen yet was pruned: it starts again from here, and gets everything after.
    Reset(Box<Snapshot>),
}

/// Streamed text of a message that is not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    /// The run it belongs to; none if that is not known any more.
    pub run: Option<RunId>,
    /// The message.
    pub message: MessageId,
    /// Which block of it.
    pub block: u32,
    /// The text.
    pub text: String,
    /// The resume point right after it.
    pub position: Position,
}

/// Something the agent thought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thought {
    pub(super) no: u64,
    /// Who thought it.
    pub attempt: AttemptId,
    /// The text.
    pub text: Arc<str>,
    /// Where the stream stood.
    pub(super) at: Position,
}

impl Item {
    /// What of it is shown live and never stored, with its envelope; none for events and thoughts.
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
            Self::Event(_) | Self::Thought(_) | Self::Reset(_) => None,
        }
    }
}

enum Step {
    Ready(Item),
    Load,
    Wait,
    End,
    Fail(Error),
}

impl Subscription {
    /// A reader that is counted already, at a place that is still to be given.
    pub(crate) fn new(feed: Arc<Feed>, shared: Arc<Shared>, mode: SubscriptionMode) -> Self {
        let thought = feed.state.lock().thought_no;
        Self {
            feed,
            shared,
            mode,
            at: Position::START,
            backlog: VecDeque::new(),
            thought,
            guest: false,
            events_only: false,
        }
    }

    /// The same reader, which has seen everything up to `at`.
    pub(crate) fn resume(mut self, at: Position) -> Self {
        self.at = at;
        self
    }

    /// The same reader, as a guest of another owner's session or not.
    pub(crate) fn guest(mut self, guest: bool) -> Self {
        self.guest = guest;
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

    /// Whether it keeps the session in memory.
    pub fn mode(&self) -> SubscriptionMode {
        self.mode
    }

    /// Changes that in place. A session that is away is loaded for its new controller.
    pub fn set_mode(&mut self, mode: SubscriptionMode) {
        let before = std::mem::replace(&mut self.mode, mode);
        if before != mode {
            self.shared.mode_change(&self.feed, before, mode);
        }
    }

    /// How many calls of attempts without authority were refused since the session is in memory.
    pub fn late(&self) -> u64 {
        self.feed.late()
    }

    /// The session it reads.
    pub fn session(&self) -> SessionId {
        self.feed.session
    }

    /// The resume point: hand it to a later subscription and nothing is missed or seen twice.
    pub fn position(&self) -> Position {
        self.at
    }

    /// The next thing; none once the session is gone, or not shown to this reader any more. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Item, Error>> {
        loop {
            let feed = self.feed.clone();
            let notified = feed.wake.notified();
            match self.step() {
                Step::Ready(item) => return Some(Ok(item)),
                Step::Wait => notified.await,
                Step::End => return None,
                Step::Fail(error) => return Some(Err(error)),
                Step::Load => {
                    let store = &self.shared.store;
                    match store.events_after(self.feed.session, None, self.at.cursor, PAGE).await {
                        Ok(events) if events.is_empty() => {
                            // Everything up to the floor was deleted with its session: nothing more will come.
                            return None;
                        }
                        Ok(events) => self.backlog.extend(events.into_iter().map(Arc::new)),
                        Err(StoreError::Pruned(_)) => return Some(self.reset().await),
                        Err(error) => return Some(Err(error.into())),
                    }
                }
            }
        }
    }

    async fn reset(&mut self) -> Result<Item, Error> {
        let snapshot = self.shared.snapshot(&self.feed).await?;
        self.at = snapshot.position;
        Ok(Item::Reset(Box::new(snapshot)))
    }

    fn step(&mut self) -> Step {
        let feed = self.feed.clone();
        let state = feed.state.lock();
        match &state.phase {
            Phase::Loading => return Step::Wait,
            Phase::Failed(error) => return Step::Fail(error.clone()),
            Phase::Live | Phase::Away | Phase::Closed => {}
        }
        if self.guest && !feed.shown.load(Ordering::Acquire) {
            return Step::End;
        }
        while self.backlog.front().is_some_and(|event| event.cursor <= self.at.cursor) {
            self.backlog.pop_front();
        }
        let event = match self.backlog.front() {
            Some(event) => Some(event.clone()),
            None if self.at.cursor < state.floor => return Step::Load,
            None => after(&state, self.at.cursor),
        };
        if self.events_only {
            return self.step_event(event, &state.phase);
        }
        let limit = match &event {
            Some(event) => event.pos,
            None => state.barrier.unwrap_or(state.pos),
        };
        if self.at.pos > limit {
            self.at.pos = limit;
            return Step::Ready(Item::Truncated(self.at));
        }
        let thought = state.thoughts.iter().find(|thought| thought.no > self.thought);
        let until = thought.map_or(limit, |thought| limit.min(thought.at.pos.max(self.at.pos)));
        if let Some(delta) = self.delta(&state, until) {
            return Step::Ready(Item::Delta(delta));
        }
        // A thought comes after the text and the events that were there before it; if the text is gone from memory, before
        // the message that holds it.
        if let Some(thought) = thought.filter(|thought| thought.at.pos <= limit)
            && event.as_ref().is_none_or(|event| event.cursor > thought.at.cursor)
        {
            self.thought = thought.no;
            return Step::Ready(Item::Thought(thought.clone()));
        }
        self.step_event(event, &state.phase)
    }

    fn step_event(&mut self, event: Option<Arc<Event>>, phase: &Phase) -> Step {
        match event {
            Some(event) => {
                self.at = event.position();
                Step::Ready(Item::Event(event))
            }
            None if *phase == Phase::Closed => Step::End,
            None => Step::Wait,
        }
    }

    /// The next stretch of streamed text before `limit`. Text that is gone from memory is in a completed message,
    /// whose event is still to come.
    fn delta(&mut self, state: &State, limit: u64) -> Option<Delta> {
        let first = state.text.partition_point(|segment| segment.end() <= self.at.pos);
        let segment = state.text.get(first).filter(|segment| segment.start < limit)?;
        let from = segment.start.max(self.at.pos);
        let text = segment.slice(from, segment.end().min(limit));
        let text = text[..text.floor_char_boundary(STRETCH)].to_owned();
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
        self.shared.detach(&self.feed, self.mode);
    }
}

fn after(state: &State, cursor: Cursor) -> Option<Arc<Event>> {
    let first = state.recent.partition_point(|event| event.cursor <= cursor);
    state.recent.get(first).cloned()
}
