//! The kernel: the entry point for every caller.
//!
//! The kernel holds the store, the adapters and the actors of the sessions in memory. It resolves names to sessions,
//! keeps owners apart, and forwards commands to actors. Each operation is one method; the methods are grouped by noun
//! in `kernel/`.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use mainspring_core::permits::PermitPool;
use mainspring_core::{
    Cursor, History, Limits, ModelList, NodeId, Resource, RunLimits, RunOption, RunOptions, SessionId, Time,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::actor::Signal;
use crate::adapter::{Adapter, Capabilities};
use crate::audit::Audit;
use crate::blobs::Blobs;
use crate::board::Board;
use crate::clock::{Clock, Moment};
use crate::error::Error;
use crate::feed::{Feed, FeedMemory};
use crate::folders::{Folders, check_folder_usable};
use crate::ids::Ids;
use crate::images::Images;
use crate::meters::{Counts, Meters};
use crate::owner_blocks::OwnerBlocks;
use crate::owner_events::OwnerWakers;
use crate::parked::Parked;
use crate::pins::Pins;
use crate::quotas::OwnerLimits;
use crate::scheduler::Scheduler;
use crate::store::{DatabaseMeters, Fence, LostEvents, Request, Store, StoreError};
use crate::store_health::StoreHealth;
use crate::tasks::Tasks;

mod access;
mod agent_tokens;
mod agents;
mod answers;
mod append;
mod artifacts;
mod audit;
mod authority;
mod bindings;
mod blobs;
mod cards;
mod changes;
mod control;
mod delegations;
mod failures;
mod feedback;
mod final_text;
mod goals;
mod grants;
pub mod homes;
mod host_calls;
mod idempotency;
mod ids;
mod keys;
mod known_keys;
pub mod launchers;
mod lists;
mod loading;
mod logins;
mod memory;
mod moves;
mod networks;
mod open_waits;
mod options;
mod permits;
mod pins;
mod portable;
mod processes;
pub mod reach;
mod repeats;
mod requests;
mod run_events;
mod run_wait;
mod runs;
mod search;
mod session_agent;
mod session_view;
mod sessions;
mod slots;
mod start;
mod state;
mod stderr;
mod steps;
mod streams;
mod transcript;
mod tree;
mod usage;
mod usage_sums;
mod waits;
mod webhooks;
pub use access::{AgentCaller, Caller};
pub use agent_tokens::AgentToken;
pub use agents::{AGENTS_PER_OWNER, Agent, AgentQuery, AgentScope};
pub use artifacts::{ArtifactQuery, ArtifactsOf, BlobsCheck, NewArtifact};
pub use bindings::{Adopted, SessionAdopted, instructions_hash, is_path};
pub use control::KernelPlane;
pub use delegations::{Delegated, DelegationRequest, MAX_CONTEXT_CHARS, MAX_DEPTH, RunDelegations};
pub use failures::FailedSession;
pub(crate) use final_text::{TextPart, join_text};
pub use goals::GOAL_TYPES_PER_OWNER;
pub use grants::GrantQuery;
pub use host_calls::HostCallError;
pub(crate) use host_calls::NewHostCall;
pub use keys::{KeyQuery, NewKey, Secret};
pub use open_waits::WaitQuery;
pub use options::{OnOrphan, Options, Retry, Work};
pub use portable::{Export, Import};
pub use repeats::Repeatable;
pub(crate) use requests::Accept;
pub use requests::{
    Accepted, CancelOutcome, Deleted, NewSession, Opening, RunQuery, RunRequest, Scope, SessionPatch,
    SessionQuery, SessionTarget, Snapshot,
};
pub(crate) use runs::json_size;
pub use search::{SearchPosition, SearchQuery, SearchResult};
pub use session_agent::MAX_GIVEN_MESSAGES;
pub use sessions::session_ref;
pub use start::{SessionStart, Started};
pub use state::StateOf;
pub(crate) use steps::hashed_input;
pub use transcript::{KnownPath, Transcript, TranscriptWatch};
pub(crate) use tree::Forking;
pub use tree::{ForkRequest, MessageTree, MessageView, TreeNode, TreeQuery};

/// How long a stopping kernel retries a change that cannot be stored. The next start recovers the session without the
/// change.
pub(crate) const STOP_WITHOUT_STORE_MS: u64 = 2_000;

/// The entry point of every operation. Cheap to clone.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) shared: Arc<Shared>,
}

/// State shared by the kernel and all actors.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) adapters: BTreeMap<String, Arc<dyn Adapter>>,
    pub(crate) options: Options,
    pub(crate) owner_limits: OwnerLimits,
    pub(crate) owner_blocks: Arc<OwnerBlocks>,
    pub(crate) clock: Clock,
    pub(crate) ids: Ids,
    pub(crate) node: NodeId,
    pub(crate) tasks: Tasks,
    pub(crate) scheduler: Scheduler,
    pub(crate) dirty: mpsc::UnboundedSender<Arc<Feed>>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) board: Board,
    pub(crate) images: Images,
    pub(crate) owner_wakers: OwnerWakers,
    pub(crate) parked: Arc<Parked>,
    slots: Mutex<HashMap<SessionId, slots::SessionSlot>>,
    pub(crate) failures: failures::Failures,
    /// Sessions kept in memory because a caller opened them, oldest first.
    opened: Mutex<VecDeque<SessionId>>,
    blobs: Option<Blobs>,
    /// Notified after a write that the search index does not cover yet.
    pub(crate) search_stale: Arc<Notify>,
    /// Sessions being imported.
    importing: Mutex<HashSet<SessionId>>,
    pending_waits: Arc<waits::PendingWaits>,
    shares: Arc<delegations::Shares>,
    work: watch::Sender<Work>,
    /// The queued runs of each owner that has any.
    queued: Mutex<HashMap<String, usize>>,
    pub(crate) store_health: Arc<StoreHealth>,
    pub(crate) logins: logins::Logins,
    /// The cursors of events that were lost with a restore.
    lost_events: Vec<LostEvents>,
    histories: Vec<History>,
    /// When a stopping process gives up changes that cannot be stored; set by the first drain.
    pub(crate) stop_by: OnceLock<Moment>,
    /// Notified whenever an API key is revoked.
    keys_revoked: watch::Sender<()>,
    known_keys: known_keys::KnownKeys,
    /// Notified whenever a webhook is added or removed.
    webhooks_changed: watch::Sender<()>,
    usage_sums: usage_sums::UsageSums,
    elsewhere: homes::Elsewhere,
    moves: moves::Moves,
    pub(crate) pins: Pins,
    pub(crate) agent_tokens: Arc<agent_tokens::AgentTokens>,
    pub(crate) host_calls: host_calls::HostCalls,
    /// Notified whenever a memory candidate is proposed.
    pub(crate) memory_proposed: Notify,
    edge: repeats::EdgeState,
    me: std::sync::Weak<Shared>,
}

impl Kernel {
    /// Starts a kernel on `store`: recovers the sessions that an earlier process left unfinished, then executes runs.
    pub async fn start(
        store: Arc<dyn Store>,
        adapters: Vec<Arc<dyn Adapter>>,
        options: Options,
        clock: Clock,
        ids: Ids,
    ) -> Result<Self, Error> {
        let adapters: BTreeMap<_, _> =
            adapters.into_iter().map(|adapter| (adapter.capabilities().adapter, adapter)).collect();
        let (lost_events, histories) = (store.lost_events().await?, store.histories().await?);
        let (dirty, flushes) = mpsc::unbounded_channel();
        let tasks = Tasks::default();
        let store_health = Arc::<StoreHealth>::default();
        let health = store_health.clone();
        tasks.spawn(crate::flusher::flush(store.clone(), clock.clone(), flushes, health, tasks.clone()));
        // No permits until recovery is complete, so that a failed start has executed nothing.
        let owner_limits =
            OwnerLimits::new(options.owner.clone(), options.quotas, options.owner_quotas.clone());
        let in_process = in_process_adapters(&options, &adapters);
        let scheduler = Scheduler::new(options.adapter_workers.clone(), in_process, owner_limits.clone());
        let node = options.node.unwrap_or_else(|| ids.node());
        let blobs = options.artifacts.as_deref().map(|folder| match &options.blob_store {
            Some(store) => Blobs::with_store(folder, store.clone()),
            None => Blobs::new(folder),
        });
        let blobs = blobs.map(|blobs| blobs.staged_by(node));
        let started_at = clock.now();
        let meters = Arc::new(Meters::new(started_at));
        let shared = Arc::new_cyclic(|me| Shared {
            store,
            adapters,
            options,
            owner_limits,
            owner_blocks: Arc::default(),
            clock,
            ids,
            node,
            tasks,
            scheduler,
            dirty,
            meters,
            board: Board::default(),
            images: Images::default(),
            owner_wakers: OwnerWakers::default(),
            parked: Arc::default(),
            slots: Mutex::new(HashMap::new()),
            failures: failures::Failures::default(),
            opened: Mutex::new(VecDeque::new()),
            blobs,
            search_stale: Arc::default(),
            importing: Mutex::default(),
            pending_waits: Arc::default(),
            shares: Arc::default(),
            work: watch::Sender::new(Work::default()),
            queued: Mutex::default(),
            store_health: store_health.clone(),
            logins: logins::Logins::default(),
            lost_events,
            histories,
            stop_by: OnceLock::new(),
            keys_revoked: watch::Sender::new(()),
            known_keys: known_keys::KnownKeys::default(),
            webhooks_changed: watch::Sender::new(()),
            usage_sums: usage_sums::UsageSums::default(),
            elsewhere: homes::Elsewhere::default(),
            moves: moves::Moves::default(),
            pins: Pins::default(),
            agent_tokens: Arc::default(),
            host_calls: host_calls::HostCalls::new(started_at),
            memory_proposed: Notify::new(),
            edge: repeats::EdgeState::default(),
            me: me.clone(),
        });
        let kernel = Self { shared };
        kernel.watch_store();
        let Shared { tasks, parked, me, .. } = &*kernel.shared;
        tasks.spawn(crate::parked::watch(me.clone(), parked.clone()));
        kernel.share_owner_limits();
        if let Err(error) = kernel.recover().await {
            kernel.shutdown().await;
            return Err(error);
        }
        kernel.begin_work();
        Ok(kernel)
    }

    /// Begins to share the limits of owners with the other processes, if there are limits and other processes.
    fn share_owner_limits(&self) {
        let Shared { options, owner_limits, owner_blocks, scheduler, clock, tasks, me, .. } = &*self.shared;
        if options.homes.is_some() && owner_limits.has_run_limits() {
            scheduler.share_limits();
            let keep =
                crate::owner_blocks::keep(me.clone(), owner_blocks.clone(), clock.clone(), tasks.clone());
            tasks.spawn(keep);
        }
    }

    /// Starts the tasks of a recovered kernel, and executes runs from now on.
    fn begin_work(&self) {
        let Shared { store, clock, tasks, options, scheduler, search_stale, .. } = &*self.shared;
        if let Some(audit) = &options.audit {
            tasks.spawn(audit.clone().run(tasks.clone()));
        }
        if options.artifact_retention.is_limited() && options.artifacts.is_some() {
            let shared = Arc::downgrade(&self.shared);
            tasks.spawn(crate::retention::run(shared, clock.clone(), tasks.clone()));
        }
        if self.shared.blobs.is_some() {
            let shared = Arc::downgrade(&self.shared);
            tasks.spawn(crate::retention::remove_unused_blobs(shared, clock.clone(), tasks.clone()));
        }
        tasks.spawn(crate::indexer::index(store.clone(), clock.clone(), search_stale.clone(), tasks.clone()));
        let [workers, in_process] = self.permit_caps();
        let own = |pool, permits| if options.shared_permits.contains(&pool) { 0 } else { permits };
        scheduler.add(own(PermitPool::Workers, workers), own(PermitPool::InProcess, in_process));
    }

    /// Starts testing whether the store can be written.
    fn watch_store(&self) {
        let Shared { store, clock, store_health, tasks, me, .. } = &*self.shared;
        let shared = me.clone();
        let wake_readers = move || {
            if let Some(shared) = shared.upgrade() {
                shared.wake_readers();
            }
        };
        let (store, clock, health) = (store.clone(), clock.clone(), store_health.clone());
        tasks.spawn(crate::store_health::watch(store, clock, health, tasks.clone(), wake_readers));
    }

    /// Loads every unfinished session. Cost grows with the unfinished sessions, not with the stored ones. Returns how many
    /// sessions wait for a process that may execute them.
    async fn recover(&self) -> Result<usize, Error> {
        let Shared { store, options, tasks, .. } = &*self.shared;
        let unfinished = store.unfinished().await?;
        if options.blob_store.is_some() || options.homes.is_some() {
            // Sessions do not wait for an object store, nor for files that other processes have left.
            let shared = self.shared.clone();
            tasks.spawn(async move { shared.blobs_clean().await });
        } else {
            self.shared.blobs_recover().await?;
            self.shared.blobs_collect().await;
        }
        for session in unfinished.deleted {
            self.shared.purge(session);
        }
        for session in unfinished.compacted {
            self.shared.prune(session);
        }
        self.shared.store.requests_forget(Request::oldest_kept(self.shared.clock.now())).await?;
        let (mut loading, mut waiting) = (vec![], 0);
        for session in unfinished.live {
            let (ready, loaded) = oneshot::channel();
            match self.shared.load(session, Some(ready)) {
                Err(error) if error.is_of_server() => return Err(error),
                // The session has failed before, and is loaded again later.
                Err(_) => {}
                Ok(_) => loading.push((session, loaded)),
            }
        }
        for (session, loaded) in loading {
            match loaded.await.unwrap_or_else(|_| Err(Error::session_panicked(session))) {
                // A session that cannot be loaded does not prevent the start; calls to it report the error.
                Err(error) if error.is_of_server() => return Err(error),
                Err(Error::NoServer(_)) => waiting += 1,
                _ => {}
            }
        }
        self.lose_process_local_bindings(&unfinished.bound).await?;
        Ok(waiting)
    }

    /// The background tasks, which a shutdown waits for.
    pub fn tasks(&self) -> &Tasks {
        &self.shared.tasks
    }

    /// The limits on sizes and counts.
    pub fn limits(&self) -> &Limits {
        &self.shared.options.limits
    }

    /// The audit log, if there is one.
    pub fn audit(&self) -> Option<&Arc<Audit>> {
        self.shared.options.audit.as_ref()
    }

    /// Checks that the store answers and can be written, as far as its last test shows, and that the audit log can be
    /// written.
    pub async fn check_store(&self) -> Result<(), Error> {
        match self.shared.store_health.failure() {
            Some(error) => return Err(error),
            None => self.shared.store.health().await?,
        }
        self.audit().map_or(Ok(()), |audit| audit.check_writable())
    }

    /// The time, by the kernel's clock.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Waits for `time`, by the kernel's clock.
    pub async fn sleep(&self, time: std::time::Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let clock = &self.shared.clock;
        clock.sleep_for(millis).await;
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Generates a secret of 256 bits, as 64 hexadecimal digits.
    pub fn secret(&self) -> String {
        self.shared.ids.secret()
    }

    /// Monotonic time since an arbitrary start, to measure durations.
    pub fn elapsed(&self) -> std::time::Duration {
        self.shared.clock.elapsed()
    }

    /// Capabilities of every registered adapter.
    pub fn adapters(&self) -> Vec<Capabilities> {
        let adapters = self.shared.adapters.values();
        adapters
            .map(|adapter| Capabilities { unavailable: adapter.unavailable(), ..adapter.capabilities() })
            .collect()
    }

    /// The models that can be used.
    pub fn models(&self) -> ModelList {
        self.shared.options.agents.models()
    }

    /// Watches the counts of queued and executing runs.
    pub fn work(&self) -> watch::Receiver<Work> {
        self.shared.work.subscribe()
    }

    /// Counters since the process started.
    pub fn counts(&self) -> Counts {
        self.shared.meters.counts(self.shared.clock.now())
    }

    /// Reads the meters of the database server, if the store uses one.
    pub async fn database_meters(&self) -> Option<DatabaseMeters> {
        self.shared.store.database_meters().await
    }

    /// Number of sessions in memory.
    pub fn sessions_in_memory(&self) -> usize {
        self.shared.actors().len()
    }

    /// Memory held by the feeds of all sessions.
    pub fn feed_memory(&self) -> FeedMemory {
        self.shared.feed_memory()
    }

    /// Waits until no run executes or could execute. Runs that wait for a person, or behind such a run, keep waiting.
    pub async fn drain(&self) {
        // The sender lives as long as this kernel.
        let _ = self.work().wait_for(|work| work.queued == 0 && work.active == 0).await;
    }

    /// Lets active runs finish for `time`, as [`Kernel::drain`] does, and hands sessions over if other processes share the
    /// store. While the store cannot be written, no end can be recorded: then the last part of `time` is left for
    /// [`Kernel::shutdown`], which gives up when `time` has passed.
    pub async fn drain_for(&self, time: std::time::Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let clock = &self.shared.clock;
        let until = clock.moment().plus(millis);
        // A second drain keeps the deadline of the first.
        let _ = self.shared.stop_by.set(until);
        let stop_ms = (millis / 2).min(STOP_WITHOUT_STORE_MS);
        let stop_time = clock.sleep_for(millis - stop_ms);
        let failed_late = async {
            stop_time.await;
            self.shared.store_health.failed().await;
        };
        let drained = async {
            self.hand_over().await;
            self.drain().await;
        };
        tokio::select! {
            () = drained => {}
            () = failed_late => {}
            () = clock.sleep_until_moment(until) => {}
        }
    }

    /// Stops the kernel: accepts nothing more, stops executing attempts, and returns once everything is recorded. Queued
    /// and waiting runs stay as they are for the next start.
    pub async fn shutdown(&self) {
        self.shared.tasks.stop();
        let mut stopping = vec![];
        for actor in self.shared.actors() {
            let (done, stopped) = oneshot::channel();
            if actor.send(Signal::Shutdown(done).into()).is_ok() {
                stopping.push(stopped);
            }
        }
        for stopped in stopping {
            let _ = stopped.await;
        }
        self.shared.clear_slots();
        self.shared.board.close();
        self.shared.tasks.wait().await;
        if let Some(audit) = self.audit() {
            audit.close().await;
        }
    }
}

/// The names of the adapters whose runs have no process, if these runs have permits of their own.
fn in_process_adapters(options: &Options, adapters: &BTreeMap<String, Arc<dyn Adapter>>) -> HashSet<String> {
    let is_in_process = |adapter: &Arc<dyn Adapter>| {
        options.max_in_process_runs.is_some() && adapter.capabilities().in_process
    };
    adapters.iter().filter(|(_, adapter)| is_in_process(adapter)).map(|(name, _)| name.clone()).collect()
}

impl Shared {
    /// A handle to the kernel; none while it is being dropped.
    pub(crate) fn kernel(&self) -> Option<Kernel> {
        self.me.upgrade().map(|shared| Kernel { shared })
    }

    /// Finds the range of events, lost with a restore, that contains `cursor`.
    pub(crate) fn lost_at(&self, cursor: Cursor) -> Option<LostEvents> {
        self.lost_events.iter().find(|lost| lost.contains(cursor)).copied()
    }

    /// Refuses an adapter that is not registered.
    pub(crate) fn check_adapter(&self, name: &str) -> Result<(), Error> {
        self.adapter(name).map(drop)
    }

    /// Finds an adapter by name.
    pub(crate) fn adapter(&self, name: &str) -> Result<&Arc<dyn Adapter>, Error> {
        if let Some(known) = self.adapters.get(name) {
            return Ok(known);
        }
        let known = self.adapters.keys().map(String::as_str).collect::<Vec<_>>();
        let near = mainspring_api::request::nearest(name, &known);
        let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        let known = known.join(", ") + &near;
        Err(Error::UnknownAdapter { name: name.chars().take(64).collect(), known })
    }

    /// True if an adapter calls tools that the caller executes.
    pub(crate) fn supports_client_tools(&self, adapter: &str) -> bool {
        self.adapters.get(adapter).is_some_and(|adapter| adapter.capabilities().supports_client_tools)
    }

    /// Lists the options that are set and that an adapter does not use.
    pub(crate) fn unused_options(
        &self,
        adapter: &str,
        options: &RunOptions,
    ) -> Result<Vec<RunOption>, Error> {
        let given = options.adapter_options();
        if given.is_empty() {
            return Ok(given);
        }
        let used = self.adapter(adapter)?.capabilities().options;
        Ok(given.into_iter().filter(|option| !used.contains(option)).collect())
    }

    /// Refuses options that an adapter does not use.
    pub(crate) fn check_used(&self, adapter: &str, options: &RunOptions) -> Result<(), Error> {
        match self.unused_options(adapter, options)?.first().copied() {
            None => Ok(()),
            Some(option) => {
                let uses =
                    |adapter: &Arc<dyn Adapter>, option| adapter.capabilities().options.contains(&option);
                let others = self.adapters.iter().filter(|(_, other)| uses(other, option));
                let using = others.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
                Err(Error::UnusedOption { adapter: adapter.to_owned(), option, using })
            }
        }
    }

    /// Refuses a model profile that an adapter does not have.
    pub(crate) fn check_profile(&self, adapter: &str, profile: Option<&str>) -> Result<(), Error> {
        let adapter = self.adapter(adapter)?;
        profile.map_or(Ok(()), |profile| adapter.check_profile(profile)).map_err(Error::Invalid)
    }

    /// Checks the default options of a session's runs: the adapter must use them, the model must be known, and the folder
    /// must be usable.
    pub(crate) fn check_defaults(&self, adapter: &str, defaults: &RunOptions) -> Result<(), Error> {
        self.check_used(adapter, defaults)?;
        self.check_profile(adapter, defaults.model_profile.as_deref())?;
        self.options.agents.check_options(adapter, defaults).map_err(Error::Invalid)?;
        check_folder_usable(defaults.cwd.as_deref())
    }

    /// Refuses a folder in which agents of the adapter may not work for a caller that is limited to `folders`.
    pub(crate) fn check_folder(
        &self,
        adapter: &str,
        folder: Option<&str>,
        folders: Option<&[String]>,
    ) -> Result<(), Error> {
        let Some(folder) = folder else { return Ok(()) };
        let Options { state_dir, adapter_folders, .. } = &self.options;
        let of_adapter =
            Folders { state_dir: state_dir.clone(), allowed: adapter_folders.get(adapter).cloned() };
        of_adapter.check(Path::new(folder), folders)?;
        Ok(())
    }

    /// Refuses a folder in which a run may not work. A run that names no folder works in the folder of its adapter: always
    /// allowed if an operator has chosen that folder, else checked for a caller that is limited to `folders`.
    pub(crate) fn check_run_folder(
        &self,
        adapter: &str,
        folder: Option<&str>,
        folders: Option<&[String]>,
    ) -> Result<(), Error> {
        let default = self.options.default_folders.get(adapter).filter(|_| folders.is_some());
        let default = default.map(|folder| folder.to_string_lossy());
        self.check_folder(adapter, folder.or(default.as_deref()), folders)
    }

    /// Refuses limits that the adapter cannot enforce, unless best effort is enough.
    pub(crate) fn check_limits_kept(&self, adapter: &str, limits: &RunLimits) -> Result<(), Error> {
        let capabilities = self.adapter(adapter)?.capabilities();
        let reports = capabilities.usage_reports;
        match limits.unenforceable(reports).filter(|_| !capabilities.keeps_limits) {
            Some(limit) => Err(Error::LimitNotKept { adapter: adapter.to_owned(), limit, reports }),
            None => Ok(()),
        }
    }

    /// Purges a deleted session in the background, in steps.
    pub(crate) fn purge(&self, session: SessionId) {
        let store = self.store.clone();
        self.repeat_in_background(session, move || {
            let store = store.clone();
            async move { store.session_purge(session).await }
        });
    }

    /// Removes a session's pruned events in the background, in steps.
    pub(crate) fn prune(&self, session: SessionId) {
        let store = self.store.clone();
        self.repeat_in_background(session, move || {
            let store = store.clone();
            async move { store.events_prune(session).await }
        });
    }

    /// Repeats `step` in the background until it returns false, then removes the bytes of deleted artifacts.
    fn repeat_in_background<F>(&self, session: SessionId, step: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = Result<bool, StoreError>> + Send,
    {
        let (tasks, me) = (self.tasks.clone(), self.me.clone());
        self.tasks.spawn(async move {
            let mut more = Ok(true);
            while more == Ok(true) && !tasks.is_stopping() {
                more = step().await;
            }
            match (more, me.upgrade()) {
                (Ok(false), Some(me)) => me.blobs_collect().await,
                (Ok(_), _) => {}
                // The next start continues.
                (Err(error), _) => {
                    tracing::warn!(%error, %session, "cannot remove all deleted data of the session");
                }
            }
        });
    }

    /// Releases the lease of a session that is unloaded.
    pub(crate) async fn lease_release(&self, fence: Fence) {
        if let Err(error) = self.store.lease_release(fence).await {
            // The next process that loads the session takes the lease anyway.
            tracing::warn!(%error, session = %fence.session, "cannot release the lease of the session");
        }
    }

    /// Purges the session of a failed import. Takes the lease first, so that commits still in flight are fenced.
    fn discard(&self, session: SessionId) {
        let Some(me) = self.me.upgrade() else { return };
        self.tasks.spawn(async move {
            match me.store.lease_take(session, me.node).await {
                Ok(fence) => {
                    me.lease_release(fence).await;
                    me.purge(session);
                }
                // The next start retries.
                Err(error) => tracing::warn!(%error, %session, "cannot remove a failed import"),
            }
            me.importing.lock().remove(&session);
        });
    }

    /// Replaces the share that one session of `owner` has in the work counts.
    pub(crate) fn work_changed(&self, owner: &str, before: Work, now: Work) {
        if before == now {
            return;
        }
        let (queued_before, queued) = (before.queued + before.blocked, now.queued + now.blocked);
        match queued_before == queued {
            true => self.count_work(before, now),
            false => self.count_queued(&mut self.queued.lock(), owner, before, now),
        }
    }

    fn count_queued(&self, owners: &mut HashMap<String, usize>, owner: &str, before: Work, now: Work) {
        let own = owners.get(owner).copied().unwrap_or(0);
        match own + now.queued + now.blocked - before.queued - before.blocked {
            0 => drop(owners.remove(owner)),
            own => drop(owners.insert(owner.to_owned(), own)),
        }
        self.count_work(before, now);
    }

    fn count_work(&self, before: Work, now: Work) {
        self.work.send_modify(|work| {
            work.queued = work.queued + now.queued - before.queued;
            work.blocked = work.blocked + now.blocked - before.blocked;
            work.active = work.active + now.active - before.active;
        });
    }

    /// The queued runs of an owner.
    pub(crate) fn queued_of(&self, owner: &str) -> usize {
        self.queued.lock().get(owner).copied().unwrap_or(0)
    }

    /// Counts one more queued run of a session of `owner`, and returns the owner's number of queued runs. Refuses the run if
    /// the queue is full or the owner has used its share of the queue. The check and the count are atomic.
    pub(crate) fn queue_place(&self, owner: &str, before: Work, now: Work) -> Result<usize, Error> {
        let limit = self.options.limits.queue_total;
        let mut owners = self.queued.lock();
        let waiting = {
            let work = self.work.borrow();
            work.queued + work.blocked
        };
        if waiting >= limit {
            return Err(Error::Overloaded { what: "the queue", limit });
        }
        let own = owners.get(owner).copied().unwrap_or(0);
        self.check_share(Resource::QueuedPrompts, owner, own, limit - waiting)?;
        self.count_queued(&mut owners, owner, before, now);
        Ok(own + 1)
    }
}
