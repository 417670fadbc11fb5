//! The scheduler: permits to execute runs, fair across owners.
//!
//! A session requests a permit when it has a run to execute. Permits are limited per lane, per adapter and per owner; an
//! owner must leave permits for others (`core/src/quota.rs`). Owners are served round-robin, and the sessions of one owner
//! in the order of their requests. Dropping a permit returns it.
//!
//! There are two lanes: runs whose agent is a process, which are few, and runs of agents without a process, which cost
//! little more than their memory and are many. A full lane does not block the other.
//!
//! A run that waits for delegated runs lends them its permit, to one child at a time. This avoids a deadlock in which
//! parents hold all permits and wait for children that get none. A run without a process has no permit for a process to
//! lend: its child borrows the permit of the nearest run above that has one. A member of a network also borrows its
//! parent's place in the adapter, so that members beyond the cap of an adapter queue and still make progress one after
//! the other.
//!
//! In a cluster, the permits of a lane may be this server's block of the permits that all servers share
//! (`core/src/permits.rs`). When the block becomes smaller, permits are removed as they are returned.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use mainspring_core::permits::PermitPool;
use mainspring_core::{PoolUse, RunId};
use parking_lot::Mutex;

use crate::quotas::OwnerLimits;

/// Hands out permits to execute runs.
#[derive(Debug, Clone)]
pub(crate) struct Scheduler(Arc<Mutex<SchedulerState>>);

/// The pool that a permit comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Lane {
    /// Runs whose agent is a process, and all runs if the other lane does not exist.
    Processes = 0,
    /// Runs whose agent has no process.
    InProcess = 1,
}

/// A number for each lane.
type ByLane = [usize; 2];

#[derive(Debug)]
struct SchedulerState {
    free: ByLane,
    /// The number of permits, free or in use.
    size: ByLane,
    /// The intended number of permits. Less than `size` after a lane was made smaller, until enough permits are returned.
    limit: ByLane,
    limits: OwnerLimits,
    /// The blocks of the limits of owners that this process has, if other processes share the limits.
    blocks: Option<HashMap<String, usize>>,
    /// Adapters whose runs take the lane without processes.
    in_process: HashSet<String>,
    /// The permits of each owner, without those that are lent.
    owners: HashMap<String, ByLane>,
    adapters: HashMap<String, AdapterPermits>,
    /// Owners with requests, in the order in which they are served next.
    round_robin: VecDeque<String>,
    requests: HashMap<String, OwnerRequests>,
    /// Number of requests so far.
    request_count: u64,
    /// Queued requests that may borrow a permit.
    borrowers: usize,
    /// Runs whose permit is lent, by the lane of the borrower.
    lent: HashSet<(Lane, RunId)>,
    /// The active runs of the lane without processes, each with the run that waits for it.
    waited_for_by: HashMap<RunId, Option<RunId>>,
}

#[derive(Debug)]
struct AdapterPermits {
    cap: usize,
    used: usize,
}

/// One owner's requests by adapter, so that a full adapter does not block another.
#[derive(Debug, Default)]
struct OwnerRequests(BTreeMap<String, VecDeque<PermitRequest>>);

/// Receives the permit. Returns it if it is no longer wanted.
type Deliver = Box<dyn FnOnce(Permit) -> Result<(), Permit> + Send>;

/// A run that waits for another one and lends it its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lender {
    /// The run that lends.
    pub(crate) run: RunId,
    /// True if the run also lends its place in the adapter, which is then the adapter of both runs.
    pub(crate) lends_place: bool,
}

/// A queued request for a permit.
struct PermitRequest {
    /// Number of the request, in order of arrival.
    no: u64,
    /// The run that the permit is for.
    run: RunId,
    /// The run that waits for `run` and may lend its permit.
    lender: Option<Lender>,
    deliver: Deliver,
}

impl std::fmt::Debug for PermitRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PermitRequest")
    }
}

/// The right to execute a run. Dropping it returns the permit.
#[derive(Debug)]
pub(crate) struct Permit {
    scheduler: Scheduler,
    owner: String,
    adapter: String,
    run: RunId,
    source: PermitSource,
    live: bool,
}

impl Permit {
    /// True if the permit was given for `adapter`.
    pub(crate) fn is_for(&self, adapter: &str) -> bool {
        self.adapter == adapter
    }

    /// Records that `run`, which `lender` waits for, uses the permit instead of the run that requested it.
    pub(crate) fn assign(&mut self, run: RunId, lender: Option<Lender>) {
        if self.run != run {
            let mut state = self.scheduler.0.lock();
            state.waited_for_by.remove(&self.run);
            state.record_holder(&self.adapter, run, lender);
            self.run = run;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if std::mem::take(&mut self.live) {
            self.scheduler.release(self);
        }
    }
}

impl Scheduler {
    /// A scheduler without permits, with `caps` on the permits of adapters and `limits` on those of owners. The runs of the
    /// adapters `in_process` have a lane of their own.
    pub(crate) fn new(
        caps: impl IntoIterator<Item = (String, usize)>,
        in_process: HashSet<String>,
        limits: OwnerLimits,
    ) -> Self {
        let adapters = caps.into_iter().map(|(name, cap)| (name, AdapterPermits { cap, used: 0 })).collect();
        Self(Arc::new(Mutex::new(SchedulerState {
            free: [0, 0],
            size: [0, 0],
            limit: [0, 0],
            limits,
            blocks: None,
            in_process,
            owners: HashMap::new(),
            adapters,
            round_robin: VecDeque::new(),
            requests: HashMap::new(),
            request_count: 0,
            borrowers: 0,
            lent: HashSet::new(),
            waited_for_by: HashMap::new(),
        })))
    }

    /// Adds permits for runs with a process, and for runs without one.
    pub(crate) fn add(&self, processes: usize, in_process: usize) {
        let mut state = self.0.lock();
        for (lane, added) in [processes, in_process].into_iter().enumerate() {
            let limit = state.limit[lane] + added;
            state.resize(lane, limit);
        }
        drop(state);
        self.grant();
    }

    /// Changes the number of permits of a lane. Permits beyond it are removed now if they are free, else when they are
    /// returned.
    pub(crate) fn resize(&self, pool: PermitPool, permits: usize) {
        self.0.lock().resize(pool as usize, permits);
        self.grant();
    }

    /// Lets an owner with a limit have at most its block of active runs, from now on.
    pub(crate) fn share_limits(&self) {
        self.0.lock().blocks.get_or_insert_default();
    }

    /// Changes the block of an owner. Returns the number of its active runs, which may be more.
    pub(crate) fn set_block(&self, owner: &str, size: usize) -> usize {
        let used = {
            let mut state = self.0.lock();
            if let Some(blocks) = &mut state.blocks {
                match size {
                    0 => drop(blocks.remove(owner)),
                    size => drop(blocks.insert(owner.to_owned(), size)),
                }
            }
            state.used_by(owner)
        };
        self.grant();
        used
    }

    /// The number of an owner's active runs, and the number of its active and waiting runs together.
    pub(crate) fn use_of(&self, owner: &str) -> (usize, usize) {
        let state = self.0.lock();
        let used = state.used_by(owner);
        let waiting =
            state.requests.get(owner).map_or(0, |requests| requests.0.values().map(VecDeque::len).sum());
        (used, used + waiting)
    }

    /// The owners that have a limit and waiting runs.
    pub(crate) fn owners_that_wait(&self) -> Vec<String> {
        let state = self.0.lock();
        let is_limited = |owner: &&String| state.limits.of(owner).active_runs > 0;
        state.requests.keys().filter(is_limited).cloned().collect()
    }

    /// The number of permits of a lane, free or not.
    pub(crate) fn size(&self, pool: PermitPool) -> usize {
        self.0.lock().size[pool as usize]
    }

    /// The runs that have a permit of a lane or wait for one, by owner.
    pub(crate) fn demand(&self, pool: PermitPool) -> BTreeMap<String, usize> {
        let state = self.0.lock();
        let mut demand: BTreeMap<String, usize> = BTreeMap::new();
        for (owner, used) in state.owners.iter().filter(|(_, used)| used[pool as usize] > 0) {
            *demand.entry(owner.clone()).or_default() += used[pool as usize];
        }
        for (owner, requests) in &state.requests {
            let of_lane =
                requests.0.iter().filter(|(adapter, _)| state.lane_of(adapter) as usize == pool as usize);
            let queued: usize = of_lane.map(|(_, queue)| queue.len()).sum();
            if queued > 0 {
                *demand.entry(owner.clone()).or_default() += queued;
            }
        }
        demand
    }

    /// Takes a permit for `run`, if one is free for `owner` or `lender` can lend one. Overtakes no queued request: while a
    /// permit of a lane is free, only requests for full adapters and of owners that have used up their share are queued.
    pub(crate) fn try_acquire(
        &self,
        owner: &str,
        adapter: &str,
        run: RunId,
        lender: Option<Lender>,
    ) -> Option<Permit> {
        let source = self.0.lock().take(owner, adapter, run, lender)?;
        Some(self.permit(owner, adapter, run, source))
    }

    /// True if all permits of an adapter are in use.
    pub(crate) fn is_full(&self, adapter: &str) -> bool {
        self.0.lock().adapters.get(adapter).is_some_and(|slots| slots.used >= slots.cap)
    }

    /// Queues a request for `run`: `deliver` is called with a permit when it is `owner`'s turn, and may give it back.
    pub(crate) fn enqueue(
        &self,
        owner: &str,
        adapter: &str,
        run: RunId,
        lender: Option<Lender>,
        deliver: impl FnOnce(Permit) -> Result<(), Permit> + Send + 'static,
    ) {
        let mut state = self.0.lock();
        if !state.requests.contains_key(owner) {
            state.round_robin.push_back(owner.to_owned());
        }
        state.request_count += 1;
        state.borrowers += usize::from(lender.is_some());
        let request = PermitRequest { no: state.request_count, run, lender, deliver: Box::new(deliver) };
        let requests = state.requests.entry(owner.to_owned()).or_default();
        requests.0.entry(adapter.to_owned()).or_default().push_back(request);
        drop(state);
        self.grant();
    }

    /// Removes the requests for `run`: it is not executed here any more.
    pub(crate) fn withdraw(&self, owner: &str, run: RunId) {
        self.0.lock().withdraw(owner, run);
    }

    fn permit(&self, owner: &str, adapter: &str, run: RunId, source: PermitSource) -> Permit {
        let (owner, adapter) = (owner.to_owned(), adapter.to_owned());
        Permit { scheduler: self.clone(), owner, adapter, run, source, live: true }
    }

    fn release(&self, permit: &Permit) {
        self.0.lock().return_permit(permit);
        self.grant();
    }

    /// Serves queued requests while there are permits.
    fn grant(&self) {
        loop {
            let Some((owner, adapter, request, source)) = self.0.lock().next() else {
                return;
            };
            // Delivered without the lock: the receiver may request the next permit at once.
            if let Err(mut refused) = (request.deliver)(self.permit(&owner, &adapter, request.run, source)) {
                refused.live = false;
                self.0.lock().return_permit(&refused);
            }
        }
    }
}

/// Where a permit comes from.
#[derive(Debug, Clone, Copy)]
enum PermitSource {
    /// A free permit of this lane.
    Free(Lane),
    /// Lent by this run, for a run of this lane.
    Lent(Lane, Lender),
}

impl PermitSource {
    /// True if the permit comes with the place of its lender in the adapter.
    const fn has_lent_place(self) -> bool {
        matches!(self, Self::Lent(_, Lender { lends_place: true, .. }))
    }
}

impl SchedulerState {
    fn resize(&mut self, lane: usize, permits: usize) {
        self.limit[lane] = permits;
        let added = permits.saturating_sub(self.size[lane]);
        let removed = self.size[lane].saturating_sub(permits).min(self.free[lane]);
        self.free[lane] = self.free[lane] + added - removed;
        self.size[lane] = self.size[lane] + added - removed;
    }

    fn used_by(&self, owner: &str) -> usize {
        self.owners.get(owner).map_or(0, |by_lane| by_lane.iter().sum())
    }

    fn lane_of(&self, adapter: &str) -> Lane {
        match self.in_process.contains(adapter) {
            true => Lane::InProcess,
            false => Lane::Processes,
        }
    }

    /// True if a free permit of a lane may go to `owner`. The limit of an owner covers both lanes.
    fn may_take(&self, owner: &str, lane: Lane) -> bool {
        let by_lane = self.owners.get(owner).copied().unwrap_or_default();
        let own = by_lane[lane as usize];
        let elsewhere = by_lane.iter().sum::<usize>() - own;
        let (cap, leaves_room) = (self.limits.of(owner).active_runs, self.limits.leaves_room(owner));
        if let Some(blocks) = self.blocks.as_ref().filter(|_| cap > 0)
            && own + elsewhere >= blocks.get(owner).copied().unwrap_or_default()
        {
            return false;
        }
        PoolUse { free: self.free[lane as usize], own, elsewhere, cap, leaves_room }.may_take()
    }

    /// The permit available to an owner for an adapter: a free one, else the one of `lender`.
    fn available(&self, owner: &str, adapter: &str, lender: Option<Lender>) -> Option<PermitSource> {
        let is_full = self.adapters.get(adapter).is_some_and(|slots| slots.used >= slots.cap);
        let lane = self.lane_of(adapter);
        if !is_full && self.may_take(owner, lane) {
            return Some(PermitSource::Free(lane));
        }
        let lender = lender.filter(|lender| !is_full || lender.lends_place)?;
        let run = self.lender_in(lane, lender.run)?;
        (!self.lent.contains(&(lane, run))).then_some(PermitSource::Lent(lane, Lender { run, ..lender }))
    }

    /// The run whose permit `lender` can lend to a run of `lane`: `lender` itself, or a run above it.
    fn lender_in(&self, lane: Lane, lender: RunId) -> Option<RunId> {
        let mut lender = lender;
        if lane == Lane::Processes {
            while let Some(above) = self.waited_for_by.get(&lender) {
                lender = (*above)?;
            }
        }
        Some(lender)
    }

    fn take(
        &mut self,
        owner: &str,
        adapter: &str,
        run: RunId,
        lender: Option<Lender>,
    ) -> Option<PermitSource> {
        let source = self.available(owner, adapter, lender)?;
        match source {
            PermitSource::Lent(lane, lender) => drop(self.lent.insert((lane, lender.run))),
            PermitSource::Free(lane) => {
                self.free[lane as usize] -= 1;
                self.owners.entry(owner.to_owned()).or_default()[lane as usize] += 1;
            }
        }
        if let Some(slots) = self.adapters.get_mut(adapter).filter(|_| !source.has_lent_place()) {
            slots.used += 1;
        }
        self.record_holder(adapter, run, lender);
        Some(source)
    }

    fn record_holder(&mut self, adapter: &str, run: RunId, lender: Option<Lender>) {
        if self.lane_of(adapter) == Lane::InProcess {
            self.waited_for_by.insert(run, lender.map(|lender| lender.run));
        }
    }

    fn return_permit(&mut self, permit: &Permit) {
        let Permit { owner, adapter, run, source, .. } = permit;
        match source {
            PermitSource::Lent(lane, lender) => drop(self.lent.remove(&(*lane, lender.run))),
            PermitSource::Free(lane) => {
                let lane_no = *lane as usize;
                match self.size[lane_no] > self.limit[lane_no] {
                    true => self.size[lane_no] -= 1,
                    false => self.free[lane_no] += 1,
                }
                if let Some(own) = self.owners.get_mut(owner) {
                    own[*lane as usize] -= 1;
                    if *own == [0, 0] {
                        self.owners.remove(owner);
                    }
                }
            }
        }
        if let Some(slots) = self.adapters.get_mut(adapter).filter(|_| !source.has_lent_place()) {
            slots.used -= 1;
        }
        self.waited_for_by.remove(run);
    }

    fn withdraw(&mut self, owner: &str, run: RunId) {
        let Some(requests) = self.requests.get_mut(owner) else { return };
        for queue in requests.0.values_mut() {
            let lent = queue.iter().filter(|request| request.run == run && request.lender.is_some()).count();
            self.borrowers -= lent;
            queue.retain(|request| request.run != run);
        }
        requests.0.retain(|_, queue| !queue.is_empty());
        if requests.0.is_empty() {
            self.requests.remove(owner);
            self.round_robin.retain(|known| known != owner);
        }
    }

    /// Removes the next request there is a permit for, and takes that permit. The owner moves to the end of the order.
    fn next(&mut self) -> Option<(String, String, PermitRequest, PermitSource)> {
        for turn in 0..self.round_robin.len() {
            let owner = self.round_robin[turn].clone();
            let Some((adapter, index)) = self.next_of(&owner) else { continue };
            self.round_robin.remove(turn);
            let requests = self.requests.get_mut(&owner)?;
            let queue = requests.0.get_mut(&adapter)?;
            let request = queue.remove(index)?;
            self.borrowers -= usize::from(request.lender.is_some());
            if queue.is_empty() {
                requests.0.remove(&adapter);
            }
            if requests.0.is_empty() {
                self.requests.remove(&owner);
            } else {
                self.round_robin.push_back(owner.clone());
            }
            let source = self.take(&owner, &adapter, request.run, request.lender)?;
            return Some((owner, adapter, request, source));
        }
        None
    }

    /// Finds the owner's oldest request that can be served now: its adapter, and its index in the adapter's queue.
    fn next_of(&self, owner: &str) -> Option<(String, usize)> {
        let requests = self.requests.get(owner)?.0.iter();
        let first = requests.filter_map(|(adapter, queue)| {
            // With a free permit the first request is served, without one the first that can borrow.
            let index = match self.available(owner, adapter, None) {
                Some(_) => 0,
                None if self.borrowers == 0 => return None,
                None => queue
                    .iter()
                    .position(|request| self.available(owner, adapter, request.lender).is_some())?,
            };
            Some((queue.get(index)?.no, adapter, index))
        });
        first.min_by_key(|(no, ..)| *no).map(|(_, adapter, index)| (adapter.clone(), index))
    }
}

#[cfg(test)]
mod tests;
