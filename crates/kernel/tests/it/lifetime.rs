//! Unloading of sessions: controllers keep them loaded, observers do not, and no stream ends because of it.

use mainspring_core::{Position, RunStatus};
use mainspring_kernel::feed::{Item, Subscription, SubscriptionMode};
use mainspring_kernel::kernel::{Opening, SessionTarget};

use crate::world::{Disk, World, by_key, every_store, read_until, run_ready_tasks, with_timeout};

/// The default of `idle_unload_ms`.
const IDLE_UNLOAD_MS: u64 = 30_000;

impl World {
    /// Advances the clock and runs everything that is due.
    async fn advance(&self, millis: u64) {
        run_ready_tasks().await;
        self.clock.advance(millis);
        run_ready_tasks().await;
    }

    fn loaded_sessions(&self) -> usize {
        self.kernel.sessions_in_memory()
    }

    async fn open(&self, key: &str) -> Opening {
        let target = SessionTarget { key: Some(key.into()), ..SessionTarget::default() };
        with_timeout(self.kernel.session_open(&self.me, &target, None)).await.unwrap().1
    }

    async fn control(&self, key: &str) -> Subscription {
        with_timeout(self.kernel.session_subscribe(&self.me, &by_key(key), None)).await.unwrap()
    }

    async fn observe(&self, key: &str, from: Option<Position>) -> Subscription {
        with_timeout(self.kernel.session_observe(&self.me, &by_key(key), from)).await.unwrap()
    }

    async fn close(&self, key: &str) -> Result<bool, &'static str> {
        with_timeout(self.kernel.session_close(&self.me, &by_key(key))).await.map_err(|error| error.code())
    }

    /// Creates a stored session that is not loaded.
    async fn stored(disk: Disk) -> Self {
        let world = Self::on(disk).await;
        world.play("a", "say first").await;
        assert_eq!(world.close("a").await, Ok(true));
        assert_eq!(world.loaded_sessions(), 0);
        world
    }
}

#[tokio::test]
async fn a_session_without_activity_is_not_unloaded() {
    let world = World::on(Disk::memory()).await;
    assert_eq!(world.open("a").await, Opening::Created);
    world.advance(1_000 * IDLE_UNLOAD_MS).await;
    assert_eq!((world.loaded_sessions(), world.open("a").await), (1, Opening::Existing));
    assert_eq!(world.close("a").await, Ok(true));
    assert_eq!(world.open("a").await, Opening::Started);
    world.advance(1_000 * IDLE_UNLOAD_MS).await;
    assert_eq!(world.loaded_sessions(), 1);
    // After some activity the session can be unloaded, but not because the system time has changed.
    drop(world.control("a").await);
    run_ready_tasks().await;
    world.clock.set_system_time(2_592_000_000);
    run_ready_tasks().await;
    assert_eq!(world.loaded_sessions(), 1);
    world.advance(IDLE_UNLOAD_MS).await;
    assert_eq!(world.loaded_sessions(), 0);
}

#[tokio::test]
async fn opened_sessions_over_the_limit_are_unloaded() {
    let world = World::on(Disk::sqlite()).await;
    for no in 0..1_010 {
        world.open(&format!("s{no}")).await;
    }
    assert_eq!(world.loaded_sessions(), 1_010);
    let fewer = async {
        while world.loaded_sessions() > 1_000 {
            tokio::task::yield_now().await;
        }
    };
    world.advance_until(IDLE_UNLOAD_MS, fewer).await;
    assert_eq!((world.open("s0").await, world.open("s1009").await), (Opening::Started, Opening::Existing));
}

async fn read_to_end(mut items: Subscription) {
    while items.next().await.is_some() {}
}

#[tokio::test]
async fn losing_the_last_controller_starts_the_unload_timer() {
    for how in ["leaving", "dying", "demoted"] {
        let world = World::on(Disk::memory()).await;
        world.play("a", "say hi").await;
        let (first, mut last) = (world.control("a").await, world.control("a").await);
        world.advance(10 * IDLE_UNLOAD_MS).await;
        drop(first);
        world.advance(10 * IDLE_UNLOAD_MS).await;
        assert_eq!(world.loaded_sessions(), 1, "{how}: one is left");
        let mut demoted = None;
        match how {
            "leaving" => drop(last),
            "dying" => {
                let mut reader = tokio::task::JoinSet::new();
                reader.spawn(read_to_end(last));
                run_ready_tasks().await;
                reader.abort_all();
            }
            _ => {
                last.set_mode(SubscriptionMode::Observer);
                demoted = Some(last);
            }
        }
        world.advance(IDLE_UNLOAD_MS - 1).await;
        assert_eq!(world.loaded_sessions(), 1, "{how}: not before its time");
        world.advance(1).await;
        assert_eq!(world.loaded_sessions(), 0, "{how}");
        drop(demoted);
    }
}

#[tokio::test]
async fn a_new_controller_or_a_run_stops_the_unload_timer() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say hi").await;
    drop(world.control("a").await);
    world.advance(IDLE_UNLOAD_MS - 1).await;
    let joined = world.control("a").await;
    world.advance(10 * IDLE_UNLOAD_MS).await;
    assert_eq!(world.loaded_sessions(), 1, "a join");
    drop(joined);
    world.advance(IDLE_UNLOAD_MS - 1).await;
    let run = world.prompt("a", "hang").await;
    world.advance(10 * IDLE_UNLOAD_MS).await;
    assert_eq!(world.loaded_sessions(), 1, "a busy turn finishes first");
    world.kernel.run_cancel(&world.me, run.id).await.unwrap();
    with_timeout(world.kernel.drain()).await;
    world.advance(IDLE_UNLOAD_MS - 1).await;
    assert_eq!(world.loaded_sessions(), 1, "the time begins with the turn's end");
    world.advance(1).await;
    assert_eq!(world.loaded_sessions(), 0);
}

#[tokio::test]
async fn a_controller_that_joins_and_leaves_restarts_the_unload_timer() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say hi").await;
    run_ready_tasks().await;
    // Before the actor handles the timer.
    world.clock.advance(IDLE_UNLOAD_MS);
    drop(world.control("a").await);
    run_ready_tasks().await;
    assert_eq!(world.loaded_sessions(), 1);
    world.advance(IDLE_UNLOAD_MS).await;
    assert_eq!(world.loaded_sessions(), 0);
}

#[tokio::test]
async fn reading_neither_loads_a_session_nor_keeps_it_loaded() {
    for disk in every_store() {
        let world = World::stored(disk).await;
        let snapshot = world.kernel.session_snapshot(&world.me, &by_key("a")).await.unwrap();
        assert_eq!((snapshot.messages.len(), snapshot.active_run), (2, None));
        let mut events = world.observe("a", Some(Position::START)).await;
        read_until(&mut events, "run.succeeded").await;
        assert_eq!(events.position(), snapshot.position);
        assert_eq!(world.loaded_sessions(), 0, "{}", world.disk.name);
        world.play("a", "say second").await;
        let gone = async {
            while world.loaded_sessions() > 0 {
                world.kernel.session_snapshot(&world.me, &by_key("a")).await.unwrap();
            }
        };
        world.advance_until(IDLE_UNLOAD_MS / 3, gone).await;
    }
}

#[tokio::test]
async fn the_stream_of_an_observer_continues_while_its_session_is_unloaded_and_loaded() {
    for disk in every_store() {
        let world = World::stored(disk).await;
        let mut observer = world.observe("a", Some(Position::START)).await;
        let mut controller = world.control("a").await;
        assert_eq!(world.loaded_sessions(), 1, "{}", world.disk.name);
        let mut seen = read_until(&mut observer, "run.succeeded").await;
        for no in 0..5 {
            // A session with a controller can be closed too, and its stream continues.
            assert_eq!(world.close("a").await, Ok(true));
            assert_eq!((world.loaded_sessions(), world.close("a").await), (0, Ok(false)));
            world.play("a", &format!("say {no}")).await;
            seen.extend(read_until(&mut observer, "run.succeeded").await);
            read_until(&mut controller, "run.succeeded").await;
        }
        let cursors = |item: &Item| match item {
            Item::Event(event) => Some(event.cursor),
            _ => None,
        };
        let seen: Vec<_> = seen.iter().filter_map(cursors).collect();
        let stored: Vec<_> = world.events("a").await.iter().map(|event| event.cursor).collect();
        assert_eq!(seen, stored, "{}: every event once", world.disk.name);
    }
}

#[tokio::test]
async fn an_observer_that_becomes_a_controller_loads_its_session() {
    let world = World::stored(Disk::memory()).await;
    let mut events = world.observe("a", None).await;
    assert_eq!((events.mode(), world.loaded_sessions()), (SubscriptionMode::Observer, 0));
    events.set_mode(SubscriptionMode::Controller);
    world.advance(10 * IDLE_UNLOAD_MS).await;
    assert_eq!((events.mode(), world.loaded_sessions()), (SubscriptionMode::Controller, 1));
    world.play("a", "say more").await;
    read_until(&mut events, "run.succeeded").await;
    drop(events);
    world.advance(IDLE_UNLOAD_MS).await;
    assert_eq!(world.loaded_sessions(), 0);
    assert_eq!(world.kernel.feed_memory().readers, 0, "nothing is buffered for disconnected readers");
}

#[tokio::test]
async fn a_busy_session_is_not_closed() {
    for script in ["hang", "ask which?"] {
        let world = World::on(Disk::memory()).await;
        let run = world.prompt("a", script).await;
        let status =
            world.wait_until(run.id, |run| run.state.status() != RunStatus::Queued).await.state.status();
        assert_eq!(world.close("a").await, Err("session_busy"), "{status}");
        assert_eq!(world.loaded_sessions(), 1);
        world.kernel.run_cancel(&world.me, run.id).await.unwrap();
        with_timeout(world.kernel.drain()).await;
        assert_eq!(world.close("a").await, Ok(true), "{status}");
        assert_eq!(world.close("nobody").await, Err("not_found"));
    }
}

#[tokio::test]
async fn streams_of_unloaded_sessions_end_when_the_kernel_stops() {
    let world = World::stored(Disk::memory()).await;
    let mut events = world.observe("a", None).await;
    with_timeout(world.kernel.shutdown()).await;
    assert!(with_timeout(events.next()).await.is_none());
    let refused = world.kernel.session_observe(&world.me, &by_key("a"), None).await;
    assert_eq!(refused.err().unwrap().code(), "shutting_down");
}

/// Subscribing uses the feed and not the actor, which waits here for an unavailable store.
#[tokio::test]
async fn ten_thousand_readers_subscribe_while_the_actor_is_busy() {
    let disk = Disk::memory();
    let (adapter, mut control) = crate::puppet::puppet(&disk.store, crate::puppet::PuppetBehavior::default());
    let world = World::with(disk, mainspring_kernel::Options::default(), vec![adapter]).await;
    world.send(crate::puppet::puppet_request("a", "go")).await.unwrap();
    let execution = control.next().await;
    let from = world.kernel.session_snapshot(&world.me, &by_key("a")).await.unwrap().position;
    world.disk.inject_fault(mainspring_store::Fault::CommitFails);
    execution.end(mainspring_kernel::adapter::End::succeeded());
    run_ready_tasks().await;
    // Recording the end failed. It is retried when the clock advances.
    let mut readers = vec![];
    for _ in 0..10_000 {
        readers.push(
            with_timeout(world.kernel.session_subscribe(&world.me, &by_key("a"), Some(from))).await.unwrap(),
        );
    }
    assert_eq!(world.kernel.feed_memory().readers, 10_000);
    world.advance_until(100, world.kernel.drain()).await;
    for reader in &mut readers {
        read_until(reader, "run.succeeded").await;
    }
}

#[tokio::test]
async fn counters_survive_unloading() {
    let world = World::stored(Disk::memory()).await;
    let subscribers = || world.kernel.counts().subscribers;
    let (mut first, second) = (world.observe("a", None).await, world.control("a").await);
    assert_eq!(subscribers(), 2);
    first.set_mode(SubscriptionMode::Controller);
    assert_eq!(subscribers(), 2, "a change of mode does not add a reader");
    drop((first, second));
    assert_eq!(subscribers(), 0);
    // An observer keeps the feed, so that counts from before and after the unloading are added.
    let observer = world.observe("a", None).await;
    for script in ["say again", "say more"] {
        world.play("a", script).await;
        assert_eq!(world.close("a").await, Ok(true));
    }
    world.advance(1_000).await;
    assert_eq!(world.kernel.counts().streamed_bytes, "first\nagain\nmore\n".len() as u64);
    drop(observer);
}
