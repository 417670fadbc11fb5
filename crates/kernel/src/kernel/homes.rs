//! Kernels that share a store: each is the home of some sessions, and one of them leads.
//!
//! A session is loaded, written and streamed by its home alone. A request that reaches another kernel fails with
//! [`Error::Elsewhere`], and the edge sends it to the home; requests of agents are sent by the kernel (`reach.rs`). The
//! kernel that leads also answers for all sessions together, and recovers those that have lost their home.
//!
//! A session that needs labels has its home only at a process that has them. If it loses its home, the next process that is
//! asked for it chooses a process with the labels as the new home, which then loads it. The kernel that leads does the same
//! if the session has unfinished work. While no process has the labels, the session waits without a home, and requests about
//! it say so.
//!
//! A process of an earlier version keeps the sessions whose home it is, and becomes the home of new ones only: a
//! later version may have written records that it does not understand. The store lets it take no other session, and
//! a session without a home gets one at a process of the latest version.
//!
//! Invariants: a session with an actor or a reader here has its home here; a session is loaded only where its labels are.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mainspring_core::placement::{
    Candidate, Offer, Wish, is_of_earlier_version, no_server, place, place_again,
};
use mainspring_core::{NodeId, RunId, Session, SessionId};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::reach::Peers;
use super::{Kernel, RunRequest, Shared};
use crate::actor::Command;
use crate::board::LiveSession;
use crate::error::Error;
use crate::store::SessionRef;

tokio::task_local! {
    /// Set in a task whose new sessions may be placed at another process.
    static PLACEABLE: ();
}

/// Runs a request whose new sessions may be placed at another process: then it fails with [`Error::Elsewhere`].
pub async fn placeable<F: Future>(request: F) -> F::Output {
    PLACEABLE.scope((), request).await
}

/// Lists the processes that new sessions may be placed at.
type Candidates = Arc<dyn Fn() -> Vec<Candidate> + Send + Sync>;

/// The processes that share a store.
#[derive(Clone)]
pub struct Homes {
    candidates: Candidates,
    peers: Option<Peers>,
    leader: Arc<dyn Fn() -> Option<NodeId> + Send + Sync>,
}

impl Homes {
    /// Places new sessions among the processes that `candidates` lists at that time.
    pub fn new(candidates: impl Fn() -> Vec<Candidate> + Send + Sync + 'static) -> Self {
        Self { candidates: Arc::new(candidates), peers: None, leader: Arc::new(|| None) }
    }

    /// Sends requests about sessions of other processes with `peers`.
    pub fn with_peers(self, peers: Peers) -> Self {
        Self { peers: Some(peers), ..self }
    }

    /// Finds the process that leads with `leader`.
    pub fn with_leader(self, leader: impl Fn() -> Option<NodeId> + Send + Sync + 'static) -> Self {
        Self { leader: Arc::new(leader), ..self }
    }

    /// The processes that share the store, as far as this one knows.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        (self.candidates)()
    }

    /// The process that leads, if one does at the moment.
    pub(super) fn leader(&self) -> Option<NodeId> {
        (self.leader)()
    }

    pub(super) fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }
}

impl fmt::Debug for Homes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Homes").finish_non_exhaustive()
    }
}

/// Facts about the sessions of other processes.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// The sessions that are on the board of this process, with their owners.
    shown: Mutex<HashMap<SessionId, String>>,
    /// Notified when other processes may have written something.
    written: Notify,
}

impl Elsewhere {
    pub(super) fn contains(&self, session: SessionId) -> bool {
        self.shown.lock().contains_key(&session)
    }

    /// Resolves when other processes may have written something since this call.
    pub(super) fn written(&self) -> tokio::sync::futures::Notified<'_> {
        self.written.notified()
    }
}

impl Kernel {
    /// Returns the id of this process.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// Finds the home of a session if it is another process; none if it is this process, or if the session has no home.
    pub async fn session_home(&self, session: SessionId) -> Result<Option<NodeId>, Error> {
        if self.shared.options.homes.is_none() || self.shared.is_live(session) {
            return Ok(None);
        }
        let home = self.shared.store.home_find(session).await?;
        Ok(home.filter(|home| *home != self.shared.node))
    }

    /// Finds the home of a run's session if it is another process; none if it is this process, or if the session has no
    /// home.
    pub async fn run_home(&self, run: RunId) -> Result<Option<NodeId>, Error> {
        match self.shared.run_find(run).await? {
            Some(run) => self.session_home(run.session).await,
            None => Ok(None),
        }
    }

    /// True if this process is the home of a session. A session without a home gets this one, if this one may execute it.
    pub async fn session_is_here(&self, session: SessionId) -> Result<bool, Error> {
        if self.shared.options.homes.is_none() {
            return Ok(true);
        }
        match self.shared.check_home(session).await {
            Ok(()) => Ok(true),
            Err(Error::Elsewhere { .. } | Error::NoServer(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Recovers the unfinished sessions that have lost their home, or makes another process their home. Returns how many wait
    /// because no process may execute them: none has their labels, or this one is of an earlier version.
    pub async fn homes_recover(&self) -> Result<usize, Error> {
        self.recover().await
    }

    /// Forgets the keys of callers, since another process has changed one. Streams of a revoked key end.
    pub fn keys_forget(&self) {
        self.shared.known_keys.forget();
        self.shared.keys_revoked.send_replace(());
    }

    /// Handles the writes of other processes: notes for sessions of this process, sessions whose home this
    /// process has become, ends of runs that are awaited here, and events for the readers of all sessions of
    /// an owner.
    pub async fn homes_poll(&self) -> Result<(), Error> {
        self.shared.elsewhere.written.notify_waiters();
        for session in self.shared.store.inbox_at_home().await? {
            self.shared.dispatch(session, Command::Inbox);
        }
        self.shared.owner_wakers.wake_all();
        Ok(())
    }

    /// Shows the sessions of other processes on the board, for the kernel that leads.
    pub async fn homes_show(&self) -> Result<(), Error> {
        let live = self.shared.store.live_elsewhere().await?;
        let mut known = self.shared.elsewhere.shown.lock();
        let mut gone = std::mem::take(&mut *known);
        for (session, status) in live {
            let Session { id, owner, key, title, .. } = session;
            gone.remove(&id);
            // The session may have come to this process since.
            if !self.shared.is_live(id) {
                let now = LiveSession { session_id: id, key, title, status };
                self.shared.board.put_changed(&owner, now);
                known.insert(id, owner);
            }
        }
        for (session, owner) in gone {
            if !self.shared.is_live(session) {
                self.shared.board.remove(&owner, session, false);
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Makes this process the home of a session, or fails if another one is.
    pub(super) async fn check_home(&self, session: SessionId) -> Result<(), Error> {
        if self.is_live(session) {
            return Ok(());
        }
        match self.store.home_find(session).await? {
            Some(node) if node == self.node && !self.is_draining() => Ok(()),
            Some(node) if node == self.node => self.check_may_load(session).await,
            Some(node) => Err(Error::Elsewhere { node }),
            None => {
                self.check_may_load(session).await?;
                Ok(self.store.home_claim(session).await?)
            }
        }
    }

    /// Fails if this process may not load a session, and makes another process its home. This process may not load the
    /// session if it lacks one of the labels, if it drains and another process can execute the session, or if the session
    /// has no home and another process is of a later version.
    pub(super) async fn check_may_load(&self, session: SessionId) -> Result<(), Error> {
        if self.options.homes.is_none() {
            return Ok(());
        }
        if self.is_draining()
            && let Some(node) = Box::pin(self.hand_over_unloaded(session)).await?
        {
            return Err(Error::Elsewhere { node });
        }
        // The load reports a session that does not exist.
        let Some(session) = self.store.session_find("", &SessionRef::Id(session)).await? else {
            return Ok(());
        };
        let servers = self.candidates();
        let may_take = !is_of_earlier_version(self.node, &servers)
            || self.store.home_find(session.id).await? == Some(self.node);
        if may_take && self.has_labels(&session) {
            return Ok(());
        }
        let node = place_again(Wish::of(&session), self.node, &servers);
        let node = node.filter(|node| *node != self.node);
        let node = node.ok_or_else(|| lacks_labels(&session, &servers))?;
        if self.store.home_assign(session.id, node).await? {
            return Err(Error::Elsewhere { node });
        }
        // The session could not be assigned: a process may have become its home meanwhile.
        match self.store.home_find(session.id).await?.filter(|home| *home != self.node) {
            Some(node) => Err(Error::Elsewhere { node }),
            None => Err(Error::Unavailable("the session changes its home at this moment; try again".into())),
        }
    }

    /// If this process is far busier than another one, makes the other one the home of a session that is not in memory, and
    /// fails. The session stays if it is read here, has work to do, or depends on this machine: by a folder, an agent's native
    /// session or bytes of artifacts. It also stays if the request cannot be sent to another process, or names an adapter or
    /// a folder that only this one may have.
    pub(super) async fn check_balance(&self, session: &Session, request: &RunRequest) -> Result<(), Error> {
        let can_move = self.options.homes.is_some() && PLACEABLE.try_with(|()| ()).is_ok();
        let has_folder = session.cwd.is_some() || request.options.cwd.is_some();
        let has_adapter = request.adapter.as_ref().is_some_and(|adapter| *adapter != session.adapter);
        if !can_move || has_folder || has_adapter || self.has_slot(session.id) {
            return Ok(());
        }
        match place(Wish::of(session), self.node, &self.candidates()) {
            Some(node) if node != self.node => match self.hand_over_idle(session.id).await? {
                Some(node) => Err(Error::Elsewhere { node }),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn has_labels(&self, session: &Session) -> bool {
        session.labels.iter().all(|label| self.options.labels.contains(label))
    }

    /// Fails if a new session is to be created by another process, or if no process has its labels.
    pub(super) fn check_placement(&self, session: &Session) -> Result<(), Error> {
        let has_labels = self.has_labels(session);
        if self.options.homes.is_none() {
            return match has_labels {
                true => Ok(()),
                false => Err(self.lacks_labels_alone(session)),
            };
        }
        if has_labels && PLACEABLE.try_with(|()| ()).is_err() {
            return Ok(());
        }
        let (wish, servers) = (Wish::of(session), self.candidates());
        let placed = place(wish, self.node, &servers);
        // If no server has the adapter, a server with the labels is chosen, and that server refuses the session.
        match placed.or_else(|| place_again(wish, self.node, &servers)) {
            Some(node) if node != self.node => Err(Error::Elsewhere { node }),
            _ if has_labels => Ok(()),
            _ => Err(lacks_labels(session, &servers)),
        }
    }

    /// The error if this process shares its store with no other and does not have the labels of a session.
    fn lacks_labels_alone(&self, session: &Session) -> Error {
        let offer = Offer { labels: self.options.labels.clone(), ..Offer::default() };
        let name = "this server".into();
        let here =
            Candidate { node: self.node, name, offer, sessions: 0, is_draining: false, schema_version: 0 };
        lacks_labels(session, &[here])
    }
}

/// The error for a session whose labels none of `servers` has.
fn lacks_labels(session: &Session, servers: &[Candidate]) -> Error {
    let why = no_server(&session.labels, servers);
    Error::NoServer(format!("{why}; try again when such a server has joined, or leave the label out"))
}
