//! The kernel: what everyone else calls.
//!
//! It holds the store, the adapters and the live sessions' actors, resolves names to sessions, keeps owners apart, and
//! passes commands on. Each verb is one method; they live in `kernel/` by noun.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_core::{Limits, ModelList, NodeId, SessionId};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::actor::Command;
use crate::adapter::{Adapter, Capabilities};
use crate::agents::{Catalog, NoCatalog};
use crate::blobs::Blobs;
use crate::board::Board;
use crate::clock::Clock;
use crate::error::Error;
use crate::feed::{Feed, Held};
use crate::ids::Ids;
use crate::meters::{Counts, Meters};
use crate::owner_events::Wakes;
use crate::scheduler::Scheduler;
use crate::store::{Request, Store, StoreError};
use crate::tasks::Tasks;

mod access;
mod agents;
mod answers;
mod artifacts;
mod bindings;
mod delegations;
mod idempotency;
mod keys;
mod logins;
mod portable;
mod requests;
mod run_wait;
mod runs;
mod search;
mod seats;
mod sessions;
mod start;
mod state;
mod streams;
mod tree;
mod waits;
pub use access::Caller;
pub use agents::{AGENTS_PER_OWNER, Agent, AgentQuery, AgentScope};
pub use artifacts::{ArtifactQuery, BlobsCheck, NewArtifact};
pub use bindings::{Adopted, SessionAdopted, instructions_hash};
pub use delegations::{CONTEXT_CHARS, Delegated, DelegationRequest, MAX_DEPTH, RunDelegations};
pub use keys::{KeyQuery, NewKey, Secret};
pub use portable::{Export, Import};
pub(crate) use requests::Accept;
pub use requests::{
    Accepted, CancelOutcome, Deleted, NewSession, Opening, RunQuery, RunRequest, Scope, SessionPatch,
    SessionQuery, SessionTarget, Snapshot,
};
pub use search::{MessageHit, SearchHit, SearchQuery, SearchResult};
pub use sessions::session_ref;
pub use start::{SessionStart, Started};
pub use state::StateOf;
pub(crate) use tree::Forking;
pub use tree::{ForkRequest, MessageTree, MessageView, TreeNode, TreeQuery};

/// How a kernel behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is too much.
    pub limits: Limits,
    /// For whom this process itself acts: no org's admin makes a key for that owner.
    pub owner: Option<String>,
    /// The adapter of sessions that name none.
    pub adapter: String,
    /// How many attempts execute at once.
    pub max_workers: usize,
    /// How many of them an adapter may have.
    pub adapter_workers: HashMap<String, usize>,
    /// How long an attempt that was told to stop may take, in milliseconds.
    pub cancel_grace: u64,
    /// How long a run waits for an answer, in milliseconds.
    pub wait_expiry: u64,
    /// How long an idle session stays in memory, in milliseconds.
    pub idle_unload: u64,
    /// When a failed attempt is tried again.
    pub retry: Retry,
    /// What becomes of a run whose process ended.
    pub on_orphan: OnOrphan,
    /// The name of this process; a fresh one if not given.
    pub node: Option<NodeId>,
    /// The folder of artifacts' bytes, this kernel's alone; without one none are taken.
    pub artifacts: Option<PathBuf>,
    /// What is known of agents beside what owners have made.
    pub agents: Arc<dyn Catalog>,
    /// True to name sessions that nobody has named, after their first completed turn.
    pub auto_title: bool,
    /// False for a kernel that only reads and changes records: queued runs stay queued.
    pub execute: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            owner: None,
            adapter: "script".into(),
            max_workers: 8,
            adapter_workers: HashMap::new(),
            cancel_grace: 5_000,
            wait_expiry: 24 * 60 * 60 * 1_000,
            idle_unload: 30_000,
            retry: Retry { base: 500, max: 30_000 },
            on_orphan: OnOrphan::Leave,
            node: None,
            artifacts: None,
            agents: Arc::new(NoCatalog),
            auto_title: true,
            execute: true,
        }
    }
}

/// When a failed attempt is tried again: after `base` milliseconds, then twice that, up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The first pause.
    pub base: u64,
    /// The longest pause.
    pub max: u64,
}

impl Retry {
    /// The pause after the `attempts`-th attempt failed.
    pub fn delay(&self, attempts: u32) -> u64 {
        let doubled = self.base.saturating_mul(1 << attempts.saturating_sub(1).min(32));
        doubled.min(self.max)
    }
}

/// What becomes of a run whose process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOrphan {
    /// It is orphaned; a person may try it again.
    Leave,
    /// It is tried again from its last message.
    Retry,
}

/// How much work there is. Runs that wait for a person are not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Runs that wait their turn.
    pub queued: usize,
    /// Runs that wait their turn behind one that waits for a person.
    pub blocked: usize,
    /// Runs that are being executed.
    pub active: usize,
}

/// The authority. Cheap to clone.
#[derive(Clone)]
pub struct Kernel {
    shared: Arc<Shared>,
}

/// What every actor reaches.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) adapters: BTreeMap<String, Arc<dyn Adapter>>,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) ids: Ids,
    pub(crate) node: NodeId,
    pub(crate) tasks: Tasks,
    pub(crate) scheduler: Scheduler,
    pub(crate) dirty: mpsc::UnboundedSender<Arc<Feed>>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) board: Board,
    pub(crate) wakes: Wakes,
    seats: Mutex<HashMap<SessionId, seats::Seat>>,
    /// Sessions that are in memory because somebody opened them, the oldest first.
    opened: Mutex<VecDeque<SessionId>>,
    blobs: Option<Blobs>,
    /// Told whenever something was written that search shall find.
    pub(crate) written: Arc<Notify>,
    /// Sessions that are being imported.
    importing: Mutex<HashSet<SessionId>>,
    pending_waits: Arc<waits::PendingWaits>,
    work: watch::Sender<Work>,
    /// Told whenever a key is revoked.
    keys_revoked: watch::Sender<()>,
    me: std::sync::Weak<Shared>,
}

impl Kernel {
    /// Starts a kernel on `store`: takes up what an earlier process left unfinished, then accepts work.
    pub async fn start(
        store: Arc<dyn Store>,
        adapters: Vec<Arc<dyn Adapter>>,
        options: Options,
        clock: Clock,
        ids: Ids,
    ) -> Result<Self, Error> {
        let adapters: BTreeMap<_, _> =
            adapters.into_iter().map(|adapter| (adapter.capabilities().adapter, adapter)).collect();
        let (dirty, flushes) = mpsc::unbounded_channel();
        let tasks = Tasks::default();
        tasks.spawn(crate::flusher::flush(store.clone(), clock.clone(), flushes, tasks.clone()));
        // Nobody works before everything that was left is taken up, so that a start that fails has done nothing.
        let scheduler = Scheduler::new(0, options.adapter_workers.clone());
        let node = options.node.unwrap_or_else(|| ids.node());
        let blobs = options.artifacts.as_deref().map(Blobs::new);
        let written = Arc::<Notify>::default();
        let meters = Arc::new(Meters::new(clock.now()));
        let shared = Arc::new_cyclic(|me| Shared {
            store,
            adapters,
            options,
            clock,
            ids,
            node,
            tasks,
            scheduler,
            dirty,
            meters,
            board: Board::default(),
            wakes: Wakes::default(),
            seats: Mutex::new(HashMap::new()),
            opened: Mutex::new(VecDeque::new()),
            blobs,
            written: written.clone(),
            importing: Mutex::default(),
            pending_waits: Arc::default(),
            work: watch::Sender::new(Work::default()),
            keys_revoked: watch::Sender::new(()),
            me: me.clone(),
        });
        let kernel = Self { shared };
        if let Err(error) = kernel.reconcile().await {
            kernel.shutdown().await;
            return Err(error);
        }
        let Shared { store, clock, tasks, .. } = &*kernel.shared;
        tasks.spawn(crate::indexer::index(store.clone(), clock.clone(), written, tasks.clone()));
        kernel.shared.scheduler.add(kernel.shared.options.max_workers);
        Ok(kernel)
    }

    /// Takes up every unfinished session. The cost is that of what is unfinished, not of what is stored.
    async fn reconcile(&self) -> Result<(), Error> {
        let unfinished = self.shared.store.unfinished().await?;
        self.shared.blobs_recover().await?;
        for session in unfinished.deleted {
            self.shared.purge(session);
        }
        for session in unfinished.compacted {
            self.shared.prune(session);
        }
        self.shared.store.requests_forget(Request::oldest_kept(self.shared.clock.now())).await?;
        let mut loading = vec![];
        for session in unfinished.live {
            let (ready, loaded) = oneshot::channel();
            self.shared.load(session, Some(ready));
            loading.push(loaded);
        }
        for loaded in loading {
            match loaded.await.unwrap_or(Err(Error::ShuttingDown)) {
                // One session that is damaged does not keep the others from opening; it says so when it is called.
                Ok(()) | Err(Error::Corrupt(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What is too much.
    pub fn limits(&self) -> &Limits {
        &self.shared.options.limits
    }

    /// Fails if the store does not answer.
    pub async fn check(&self) -> Result<(), Error> {
        let nobody = crate::store::SessionRef::Key(String::new());
        self.shared.store.session_find("", &nobody).await?;
        Ok(())
    }

    /// Returns after `time`, by the kernel's clock.
    pub async fn pause(&self, time: std::time::Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let clock = &self.shared.clock;
        clock.sleep_until(clock.now().plus(millis)).await;
    }

    /// A moment of a time that never jumps, to tell how long something took.
    pub fn elapsed(&self) -> std::time::Duration {
        self.shared.clock.elapsed()
    }

    /// What the adapters can do.
    pub fn adapters(&self) -> Vec<Capabilities> {
        self.shared.adapters.values().map(|adapter| adapter.capabilities()).collect()
    }

    /// The models that can be asked.
    pub fn models(&self) -> ModelList {
        self.shared.options.agents.models()
    }

    /// How much work there is now, and whenever that changes.
    pub fn work(&self) -> watch::Receiver<Work> {
        self.shared.work.subscribe()
    }

    /// What this process has done since it started.
    pub fn counts(&self) -> Counts {
        self.shared.meters.counts(self.shared.clock.now())
    }

    /// How many sessions are in memory.
    pub fn sessions_in_memory(&self) -> usize {
        self.shared.actors().len()
    }

    /// How much the feeds of all sessions hold in memory.
    pub fn held(&self) -> Held {
        self.shared.held()
    }

    /// Returns once nothing executes or could; what waits for a person, or behind that, keeps waiting.
    pub async fn drain(&self) {
        // The sender lives as long as this kernel.
        let _ = self.work().wait_for(|work| work.queued == 0 && work.active == 0).await;
    }

    /// Stops: accepts nothing more, stops what executes, and returns when everything is recorded. Queued and waiting
    /// runs stay as they are for the next start.
    pub async fn shutdown(&self) {
        self.shared.tasks.stop();
        let mut stopping = vec![];
        for actor in self.shared.actors() {
            let (done, stopped) = oneshot::channel();
            if actor.send(Command::Shutdown(done)).is_ok() {
                stopping.push(stopped);
            }
        }
        for stopped in stopping {
            let _ = stopped.await;
        }
        self.shared.seats_clear();
        self.shared.board.close();
        self.shared.tasks.wait().await;
    }
}

impl Shared {
    /// The kernel that this is shared by; none once it is gone.
    pub(crate) fn kernel(&self) -> Option<Kernel> {
        self.me.upgrade().map(|shared| Kernel { shared })
    }

    /// Refuses an adapter that is not one of ours.
    pub(crate) fn check_adapter(&self, name: &str) -> Result<(), Error> {
        self.adapter(name).map(drop)
    }

    /// An adapter, by its name.
    pub(crate) fn adapter(&self, name: &str) -> Result<&Arc<dyn Adapter>, Error> {
        if let Some(known) = self.adapters.get(name) {
            return Ok(known);
        }
        let known = self.adapters.keys().map(String::as_str).collect::<Vec<_>>();
        Err(Error::UnknownAdapter { name: name.chars().take(64).collect(), known: known.join(", ") })
    }

    /// True when an adapter calls tools that the caller executes.
    pub(crate) fn calls_back(&self, adapter: &str) -> bool {
        self.adapters.get(adapter).is_some_and(|adapter| adapter.capabilities().supports_client_tools)
    }

    /// Removes what is left of a deleted session, a little at a time.
    pub(crate) fn purge(&self, session: SessionId) {
        let store = self.store.clone();
        self.in_steps(session, move || {
            let store = store.clone();
            async move { store.session_purge(session).await }
        });
    }

    /// Removes the events that a session has pruned, a little at a time.
    pub(crate) fn prune(&self, session: SessionId) {
        let store = self.store.clone();
        self.in_steps(session, move || {
            let store = store.clone();
            async move { store.events_prune(session).await }
        });
    }

    fn in_steps<F>(&self, session: SessionId, step: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = Result<bool, StoreError>> + Send,
    {
        let (tasks, me) = (self.tasks.clone(), self.me.clone());
        self.tasks.spawn(async move {
            while !tasks.is_stopping() {
                match step().await {
                    Ok(true) => {}
                    Ok(false) => {
                        if let Some(me) = me.upgrade() {
                            me.blobs_settle().await;
                        }
                        return;
                    }
                    Err(error) => {
                        // The next start goes on with it.
                        tracing::warn!(%error, %session, "what is to go could not be removed entirely");
                        return;
                    }
                }
            }
        });
    }

    /// Removes an import that came to nothing. Commits of it that are still under way are refused first.
    fn discard(&self, session: SessionId) {
        let Some(me) = self.me.upgrade() else { return };
        self.tasks.spawn(async move {
            match me.store.lease_take(session, me.node).await {
                Ok(_) => me.purge(session),
                // The next start goes on with it.
                Err(error) => tracing::warn!(%error, %session, "an import could not be removed"),
            }
            me.importing.lock().remove(&session);
        });
    }

    pub(crate) fn work_changed(&self, before: Work, now: Work) {
        if before != now {
            self.work.send_modify(|work| {
                work.queued = work.queued + now.queued - before.queued;
                work.blocked = work.blocked + now.blocked - before.blocked;
                work.active = work.active + now.active - before.active;
            });
        }
    }

    pub(crate) fn queue_len(&self) -> usize {
        let work = self.work.borrow();
        work.queued + work.blocked
    }
}
