use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::poll;

use mainspring_core::Time;

use super::*;

/// A worker with a number, which records how it was ended.
struct FakeWorker {
    no: usize,
    alive: AtomicBool,
    in_memory: Mutex<Vec<&'static str>>,
    ended: Arc<Mutex<Vec<String>>>,
}

impl FakeWorker {
    fn end(&self, how: &str) -> Death {
        if self.alive.swap(false, Ordering::Relaxed) {
            self.ended.lock().push(format!("{how} {}", self.no));
        }
        Death::Proven
    }
}

impl PooledWorker for FakeWorker {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    fn has_session(&self, native: &str) -> bool {
        self.in_memory.lock().contains(&native)
    }

    async fn stop(&self) -> Death {
        self.end("stopped")
    }

    async fn kill(&self) -> Death {
        self.end("killed")
    }
}

fn key(cwd: &str, arguments: &'static [&'static str]) -> WorkerKey {
    WorkerKey {
        owner: "ada".into(),
        cwd: cwd.into(),
        arguments,
        sandbox: SandboxProfile::Workspace,
        reach: None,
    }
}

struct Fixture {
    pool: Pool<FakeWorker>,
    clock: Clock,
    started: AtomicUsize,
    ended: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    fn new(max_workers: usize) -> Self {
        Self::with(max_workers, false)
    }

    fn pinned(max_workers: usize) -> Self {
        Self::with(max_workers, true)
    }

    fn with(max_workers: usize, pinned: bool) -> Self {
        let clock = Clock::manual(Time(0));
        let options = PoolOptions { max_workers, idle_ms: 1_000, backoff_ms: 100, pinned };
        let pool = Pool::new(options, clock.clone(), Tasks::default());
        Self { pool, clock, started: AtomicUsize::new(0), ended: Arc::default() }
    }

    async fn lease(&self, cwd: &str, native: Option<&str>) -> Lease<FakeWorker> {
        self.lease_with(cwd, &[], native).await
    }

    async fn lease_with(
        &self,
        cwd: &str,
        arguments: &'static [&'static str],
        native: Option<&str>,
    ) -> Lease<FakeWorker> {
        let start = async || Ok::<_, ()>(self.start());
        self.pool.acquire(&key(cwd, arguments), native, start).await.unwrap().unwrap()
    }

    fn start(&self) -> FakeWorker {
        let no = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        FakeWorker {
            no,
            alive: AtomicBool::new(true),
            in_memory: Mutex::default(),
            ended: self.ended.clone(),
        }
    }

    /// Runs every task until it waits for the clock or for this test.
    async fn settle(&self) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    fn ended(&self) -> Vec<String> {
        self.ended.lock().clone()
    }
}

fn session(native: &str, process_local: bool) -> Option<LastSession> {
    Some(LastSession { native: native.into(), process_local, cancelled: false })
}

#[tokio::test]
async fn an_idle_worker_is_reused_by_matching_attempts() {
    let fixture = Fixture::new(9);
    fixture.lease("/a", None).await.release(session("n1", false));
    fixture.lease("/b", None).await.release(session("n2", true));
    // The folder, the native session, whether the worker served it last, and the worker.
    for (cwd, native, served_last, no) in [
        ("/a", Some("n1"), true, 1),
        ("/a", Some("n9"), false, 1),
        ("/a", None, false, 1),
        ("/b", Some("n2"), true, 2),
        // The worker with the process-local session n2 is reserved for it.
        ("/b", Some("n9"), false, 3),
        ("/c", Some("n1"), false, 4),
    ] {
        let lease = fixture.lease(cwd, native).await;
        assert_eq!(lease.worker().no, no, "{cwd} {native:?}");
        let last = lease.last_session.clone();
        let is_same = last.as_ref().is_some_and(|last| Some(last.native.as_str()) == native);
        assert_eq!(is_same, served_last, "{cwd} {native:?}");
        lease.release(last);
    }
    assert_eq!(fixture.pool.size(), (4, 4));
}

#[tokio::test]
async fn a_worker_with_the_session_in_memory_is_preferred() {
    let fixture = Fixture::new(9);
    let (first, second) = (fixture.lease("/a", None).await, fixture.lease("/a", None).await);
    first.worker().in_memory.lock().push("n1");
    first.release(session("n2", false));
    second.release(session("n3", false));
    assert_eq!(fixture.lease("/a", Some("n1")).await.worker().no, 1);
    assert_eq!(
        fixture.lease("/a", Some("n9")).await.worker().no,
        2,
        "otherwise the worker that became idle last"
    );
}

#[tokio::test]
async fn a_full_pool_waits_and_the_longest_idle_worker_makes_room() {
    let fixture = Fixture::new(2);
    let (one, two) = (fixture.lease("/a", None).await, fixture.lease("/a", None).await);
    let mut third = Box::pin(fixture.lease("/a", None));
    assert!(poll!(&mut third).is_pending());
    fixture.settle().await;
    assert!(poll!(&mut third).is_pending(), "the pool is full");
    two.release(session("n2", false));
    assert_eq!(third.await.worker().no, 2, "a released worker goes to the waiting attempt");
    fixture.settle().await;
    assert_eq!(fixture.ended(), ["killed 2"], "a dropped lease kills its worker");
    one.release(session("n1", true));
    let other = fixture.lease("/b", None).await;
    let next = fixture.lease("/c", None).await;
    assert_eq!((other.worker().no, next.worker().no), (3, 4));
    fixture.settle().await;
    assert_eq!(fixture.ended(), ["killed 2", "stopped 1"]);
    assert_eq!(fixture.pool.size(), (2, 0));
}

#[tokio::test]
async fn idle_workers_are_evicted_oldest_first() {
    for pinned in [false, true] {
        let fixture = Fixture::with(3, pinned);
        let first = fixture.lease("/a", None).await;
        let second = fixture.lease("/a", None).await;
        let third = fixture.lease("/a", None).await;
        second.release(session("n2", false));
        third.release(session("n3", true));
        first.release(session("n1", false));
        let mut held = vec![];
        for evicted in 1..=3 {
            held.push(fixture.lease("/b", None).await);
            let order = ["stopped 2", "stopped 3", "stopped 1"];
            assert_eq!(fixture.ended(), order[..evicted], "pinned: {pinned}");
        }
        assert_eq!(fixture.pool.size(), (3, 0));
    }
}

#[tokio::test]
async fn idle_and_dead_workers_are_not_kept() {
    let fixture = Fixture::new(9);
    fixture.lease("/a", None).await.release(None);
    fixture.settle().await;
    fixture.clock.advance(999);
    fixture.settle().await;
    // Using the worker resets its idle time.
    fixture.lease("/a", None).await.release(None);
    fixture.settle().await;
    fixture.clock.advance(999);
    // A change of the system's time does not count as idle time.
    fixture.clock.set_system_time(2_592_000_000);
    fixture.settle().await;
    assert_eq!(fixture.pool.size(), (1, 1));
    fixture.clock.advance(1);
    fixture.settle().await;
    assert_eq!((fixture.pool.size(), fixture.ended()), ((0, 0), vec!["stopped 1".to_owned()]));

    let lease = fixture.lease("/a", None).await;
    lease.worker().alive.store(false, Ordering::Relaxed);
    lease.release(None);
    assert_eq!(fixture.lease("/a", None).await.worker().no, 3, "dead when released");
    let lease = fixture.lease("/a", None).await;
    let worker = lease.worker();
    lease.release(None);
    worker.alive.store(false, Ordering::Relaxed);
    assert_ne!(fixture.lease("/a", None).await.worker().no, worker.no, "dead while idle");
}

#[tokio::test]
async fn the_pause_doubles_after_each_failed_start() {
    let fixture = Fixture::new(1);
    let key = WorkerKey::default();
    let fails = async || Err::<FakeWorker, _>("no");
    for pause in [0, 100, 200, 400] {
        let mut start = Box::pin(fixture.pool.acquire(&key, None, fails));
        for _ in 0..pause {
            assert!(poll!(&mut start).is_pending(), "too early, of {pause}");
            fixture.clock.advance(1);
        }
        assert_eq!(start.await.err(), Some("no"), "{pause}");
        assert_eq!(fixture.pool.size(), (0, 0));
    }
    for _ in 0..20 {
        fixture.clock.advance(MAX_BACKOFF_MS);
        let start = fixture.pool.acquire(&key, None, fails).await;
        assert_eq!(start.err(), Some("no"), "the pause is bounded");
    }
}

#[tokio::test]
async fn a_dropped_start_frees_its_slot_and_a_successful_one_resets_the_pause() {
    let fixture = Fixture::new(1);
    let key = key("/", &[]);
    let fails = async || Err::<FakeWorker, _>("no");
    assert!(fixture.pool.acquire(&key, None, fails).await.is_err());
    let mut waits = Box::pin(fixture.pool.acquire(&key, None, fails));
    assert!(poll!(&mut waits).is_pending());
    assert_eq!(fixture.pool.size(), (1, 0));
    drop(waits);
    assert_eq!(fixture.pool.size(), (0, 0));
    fixture.clock.advance(100);
    drop(fixture.lease("/", None).await);
    fixture.settle().await;
    assert!(fixture.pool.acquire(&key, None, fails).await.is_err());
    let mut again = Box::pin(fixture.pool.acquire(&key, None, fails));
    fixture.clock.advance(99);
    assert!(poll!(&mut again).is_pending());
    fixture.clock.advance(1);
    assert!(again.await.is_err(), "the first pause again");
}

#[tokio::test]
async fn a_closed_pool_stops_its_workers_and_starts_no_other() {
    let fixture = Fixture::new(2);
    let (busy, idle) = (fixture.lease("/", None).await, fixture.lease("/", None).await);
    let key = key("/other", &["--more"]);
    let mut waits = Box::pin(fixture.pool.acquire(&key, None, async || Ok::<_, ()>(fixture.start())));
    assert!(poll!(&mut waits).is_pending());
    idle.release(session("n1", false));
    fixture.pool.close().await;
    assert_eq!(fixture.ended(), ["stopped 2"], "idle workers end first");
    assert!(matches!(waits.await, Ok(None)), "a waiting attempt learns that the pool is closed");
    assert!(matches!(fixture.pool.acquire(&key, None, async || Err(())).await, Ok(None)));
    assert!(fixture.pool.take_idle("n1").is_none());
    busy.release(None);
    fixture.settle().await;
    assert_eq!(fixture.ended(), ["stopped 2", "stopped 1"], "a leased worker ends with its lease");
}

#[tokio::test]
async fn a_pinned_worker_changes_its_session_only_if_the_pool_is_full() {
    let fixture = Fixture::pinned(2);
    fixture.lease("/a", None).await.release(session("n1", false));
    // The native session, whether the worker served it last, and the worker.
    for (native, served_last, no) in [
        ("n2", false, 2),
        ("n1", true, 1),
        ("n2", true, 2),
        // The pool is full: the worker that has been idle longest changes its session.
        ("n3", false, 1),
        ("n3", true, 1),
        ("n2", true, 2),
        ("n1", false, 1),
    ] {
        let lease = fixture.lease("/a", Some(native)).await;
        let is_same = lease.last_session.as_ref().is_some_and(|last| last.native == native);
        assert_eq!((is_same, lease.worker().no), (served_last, no), "{native}");
        lease.release(session(native, false));
    }
    assert_eq!(fixture.ended(), [""; 0]);
}

#[tokio::test]
async fn a_session_belongs_to_the_worker_that_served_it_last() {
    let fixture = Fixture::new(9);
    fixture.lease_with("/a", &[], Some("n1")).await.release(session("n1", false));
    let other = fixture.lease_with("/a", &["--careful"], Some("n1")).await;
    assert_eq!((other.last_session.clone(), other.worker().no), (None, 2));
    other.release(session("n1", false));
    let first = fixture.lease_with("/a", &[], Some("n1")).await;
    assert_eq!((first.last_session.clone(), first.worker().no), (None, 1));
}

#[tokio::test]
async fn the_idle_worker_of_a_session_can_be_taken_out() {
    let fixture = Fixture::new(9);
    fixture.lease("/a", None).await.release(session("n1", true));
    assert!(fixture.pool.take_idle("n2").is_none());
    let lease = fixture.pool.take_idle("n1").unwrap();
    assert_eq!((lease.worker().no, lease.last_session.is_none()), (1, true));
    assert!(fixture.pool.take_idle("n1").is_none(), "it is not idle now");
    lease.release(None);
    assert_eq!(fixture.lease("/a", Some("n9")).await.worker().no, 1, "it is no longer reserved");
}

#[tokio::test]
async fn a_session_moves_to_a_worker_of_another_sandbox() {
    let fixture = Fixture::new(2);
    fixture.lease("/", None).await.release(session("n", false));
    fixture.lease("/", None).await.release(session("other", false));
    let read_only = WorkerKey { sandbox: SandboxProfile::ReadOnly, ..key("/", &[]) };
    fixture.pool.end_others(&key("/", &[]), "other").await;
    assert_eq!(fixture.pool.size(), (1, 1), "a worker of the same key keeps its session");
    fixture.pool.end_others(&read_only, "other").await;
    assert_eq!((fixture.pool.size(), fixture.ended()), ((0, 0), vec!["stopped 1".to_owned()]));
    let start = async || Ok::<_, ()>(fixture.start());
    let lease = fixture.pool.acquire(&read_only, Some("other"), start).await.unwrap().unwrap();
    assert!(lease.is_new);
}
