//! The kernel: what everyone else calls.
//!
//! It holds the store, the adapters and the live sessions' actors, resolves names to sessions, keeps owners apart, and
//! passes commands on. Each verb is one method; they live in `kernel/` by noun.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mainspring_core::{Limits, NodeId, SessionId};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::actor::{Actor, Command};
use crate::adapter::{Adapter, Capabilities};
use crate::clock::Clock;
use crate::error::Error;
use crate::feed::Feed;
use crate::ids::Ids;
use crate::scheduler::Scheduler;
use crate::store::Store;
use crate::tasks::Tasks;

mod access;
mod bindings;
mod idempotency;
mod keys;
mod requests;
mod runs;
mod sessions;
pub use access::Caller;
pub use keys::{KeyQuery, NewKey, Secret};
pub(crate) use requests::Accept;
pub use requests::{
    Accepted, CancelOutcome, MessageTree, NewSession, RunQuery, RunRequest, Scope, SessionPatch,
    SessionQuery, SessionTarget, Snapshot, TreeNode,
};
pub use sessions::{ends_run, session_ref};

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
    actors: Mutex<HashMap<SessionId, mpsc::UnboundedSender<Command>>>,
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
            actors: Mutex::new(HashMap::new()),
            work: watch::Sender::new(Work::default()),
            keys_revoked: watch::Sender::new(()),
            me: me.clone(),
        });
        let kernel = Self { shared };
        if let Err(error) = kernel.reconcile().await {
            kernel.shutdown().await;
            return Err(error);
        }
        kernel.shared.scheduler.add(kernel.shared.options.max_workers);
        Ok(kernel)
    }

    /// Takes up every unfinished session. The cost is that of what is unfinished, not of what is stored.
    async fn reconcile(&self) -> Result<(), Error> {
        let unfinished = self.shared.store.unfinished().await?;
        for session in unfinished.deleted {
            self.shared.purge(session);
        }
        let forget = self.shared.clock.now().0 - idempotency::REMEMBERED;
        self.shared.store.requests_forget(mainspring_core::Time(forget)).await?;
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

    /// What the adapters can do.
    pub fn adapters(&self) -> Vec<Capabilities> {
        self.shared.adapters.values().map(|adapter| adapter.capabilities()).collect()
    }

    /// How much work there is now, and whenever that changes.
    pub fn work(&self) -> watch::Receiver<Work> {
        self.shared.work.subscribe()
    }

    /// How many sessions are in memory.
    pub fn sessions_in_memory(&self) -> usize {
        self.shared.actors.lock().len()
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
        let actors: Vec<_> = self.shared.actors.lock().values().cloned().collect();
        let mut stopping = vec![];
        for actor in actors {
            let (done, stopped) = oneshot::channel();
            if actor.send(Command::Shutdown(done)).is_ok() {
                stopping.push(stopped);
            }
        }
        for stopped in stopping {
            let _ = stopped.await;
        }
        self.shared.tasks.wait().await;
    }
}

impl Shared {
    /// True while the session is in memory.
    pub(crate) fn is_live(&self, session: SessionId) -> bool {
        self.actors.lock().contains_key(&session)
    }

    /// Refuses an adapter that is not one of ours.
    pub(crate) fn check_adapter(&self, name: &str) -> Result<(), Error> {
        if self.adapters.contains_key(name) {
            return Ok(());
        }
        let known = self.adapters.keys().map(String::as_str).collect::<Vec<_>>();
        Err(Error::UnknownAdapter { name: name.chars().take(64).collect(), known: known.join(", ") })
    }

    /// Passes `command` to the session's actor, loading it if it is not in memory.
    pub(crate) fn dispatch(&self, session: SessionId, command: Command) {
        let mut command = command;
        loop {
            let Some(actor) = self.load(session, None) else {
                command.refuse(&Error::ShuttingDown);
                return;
            };
            match actor.send(command) {
                Ok(()) => return,
                Err(refused) => {
                    // It was about to leave; it hands on what it had, and a new one takes its place.
                    command = refused.0;
                    self.forget(session, &actor, || true);
                }
            }
        }
    }

    /// Calls the session's actor and waits for its answer.
    pub(crate) async fn call<T>(
        &self,
        session: SessionId,
        command: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Command,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.dispatch(session, command(reply));
        // Whoever drops a command unanswered is a session that is gone.
        answer.await.unwrap_or_else(|_| Err(Error::not_found("session", session)))
    }

    /// An actor for a new session, which its first commit creates.
    pub(crate) async fn birth(&self, session: mainspring_core::Session) -> Result<(), Error> {
        let Some(me) = self.me.upgrade() else {
            return Err(Error::ShuttingDown);
        };
        let id = session.id;
        let fence = self.store.lease_take(id, self.node).await?;
        let (tx, rx) = mpsc::unbounded_channel();
        let actor = Actor::new(me, fence, crate::actor::unborn(session), false, (tx.clone(), rx));
        let mut actors = self.actors.lock();
        if self.tasks.is_stopping() {
            return Err(Error::ShuttingDown);
        }
        actors.insert(id, tx);
        drop(actors);
        self.tasks.spawn(actor.serve());
        Ok(())
    }

    /// The session's actor. One that is not in memory starts to load, and commands wait in its channel; `ready` learns
    /// when it has taken up what was left. None once the process stops: whoever came now would not be told to stop.
    fn load(
        &self,
        session: SessionId,
        ready: Option<oneshot::Sender<Result<(), Error>>>,
    ) -> Option<mpsc::UnboundedSender<Command>> {
        let mut actors = self.actors.lock();
        if let Some(actor) = actors.get(&session) {
            if let Some(ready) = ready {
                let _ = ready.send(Ok(()));
            }
            return Some(actor.clone());
        }
        if self.tasks.is_stopping() {
            return None;
        }
        let (tx, rx) = mpsc::unbounded_channel();
        actors.insert(session, tx.clone());
        drop(actors);
        if let Some(me) = self.me.upgrade() {
            let tx = tx.clone();
            self.tasks.spawn(Box::pin(async move { me.wake(session, (tx, rx), ready).await }));
        }
        Some(tx)
    }

    async fn wake(
        self: Arc<Self>,
        session: SessionId,
        mut channel: (mpsc::UnboundedSender<Command>, mpsc::UnboundedReceiver<Command>),
        ready: Option<oneshot::Sender<Result<(), Error>>>,
    ) {
        let woken = async {
            let fence = self.store.lease_take(session, self.node).await?;
            let loaded = self.store.session_load(session).await?;
            Ok::<_, Error>((fence, loaded.ok_or_else(|| Error::not_found("session", session))?))
        };
        let (fence, loaded) = match woken.await {
            Ok(woken) => woken,
            Err(error) => {
                self.forget(session, &channel.0, || true);
                channel.1.close();
                while let Some(command) = channel.1.recv().await {
                    command.refuse(&error);
                }
                ready.map(|ready| ready.send(Err(error)));
                return;
            }
        };
        let lost = loaded.runs.iter().find(|(run, _)| run.state.holder().is_some()).cloned();
        let mut actor = Actor::new(self, fence, loaded, true, channel);
        let recovered = match lost {
            Some((run, Some(attempt))) => Box::pin(actor.recover(run, attempt)).await,
            _ => Ok(()),
        };
        match recovered {
            Ok(()) => {
                // Counted before anybody is told that the kernel has started.
                actor.count();
                ready.map(|ready| ready.send(Ok(())));
                actor.serve().await;
            }
            Err(error) => {
                // Nothing may start in a session whose last run is not known to be over. The next call tries again.
                tracing::error!(%error, %session, "what an earlier process left could not be taken up");
                actor.abandon(&error).await;
                ready.map(|ready| ready.send(Err(error)));
            }
        }
    }

    /// Takes an actor out of the registry if it is still the one there and `leaves` says so.
    pub(crate) fn forget(
        &self,
        session: SessionId,
        actor: &mpsc::UnboundedSender<Command>,
        leaves: impl FnOnce() -> bool,
    ) -> bool {
        let mut actors = self.actors.lock();
        let same = actors.get(&session).is_some_and(|known| known.same_channel(actor));
        let gone = same && leaves();
        if gone {
            actors.remove(&session);
        }
        gone
    }

    /// Removes what is left of a deleted session, a little at a time.
    pub(crate) fn purge(&self, session: SessionId) {
        let (store, tasks) = (self.store.clone(), self.tasks.clone());
        self.tasks.spawn(async move {
            while !tasks.is_stopping() {
                match store.session_purge(session).await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        // The next start goes on with it.
                        tracing::warn!(%error, %session, "a deleted session could not be removed entirely");
                        return;
                    }
                }
            }
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
