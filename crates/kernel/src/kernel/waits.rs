//! Deadlock prevention for awaited delegations.
//!
//! A session waits for another session while one of its runs has an unsettled, awaited delegation to that
//! session. This wait is an edge of the wait graph. The store has the edge once the delegation is committed.
//! From the check until the commit the edge is kept here, so that two concurrent delegations cannot miss each
//! other and close a cycle.
//!
//! Kernels that share a store announce the edge there before they check, and withdraw it after the commit. Of the edges of a
//! cycle, the one that is announced last is checked when all others are announced or committed, and is refused. A new session
//! waits for no session, so an edge to it is not announced. Announcements of a kernel end with its lease.

use std::collections::HashSet;
use std::sync::Arc;

use mainspring_core::{Delegation, NewDelegation, SessionId, WaitId};
use parking_lot::Mutex;

use super::Shared;
use crate::error::Error;
use crate::store::AnnouncedWait;

/// The pause before an announcement that could not be withdrawn is withdrawn again.
const WITHDRAW_PAUSE_MS: u64 = 1_000;

/// The edges of the wait graph that are not committed yet.
#[derive(Debug, Default)]
pub(crate) struct PendingWaits {
    /// Makes the deadlock check and the insert atomic.
    checking: tokio::sync::Mutex<()>,
    edges: Mutex<Vec<Edge>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Edge {
    waiting: SessionId,
    awaited: SessionId,
}

/// An edge that is being committed. Dropping it removes the edge, which by then is in the store or refused.
#[derive(Debug)]
pub(crate) struct PendingWait {
    waits: Arc<PendingWaits>,
    edge: Edge,
    _announcement: Option<Announcement>,
}

impl Drop for PendingWait {
    fn drop(&mut self) {
        let mut edges = self.waits.edges.lock();
        // Concurrent delegations between the same two sessions have equal edges: remove one of them.
        if let Some(at) = edges.iter().position(|edge| *edge == self.edge) {
            edges.swap_remove(at);
        }
    }
}

/// The edges that kernels have announced, and the announcement of the edge that is being checked.
#[derive(Debug, Default)]
struct Announced {
    own: Option<Announcement>,
    edges: Vec<Edge>,
}

/// A wait that the other kernels know of. Dropping it withdraws the announcement.
struct Announcement {
    shared: Arc<Shared>,
    id: WaitId,
}

impl std::fmt::Debug for Announcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Announcement").field(&self.id).finish()
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let (shared, id) = (self.shared.clone(), self.id);
        self.shared.tasks.spawn(async move {
            // A stale announcement would make kernels refuse delegations that cause no deadlock.
            while let Err(error) = shared.store.wait_withdraw(id).await {
                tracing::debug!(%error, "the announcement of a wait was not withdrawn yet");
                tokio::select! {
                    () = shared.clock.sleep_for(WITHDRAW_PAUSE_MS) => {}
                    () = shared.tasks.stopping() => return,
                }
            }
        });
    }
}

impl PendingWaits {
    /// Registers that `waiting` is going to wait for `awaited`. Refused if `awaited` waits, directly or indirectly,
    /// for `waiting`. `announced` are the edges that kernels have announced, read after this one was announced;
    /// `committed` reads the sessions that a session waits for from the store.
    async fn register<F>(
        self: &Arc<Self>,
        waiting: SessionId,
        awaited: SessionId,
        announced: Announced,
        committed: impl Fn(SessionId) -> F,
    ) -> Result<PendingWait, Error>
    where
        F: Future<Output = Result<Vec<SessionId>, Error>>,
    {
        let _atomic = self.checking.lock().await;
        // Read before the store: an edge that is removed from here later is either committed or refused.
        let pending: Vec<Edge> = self.edges.lock().iter().copied().chain(announced.edges).collect();
        let (mut seen, mut next) = (HashSet::from([awaited]), vec![awaited]);
        while let Some(session) = next.pop() {
            if session == waiting {
                return Err(Error::WouldDeadlock(awaited));
            }
            let pending = pending.iter().filter(|edge| edge.waiting == session).map(|edge| edge.awaited);
            let awaits = committed(session).await?.into_iter().chain(pending);
            next.extend(awaits.filter(|session| seen.insert(*session)));
        }
        let edge = Edge { waiting, awaited };
        self.edges.lock().push(edge);
        Ok(PendingWait { waits: self.clone(), edge, _announcement: announced.own })
    }
}

impl Shared {
    /// Refuses a delegation to `child` that would never end. Registers the wait if the parent waits for the child; the
    /// caller keeps the returned value until the delegation is committed. `is_new`: the child's session is not stored yet.
    pub(super) async fn wait_register(
        &self,
        delegation: &NewDelegation,
        child: SessionId,
        is_new: bool,
    ) -> Result<Option<PendingWait>, Error> {
        let parent = delegation.parent_session;
        if child == parent {
            return Err(Error::WouldDeadlock(child));
        }
        if !delegation.mode.is_awaited() {
            return Ok(None);
        }
        let announced = match self.options.homes.is_some() && !is_new {
            true => self.wait_announce(Edge { waiting: parent, awaited: child }).await?,
            false => Announced::default(),
        };
        let committed = |session| self.awaited_by(session);
        self.pending_waits.register(parent, child, announced, committed).await.map(Some)
    }

    /// Announces a wait to the other kernels, then reads what they have announced.
    async fn wait_announce(&self, Edge { waiting, awaited }: Edge) -> Result<Announced, Error> {
        let shared = self.me.upgrade().ok_or(Error::ShuttingDown)?;
        let id = self.ids.wait();
        // Made first: the outcome of a failed call may be unknown.
        let own = Some(Announcement { shared, id });
        self.store.wait_announce(&AnnouncedWait { id, waiting, awaited }).await?;
        let edges = self.store.waits_announced().await?.into_iter();
        let edges = edges.map(|AnnouncedWait { waiting, awaited, .. }| Edge { waiting, awaited }).collect();
        Ok(Announced { own, edges })
    }

    /// The sessions that `session` waits for, as far as that is committed.
    async fn awaited_by(&self, session: SessionId) -> Result<Vec<SessionId>, Error> {
        let Some(loaded) = self.store.session_load(session).await? else { return Ok(vec![]) };
        let is_wait =
            |delegation: &&Delegation| delegation.parent_session == session && delegation.mode.is_awaited();
        Ok(loaded.delegations.iter().filter(is_wait).map(|delegation| delegation.child_session).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(no: u8) -> SessionId {
        SessionId::from_random([no; 16])
    }

    /// A store without edges that lets other tasks run before it answers.
    async fn nothing_committed(_: SessionId) -> Result<Vec<SessionId>, Error> {
        tokio::task::yield_now().await;
        Ok(vec![])
    }

    #[tokio::test]
    async fn the_last_of_concurrent_waits_that_would_close_a_cycle_is_refused() {
        let waits = Arc::<PendingWaits>::default();
        let wait =
            |from, to| waits.register(session(from), session(to), Announced::default(), nothing_committed);
        let (first, second, third) = tokio::join!(wait(1, 2), wait(2, 3), wait(3, 1));
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(third.unwrap_err(), Error::WouldDeadlock(session(1)));
    }

    #[tokio::test]
    async fn dropping_a_wait_removes_its_edge_and_keeps_the_edge_of_an_equal_wait() {
        let waits = Arc::<PendingWaits>::default();
        let wait =
            |from, to| waits.register(session(from), session(to), Announced::default(), nothing_committed);
        let (first, equal) = (wait(1, 2).await.unwrap(), wait(1, 2).await.unwrap());
        drop(first);
        assert_eq!(wait(2, 1).await.unwrap_err(), Error::WouldDeadlock(session(1)));
        drop(equal);
        assert!(wait(2, 1).await.is_ok());
        assert!(waits.edges.lock().is_empty());
    }

    #[tokio::test]
    async fn committed_and_pending_edges_close_a_cycle_together() {
        let waits = Arc::<PendingWaits>::default();
        let committed = |of: SessionId| async move {
            Ok(if of == session(2) { vec![session(3), session(4)] } else { vec![] })
        };
        let _pending = waits.register(session(4), session(5), Announced::default(), committed).await.unwrap();
        let refused =
            waits.register(session(5), session(2), Announced::default(), committed).await.unwrap_err();
        assert_eq!(refused, Error::WouldDeadlock(session(2)));
        assert!(waits.register(session(5), session(3), Announced::default(), committed).await.is_ok());
    }
}
