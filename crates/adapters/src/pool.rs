//! Pools of workers: bounded, reused, shut down when idle, started again with care.
//!
//! A worker serves one attempt at a time, under a lease. It remembers the native session it served last, its home: only
//! there does it know how things stand, and no two know it of the same. One whose native session lives nowhere else is
//! kept for that session alone.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_core::Time;
use mainspring_kernel::adapter::Death;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::tasks::Tasks;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// What a pool holds.
pub(crate) trait Worker: Send + Sync + 'static {
    /// False once it can do no more work.
    fn is_alive(&self) -> bool;
    /// True while it has a native session in its memory, as that stands now.
    fn holds(&self, native: &str) -> bool;
    /// Ends it in good order.
    fn stop(&self) -> impl Future<Output = Death> + Send;
    /// Ends it at once.
    fn kill(&self) -> impl Future<Output = Death> + Send;
}

/// How a pool behaves.
#[derive(Debug, Clone)]
pub(crate) struct PoolOptions {
    /// How many workers there are at once.
    pub(crate) max: usize,
    /// How long an idle one is kept, in milliseconds.
    pub(crate) idle: u64,
    /// The pause after a start that failed, in milliseconds; twice that after the next.
    pub(crate) backoff: u64,
    /// A native session keeps its worker while another may be started.
    pub(crate) pinned: bool,
}

/// The longest pause between two starts, in milliseconds.
const LONGEST_PAUSE: u64 = 30_000;

/// Workers of one kind. Cheap to clone.
pub(crate) struct Pool<W>(Arc<Shared<W>>);

impl<W> Clone for Pool<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Shared<W> {
    state: Mutex<State<W>>,
    changed: Notify,
    options: PoolOptions,
    clock: Clock,
    tasks: Tasks,
}

struct State<W> {
    idle: Vec<Idle<W>>,
    /// All that are there or are about to be, also those that are being ended.
    count: usize,
    failures: u32,
    not_before: Time,
    closed: bool,
}

struct Idle<W> {
    worker: Arc<W>,
    spot: Spot,
    home: Option<Home>,
    since: Time,
}

/// What a worker was started for, and cannot be used beyond.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The folder it works in.
    pub(crate) cwd: PathBuf,
    /// What its command was given besides.
    pub(crate) arguments: &'static [&'static str],
}

/// The native session a worker served last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) native: String,
    /// It lives in this worker alone.
    pub(crate) only: bool,
}

/// What the next step towards a worker is.
enum Step<W> {
    Take(Idle<W>),
    Start(Time),
    Wait,
    Closed,
}

/// A worker at work. Dropped without [`Lease::release`], it is killed.
pub(crate) struct Lease<W: Worker> {
    worker: Option<Arc<W>>,
    spot: Spot,
    /// The native session it served last.
    pub(crate) home: Option<Home>,
    pool: Pool<W>,
}

impl<W: Worker> Pool<W> {
    pub(crate) fn new(options: PoolOptions, clock: Clock, tasks: Tasks) -> Self {
        let state = State { idle: vec![], count: 0, failures: 0, not_before: Time(0), closed: false };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Notify::new(), options, clock, tasks }))
    }

    /// A worker for `spot`: the one that is home to `native`, another that is idle there, or a new one, in the other
    /// order if workers are pinned; waits while there are too many. None once the pool is closed.
    pub(crate) async fn acquire<E>(
        &self,
        spot: &Spot,
        native: Option<&str>,
        start: impl AsyncFnOnce() -> Result<W, E>,
    ) -> Result<Option<Lease<W>>, E> {
        let lease =
            |worker, home| Lease { worker: Some(worker), spot: spot.clone(), home, pool: self.clone() };
        let not_before = loop {
            let changed = self.0.changed.notified();
            match self.step(spot, native) {
                Step::Take(idle) => return Ok(Some(lease(idle.worker, idle.home))),
                Step::Start(not_before) => break not_before,
                Step::Wait => changed.await,
                Step::Closed => return Ok(None),
            }
        };
        // Given up while it starts, its place is free again.
        let place_taken = Place { pool: self, kept: false };
        self.0.clock.sleep_until(not_before).await;
        let started = start().await;
        let mut state = self.0.state.lock();
        match started {
            Ok(worker) => {
                state.failures = 0;
                drop(state);
                place_taken.keep();
                Ok(Some(lease(Arc::new(worker), None)))
            }
            Err(error) => {
                let pause = self.0.options.backoff.saturating_mul(1 << state.failures.min(16));
                state.not_before = self.0.clock.now().plus(pause.min(LONGEST_PAUSE));
                state.failures += 1;
                drop(state);
                Err(error)
            }
        }
    }

    fn step(&self, spot: &Spot, native: Option<&str>) -> Step<W> {
        let mut state = self.0.state.lock();
        if state.closed {
            return Step::Closed;
        }
        let (alive, dead): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.idle).into_iter().partition(|idle| idle.worker.is_alive());
        state.idle = alive;
        dead.into_iter().for_each(|idle| self.retire(idle.worker));
        let at_home = |idle: &Idle<W>| idle.home.as_ref().is_some_and(|home| Some(&*home.native) == native);
        let free = |idle: &Idle<W>| !idle.home.as_ref().is_some_and(|home| home.only);
        let here = |idle: &Idle<W>| idle.spot == *spot;
        let may_start = state.count < self.0.options.max;
        let kept = |idle: &Idle<W>| self.0.options.pinned && may_start && idle.home.is_some();
        let usable = |idle: &Idle<W>| here(idle) && free(idle) && !kept(idle);
        let found = state.idle.iter().position(|idle| here(idle) && at_home(idle));
        // Some let no other process take up what one has open.
        let holds = |idle: &Idle<W>| native.is_some_and(|native| idle.worker.holds(native));
        let found =
            found.or_else(|| state.idle.iter().position(|idle| here(idle) && free(idle) && holds(idle)));
        let found = found.or_else(|| match self.0.options.pinned {
            // The one that has been idle longest loses its place first.
            true => state.idle.iter().position(usable),
            false => state.idle.iter().rposition(usable),
        });
        if let Some(at) = found {
            return Step::Take(state.idle.remove(at));
        }
        if may_start {
            state.count += 1;
            return Step::Start(state.not_before);
        }
        // The one that has been idle longest makes room.
        if !state.idle.is_empty() {
            let oldest = state.idle.remove(0);
            self.retire(oldest.worker);
        }
        Step::Wait
    }

    /// The idle worker that is home to `native`, which is nobody's home any more.
    pub(crate) fn evict(&self, native: &str) -> Option<Lease<W>> {
        let mut state = self.0.state.lock();
        let at_home = |idle: &Idle<W>| idle.home.as_ref().is_some_and(|home| home.native == native);
        let at = state.idle.iter().position(at_home).filter(|_| !state.closed)?;
        let Idle { worker, spot, .. } = state.idle.remove(at);
        Some(Lease { worker: Some(worker), spot, home: None, pool: self.clone() })
    }

    /// Ends a worker in good order; its place is free once it has ended.
    fn retire(&self, worker: Arc<W>) {
        let pool = self.clone();
        self.0.tasks.spawn(async move {
            worker.stop().await;
            pool.left();
        });
    }

    fn left(&self) {
        self.0.state.lock().count -= 1;
        self.0.changed.notify_waiters();
    }

    /// Stops an idle worker when it has been idle long enough.
    fn watch(&self, worker: &Arc<W>, since: Time) {
        let (pool, worker) = (self.clone(), Arc::downgrade(worker));
        self.0.tasks.spawn(async move {
            let due = since.plus(pool.0.options.idle);
            tokio::select! {
                () = pool.0.clock.sleep_until(due) => {}
                () = pool.0.tasks.stopping() => return,
            }
            let mut state = pool.0.state.lock();
            let is_it = |idle: &Idle<W>| {
                idle.since == since && std::ptr::eq(Arc::as_ptr(&idle.worker), worker.as_ptr())
            };
            let found = state.idle.iter().position(is_it).map(|at| state.idle.remove(at));
            drop(state);
            if let Some(idle) = found {
                pool.retire(idle.worker);
            }
        });
    }

    /// For what is done with workers: the pool is closed when it has ended.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    /// How many workers there are, and how many of them are idle.
    pub(crate) fn size(&self) -> (usize, usize) {
        let state = self.0.state.lock();
        (state.count, state.idle.len())
    }

    /// Ends every idle worker and starts no other; returns once all that was ever started has ended.
    pub(crate) async fn close(&self) {
        let idle = {
            let mut state = self.0.state.lock();
            state.closed = true;
            std::mem::take(&mut state.idle)
        };
        idle.into_iter().for_each(|idle| self.retire(idle.worker));
        self.0.changed.notify_waiters();
        self.0.tasks.stop();
        self.0.tasks.wait().await;
    }
}

/// A place in the pool for a worker that is being started.
struct Place<'a, W: Worker> {
    pool: &'a Pool<W>,
    kept: bool,
}

impl<W: Worker> Place<'_, W> {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl<W: Worker> Drop for Place<'_, W> {
    fn drop(&mut self) {
        if !self.kept {
            self.pool.left();
        }
    }
}

impl<W: Worker> Lease<W> {
    /// The worker.
    pub(crate) fn worker(&self) -> Arc<W> {
        match &self.worker {
            Some(worker) => worker.clone(),
            None => unreachable!("a lease has its worker until it ends"),
        }
    }

    /// Gives the worker back, for others to use.
    pub(crate) fn release(mut self, home: Option<Home>) {
        let Some(worker) = self.worker.take() else { return };
        let pool = &self.pool;
        let mut state = pool.0.state.lock();
        if state.closed || !worker.is_alive() {
            drop(state);
            pool.retire(worker);
            return;
        }
        // Another that served it before does not know what has happened since.
        if let Some(home) = &home {
            let before =
                |idle: &&mut Idle<W>| idle.home.as_ref().is_some_and(|old| old.native == home.native);
            state.idle.iter_mut().filter(before).for_each(|idle| idle.home = None);
        }
        let since = pool.0.clock.now();
        state.idle.push(Idle { worker: worker.clone(), spot: std::mem::take(&mut self.spot), home, since });
        drop(state);
        pool.0.changed.notify_waiters();
        pool.watch(&worker, since);
    }
}

impl<W: Worker> Drop for Lease<W> {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            let pool = self.pool.clone();
            self.pool.0.tasks.spawn(async move {
                worker.kill().await;
                pool.left();
            });
        }
    }
}

#[cfg(test)]
mod tests;
