//! Pools of workers: bounded, reused, stopped when idle, restarted with a backoff.
//!
//! A worker serves one attempt at a time, under a lease. It remembers the native session it served last, because only
//! that session is up to date in its memory. At most one idle worker remembers a given native session. A worker is
//! reserved for its native session if that session exists only in the worker's process.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_core::{SandboxProfile, SandboxReach};
use mainspring_kernel::adapter::Death;
use mainspring_kernel::clock::{Clock, Moment};
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A worker that a pool can hold.
pub(crate) trait PooledWorker: Send + Sync + 'static {
    /// Reports whether it can serve another attempt.
    fn is_alive(&self) -> bool;
    /// Reports whether it has the current state of a native session in memory.
    fn has_session(&self, native: &str) -> bool;
    /// Ends it gracefully.
    fn stop(&self) -> impl Future<Output = Death> + Send;
    /// Ends it at once.
    fn kill(&self) -> impl Future<Output = Death> + Send;
}

/// Limits and timing of a pool.
#[derive(Debug, Clone)]
pub(crate) struct PoolOptions {
    /// The maximum number of workers.
    pub(crate) max_workers: usize,
    /// How long an idle worker is kept.
    pub(crate) idle_ms: u64,
    /// The pause after a failed start; it doubles with each further failure.
    pub(crate) backoff_ms: u64,
    /// Whether a native session keeps its worker as long as the pool may start others.
    pub(crate) pinned: bool,
}

/// The longest pause after a failed start.
const MAX_BACKOFF_MS: u64 = 30_000;

/// Workers of one kind. Cheap to clone.
pub(crate) struct Pool<W>(Arc<PoolInner<W>>);

impl<W> Clone for Pool<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct PoolInner<W> {
    state: Mutex<PoolState<W>>,
    changed: Notify,
    options: PoolOptions,
    clock: Clock,
    tasks: Tasks,
}

struct PoolState<W> {
    /// Longest idle first.
    idle: Vec<IdleWorker<W>>,
    /// The number of workers, including those being started or ended.
    count: usize,
    /// Consecutive failed starts.
    failures: u32,
    /// The end of the pause after a failed start.
    start_not_before: Option<Moment>,
    closed: bool,
}

struct IdleWorker<W> {
    worker: Arc<W>,
    key: WorkerKey,
    last_session: Option<LastSession>,
    since: Moment,
}

impl<W> IdleWorker<W> {
    fn served_last(&self, native: &str) -> bool {
        self.last_session.as_ref().is_some_and(|session| session.native == native)
    }

    fn is_reserved(&self) -> bool {
        self.last_session.as_ref().is_some_and(|session| session.process_local)
    }
}

/// The parameters a worker was started with. It serves only attempts with equal parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WorkerKey {
    /// The owner of the sessions. Owners share no worker, because an agent may keep data of one session in its memory, or
    /// leave data for the next session.
    pub(crate) owner: String,
    /// The working directory.
    pub(crate) cwd: PathBuf,
    /// Additional arguments of the command.
    pub(crate) arguments: &'static [&'static str],
    /// The confinement, which cannot change while the process runs.
    pub(crate) sandbox: SandboxProfile,
    /// The reach of the run's parent, if it narrows the adapter's own reach.
    pub(crate) reach: Option<SandboxReach>,
}

/// The native session a worker served last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastSession {
    pub(crate) native: String,
    /// Whether the session exists in this worker's process only.
    pub(crate) process_local: bool,
    /// Whether the session's last turn was cancelled: the agent may not have kept the prompt.
    pub(crate) cancelled: bool,
}

/// The next step of [`Pool::acquire`].
enum AcquireStep<W> {
    Take(IdleWorker<W>),
    /// Start a worker, not before this moment.
    Start(Option<Moment>),
    Wait,
    Closed,
}

/// Exclusive use of a worker. Dropping it without [`Lease::release`] kills the worker.
pub(crate) struct Lease<W: PooledWorker> {
    worker: Option<Arc<W>>,
    key: WorkerKey,
    /// The native session the worker served before this lease.
    pub(crate) last_session: Option<LastSession>,
    /// Whether the worker was started for this lease.
    pub(crate) is_new: bool,
    pool: Pool<W>,
}

impl<W: PooledWorker> Pool<W> {
    pub(crate) fn new(options: PoolOptions, clock: Clock, tasks: Tasks) -> Self {
        let state = PoolState { idle: vec![], count: 0, failures: 0, start_not_before: None, closed: false };
        Self(Arc::new(PoolInner { state: Mutex::new(state), changed: Notify::new(), options, clock, tasks }))
    }

    /// Leases a worker with this key: the idle one that served `native` last, else one that has `native` in
    /// memory, else another idle one, else a new one. A pinned pool prefers a new worker to the idle one of
    /// another session. Waits while the pool is full. Returns `None` once it is closed.
    pub(crate) async fn acquire<E>(
        &self,
        key: &WorkerKey,
        native: Option<&str>,
        start: impl AsyncFnOnce() -> Result<W, E>,
    ) -> Result<Option<Lease<W>>, E> {
        let lease = |worker, last_session, is_new| Lease {
            worker: Some(worker),
            key: key.clone(),
            last_session,
            is_new,
            pool: self.clone(),
        };
        let not_before = loop {
            let changed = self.0.changed.notified();
            match self.next_step(key, native) {
                AcquireStep::Take(idle) => return Ok(Some(lease(idle.worker, idle.last_session, false))),
                AcquireStep::Start(not_before) => break not_before,
                AcquireStep::Wait => changed.await,
                AcquireStep::Closed => return Ok(None),
            }
        };
        // Frees the slot if this future is dropped during the start.
        let slot = StartSlot { pool: self, filled: false };
        if let Some(not_before) = not_before {
            self.0.clock.sleep_until_moment(not_before).await;
        }
        let started = start().await;
        let mut state = self.0.state.lock();
        match started {
            Ok(worker) => {
                state.failures = 0;
                drop(state);
                slot.fill();
                Ok(Some(lease(Arc::new(worker), None, true)))
            }
            Err(error) => {
                let pause = self.0.options.backoff_ms.saturating_mul(1 << state.failures.min(16));
                state.start_not_before = Some(self.0.clock.moment().plus(pause.min(MAX_BACKOFF_MS)));
                state.failures += 1;
                drop(state);
                Err(error)
            }
        }
    }

    fn next_step(&self, key: &WorkerKey, native: Option<&str>) -> AcquireStep<W> {
        let mut state = self.0.state.lock();
        if state.closed {
            return AcquireStep::Closed;
        }
        let (alive, dead): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.idle).into_iter().partition(|idle| idle.worker.is_alive());
        state.idle = alive;
        dead.into_iter().for_each(|idle| drop(self.retire(idle.worker)));
        let may_start = state.count < self.0.options.max_workers;
        if let Some(index) = self.find_idle(&state.idle, key, native, may_start) {
            return AcquireStep::Take(state.idle.remove(index));
        }
        if may_start {
            state.count += 1;
            return AcquireStep::Start(state.start_not_before);
        }
        // The pool is full: the longest idle worker makes room.
        if !state.idle.is_empty() {
            let oldest = state.idle.remove(0);
            self.retire(oldest.worker);
        }
        AcquireStep::Wait
    }

    /// Finds the idle worker that fits best.
    fn find_idle(
        &self,
        idle: &[IdleWorker<W>],
        key: &WorkerKey,
        native: Option<&str>,
        may_start: bool,
    ) -> Option<usize> {
        let served_last = |idle: &IdleWorker<W>| native.is_some_and(|native| idle.served_last(native));
        // Some agents do not let a second process resume a session that is open in another one.
        let has_session = |idle: &IdleWorker<W>| native.is_some_and(|native| idle.worker.has_session(native));
        let is_pinned =
            |idle: &IdleWorker<W>| self.0.options.pinned && may_start && idle.last_session.is_some();
        let same_key = |idle: &IdleWorker<W>| idle.key == *key;
        let is_free = |idle: &IdleWorker<W>| same_key(idle) && !idle.is_reserved();
        let is_usable = |idle: &IdleWorker<W>| is_free(idle) && !is_pinned(idle);
        let found = idle.iter().position(|idle| same_key(idle) && served_last(idle));
        let found = found.or_else(|| idle.iter().position(|idle| is_free(idle) && has_session(idle)));
        found.or_else(|| match self.0.options.pinned {
            // The session that was idle longest loses its worker.
            true => idle.iter().position(is_usable),
            false => idle.iter().rposition(is_usable),
        })
    }

    /// Ends the idle workers of other keys that have the native session open, so that a worker of this key can resume it.
    pub(crate) async fn end_others(&self, key: &WorkerKey, native: &str) {
        let others = {
            let mut state = self.0.state.lock();
            let has_session = |idle: &IdleWorker<W>| {
                idle.key != *key && (idle.served_last(native) || idle.worker.has_session(native))
            };
            let (others, kept): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.idle).into_iter().partition(has_session);
            state.idle = kept;
            others
        };
        for other in others {
            // Retiring fails only if the runtime shuts down.
            self.retire(other.worker).await.unwrap_or_default();
        }
    }

    /// Leases the idle worker that served `native` last, and forgets its last session.
    pub(crate) fn take_idle(&self, native: &str) -> Option<Lease<W>> {
        let mut state = self.0.state.lock();
        let index = state.idle.iter().position(|idle| idle.served_last(native)).filter(|_| !state.closed)?;
        let IdleWorker { worker, key, .. } = state.idle.remove(index);
        Some(Lease { worker: Some(worker), key, last_session: None, is_new: false, pool: self.clone() })
    }

    /// Stops a worker gracefully. Its slot is free once it has ended.
    fn retire(&self, worker: Arc<W>) -> JoinHandle<()> {
        let pool = self.clone();
        self.0.tasks.spawn(async move {
            worker.stop().await;
            pool.free_slot();
        })
    }

    fn free_slot(&self) {
        self.0.state.lock().count -= 1;
        self.0.changed.notify_waiters();
    }

    /// Stops a worker if it stays idle for the configured time.
    fn stop_when_idle(&self, worker: &Arc<W>, since: Moment) {
        let (pool, worker) = (self.clone(), Arc::downgrade(worker));
        self.0.tasks.spawn(async move {
            let due = since.plus(pool.0.options.idle_ms);
            tokio::select! {
                () = pool.0.clock.sleep_until_moment(due) => {}
                () = pool.0.tasks.stopping() => return,
            }
            let mut state = pool.0.state.lock();
            let is_same = |idle: &IdleWorker<W>| {
                idle.since == since && std::ptr::eq(Arc::as_ptr(&idle.worker), worker.as_ptr())
            };
            let found = state.idle.iter().position(is_same).map(|index| state.idle.remove(index));
            drop(state);
            if let Some(idle) = found {
                pool.retire(idle.worker);
            }
        });
    }

    /// Background work of this pool. [`Pool::close`] waits for it.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    /// The number of workers, and how many of them are idle.
    pub(crate) fn size(&self) -> (usize, usize) {
        let state = self.0.state.lock();
        (state.count, state.idle.len())
    }

    /// Stops every idle worker and refuses to start others. Returns once they have ended; a leased worker is stopped when
    /// its lease ends.
    pub(crate) async fn close(&self) {
        let idle = {
            let mut state = self.0.state.lock();
            state.closed = true;
            std::mem::take(&mut state.idle)
        };
        idle.into_iter().for_each(|idle| drop(self.retire(idle.worker)));
        self.0.changed.notify_waiters();
        self.0.tasks.stop();
        self.0.tasks.wait().await;
    }
}

/// The slot of a worker that is being started. Freed on drop unless filled.
struct StartSlot<'a, W: PooledWorker> {
    pool: &'a Pool<W>,
    filled: bool,
}

impl<W: PooledWorker> StartSlot<'_, W> {
    fn fill(mut self) {
        self.filled = true;
    }
}

impl<W: PooledWorker> Drop for StartSlot<'_, W> {
    fn drop(&mut self) {
        if !self.filled {
            self.pool.free_slot();
        }
    }
}

impl<W: PooledWorker> Lease<W> {
    /// The leased worker.
    pub(crate) fn worker(&self) -> Arc<W> {
        match &self.worker {
            Some(worker) => worker.clone(),
            None => unreachable!("a lease has its worker until it ends"),
        }
    }

    /// Returns the worker to the pool, with the native session it served.
    pub(crate) fn release(mut self, served: Option<LastSession>) {
        let Some(worker) = self.worker.take() else { return };
        let pool = &self.pool;
        let mut state = pool.0.state.lock();
        if state.closed || !worker.is_alive() {
            drop(state);
            pool.retire(worker);
            return;
        }
        // Another worker that served the session earlier is out of date.
        if let Some(served) = &served {
            let stale = state.idle.iter_mut().filter(|idle| idle.served_last(&served.native));
            stale.for_each(|idle| idle.last_session = None);
        }
        let since = pool.0.clock.moment();
        let key = std::mem::take(&mut self.key);
        state.idle.push(IdleWorker { worker: worker.clone(), key, last_session: served, since });
        drop(state);
        pool.0.changed.notify_waiters();
        pool.stop_when_idle(&worker, since);
    }
}

impl<W: PooledWorker> Drop for Lease<W> {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            let pool = self.pool.clone();
            self.pool.0.tasks.spawn(async move {
                worker.kill().await;
                pool.free_slot();
            });
        }
    }
}

#[cfg(test)]
mod tests;
