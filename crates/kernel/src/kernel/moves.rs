//! Moves of sessions between kernels that share a store: a kernel that drains hands all of its sessions over, and a
//! busy kernel hands some idle sessions over.
//!
//! ```text
//! in memory, nothing acts for it ───────────── home_give ──▶ at another kernel, which loads it if it has work
//! in memory, a run acts for it ──its end──▶ (as above)
//! not in memory, but read, parked or asked for ─ home_assign ──▶ at another kernel, which loads it
//! not in memory otherwise ──────────────────── homes_free ──▶ without a home: at the kernel that is asked for it next
//!
//! of a busy kernel, not in memory, idle, gets a prompt ─ home_assign ──▶ at a far less busy kernel, which gets the prompt
//! ```
//!
//! The actor of a session hands it over between two inputs, so no commit is in flight and all streamed text is stored. One
//! statement names the new home and voids the lease of this kernel. Later commands are refused with [`Error::Elsewhere`], and
//! readers get everything that was published, then the same error: both continue at the new home. If the statement fails, the
//! session stays.
//!
//! A session that no other kernel can execute stays, and its runs are executed until the process stops.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use mainspring_core::placement::{Candidate, Wish, of_latest_version, place_elsewhere};
use mainspring_core::{NodeId, Run, RunId, Session, SessionId, Time};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::reach::{AskError, HomeRequest};
use super::{Kernel, Shared};
use crate::actor::Signal;
use crate::error::Error;
use crate::store::{ArtifactPage, Loaded};

/// Time between two tries to hand over the sessions that had to stay: other processes may have joined.
const RETRY_MS: u64 = 500;
/// Time within which a process must answer to get a session of a busy process.
const ANSWER_MS: u64 = 1_000;
/// Time after which the reported load of a process includes the sessions that it got.
const REPORTED_MS: u64 = 5_000;

/// The moves of sessions to other processes.
#[derive(Debug, Default)]
pub(super) struct Moves {
    is_draining: AtomicBool,
    given: Mutex<HashMap<NodeId, Given>>,
}

/// The sessions that a process got from this one and may not have reported yet.
#[derive(Debug, Clone, Copy)]
struct Given {
    sessions: u64,
    at: Time,
}

impl Moves {
    /// Corrects the reported load of a process: adds the sessions that it got from this process and may not have
    /// reported yet, and marks this process as draining if it is.
    fn corrected(&self, mut candidate: Candidate, here: NodeId, now: Time) -> Candidate {
        let mut given = self.given.lock();
        given.retain(|_, given| now.since(given.at) < REPORTED_MS);
        candidate.sessions += given.get(&candidate.node).map_or(0, |given| given.sessions);
        candidate.is_draining |= candidate.node == here && self.is_draining.load(Ordering::Acquire);
        candidate
    }
}

impl Kernel {
    /// True if this process hands its sessions over.
    pub fn is_draining(&self) -> bool {
        self.shared.is_draining()
    }

    /// Hands the sessions of this process over to others from now on, each as soon as no run acts for it. Returns once this
    /// was tried for every session. Does nothing if no other process shares the store.
    pub async fn hand_over(&self) {
        if self.shared.options.homes.is_none() || self.shared.moves.is_draining.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shared.hand_over_all().await;
        let kept = self.shared.slot_sessions();
        if self.shared.has_successor()
            && let Err(error) = self.shared.store.homes_free(&kept).await
        {
            tracing::warn!(%error, "the sessions that are not in memory keep their home until this process ends");
        }
        let Some(shared) = self.shared.me.upgrade() else { return };
        self.shared.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = shared.clock.sleep_for(RETRY_MS) => {}
                    () = shared.tasks.stopping() => return,
                }
                shared.hand_over_all().await;
            }
        });
    }
}

impl Shared {
    /// True if this process hands its sessions over.
    pub(crate) fn is_draining(&self) -> bool {
        self.moves.is_draining.load(Ordering::Acquire)
    }

    /// Lists the processes that share the store, as far as this one knows.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let Some(homes) = &self.options.homes else { return vec![] };
        let now = self.clock.now();
        homes.candidates().into_iter().map(|known| self.moves.corrected(known, self.node, now)).collect()
    }

    /// True if there is another process that does not drain and may take sessions of this one.
    fn has_successor(&self) -> bool {
        let servers = self.candidates();
        of_latest_version(&servers).any(|server| server.node != self.node && !server.is_draining)
    }

    /// Chooses the process that can execute a session with these unfinished runs; none if it has to stay.
    pub(crate) fn successor<'a>(
        &self,
        session: &Session,
        runs: impl Iterator<Item = &'a Run>,
    ) -> Option<NodeId> {
        let of_session = Wish::of(session);
        let of_run = |run: &'a Run| (run.adapter.as_str(), run.options.cwd.as_deref());
        let of_runs: Vec<_> = runs.map(of_run).collect();
        let wishes = of_runs.iter().map(|(adapter, folder)| Wish {
            adapter,
            folder: folder.or(of_session.folder),
            labels: of_session.labels,
        });
        let wishes: Vec<Wish<'_>> = std::iter::once(of_session).chain(wishes).collect();
        place_elsewhere(&wishes, self.node, &self.candidates())
    }

    /// Records that the process `to` got a session of this one.
    pub(crate) fn count_given(&self, to: NodeId) {
        let now = self.clock.now();
        let mut given = self.moves.given.lock();
        let given = given.entry(to).or_insert(Given { sessions: 0, at: now });
        *given = Given { sessions: given.sessions + 1, at: now };
    }

    /// Tries to hand every session over.
    async fn hand_over_all(&self) {
        if !self.has_successor() {
            return;
        }
        let mut asked = vec![];
        for actor in self.actors() {
            let (done, tried) = oneshot::channel();
            if actor.send(Signal::HandOver(done).into()).is_ok() {
                asked.push(tried);
            }
        }
        for tried in asked {
            // The actor has ended if there is no answer.
            let _ = tried.await;
        }
        let handed = self.store.inbox_at_home().await.unwrap_or_default();
        let unloaded = self.unloaded_sessions().into_iter().chain(self.parked.sessions()).chain(handed);
        for session in unloaded {
            match self.hand_over_unloaded(session).await {
                Ok(Some(to)) => self.end_readers(session, to),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, %session, "a session could not be handed over"),
            }
        }
    }

    /// Makes another process the home of a session that is not in memory. Returns the home, if it is another process.
    pub(super) async fn hand_over_unloaded(&self, session: SessionId) -> Result<Option<NodeId>, Error> {
        match self.store.session_load(session).await? {
            Some(loaded) => self.assign(&loaded).await,
            None => Ok(None),
        }
    }

    /// Makes another process the home of a session that is not in memory, has no unfinished runs and has no data on
    /// this machine, if the other process answers. Ends readers that have come meanwhile. Runs to its end even if the caller
    /// drops the future.
    pub(super) async fn hand_over_idle(&self, session: SessionId) -> Result<Option<NodeId>, Error> {
        let shared = self.me.upgrade().ok_or(Error::ShuttingDown)?;
        let moving = self.tasks.spawn(async move {
            let loaded = shared.store.session_load(session).await?.filter(|loaded| loaded.runs.is_empty());
            let Some(loaded) = loaded else { return Ok(None) };
            let successor = shared.successor(&loaded.session, std::iter::empty());
            let stays = !shared.active_bindings(session).await?.is_empty()
                || shared.has_own_bytes(session).await?
                || !shared.answers(successor).await;
            if stays {
                return Ok(None);
            }
            let home = match shared.assign(&loaded).await {
                // The session may have moved.
                Err(_) => shared.store.home_find(session).await?.filter(|home| *home != shared.node),
                assigned => assigned?,
            };
            if let Some(to) = home {
                shared.end_readers(session, to);
            }
            Ok(home)
        });
        moving.await.unwrap_or(Err(Error::ShuttingDown))
    }

    /// True if a session has artifacts whose bytes another process may not be able to read.
    async fn has_own_bytes(&self, session: SessionId) -> Result<bool, Error> {
        if self.options.blob_store.is_some() {
            return Ok(false);
        }
        let page = ArtifactPage { session, run: None, before: None, limit: 1 };
        let found = self.store.artifact_page(&page).await?;
        Ok(!found.items.is_empty() || !found.damaged.is_empty())
    }

    /// True if a process answers within [`ANSWER_MS`]. A process that has just ended is still listed, and sessions that
    /// are moved to it would be unreachable.
    async fn answers(&self, node: Option<NodeId>) -> bool {
        let Some(node) = node else { return false };
        let Some(peers) = self.peers() else { return true };
        tokio::select! {
            answer = peers.ask(node, HomeRequest::Hosts(vec![])) => answer.is_ok(),
            () = self.clock.sleep_for(ANSWER_MS) => false,
        }
    }

    async fn assign(&self, loaded: &Loaded) -> Result<Option<NodeId>, Error> {
        let session = loaded.session.id;
        let runs = || loaded.runs.iter().map(|(run, _)| run);
        let Some(to) = self.successor(&loaded.session, runs()) else { return Ok(None) };
        self.pass_hosts(to, runs()).await?;
        if self.store.home_assign(session, to).await? {
            self.parked.remove(session);
            self.board.remove(&loaded.session.owner, session, false);
            self.count_given(to);
            return Ok(Some(to));
        }
        // The session is in memory by now, or has moved already.
        Ok(self.store.home_find(session).await?.filter(|home| *home != self.node))
    }

    /// Tells the process `to` which hosts serve the tools of these runs: only this process knows these hosts.
    pub(crate) async fn pass_hosts(&self, to: NodeId, runs: impl Iterator<Item = &Run>) -> Result<(), Error> {
        let mut hosts: Vec<(RunId, String)> = vec![];
        for run in runs {
            if let Some((asked, host)) = self.host_run(run).await? {
                hosts.push((asked.id, host));
            }
        }
        match self.peers().filter(|_| !hosts.is_empty()) {
            Some(peers) => match peers.ask(to, HomeRequest::Hosts(hosts)).await {
                Ok(_) => Ok(()),
                Err(AskError::Refused(refusal)) => Err(refusal.into()),
                Err(AskError::NotReached(why) | AskError::NotAnswered(why)) => Err(Error::Unavailable(why)),
            },
            None => Ok(()),
        }
    }
}
