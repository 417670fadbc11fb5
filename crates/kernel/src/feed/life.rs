//! A feed's readers, and whether its session is in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub use mainspring_api::SubscriptionMode;
use mainspring_core::stream::Stored;
use mainspring_core::{NodeId, Position, RunId, SessionId};
use tokio::sync::Notify;

use super::{Feed, FeedState, Phase, Segment};
use crate::error::Error;
use crate::store::{Chunk, Fence, Loaded};

/// Counts of readers. Changed under the lock of the session slots, so that no reader joins a session being unloaded.
#[derive(Debug, Default)]
pub(super) struct Readers {
    controllers: AtomicUsize,
    observers: AtomicUsize,
    /// Controllers that have ever joined.
    controller_joins: AtomicU64,
    last_controller_left: Notify,
}

impl Readers {
    pub(super) fn total(&self) -> usize {
        self.controllers.load(Ordering::Relaxed) + self.observers.load(Ordering::Relaxed)
    }

    fn counter(&self, mode: SubscriptionMode) -> &AtomicUsize {
        match mode {
            SubscriptionMode::Controller => &self.controllers,
            SubscriptionMode::Observer => &self.observers,
        }
    }
}

/// Whether the session of a feed has an actor. Compared before and after a read of the store to detect a change in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FeedStatus {
    /// The session has an actor.
    Live,
    /// The session has no actor; the number grows whenever one is attached.
    Unloaded(u64),
}

impl Feed {
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// Counts one more reader.
    pub(crate) fn add_reader(&self, mode: SubscriptionMode) {
        self.readers.counter(mode).fetch_add(1, Ordering::Relaxed);
        self.meters.subscribers.fetch_add(1, Ordering::Relaxed);
        if mode == SubscriptionMode::Controller {
            self.readers.controller_joins.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one reader less, and notifies the actor if it was the last controller.
    pub(crate) fn remove_reader(&self, mode: SubscriptionMode) {
        let before = self.readers.counter(mode).fetch_sub(1, Ordering::Relaxed);
        self.meters.subscribers.fetch_sub(1, Ordering::Relaxed);
        if mode == SubscriptionMode::Controller && before == 1 {
            self.readers.last_controller_left.notify_one();
        }
    }

    /// Resolves once the last controller has left.
    pub(crate) async fn last_controller_left(&self) {
        self.readers.last_controller_left.notified().await;
    }

    /// Number of controllers now.
    pub(crate) fn controllers(&self) -> usize {
        self.readers.controllers.load(Ordering::Relaxed)
    }

    /// Number of controllers that have ever joined, to detect a join since a timer was started.
    pub(crate) fn controller_joins(&self) -> u64 {
        self.readers.controller_joins.load(Ordering::Relaxed)
    }

    /// True while the feed has a reader.
    pub(crate) fn has_readers(&self) -> bool {
        self.readers.total() > 0
    }

    /// Connects the feed to an actor that has loaded the session. `run` is the run whose text was being streamed.
    pub(crate) fn attach_actor(&self, fence: Fence, loaded: &Loaded, run: Option<RunId>) {
        let mut state = self.state.lock();
        self.set_visibility(loaded.session.visibility);
        state.set_position(loaded);
        state.phase = Phase::Live;
        state.actor_generation += 1;
        state.fence = fence;
        state.barrier = None;
        state.writer = None;
        state.is_dirty = false;
        state.text = loaded.chunks.iter().map(|chunk| segment(chunk, run)).collect();
        self.wake.notify_waiters();
    }

    /// Sets the position of a session that is not in memory. Does nothing once an actor is attached.
    pub(crate) fn set_stored_position(&self, loaded: &Loaded) {
        let mut state = self.state.lock();
        if state.phase == Phase::Loading {
            self.set_visibility(loaded.session.visibility);
            state.set_position(loaded);
            state.phase = Phase::Unloaded;
            self.wake.notify_waiters();
        }
    }

    /// Disconnects the feed from its actor: the session is unloaded, its readers stay.
    pub(crate) fn detach_actor(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Unloaded;
        state.writer = None;
        state.thoughts = VecDeque::new();
    }

    /// Ends the feed because the session could not be loaded, or because its actor has panicked. Readers get
    /// the error and may resume at their position.
    pub(crate) fn fail(&self, error: &Error) {
        self.state.lock().phase = Phase::Failed(error.clone());
        self.wake.notify_waiters();
    }

    /// Ends the feed. Readers get everything published so far, then the end.
    pub(crate) fn close(&self) {
        self.state.lock().phase = Phase::Closed;
        self.wake.notify_waiters();
    }

    /// Ends the feed because the session has moved to another process. Readers get everything published so far, then an
    /// error that names the process, where they may resume at their position.
    pub(crate) fn moved(&self, to: NodeId) {
        self.state.lock().phase = Phase::Moved(to);
        self.wake.notify_waiters();
    }

    /// True if the session can be read and its stream is at `position`.
    pub(crate) fn is_readable_at(&self, position: Position) -> bool {
        let state = self.state.lock();
        matches!(state.phase, Phase::Live | Phase::Unloaded) && state.at() == position
    }

    /// Waits until the stream's position is known.
    pub(crate) async fn loaded(&self) -> Result<FeedStatus, Error> {
        loop {
            let notified = self.wake.notified();
            {
                let state = self.state.lock();
                match &state.phase {
                    Phase::Loading => {}
                    Phase::Live => return Ok(FeedStatus::Live),
                    Phase::Unloaded => return Ok(FeedStatus::Unloaded(state.actor_generation)),
                    Phase::Closed => return Err(Error::not_found("session", self.session)),
                    Phase::Moved(node) => return Err(Error::Elsewhere { node: *node }),
                    Phase::Failed(error) => return Err(error.clone()),
                }
            }
            notified.await;
        }
    }
}

impl FeedState {
    /// Moves the stream to the stored position. Keeps the recent events unless another process has written since.
    fn set_position(&mut self, loaded: &Loaded) {
        let at = Position { cursor: loaded.cursor, pos: loaded.pos };
        if self.cursor != at.cursor || self.phase == Phase::Loading {
            self.recent.clear();
            self.floor = at.cursor;
        }
        self.cursor = at.cursor;
        self.pos = at.pos;
        self.stored = Stored::up_to(at.pos);
    }
}

fn segment(chunk: &Chunk, run: Option<RunId>) -> Segment {
    let Chunk { pos, message, block, ref text, .. } = *chunk;
    Segment { start: pos, run, message, block, text: text.clone() }
}
