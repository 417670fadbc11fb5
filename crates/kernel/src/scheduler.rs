//! The scheduler: permits to execute runs, fair across owners.
//!
//! A session requests a permit when it has a run to execute. Permits are limited overall, per adapter and per owner, who
//! leaves permits for others (`core/src/quota.rs`). Owners are served round-robin, and the sessions of one owner in the
//! order of their requests. Dropping a permit returns it.
//!
//! A run that waits for a delegated run lends it its permit, to one child at a time. This avoids a deadlock in which
//! parents hold all permits and wait for children that get none. A member of a network runs on its parent's place in
//! the adapter too, so that members beyond the cap of an adapter queue and still make progress one after the other.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use mainspring_core::{PoolUse, RunId};
use parking_lot::Mutex;

use crate::quotas::OwnerLimits;

/// Hands out permits to execute runs.
#[derive(Debug, Clone)]
pub(crate) struct Scheduler(Arc<Mutex<SchedulerState>>);

#[derive(Debug)]
struct SchedulerState {
    free: usize,
    limits: OwnerLimits,
    /// The permits of each owner, without those that are lent.
    owners: HashMap<String, usize>,
    adapters: HashMap<String, AdapterPermits>,
    /// Owners with requests, the next to be served first.
    round_robin: VecDeque<String>,
    requests: HashMap<String, OwnerRequests>,
    /// Number of requests so far.
    request_count: u64,
    /// Queued requests that may borrow a permit.
    borrowers: usize,
    /// Runs whose permit is lent.
    lent: HashSet<RunId>,
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
    /// True if it lends its place in the adapter too, which is the same for both runs.
    pub(crate) lends_place: bool,
}

/// A queued request for a permit.
struct PermitRequest {
    /// Number of the request, in order of arrival.
    no: u64,
    /// The run that may lend its permit.
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
    /// The run this permit is borrowed from.
    lender: Option<Lender>,
    live: bool,
}

impl Permit {
    /// True if the permit was given for `adapter`.
    pub(crate) fn is_for(&self, adapter: &str) -> bool {
        self.adapter == adapter
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if std::mem::take(&mut self.live) {
            self.scheduler.release(&self.owner, &self.adapter, self.lender);
        }
    }
}

impl Scheduler {
    /// A scheduler of `total` permits, with `caps` on the permits of adapters and `limits` on those of owners.
    pub(crate) fn new(
        total: usize,
        caps: impl IntoIterator<Item = (String, usize)>,
        limits: OwnerLimits,
    ) -> Self {
        let adapters = caps.into_iter().map(|(name, cap)| (name, AdapterPermits { cap, used: 0 })).collect();
        Self(Arc::new(Mutex::new(SchedulerState {
            free: total,
            limits,
            owners: HashMap::new(),
            adapters,
            round_robin: VecDeque::new(),
            requests: HashMap::new(),
            request_count: 0,
            borrowers: 0,
            lent: HashSet::new(),
        })))
    }

    /// Adds permits.
    pub(crate) fn add(&self, permits: usize) {
        self.0.lock().free += permits;
        self.grant();
    }

    /// Takes a permit, if one is free for `owner` or `lender` can lend one. Overtakes no queued request: while a permit is
    /// free, only requests for full adapters and of owners that have their share are queued.
    pub(crate) fn try_acquire(&self, owner: &str, adapter: &str, lender: Option<Lender>) -> Option<Permit> {
        let source = self.0.lock().take(owner, adapter, lender)?;
        Some(self.permit(owner, adapter, source))
    }

    /// True if all permits of an adapter are in use.
    pub(crate) fn is_full(&self, adapter: &str) -> bool {
        self.0.lock().adapters.get(adapter).is_some_and(|slots| slots.used >= slots.cap)
    }

    /// Queues a request: `deliver` is called with a permit when it is `owner`'s turn, and may give it back.
    pub(crate) fn enqueue(
        &self,
        owner: &str,
        adapter: &str,
        lender: Option<Lender>,
        deliver: impl FnOnce(Permit) -> Result<(), Permit> + Send + 'static,
    ) {
        let mut state = self.0.lock();
        if !state.requests.contains_key(owner) {
            state.round_robin.push_back(owner.to_owned());
        }
        state.request_count += 1;
        state.borrowers += usize::from(lender.is_some());
        let request = PermitRequest { no: state.request_count, lender, deliver: Box::new(deliver) };
        let requests = state.requests.entry(owner.to_owned()).or_default();
        requests.0.entry(adapter.to_owned()).or_default().push_back(request);
        drop(state);
        self.grant();
    }

    fn permit(&self, owner: &str, adapter: &str, source: PermitSource) -> Permit {
        let lender = match source {
            PermitSource::Free => None,
            PermitSource::Lent(lender) => Some(lender),
        };
        let (owner, adapter) = (owner.to_owned(), adapter.to_owned());
        Permit { scheduler: self.clone(), owner, adapter, lender, live: true }
    }

    fn release(&self, owner: &str, adapter: &str, lender: Option<Lender>) {
        self.0.lock().return_permit(owner, adapter, lender);
        self.grant();
    }

    /// Serves queued requests while there are permits.
    fn grant(&self) {
        loop {
            let Some((owner, adapter, request, source)) = self.0.lock().next() else {
                return;
            };
            // Delivered without the lock: the receiver may request the next permit at once.
            if let Err(mut refused) = (request.deliver)(self.permit(&owner, &adapter, source)) {
                refused.live = false;
                self.0.lock().return_permit(&owner, &adapter, refused.lender);
            }
        }
    }
}

/// Where a permit comes from.
#[derive(Debug, Clone, Copy)]
enum PermitSource {
    Free,
    /// Lent by this run.
    Lent(Lender),
}

impl SchedulerState {
    /// True if a free permit may go to `owner`.
    fn may_take(&self, owner: &str) -> bool {
        let own = self.owners.get(owner).copied().unwrap_or(0);
        let (cap, shares) = (self.limits.of(owner).active_runs, self.limits.shares(owner));
        PoolUse { free: self.free, own, cap, shares }.may_take()
    }

    /// The permit available to an owner for an adapter: a free one, else the one of `lender`.
    fn available(&self, owner: &str, adapter: &str, lender: Option<Lender>) -> Option<PermitSource> {
        let is_full = self.adapters.get(adapter).is_some_and(|slots| slots.used >= slots.cap);
        if !is_full && self.may_take(owner) {
            return Some(PermitSource::Free);
        }
        let may_lend = |lender: &Lender| !self.lent.contains(&lender.run) && (!is_full || lender.lends_place);
        lender.filter(may_lend).map(PermitSource::Lent)
    }

    fn take(&mut self, owner: &str, adapter: &str, lender: Option<Lender>) -> Option<PermitSource> {
        let source = self.available(owner, adapter, lender)?;
        match source {
            PermitSource::Lent(lender) => drop(self.lent.insert(lender.run)),
            PermitSource::Free => {
                self.free -= 1;
                *self.owners.entry(owner.to_owned()).or_default() += 1;
            }
        }
        let lends_place = matches!(source, PermitSource::Lent(lender) if lender.lends_place);
        if let Some(slots) = self.adapters.get_mut(adapter).filter(|_| !lends_place) {
            slots.used += 1;
        }
        Some(source)
    }

    fn return_permit(&mut self, owner: &str, adapter: &str, lender: Option<Lender>) {
        match lender {
            Some(lender) => drop(self.lent.remove(&lender.run)),
            None => {
                self.free += 1;
                if let Some(own) = self.owners.get_mut(owner) {
                    *own -= 1;
                    if *own == 0 {
                        self.owners.remove(owner);
                    }
                }
            }
        }
        let lends_place = lender.is_some_and(|lender| lender.lends_place);
        if let Some(slots) = self.adapters.get_mut(adapter).filter(|_| !lends_place) {
            slots.used -= 1;
        }
    }

    /// Removes the next request there is a permit for, and takes that permit. Its owner moves to the end of the order.
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
            let source = self.take(&owner, &adapter, request.lender)?;
            return Some((owner, adapter, request, source));
        }
        None
    }

    /// The oldest request of an owner there is a permit for: its adapter, and its index in the adapter's queue.
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
mod tests {
    use super::*;

    type Log = Arc<Mutex<Vec<(String, Permit)>>>;

    fn scheduler(total: usize, caps: impl IntoIterator<Item = (String, usize)>) -> Scheduler {
        Scheduler::new(total, caps, OwnerLimits::default())
    }

    fn enqueue(scheduler: &Scheduler, log: &Log, owner: &str, adapter: &str, name: &str) {
        let (log, name) = (log.clone(), name.to_owned());
        scheduler.enqueue(owner, adapter, None, move |permit| {
            log.lock().push((name, permit));
            Ok(())
        });
    }

    fn finish_one(log: &Log) -> String {
        let (name, permit) = log.lock().remove(0);
        drop(permit);
        name
    }

    #[test]
    fn owners_are_served_round_robin() {
        let scheduler = scheduler(1, []);
        let log = Log::default();
        let held = scheduler.try_acquire("a", "x", None).unwrap();
        for name in ["a1", "a2", "a3"] {
            enqueue(&scheduler, &log, "a", "x", name);
        }
        enqueue(&scheduler, &log, "b", "x", "b1");
        assert!(scheduler.try_acquire("a", "x", None).is_none());
        drop(held);
        let order: Vec<String> = (0..4).map(|_| finish_one(&log)).collect();
        assert_eq!(order, ["a1", "b1", "a2", "a3"]);
        assert!(scheduler.try_acquire("a", "x", None).is_some());
    }

    #[test]
    fn a_full_adapter_does_not_block_another() {
        let scheduler = scheduler(4, [("x".to_owned(), 1)]);
        let log = Log::default();
        let held = scheduler.try_acquire("a", "x", None).unwrap();
        enqueue(&scheduler, &log, "a", "x", "x1");
        enqueue(&scheduler, &log, "a", "y", "y1");
        assert_eq!(finish_one(&log), "y1");
        assert!(log.lock().is_empty());
        drop(held);
        assert_eq!(finish_one(&log), "x1");
    }

    #[test]
    fn an_owner_is_served_in_order_across_adapters() {
        let scheduler = scheduler(1, []);
        let log = Log::default();
        let held = scheduler.try_acquire("a", "x", None).unwrap();
        for (adapter, name) in [("z", "1"), ("a", "2"), ("z", "3"), ("a", "4")] {
            enqueue(&scheduler, &log, "a", adapter, name);
        }
        drop(held);
        let order: Vec<String> = (0..4).map(|_| finish_one(&log)).collect();
        assert_eq!(order, ["1", "2", "3", "4"]);
    }

    #[test]
    fn a_refused_permit_goes_to_the_next_request() {
        let scheduler = scheduler(1, []);
        let log = Log::default();
        let held = scheduler.try_acquire("a", "x", None).unwrap();
        scheduler.enqueue("a", "x", None, Err);
        enqueue(&scheduler, &log, "b", "x", "b1");
        drop(held);
        assert_eq!(finish_one(&log), "b1");
        assert!(scheduler.try_acquire("a", "x", None).is_some());
    }

    #[test]
    fn a_waiting_run_lends_its_permit_to_one_child_at_a_time() {
        let scheduler = scheduler(1, []);
        let log = Log::default();
        let parent = Lender { run: RunId::from_random([1; 16]), lends_place: false };
        let held = scheduler.try_acquire("a", "x", None).unwrap();
        let first = scheduler.try_acquire("a", "x", Some(parent)).unwrap();
        assert!(scheduler.try_acquire("a", "x", Some(parent)).is_none(), "a run lends only one permit");
        enqueue(&scheduler, &log, "a", "x", "other");
        for name in ["second", "third"] {
            let log = log.clone();
            scheduler.enqueue("a", "x", Some(parent), move |permit| {
                log.lock().push((name.to_owned(), permit));
                Ok(())
            });
        }
        assert!(log.lock().is_empty());
        drop(first);
        assert_eq!(
            finish_one(&log),
            "second",
            "a lent permit goes to the run it is lent to, not to the first in the queue"
        );
        assert_eq!(finish_one(&log), "third");
        assert!(log.lock().is_empty());
        drop(held);
        assert_eq!(finish_one(&log), "other");
    }

    #[test]
    fn a_full_adapter_does_not_accept_lent_permits_either() {
        let scheduler = scheduler(4, [("x".to_owned(), 1)]);
        let parent = Lender { run: RunId::from_random([1; 16]), lends_place: false };
        let _held = scheduler.try_acquire("a", "x", None).unwrap();
        assert!(scheduler.is_full("x"));
        assert!(scheduler.try_acquire("a", "x", Some(parent)).is_none());
        assert!(scheduler.try_acquire("a", "y", Some(parent)).is_some());
    }

    #[test]
    fn members_of_a_network_beyond_the_cap_run_one_after_the_other_on_the_place_of_their_parent() {
        let scheduler = scheduler(8, [("x".to_owned(), 2)]);
        let log = Log::default();
        let parent = Lender { run: RunId::from_random([1; 16]), lends_place: true };
        let held = scheduler.try_acquire("a", "x", None).unwrap();
        for name in ["first", "second", "third"] {
            let log = log.clone();
            scheduler.enqueue("a", "x", Some(parent), move |permit| {
                log.lock().push((name.to_owned(), permit));
                Ok(())
            });
        }
        let names = |log: &Log| log.lock().iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&log), ["first", "second"], "a free permit, and the one of the parent");
        assert!(scheduler.try_acquire("b", "x", None).is_none());
        finish_one(&log);
        assert_eq!(names(&log), ["second", "third"]);
        finish_one(&log);
        finish_one(&log);
        drop(held);
        assert!(!scheduler.is_full("x"));
        assert_eq!(scheduler.0.lock().adapters["x"].used, 0, "every place was returned");
        assert_eq!(scheduler.0.lock().free, 8);
    }

    #[test]
    fn an_owner_leaves_permits_for_others_and_the_owner_of_the_server_takes_all() {
        let quotas = mainspring_core::Quotas { active_runs: 3, ..Default::default() };
        let limits = OwnerLimits::new(Some("me".into()), quotas, Default::default());
        let scheduler = Scheduler::new(8, [], limits);
        let take = |owner, count| -> Vec<Permit> {
            std::iter::from_fn(|| scheduler.try_acquire(owner, "x", None)).take(count).collect()
        };
        let a = take("a", 9);
        assert_eq!(a.len(), 3, "a has its quota");
        let log = Log::default();
        enqueue(&scheduler, &log, "a", "x", "a4");
        let b = take("b", 9);
        assert_eq!(b.len(), 3, "b has as much as is left");
        let c = take("c", 9);
        assert_eq!(c.len(), 1);
        assert_eq!(take("me", 9).len(), 1);
        assert!(log.lock().is_empty(), "a waits until one of its own runs has ended");
        drop(c);
        assert!(log.lock().is_empty());
        drop(a);
        assert_eq!(finish_one(&log), "a4");
        drop(b);
        assert_eq!(scheduler.0.lock().free, 8);
        assert!(scheduler.0.lock().owners.is_empty());
    }
}
