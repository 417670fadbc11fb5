//! Permits: their order, their limits, and how they are lent.

use super::*;

type Log = Arc<Mutex<Vec<(String, Permit)>>>;

fn scheduler(total: usize, caps: impl IntoIterator<Item = (String, usize)>) -> Scheduler {
    let scheduler = Scheduler::new(caps, HashSet::new(), OwnerLimits::default());
    scheduler.add(total, 0);
    scheduler
}

/// A scheduler in which the runs of the adapter `light` have no process.
fn two_lanes(processes: usize, in_process: usize, limits: OwnerLimits) -> Scheduler {
    let scheduler = Scheduler::new([], HashSet::from(["light".to_owned()]), limits);
    scheduler.add(processes, in_process);
    scheduler
}

fn run(no: u8) -> RunId {
    RunId::from_random([no; 16])
}

/// A run that lends its permit to a child.
fn parent(no: u8) -> Lender {
    Lender { run: run(no), lends_place: false }
}

fn acquire(scheduler: &Scheduler, owner: &str, adapter: &str, lender: Option<Lender>) -> Option<Permit> {
    scheduler.try_acquire(owner, adapter, run(99), lender)
}

fn enqueue(scheduler: &Scheduler, log: &Log, owner: &str, adapter: &str, name: &str) {
    let (log, name) = (log.clone(), name.to_owned());
    scheduler.enqueue(owner, adapter, run(98), None, move |permit| {
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
    let held = acquire(&scheduler, "a", "x", None).unwrap();
    for name in ["a1", "a2", "a3"] {
        enqueue(&scheduler, &log, "a", "x", name);
    }
    enqueue(&scheduler, &log, "b", "x", "b1");
    assert!(acquire(&scheduler, "a", "x", None).is_none());
    drop(held);
    let order: Vec<String> = (0..4).map(|_| finish_one(&log)).collect();
    assert_eq!(order, ["a1", "b1", "a2", "a3"]);
    assert!(acquire(&scheduler, "a", "x", None).is_some());
}

#[test]
fn a_full_adapter_does_not_block_another() {
    let scheduler = scheduler(4, [("x".to_owned(), 1)]);
    let log = Log::default();
    let held = acquire(&scheduler, "a", "x", None).unwrap();
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
    let held = acquire(&scheduler, "a", "x", None).unwrap();
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
    let held = acquire(&scheduler, "a", "x", None).unwrap();
    scheduler.enqueue("a", "x", run(98), None, Err);
    enqueue(&scheduler, &log, "b", "x", "b1");
    drop(held);
    assert_eq!(finish_one(&log), "b1");
    assert!(acquire(&scheduler, "a", "x", None).is_some());
}

#[test]
fn a_waiting_run_lends_its_permit_to_one_child_at_a_time() {
    let scheduler = scheduler(1, []);
    let log = Log::default();
    let parent = parent(1);
    let held = acquire(&scheduler, "a", "x", None).unwrap();
    let first = acquire(&scheduler, "a", "x", Some(parent)).unwrap();
    assert!(acquire(&scheduler, "a", "x", Some(parent)).is_none(), "a run lends only one permit");
    enqueue(&scheduler, &log, "a", "x", "other");
    for name in ["second", "third"] {
        let log = log.clone();
        scheduler.enqueue("a", "x", run(98), Some(parent), move |permit| {
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
    let parent = parent(1);
    let _held = acquire(&scheduler, "a", "x", None).unwrap();
    assert!(scheduler.is_full("x"));
    assert!(acquire(&scheduler, "a", "x", Some(parent)).is_none());
    assert!(acquire(&scheduler, "a", "y", Some(parent)).is_some());
}

#[test]
fn members_of_a_network_beyond_the_cap_run_one_after_the_other_on_the_place_of_their_parent() {
    let scheduler = scheduler(8, [("x".to_owned(), 2)]);
    let log = Log::default();
    let parent = Lender { lends_place: true, ..parent(1) };
    let held = acquire(&scheduler, "a", "x", None).unwrap();
    for (no, name) in (2..).zip(["first", "second", "third"]) {
        let log = log.clone();
        scheduler.enqueue("a", "x", run(no), Some(parent), move |permit| {
            log.lock().push((name.to_owned(), permit));
            Ok(())
        });
    }
    let names = |log: &Log| log.lock().iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&log), ["first", "second"], "a free permit, and the one of the parent");
    assert!(acquire(&scheduler, "b", "x", None).is_none());
    finish_one(&log);
    assert_eq!(names(&log), ["second", "third"]);
    finish_one(&log);
    finish_one(&log);
    drop(held);
    assert!(!scheduler.is_full("x"));
    assert_eq!(scheduler.0.lock().adapters["x"].used, 0, "every place was returned");
    assert_eq!(scheduler.0.lock().free, [8, 0]);
}

#[test]
fn an_owner_leaves_permits_for_others_and_the_owner_of_the_server_takes_all() {
    let quotas = mainspring_core::Quotas { active_runs: 3, ..Default::default() };
    let limits = OwnerLimits::new(Some("me".into()), quotas, Default::default());
    let scheduler = Scheduler::new([], HashSet::new(), limits);
    scheduler.add(8, 0);
    let take = |owner, count| -> Vec<Permit> {
        std::iter::from_fn(|| acquire(&scheduler, owner, "x", None)).take(count).collect()
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
    assert_eq!(scheduler.0.lock().free, [8, 0]);
    assert!(scheduler.0.lock().owners.is_empty());
}

#[test]
fn runs_without_a_process_have_permits_of_their_own() {
    let scheduler = two_lanes(1, 3, OwnerLimits::default());
    let process = acquire(&scheduler, "a", "heavy", None).unwrap();
    assert!(acquire(&scheduler, "a", "heavy", None).is_none());
    let light: Vec<Permit> =
        (0..3).map(|no| scheduler.try_acquire("a", "light", run(no), None).unwrap()).collect();
    let log = Log::default();
    enqueue(&scheduler, &log, "a", "light", "light");
    enqueue(&scheduler, &log, "a", "heavy", "heavy");
    drop(process);
    assert_eq!(finish_one(&log), "heavy", "a full lane does not block the other");
    assert!(log.lock().is_empty());
    drop(light);
    assert_eq!(finish_one(&log), "light");
    assert_eq!(scheduler.0.lock().free, [1, 3]);
    assert!(scheduler.0.lock().waited_for_by.is_empty());
}

#[test]
fn the_quota_of_an_owner_covers_both_lanes_and_its_share_is_counted_in_each() {
    let quotas = mainspring_core::Quotas { active_runs: 5, ..Default::default() };
    let scheduler = two_lanes(2, 8, OwnerLimits::new(Some("me".into()), quotas, Default::default()));
    let take = |owner, adapter| -> Vec<Permit> {
        let permit = |no| scheduler.try_acquire(owner, adapter, run(no), None);
        (0..9).map_while(permit).collect()
    };
    let light = take("a", "light");
    assert_eq!(light.len(), 4, "half of the lane");
    let heavy = take("a", "heavy");
    assert_eq!(heavy.len(), 1, "half of the other lane, and the quota is used up");
    drop(light);
    assert_eq!(take("a", "light").len(), 4);
    assert_eq!(take("me", "heavy").len(), 1);
    drop(heavy);
}

#[test]
fn a_run_without_a_process_lends_no_permit_for_a_process() {
    let scheduler = two_lanes(1, 8, OwnerLimits::default());
    let _held = acquire(&scheduler, "a", "heavy", None).unwrap();
    let _parent = scheduler.try_acquire("a", "light", run(1), None).unwrap();
    assert!(scheduler.try_acquire("a", "heavy", run(2), Some(parent(1))).is_none(), "there is one process");
    assert!(scheduler.try_acquire("a", "light", run(3), Some(parent(1))).is_some());
}

#[test]
fn a_run_without_a_process_passes_on_the_permit_of_the_run_that_waits_for_it() {
    let scheduler = two_lanes(1, 1, OwnerLimits::default());
    let _top = scheduler.try_acquire("a", "heavy", run(1), None).unwrap();
    let middle = scheduler.try_acquire("a", "light", run(2), Some(parent(1))).unwrap();
    let below = scheduler.try_acquire("a", "light", run(3), Some(parent(2))).unwrap();
    let bottom = scheduler.try_acquire("a", "heavy", run(4), Some(parent(3))).unwrap();
    assert!(
        scheduler.try_acquire("a", "heavy", run(5), Some(parent(3))).is_none(),
        "the permit of the first run is lent already"
    );
    drop(bottom);
    let again = scheduler.try_acquire("a", "heavy", run(5), Some(parent(3)));
    assert!(again.is_some());
    drop((again, below, middle));
    assert!(scheduler.0.lock().waited_for_by.is_empty());
    assert!(scheduler.0.lock().lent.is_empty());
}

#[test]
fn a_permit_that_another_run_uses_is_recorded_for_that_run() {
    let scheduler = two_lanes(1, 1, OwnerLimits::default());
    let _top = scheduler.try_acquire("a", "heavy", run(1), None).unwrap();
    let mut permit = scheduler.try_acquire("a", "light", run(2), Some(parent(1))).unwrap();
    permit.assign(run(3), None);
    assert!(scheduler.try_acquire("a", "heavy", run(4), Some(parent(3))).is_none(), "nobody waits for run 3");
    drop(permit);
    assert!(scheduler.0.lock().waited_for_by.is_empty());
}

#[test]
fn a_lane_that_becomes_smaller_loses_permits_as_they_are_returned() {
    let scheduler = two_lanes(0, 2, OwnerLimits::default());
    let log = Log::default();
    for name in ["a", "b", "c"] {
        enqueue(&scheduler, &log, "ada", "heavy", name);
    }
    assert!(log.lock().is_empty(), "the lane has no permits yet");
    scheduler.resize(PermitPool::Workers, 2);
    assert_eq!((log.lock().len(), scheduler.size(PermitPool::Workers)), (2, 2));
    assert_eq!(scheduler.demand(PermitPool::Workers), [("ada".to_owned(), 3)].into());
    assert_eq!(scheduler.demand(PermitPool::InProcess), BTreeMap::new());
    scheduler.resize(PermitPool::Workers, 1);
    assert_eq!(scheduler.size(PermitPool::Workers), 2, "both are in use");
    let first = log.lock().remove(0);
    drop(first);
    assert_eq!((log.lock().len(), scheduler.size(PermitPool::Workers)), (1, 1), "it went to nobody");
    let second = log.lock().remove(0);
    drop(second);
    assert_eq!((log.lock().len(), scheduler.size(PermitPool::Workers)), (1, 1), "the third has it");
    scheduler.resize(PermitPool::Workers, 3);
    log.lock().clear();
    scheduler.resize(PermitPool::Workers, 0);
    assert_eq!(scheduler.size(PermitPool::Workers), 0, "free ones go at once");
    assert!(acquire(&scheduler, "ada", "heavy", None).is_none());
    assert!(acquire(&scheduler, "ada", "light", None).is_some(), "the other lane is not concerned");
}

#[test]
fn a_withdrawn_request_gets_no_permit_and_is_not_counted_as_demand() {
    let scheduler = scheduler(1, []);
    let log = Log::default();
    let held = acquire(&scheduler, "a", "x", None).unwrap();
    enqueue(&scheduler, &log, "a", "x", "moved");
    enqueue(&scheduler, &log, "b", "x", "b1");
    assert_eq!(scheduler.demand(PermitPool::Workers), [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
    scheduler.withdraw("a", run(98));
    assert_eq!(scheduler.demand(PermitPool::Workers), [("a".to_owned(), 1), ("b".to_owned(), 1)].into());
    drop(held);
    assert_eq!(finish_one(&log), "b1");
    assert!(log.lock().is_empty());
}

#[test]
fn an_owner_with_a_shared_limit_has_at_most_its_block() {
    let quotas = mainspring_core::Quotas { active_runs: 3, ..Default::default() };
    let scheduler = Scheduler::new([], HashSet::new(), OwnerLimits::new(None, quotas, BTreeMap::new()));
    scheduler.add(9, 0);
    scheduler.share_limits();
    let log = Log::default();
    assert!(acquire(&scheduler, "a", "x", None).is_none(), "it has no block yet");
    for name in ["a1", "a2", "a3"] {
        enqueue(&scheduler, &log, "a", "x", name);
    }
    assert_eq!((scheduler.use_of("a"), scheduler.owners_that_wait()), ((0, 3), vec!["a".to_owned()]));
    assert_eq!(scheduler.set_block("a", 2), 0);
    assert_eq!((scheduler.use_of("a"), log.lock().len()), ((2, 3), 2));
    // A smaller block stops no run, and lets no other one start before there is room.
    assert_eq!(scheduler.set_block("a", 1), 2);
    finish_one(&log);
    assert_eq!((scheduler.use_of("a"), log.lock().len()), ((1, 2), 1));
    finish_one(&log);
    assert_eq!((scheduler.use_of("a"), log.lock().len()), ((1, 1), 1));
}
