//! How long sessions stay in memory: controllers keep them there, observers do not, and no stream ends for it.

use mainspring_core::{Position, RunStatus};
use mainspring_kernel::feed::{Item, Subscription, SubscriptionMode};
use mainspring_kernel::kernel::{Opening, SessionTarget};

use crate::world::{Disk, World, by, every_store, read_until, settle, soon};

/// The default of `idle_unload_ms`.
const IDLE: u64 = 30_000;

impl World {
    /// Lets time pass, and everything happen that is due.
    async fn pass(&self, millis: u64) {
        settle().await;
        self.clock.advance(millis);
        settle().await;
    }

    fn in_memory(&self) -> usize {
        self.kernel.sessions_in_memory()
    }

    async fn open(&self, key: &str) -> Opening {
        let target = SessionTarget { key: Some(key.into()), ..SessionTarget::default() };
        soon(self.kernel.session_open(&self.me, &target, None)).await.unwrap().1
    }

    async fn control(&self, key: &str) -> Subscription {
        soon(self.kernel.session_subscribe(&self.me, &by(key), None)).await.unwrap()
    }

    async fn observe(&self, key: &str, from: Option<Position>) -> Subscription {
        soon(self.kernel.session_observe(&self.me, &by(key), from)).await.unwrap()
    }

    async fn close(&self, key: &str) -> Result<bool, &'static str> {
        soon(self.kernel.session_close(&self.me, &by(key))).await.map_err(|error| error.code())
    }

    /// A stored session that is not in memory.
    async fn stored(disk: Disk) -> Self {
        let world = Self::on(disk).await;
        world.play("a", "say first").await;
        assert_eq!(world.close("a").await, Ok(true));
        assert_eq!(world.in_memory(), 0);
        world
    }
}

#[tokio::test]
async fn a_session_never_leaves_from_its_start_alone() {
    let world = World::on(Disk::memory()).await;
    assert_eq!(world.open("a").await, Opening::Created);
    world.pass(1_000 * IDLE).await;
    assert_eq!((world.in_memory(), world.open("a").await), (1, Opening::Existing));
    assert_eq!(world.close("a").await, Ok(true));
    assert_eq!(world.open("a").await, Opening::Started);
    world.pass(1_000 * IDLE).await;
    assert_eq!(world.in_memory(), 1);
    // Once something has happened it may leave.
    drop(world.control("a").await);
    world.pass(IDLE).await;
    assert_eq!(world.in_memory(), 0);
}

#[tokio::test]
async fn sessions_that_are_only_open_are_never_too_many() {
    let world = World::on(Disk::sqlite()).await;
    for no in 0..1_010 {
        world.open(&format!("s{no}")).await;
    }
    assert_eq!(world.in_memory(), 1_010);
    let fewer = async {
        while world.in_memory() > 1_000 {
            tokio::task::yield_now().await;
        }
    };
    world.turning(IDLE, fewer).await;
    assert_eq!((world.open("s0").await, world.open("s1009").await), (Opening::Started, Opening::Existing));
}

#[tokio::test]
async fn the_last_controller_leaving_dying_or_demoted_arms_the_timer() {
    for how in ["leaving", "dying", "demoted"] {
        let world = World::on(Disk::memory()).await;
        world.play("a", "say hi").await;
        let (first, mut last) = (world.control("a").await, world.control("a").await);
        world.pass(10 * IDLE).await;
        drop(first);
        world.pass(10 * IDLE).await;
        assert_eq!(world.in_memory(), 1, "{how}: one is left");
        let mut demoted = None;
        match how {
            "leaving" => drop(last),
            "dying" => {
                let mut reader = tokio::task::JoinSet::new();
                reader.spawn(async move { while last.next().await.is_some() {} });
                settle().await;
                reader.abort_all();
            }
            _ => {
                last.set_mode(SubscriptionMode::Observer);
                demoted = Some(last);
            }
        }
        world.pass(IDLE - 1).await;
        assert_eq!(world.in_memory(), 1, "{how}: not before its time");
        world.pass(1).await;
        assert_eq!(world.in_memory(), 0, "{how}");
        drop(demoted);
    }
}

#[tokio::test]
async fn a_join_or_a_turn_disarms_the_timer() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say hi").await;
    drop(world.control("a").await);
    world.pass(IDLE - 1).await;
    let joined = world.control("a").await;
    world.pass(10 * IDLE).await;
    assert_eq!(world.in_memory(), 1, "a join");
    drop(joined);
    world.pass(IDLE - 1).await;
    let run = world.prompt("a", "hang").await;
    world.pass(10 * IDLE).await;
    assert_eq!(world.in_memory(), 1, "a busy turn finishes first");
    world.kernel.run_cancel(&world.me, run.id).await.unwrap();
    soon(world.kernel.drain()).await;
    world.pass(IDLE - 1).await;
    assert_eq!(world.in_memory(), 1, "the time begins with the turn's end");
    world.pass(1).await;
    assert_eq!(world.in_memory(), 0);
}

#[tokio::test]
async fn a_controller_that_comes_and_goes_as_the_time_is_up_begins_it_anew() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say hi").await;
    settle().await;
    // Before the actor sees that its time has come.
    world.clock.advance(IDLE);
    drop(world.control("a").await);
    settle().await;
    assert_eq!(world.in_memory(), 1);
    world.pass(IDLE).await;
    assert_eq!(world.in_memory(), 0);
}

#[tokio::test]
async fn looking_neither_loads_a_session_nor_keeps_it() {
    for disk in every_store() {
        let world = World::stored(disk).await;
        let snapshot = world.kernel.session_snapshot(&world.me, &by("a")).await.unwrap();
        assert_eq!((snapshot.messages.len(), snapshot.active), (2, None));
        let mut events = world.observe("a", Some(Position::START)).await;
        read_until(&mut events, "run.succeeded").await;
        assert_eq!(events.position(), snapshot.position);
        assert_eq!(world.in_memory(), 0, "{}", world.disk.name);
        world.play("a", "say second").await;
        let gone = async {
            while world.in_memory() > 0 {
                world.kernel.session_snapshot(&world.me, &by("a")).await.unwrap();
            }
        };
        world.turning(IDLE / 3, gone).await;
    }
}

#[tokio::test]
async fn an_observer_keeps_its_stream_while_its_session_comes_and_goes() {
    for disk in every_store() {
        let world = World::stored(disk).await;
        let mut observer = world.observe("a", Some(Position::START)).await;
        let mut controller = world.control("a").await;
        assert_eq!(world.in_memory(), 1, "{}", world.disk.name);
        let mut seen = read_until(&mut observer, "run.succeeded").await;
        for no in 0..5 {
            // Even a controller's session may be closed; its stream goes on too.
            assert_eq!(world.close("a").await, Ok(true));
            assert_eq!((world.in_memory(), world.close("a").await), (0, Ok(false)));
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
async fn an_observer_that_becomes_a_controller_brings_its_session_back() {
    let world = World::stored(Disk::memory()).await;
    let mut events = world.observe("a", None).await;
    assert_eq!((events.mode(), world.in_memory()), (SubscriptionMode::Observer, 0));
    events.set_mode(SubscriptionMode::Controller);
    world.pass(10 * IDLE).await;
    assert_eq!((events.mode(), world.in_memory()), (SubscriptionMode::Controller, 1));
    world.play("a", "say more").await;
    read_until(&mut events, "run.succeeded").await;
    drop(events);
    world.pass(IDLE).await;
    assert_eq!(world.in_memory(), 0);
    assert_eq!(world.kernel.feed_memory().readers, 0, "nothing is kept for readers who are gone");
}

#[tokio::test]
async fn a_busy_session_is_not_closed() {
    for script in ["hang", "ask which?"] {
        let world = World::on(Disk::memory()).await;
        let run = world.prompt("a", script).await;
        let status =
            world.reaches(run.id, |run| run.state.status() != RunStatus::Queued).await.state.status();
        assert_eq!(world.close("a").await, Err("session_busy"), "{status}");
        assert_eq!(world.in_memory(), 1);
        world.kernel.run_cancel(&world.me, run.id).await.unwrap();
        soon(world.kernel.drain()).await;
        assert_eq!(world.close("a").await, Ok(true), "{status}");
        assert_eq!(world.close("nobody").await, Err("not_found"));
    }
}

#[tokio::test]
async fn streams_of_sessions_that_are_away_end_with_the_process() {
    let world = World::stored(Disk::memory()).await;
    let mut events = world.observe("a", None).await;
    soon(world.kernel.shutdown()).await;
    assert!(soon(events.next()).await.is_none());
    let refused = world.kernel.session_observe(&world.me, &by("a"), None).await;
    assert_eq!(refused.err().unwrap().code(), "shutting_down");
}

/// Subscribing asks the feed, not the actor, which here waits for a store that does not answer.
#[tokio::test]
async fn ten_thousand_come_at_once_while_the_actor_is_busy() {
    let disk = Disk::memory();
    let (adapter, mut hands) = crate::puppet::puppet(&disk.store, crate::puppet::Manners::default());
    let world = World::with(disk, mainspring_kernel::Options::default(), vec![adapter]).await;
    world.send(crate::puppet::pull("a", "go")).await.unwrap();
    let strings = hands.next().await;
    let from = world.kernel.session_snapshot(&world.me, &by("a")).await.unwrap().position;
    world.disk.fault(mainspring_store::Fault::CommitFails);
    strings.end(mainspring_kernel::adapter::End::succeeded());
    settle().await;
    // The end could not be recorded, and is tried again when the clock is turned.
    let mut readers = vec![];
    for _ in 0..10_000 {
        readers.push(soon(world.kernel.session_subscribe(&world.me, &by("a"), Some(from))).await.unwrap());
    }
    assert_eq!(world.kernel.feed_memory().readers, 10_000);
    world.turning(100, world.kernel.drain()).await;
    for reader in &mut readers {
        read_until(reader, "run.succeeded").await;
    }
}

#[tokio::test]
async fn what_is_counted_outlives_a_stay_in_memory() {
    let world = World::stored(Disk::memory()).await;
    let subscribers = || world.kernel.counts().subscribers;
    let (mut first, second) = (world.observe("a", None).await, world.control("a").await);
    assert_eq!(subscribers(), 2);
    first.set_mode(SubscriptionMode::Controller);
    assert_eq!(subscribers(), 2, "who changes its mode is the same reader");
    drop((first, second));
    assert_eq!(subscribers(), 0);
    // Whoever observes keeps the feed, so what was streamed before the session left is counted with what comes after.
    let observer = world.observe("a", None).await;
    for script in ["say again", "say more"] {
        world.play("a", script).await;
        assert_eq!(world.close("a").await, Ok(true));
    }
    world.pass(1_000).await;
    assert_eq!(world.kernel.counts().streamed_bytes, "first\nagain\nmore\n".len() as u64);
    drop(observer);
}
