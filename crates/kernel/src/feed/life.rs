//! A feed's life: who reads it, and whether its session is in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub use mainspring_api::SubscriptionMode;
use mainspring_core::{Position, RunId, SessionId};
use tokio::sync::Notify;

use super::{Feed, Phase, Segment, State};
use crate::error::Error;
use crate::store::{Chunk, Fence, Loaded};

/// Who reads. Counted under the lock of the seats, so that nobody joins a session that is leaving.
#[derive(Debug, Default)]
pub(super) struct Readers {
    controllers: AtomicUsize,
    observers: AtomicUsize,
    /// How many controllers ever joined.
    joins: AtomicU64,
    left: Notify,
}

impl Readers {
    pub(super) fn all(&self) -> usize {
        self.controllers.load(Ordering::Relaxed) + self.observers.load(Ordering::Relaxed)
    }

    fn of(&self, mode: SubscriptionMode) -> &AtomicUsize {
        match mode {
            SubscriptionMode::Controller => &self.controllers,
            SubscriptionMode::Observer => &self.observers,
        }
    }
}

/// Where a feed stands between two looks at the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// An actor serves it, or is about to.
    Live,
    /// Nobody writes; changed by the next tenure.
    Away(u64),
}

impl Feed {
    /// The session.
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// One more reader.
    pub(crate) fn join(&self, mode: SubscriptionMode) {
        self.readers.of(mode).fetch_add(1, Ordering::Relaxed);
        self.meters.subscribers.fetch_add(1, Ordering::Relaxed);
        if mode == SubscriptionMode::Controller {
            self.readers.joins.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One reader less. The actor learns when it was the last controller.
    pub(crate) fn part(&self, mode: SubscriptionMode) {
        let before = self.readers.of(mode).fetch_sub(1, Ordering::Relaxed);
        self.meters.subscribers.fetch_sub(1, Ordering::Relaxed);
        if mode == SubscriptionMode::Controller && before == 1 {
            self.readers.left.notify_one();
        }
    }

    /// Resolves when the last controller has left.
    pub(crate) async fn left(&self) {
        self.readers.left.notified().await;
    }

    /// How many controllers there are.
    pub(crate) fn controllers(&self) -> usize {
        self.readers.controllers.load(Ordering::Relaxed)
    }

    /// How many controllers ever joined: whoever armed a timer sees whether somebody came since.
    pub(crate) fn joins(&self) -> u64 {
        self.readers.joins.load(Ordering::Relaxed)
    }

    /// True while somebody reads.
    pub(crate) fn is_read(&self) -> bool {
        self.readers.all() > 0
    }

    /// An actor takes the feed up, as the session is stored. `run` is the one whose text was being streamed.
    pub(crate) fn take_up(&self, fence: Fence, loaded: &Loaded, run: Option<RunId>) {
        let mut state = self.state.lock();
        self.show_guests(loaded.session.visibility);
        state.stand_at(loaded);
        state.phase = Phase::Live;
        state.tenures += 1;
        state.fence = fence;
        state.barrier = None;
        state.writer = None;
        state.is_dirty = false;
        state.text = loaded.chunks.iter().map(|chunk| segment(chunk, run)).collect();
        self.wake.notify_waiters();
    }

    /// Where the stream of a session that is not in memory stands. Whoever writes it knows better.
    pub(crate) fn found(&self, loaded: &Loaded) {
        let mut state = self.state.lock();
        if state.phase == Phase::Loading {
            self.show_guests(loaded.session.visibility);
            state.stand_at(loaded);
            state.phase = Phase::Away;
            self.wake.notify_waiters();
        }
    }

    /// The session leaves memory; its readers stay.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Away;
        state.writer = None;
        state.thoughts = VecDeque::new();
    }

    /// The session could not be loaded: readers are told why, and come back with their position.
    pub(crate) fn fail(&self, error: &Error) {
        self.state.lock().phase = Phase::Failed(error.clone());
        self.wake.notify_waiters();
    }

    /// Ends the feed: readers get what is left and then the end.
    pub(crate) fn close(&self) {
        self.state.lock().phase = Phase::Closed;
        self.wake.notify_waiters();
    }

    /// Returns once it is known where the stream stands.
    pub(crate) async fn ready(&self) -> Result<Standing, Error> {
        loop {
            let notified = self.wake.notified();
            {
                let state = self.state.lock();
                match &state.phase {
                    Phase::Loading => {}
                    Phase::Live => return Ok(Standing::Live),
                    Phase::Away => return Ok(Standing::Away(state.tenures)),
                    Phase::Closed => return Err(Error::not_found("session", self.session)),
                    Phase::Failed(error) => return Err(error.clone()),
                }
            }
            notified.await;
        }
    }
}

impl State {
    /// The stream stands where the store says. What is remembered is kept if nobody else has written since.
    fn stand_at(&mut self, loaded: &Loaded) {
        let at = Position { cursor: loaded.cursor, pos: loaded.pos };
        if self.cursor != at.cursor || self.phase == Phase::Loading {
            self.recent.clear();
            self.floor = at.cursor;
        }
        self.cursor = at.cursor;
        self.pos = at.pos;
        self.flushed = at.pos;
    }
}

fn segment(chunk: &Chunk, run: Option<RunId>) -> Segment {
    let Chunk { pos, message, block, ref text, .. } = *chunk;
    Segment { start: pos, run, message, block, text: text.clone() }
}
