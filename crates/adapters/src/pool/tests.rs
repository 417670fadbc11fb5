use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// A worker that knows its number and when it was ended.
struct Fake {
    no: usize,
    alive: AtomicBool,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl Worker for Fake {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    fn holds(&self, _native: &str) -> bool {
        false
    }

    async fn stop(&self) -> Death {
        self.kill().await
    }

    async fn kill(&self) -> Death {
        if self.alive.swap(false, Ordering::Relaxed) {
            self.ended.lock().push(self.no);
        }
        Death::Proven
    }
}

struct World {
    pool: Pool<Fake>,
    clock: Clock,
    started: AtomicUsize,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl World {
    fn new(max: usize) -> Self {
        Self::with(max, false)
    }

    fn with(max: usize, pinned: bool) -> Self {
        let clock = Clock::manual(Time(0));
        let options = PoolOptions { max, idle: 1_000, backoff: 100, pinned };
        let pool = Pool::new(options, clock.clone(), Tasks::default());
        Self { pool, clock, started: AtomicUsize::new(0), ended: Arc::default() }
    }

    async fn lease(&self, place: &str, native: Option<&str>) -> Lease<Fake> {
        self.lease_with(place, &[], native).await
    }

    async fn lease_with(
        &self,
        place: &str,
        arguments: &'static [&'static str],
        native: Option<&str>,
    ) -> Lease<Fake> {
        let start = async || {
            let no = self.started.fetch_add(1, Ordering::Relaxed) + 1;
            Ok::<_, ()>(Fake { no, alive: AtomicBool::new(true), ended: self.ended.clone() })
        };
        self.pool.acquire(&Spot { cwd: place.into(), arguments }, native, start).await.unwrap().unwrap()
    }

    /// Lets everything that can go on without the clock go on.
    async fn settle(&self) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    fn ended(&self) -> Vec<usize> {
        self.ended.lock().clone()
    }
}

fn home(native: &str, only: bool) -> Option<Home> {
    Some(Home { native: native.into(), only })
}

#[tokio::test]
async fn an_idle_worker_is_used_again_by_those_it_fits() {
    let world = World::new(9);
    world.lease("/a", None).await.release(home("n1", false));
    world.lease("/b", None).await.release(home("n2", true));
    // The place, the native session, whether it is the one that was served last; and who serves.
    for (place, native, knows, no) in [
        ("/a", Some("n1"), true, 1),
        ("/a", Some("n9"), false, 1),
        ("/a", None, false, 1),
        ("/b", Some("n2"), true, 2),
        // The only one that knows n2 is kept for it.
        ("/b", Some("n9"), false, 3),
        ("/c", Some("n1"), false, 4),
    ] {
        let lease = world.lease(place, native).await;
        assert_eq!(lease.worker().no, no, "{place} {native:?}");
        let at_home = lease.home.as_ref().is_some_and(|home| Some(home.native.as_str()) == native);
        assert_eq!(at_home, knows, "{place} {native:?}");
        let home = lease.home.clone();
        lease.release(home);
    }
    assert_eq!(world.pool.size(), (4, 4));
}

#[tokio::test]
async fn there_are_never_too_many_and_the_longest_idle_makes_room() {
    let world = World::new(2);
    let (one, two) = (world.lease("/a", None).await, world.lease("/a", None).await);
    let third = world.lease("/a", None);
    tokio::pin!(third);
    tokio::select! {
        biased;
        _ = &mut third => panic!("there was no room"),
        () = world.settle() => {}
    }
    two.release(home("n2", false));
    assert_eq!(third.await.worker().no, 2, "one that is given back is taken");
    world.settle().await;
    assert_eq!(world.ended(), [2], "a lease that is dropped kills");
    world.clock.advance(1);
    one.release(home("n1", true));
    let other = world.lease("/b", None).await;
    let next = world.lease("/c", None).await;
    assert_eq!((other.worker().no, next.worker().no), (3, 4));
    world.settle().await;
    assert_eq!(world.ended(), [2, 1]);
    assert_eq!(world.pool.size(), (2, 0));
}

#[tokio::test]
async fn who_is_idle_for_long_or_dead_is_not_kept() {
    let world = World::new(9);
    world.lease("/a", None).await.release(None);
    world.settle().await;
    world.clock.advance(999);
    world.settle().await;
    // Used again in between, its time begins anew.
    world.lease("/a", None).await.release(None);
    world.settle().await;
    world.clock.advance(999);
    world.settle().await;
    assert_eq!(world.pool.size(), (1, 1));
    world.clock.advance(1);
    world.settle().await;
    assert_eq!((world.pool.size(), world.ended()), ((0, 0), vec![1]));

    let lease = world.lease("/a", None).await;
    lease.worker().alive.store(false, Ordering::Relaxed);
    lease.release(None);
    assert_eq!(world.lease("/a", None).await.worker().no, 3);
}

#[tokio::test]
async fn starts_that_fail_are_tried_ever_more_slowly() {
    let world = World::new(1);
    let spot = Spot::default();
    let fails = async || Err::<Fake, _>("no");
    for pause in [0, 100, 200, 400] {
        let start = world.pool.acquire(&spot, None, fails);
        tokio::pin!(start);
        for _ in 0..pause {
            tokio::select! {
                biased;
                _ = &mut start => panic!("too early, of {pause}"),
                () = world.settle() => world.clock.advance(1),
            }
        }
        assert_eq!(start.await.err(), Some("no"), "{pause}");
        assert_eq!(world.pool.size(), (0, 0));
    }
    // A start that is given up leaves its place to others.
    let waits = world.pool.acquire(&spot, None, fails);
    tokio::select! {
        biased;
        _ = waits => unreachable!("it waits for the clock"),
        () = world.settle() => {}
    }
    assert_eq!(world.pool.size(), (0, 0));
    world.clock.advance(60_000);
    let lease = world.lease("/", None).await;
    lease.release(None);
    world.pool.close().await;
    assert_eq!(world.ended(), [1], "whoever closes ends all");
    let closed = world.pool.acquire(&spot, None, fails).await;
    assert!(matches!(closed, Ok(None)));
}

#[tokio::test]
async fn a_pinned_worker_serves_another_session_only_where_none_may_be_started() {
    let world = World::with(2, true);
    world.lease("/a", None).await.release(home("n1", false));
    // The native session, whether it is the one that was served last, and who serves.
    for (native, knows, no) in [
        ("n2", false, 2),
        ("n1", true, 1),
        ("n2", true, 2),
        // There are as many as there may be: the one that has been idle longest changes hands.
        ("n3", false, 1),
        ("n3", true, 1),
        ("n2", true, 2),
        ("n1", false, 1),
    ] {
        let lease = world.lease("/a", Some(native)).await;
        let found = (lease.home.as_ref().is_some_and(|home| home.native == native), lease.worker().no);
        assert_eq!(found, (knows, no), "{native}");
        lease.release(home(native, false));
    }
    assert_eq!(world.ended(), [] as [usize; 0]);
}

#[tokio::test]
async fn who_served_a_session_before_another_did_no_longer_knows_it() {
    let world = World::new(9);
    world.lease_with("/a", &[], Some("n1")).await.release(home("n1", false));
    let other = world.lease_with("/a", &["--careful"], Some("n1")).await;
    assert_eq!((other.home.clone(), other.worker().no), (None, 2));
    other.release(home("n1", false));
    let first = world.lease_with("/a", &[], Some("n1")).await;
    assert_eq!((first.home.clone(), first.worker().no), (None, 1));
}
