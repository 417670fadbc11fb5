//! The board: the current status of sessions, for readers that watch all sessions of an owner.
//!
//! It has the sessions in memory and the parked sessions, and on the leader also the live sessions of other nodes.
//!
//! Readers poll. Per owner, the board keeps each session's latest status and the order in which sessions last changed.
//! A reader keeps its position in that order and the last status it reported for each session. A slow reader therefore
//! gets the latest status of each session and nothing in between, its memory is bounded by the number of sessions, and
//! no writer waits for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

pub use mainspring_api::{LiveChange, LiveSession, LiveStatus};
use mainspring_core::SessionId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::feed::StoreChange;
use crate::store_health::StoreWatch;

#[cfg(test)]
mod tests;

/// Number of removed sessions remembered per owner, for readers that have not seen the removal. A reader further behind
/// learns that a session is closed, but not whether it was deleted.
const MAX_REMOVED: usize = 1_024;

/// Status of all sessions on the board, by owner. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board(Arc<Mutex<BoardState>>);

#[derive(Debug, Default)]
struct BoardState {
    owners: HashMap<String, OwnerSessions>,
    closed: bool,
}

#[derive(Debug, Default)]
struct OwnerSessions {
    /// Number of the last change.
    last_change: u64,
    /// Sessions on the board, each with the number of its last change.
    sessions: HashMap<SessionId, (LiveSession, u64)>,
    /// Removed sessions: whether each was deleted, and the number of its removal.
    removed: HashMap<SessionId, (bool, u64)>,
    /// Last change of each session in `sessions` and `removed`, in order.
    order: BTreeMap<u64, SessionId>,
    /// Removals up to this change may have been dropped from `removed`.
    dropped_to: u64,
    readers: usize,
    wake: Arc<Notify>,
}

impl Board {
    /// Sets the status of a session. Setting the same status again reports nothing to readers.
    pub(crate) fn put(&self, owner: &str, session: LiveSession) {
        let mut state = self.0.lock();
        if !state.owners.contains_key(owner) {
            state.owners.insert(owner.to_owned(), OwnerSessions::default());
        }
        if let Some(owner) = state.owners.get_mut(owner) {
            owner.put(session);
        }
    }

    /// Sets the status of a session if it differs.
    pub(crate) fn put_changed(&self, owner: &str, session: LiveSession) {
        let is_known = self.0.lock().owners.get(owner).is_some_and(|owner| {
            owner.sessions.get(&session.session_id).is_some_and(|(known, _)| *known == session)
        });
        if !is_known {
            self.put(owner, session);
        }
    }

    /// Removes a session; `deleted` is true if the session was deleted.
    pub(crate) fn remove(&self, owner: &str, session: SessionId, deleted: bool) {
        let mut state = self.0.lock();
        let Some(known) = state.owners.get_mut(owner) else { return };
        known.remove(session, deleted);
        state.drop_unused(owner);
    }

    /// The status of a session; `None` if it is not on the board.
    pub(crate) fn status(&self, owner: &str, session: SessionId) -> Option<LiveStatus> {
        let state = self.0.lock();
        state.owners.get(owner)?.sessions.get(&session).map(|(session, _)| session.status)
    }

    /// The sessions of `owner` on the board.
    pub(crate) fn sessions(&self, owner: &str) -> Vec<SessionId> {
        let state = self.0.lock();
        state.owners.get(owner).map(|owner| owner.sessions.keys().copied().collect()).unwrap_or_default()
    }

    /// Ends every reader once it has received all changes.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.owners.values().for_each(|owner| owner.wake.notify_waiters());
    }

    /// Creates a reader of all sessions of `owner`, with a snapshot of their present status.
    pub(crate) fn subscribe(&self, owner: &str, store: StoreWatch) -> LiveFeed {
        let mut state = self.0.lock();
        let known = state.owners.entry(owner.to_owned()).or_default();
        known.readers += 1;
        let reported: HashMap<_, _> =
            known.sessions.iter().map(|(id, (session, _))| (*id, session.clone())).collect();
        let mut snapshot: Vec<LiveSession> = reported.values().cloned().collect();
        snapshot.sort_by_key(|session| session.session_id);
        let (seen, wake) = (known.last_change, known.wake.clone());
        LiveFeed {
            board: self.clone(),
            owner: owner.to_owned(),
            wake,
            snapshot,
            reported,
            seen,
            pending: VecDeque::new(),
            store,
        }
    }
}

impl BoardState {
    /// Drops an owner that has neither a session on the board nor a reader.
    fn drop_unused(&mut self, owner: &str) {
        if self.owners.get(owner).is_some_and(|known| known.readers == 0 && known.sessions.is_empty()) {
            self.owners.remove(owner);
        }
    }
}

impl OwnerSessions {
    fn put(&mut self, session: LiveSession) {
        let id = session.session_id;
        if let Some((_, at)) = self.sessions.get(&id) {
            self.order.remove(at);
        }
        if let Some((_, at)) = self.removed.remove(&id) {
            self.order.remove(&at);
        }
        let at = self.number_change(id);
        self.sessions.insert(id, (session, at));
    }

    fn remove(&mut self, id: SessionId, deleted: bool) {
        let Some((_, at)) = self.sessions.remove(&id) else { return };
        self.order.remove(&at);
        if self.readers == 0 {
            return;
        }
        let at = self.number_change(id);
        self.removed.insert(id, (deleted, at));
        if self.removed.len() > MAX_REMOVED
            && let Some((first, at)) =
                self.removed.iter().map(|(id, (_, at))| (*id, *at)).min_by_key(|(_, at)| *at)
        {
            self.removed.remove(&first);
            self.order.remove(&at);
            self.dropped_to = self.dropped_to.max(at);
        }
    }

    /// Gives a change the next number and wakes the readers.
    fn number_change(&mut self, id: SessionId) -> u64 {
        self.last_change += 1;
        self.order.insert(self.last_change, id);
        self.wake.notify_waiters();
        self.last_change
    }
}

/// A reader of the status of all sessions of an owner.
#[derive(Debug)]
pub struct LiveFeed {
    board: Board,
    owner: String,
    wake: Arc<Notify>,
    snapshot: Vec<LiveSession>,
    /// Last status reported for each session.
    reported: HashMap<SessionId, LiveSession>,
    /// Number of the last change that was read.
    seen: u64,
    pending: VecDeque<LiveChange>,
    /// Reports whether the store can be written.
    store: StoreWatch,
}

impl LiveFeed {
    /// The sessions on the board when the reader was made. Later changes come through [`LiveFeed::next`].
    pub fn snapshot(&self) -> &[LiveSession] {
        &self.snapshot
    }

    /// Number of entries the reader holds. Grows with the number of sessions, not with the number of changes.
    pub fn buffered(&self) -> usize {
        self.reported.len() + self.pending.len()
    }

    /// Waits for the next change; none once the process stops. Cancel-safe.
    pub async fn next(&mut self) -> Option<LiveChange> {
        loop {
            let wake = self.wake.clone();
            let notified = wake.notified();
            if let Some(change) = self.store.change() {
                return Some(match change {
                    StoreChange::Failed { code, message } => {
                        LiveChange::StoreFailed { code: code.into(), message }
                    }
                    StoreChange::Recovered => LiveChange::StoreRecovered {},
                });
            }
            let closed = self.queue_next();
            if let Some(change) = self.pending.pop_front() {
                return Some(change);
            }
            if closed {
                return None;
            }
            tokio::select! {
                () = notified => {}
                () = self.store.changed() => {}
            }
        }
    }

    /// Queues the changes of the next session that changed. Returns true if no more changes will come.
    fn queue_next(&mut self) -> bool {
        let board = self.board.clone();
        let state = board.0.lock();
        let Some(owner) = state.owners.get(&self.owner).filter(|_| self.pending.is_empty()) else {
            return false;
        };
        if self.seen < owner.dropped_to {
            let mut ids: Vec<SessionId> =
                self.reported.keys().chain(owner.sessions.keys()).copied().collect();
            ids.sort();
            ids.dedup();
            ids.into_iter().for_each(|id| self.queue_changes(owner, id));
            self.seen = owner.last_change;
        }
        while self.pending.is_empty() {
            let Some((at, id)) = owner.order.range(self.seen + 1..).next() else {
                return state.closed;
            };
            self.seen = *at;
            self.queue_changes(owner, *id);
        }
        false
    }

    /// Queues the differences between a session's reported and present status.
    fn queue_changes(&mut self, owner: &OwnerSessions, session_id: SessionId) {
        let now = owner.sessions.get(&session_id).map(|(session, _)| session);
        match (self.reported.get(&session_id), now) {
            (None, None) => {}
            (None, Some(now)) => self.pending.push_back(LiveChange::Opened(now.clone())),
            (Some(_), None) => {
                let deleted = owner.removed.get(&session_id).is_some_and(|(deleted, _)| *deleted);
                self.pending.push_back(match deleted {
                    true => LiveChange::Deleted { session_id },
                    false => LiveChange::Closed { session_id },
                });
            }
            (Some(reported), Some(now)) => {
                if reported.title != now.title {
                    self.pending.push_back(LiveChange::Title { session_id, title: now.title.clone() });
                }
                if reported.status != now.status {
                    self.pending.push_back(LiveChange::Status { session_id, status: now.status });
                }
            }
        }
        match now {
            Some(now) => drop(self.reported.insert(session_id, now.clone())),
            None => drop(self.reported.remove(&session_id)),
        }
    }
}

impl Drop for LiveFeed {
    fn drop(&mut self) {
        let mut state = self.board.0.lock();
        if let Some(owner) = state.owners.get_mut(&self.owner) {
            owner.readers -= 1;
            if owner.readers == 0 {
                // No reader is left that needs the removals.
                for (_, at) in std::mem::take(&mut owner.removed).into_values() {
                    owner.order.remove(&at);
                }
            }
        }
        state.drop_unused(&self.owner);
    }
}
