//! The board: what the sessions in memory are doing, for whoever watches all of an owner's.
//!
//! Readers pull. The board keeps, per owner, each session's latest state and the order in which they last changed; a
//! reader keeps its place in that order and what it was told of each session. So a slow one gets the latest state of each
//! session and nothing in between, holds no more than there are sessions, and nobody waits for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

pub use mainspring_api::{LiveChange, LiveSession, LiveStatus};
use mainspring_core::SessionId;
use parking_lot::Mutex;
use tokio::sync::Notify;

#[cfg(test)]
mod tests;

/// How many sessions that are gone are remembered for readers who do not know it yet. Who is later than that learns
/// that a session is closed, and not whether it was deleted.
const GONE: usize = 1_024;

/// The states of all sessions in memory, by owner. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    owners: HashMap<String, Owner>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Owner {
    /// The number of the last change.
    last: u64,
    sessions: HashMap<SessionId, (LiveSession, u64)>,
    /// Sessions that left, whether they were deleted, and the number of that change.
    gone: HashMap<SessionId, (bool, u64)>,
    /// The last change of each of these, in order.
    order: BTreeMap<u64, SessionId>,
    /// What is gone up to this change may be forgotten.
    forgotten: u64,
    readers: usize,
    wake: Arc<Notify>,
}

impl Board {
    /// The state of a session in memory. Told again, it is nothing new to any reader.
    pub(crate) fn put(&self, owner: &str, session: LiveSession) {
        let mut state = self.0.lock();
        if !state.owners.contains_key(owner) {
            state.owners.insert(owner.to_owned(), Owner::default());
        }
        if let Some(owner) = state.owners.get_mut(owner) {
            owner.put(session);
        }
    }

    /// A session left memory; `deleted` if for good.
    pub(crate) fn remove(&self, owner: &str, session: SessionId, deleted: bool) {
        let mut state = self.0.lock();
        let Some(known) = state.owners.get_mut(owner) else { return };
        known.remove(session, deleted);
        state.tidy(owner);
    }

    /// Ends every reader once it was told everything.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.owners.values().for_each(|owner| owner.wake.notify_waiters());
    }

    /// A reader of what the sessions of `owner` do, with what they do now.
    pub(crate) fn read(&self, owner: &str) -> LiveFeed {
        let mut state = self.0.lock();
        let known = state.owners.entry(owner.to_owned()).or_default();
        known.readers += 1;
        let told: HashMap<_, _> =
            known.sessions.iter().map(|(id, (session, _))| (*id, session.clone())).collect();
        let mut snapshot: Vec<LiveSession> = told.values().cloned().collect();
        snapshot.sort_by_key(|session| session.session_id);
        let (seen, wake) = (known.last, known.wake.clone());
        LiveFeed {
            board: self.clone(),
            owner: owner.to_owned(),
            wake,
            snapshot,
            told,
            seen,
            pending: VecDeque::new(),
        }
    }
}

impl State {
    /// Keeps nothing of an owner who has no session in memory and no reader.
    fn tidy(&mut self, owner: &str) {
        if self.owners.get(owner).is_some_and(|known| known.readers == 0 && known.sessions.is_empty()) {
            self.owners.remove(owner);
        }
    }
}

impl Owner {
    fn put(&mut self, session: LiveSession) {
        let id = session.session_id;
        if let Some((_, at)) = self.sessions.get(&id) {
            self.order.remove(at);
        }
        if let Some((_, at)) = self.gone.remove(&id) {
            self.order.remove(&at);
        }
        let at = self.note(id);
        self.sessions.insert(id, (session, at));
    }

    fn remove(&mut self, id: SessionId, deleted: bool) {
        let Some((_, at)) = self.sessions.remove(&id) else { return };
        self.order.remove(&at);
        if self.readers == 0 {
            return;
        }
        let at = self.note(id);
        self.gone.insert(id, (deleted, at));
        if self.gone.len() > GONE
            && let Some((first, at)) =
                self.gone.iter().map(|(id, (_, at))| (*id, *at)).min_by_key(|(_, at)| *at)
        {
            self.gone.remove(&first);
            self.order.remove(&at);
            self.forgotten = self.forgotten.max(at);
        }
    }

    /// Numbers a change, and wakes whoever waits for one.
    fn note(&mut self, id: SessionId) -> u64 {
        self.last += 1;
        self.order.insert(self.last, id);
        self.wake.notify_waiters();
        self.last
    }
}

/// A reader of what an owner's sessions do.
#[derive(Debug)]
pub struct LiveFeed {
    board: Board,
    owner: String,
    wake: Arc<Notify>,
    snapshot: Vec<LiveSession>,
    told: HashMap<SessionId, LiveSession>,
    seen: u64,
    pending: VecDeque<LiveChange>,
}

impl LiveFeed {
    /// The sessions that were in memory when the reader came. Everything later comes through [`LiveFeed::next`].
    pub fn snapshot(&self) -> &[LiveSession] {
        &self.snapshot
    }

    /// How many things the reader holds: it grows with the sessions, not with what happens in them.
    pub fn held(&self) -> usize {
        self.told.len() + self.pending.len()
    }

    /// What happened next; none once the process stops. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<LiveChange> {
        loop {
            let wake = self.wake.clone();
            let notified = wake.notified();
            let over = self.pull();
            if let Some(change) = self.pending.pop_front() {
                return Some(change);
            }
            if over {
                return None;
            }
            notified.await;
        }
    }

    /// Takes what there is of the next session that changed; true when nothing will come any more.
    fn pull(&mut self) -> bool {
        let board = self.board.clone();
        let state = board.0.lock();
        let Some(owner) = state.owners.get(&self.owner).filter(|_| self.pending.is_empty()) else {
            return false;
        };
        if self.seen < owner.forgotten {
            let mut ids: Vec<SessionId> = self.told.keys().chain(owner.sessions.keys()).copied().collect();
            ids.sort();
            ids.dedup();
            ids.into_iter().for_each(|id| self.compare(owner, id));
            self.seen = owner.last;
        }
        while self.pending.is_empty() {
            let Some((at, id)) = owner.order.range(self.seen + 1..).next() else {
                return state.closed;
            };
            self.seen = *at;
            self.compare(owner, *id);
        }
        false
    }

    /// What is to be told of one session.
    fn compare(&mut self, owner: &Owner, session_id: SessionId) {
        let now = owner.sessions.get(&session_id).map(|(session, _)| session);
        match (self.told.get(&session_id), now) {
            (None, None) => {}
            (None, Some(now)) => self.pending.push_back(LiveChange::Opened(now.clone())),
            (Some(_), None) => {
                let deleted = owner.gone.get(&session_id).is_some_and(|(deleted, _)| *deleted);
                self.pending.push_back(match deleted {
                    true => LiveChange::Deleted { session_id },
                    false => LiveChange::Closed { session_id },
                });
            }
            (Some(told), Some(now)) => {
                if told.title != now.title {
                    self.pending.push_back(LiveChange::Title { session_id, title: now.title.clone() });
                }
                if told.status != now.status {
                    self.pending.push_back(LiveChange::Status { session_id, status: now.status });
                }
            }
        }
        match now {
            Some(now) => drop(self.told.insert(session_id, now.clone())),
            None => drop(self.told.remove(&session_id)),
        }
    }
}

impl Drop for LiveFeed {
    fn drop(&mut self) {
        let mut state = self.board.0.lock();
        if let Some(owner) = state.owners.get_mut(&self.owner) {
            owner.readers -= 1;
            if owner.readers == 0 {
                // Nobody is left who could not know.
                for (_, at) in std::mem::take(&mut owner.gone).into_values() {
                    owner.order.remove(&at);
                }
            }
        }
        state.tidy(&self.owner);
    }
}
