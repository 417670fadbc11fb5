//! A store that cannot be written blocks nothing: commands are answered, readers are notified, and all work continues
//! later.

use std::time::Duration;

use mainspring_core::{Position, RunStatus};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::End;
use mainspring_kernel::board::LiveChange;
use mainspring_kernel::feed::{Item, StoreChange, Subscription};
use mainspring_kernel::kernel::{RunRequest, SessionPatch};
use mainspring_kernel::owner_events::OwnerItem;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, World, by_key, every_store, read_until, run_process, with_timeout};

/// Waits for a change of the store's health, past all other items.
async fn store_change(world: &World, events: &mut Subscription) -> StoreChange {
    let change = async {
        loop {
            if let Item::Store(_, change) = events.next().await.unwrap().unwrap() {
                return change;
            }
        }
    };
    world.advance_until(100, change).await
}

/// Waits until the store is written again and the run has succeeded, in any order.
async fn recovered_and_succeeded(events: &mut Subscription) {
    let (mut recovered, mut succeeded) = (false, false);
    while !(recovered && succeeded) {
        match events.next().await.unwrap().unwrap() {
            Item::Store(_, change) => recovered = change == StoreChange::Recovered,
            Item::Event(event) => succeeded |= event.body.kind() == "run.succeeded",
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_run_whose_end_cannot_be_stored_ends_later_and_its_session_answers() {
    for disk in every_store() {
        let name = disk.name;
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let options = Options { max_workers: 1, ..Options::default() };
        let world = World::with(disk.clone(), options, vec![adapter]).await;
        let (kernel, me) = (&world.kernel, &world.me);
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let waiting = world.send(puppet_request("b", "next")).await.unwrap().run;
        let (_, mut events) = world.subscribe("a", Some(Position::START)).await;
        read_until(&mut events, "run.running").await;
        execution.handle.delta(0, "kept").unwrap();

        let mut owner = kernel.owner_events(me, None, None).await.unwrap();
        let mut feed = kernel.live_feed(me);
        disk.set_full(true);
        execution.end(End::succeeded());
        let StoreChange::Failed { code, .. } = store_change(&world, &mut events).await else {
            panic!("{name}: the store has failed");
        };
        assert_eq!(code, "store_full", "{name}");
        assert_eq!(kernel.check_store().await.unwrap_err().code(), "store_full", "{name}");
        let snapshot = with_timeout(kernel.session_snapshot(me, &by_key("a"))).await.unwrap();
        assert_eq!(
            snapshot.active_run.unwrap().id,
            run.id,
            "{name}: a run has not ended until its end is stored"
        );
        let title = SessionPatch { title: Some(Some("Tea".into())), ..SessionPatch::default() };
        let errors = [
            with_timeout(kernel.run_cancel(me, run.id)).await.unwrap_err(),
            with_timeout(kernel.session_patch(me, &by_key("a"), title)).await.unwrap_err(),
            with_timeout(kernel.run_create(me, RunRequest::text("a", "say more"))).await.unwrap_err(),
            with_timeout(kernel.run_create(me, RunRequest::text("c", "say new"))).await.unwrap_err(),
        ];
        for error in errors {
            assert!(error.code() == "store_full" && error.is_retryable(), "{name}: {error}");
        }
        let (_, mut late) = world.subscribe("a", None).await;
        assert!(matches!(store_change(&world, &mut late).await, StoreChange::Failed { .. }), "{name}");

        // Readers of all sessions are notified as well.
        let mut changes = vec![];
        while changes.is_empty() {
            if let OwnerItem::Store(_, change) = with_timeout(owner.next()).await.unwrap() {
                changes.push(change.body().kind());
            }
        }
        while changes.len() < 2 {
            let change = with_timeout(feed.next()).await.unwrap();
            changes.extend(Some(change.kind()).filter(|kind| kind.starts_with("store.")));
        }
        assert_eq!(changes, ["store.failed"; 2], "{name}");

        disk.set_full(false);
        world.advance_until(100, recovered_and_succeeded(&mut events)).await;
        kernel.check_store().await.unwrap();
        let recovered = async {
            while !matches!(owner.next().await.unwrap(), OwnerItem::Store(_, StoreChange::Recovered)) {}
            while feed.next().await.unwrap() != (LiveChange::StoreRecovered {}) {}
        };
        with_timeout(recovered).await;
        // The worker was free for the next run.
        let execution = world.advance_until(100, control.next()).await;
        execution.end(End::succeeded());
        assert_eq!(world.ended(waiting.id).await.state.status(), RunStatus::Succeeded, "{name}");
        assert!(world.path_text("a").await.contains("kept"), "{name}");
    }
}

#[tokio::test]
async fn a_process_with_a_full_disk_stops_before_its_time_to_drain_has_passed() {
    // The manual clock would run ahead of a store on the disk.
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
    let cancelled = world.send(puppet_request("a", "go")).await.unwrap().run;
    let _first = control.next().await;
    world.send(puppet_request("b", "go")).await.unwrap();
    let second = control.next().await;
    world.send(puppet_request("c", "go")).await.unwrap();
    let _third = control.next().await;
    let (_, mut events) = world.subscribe("b", Some(Position::START)).await;
    // One run is in its grace period, the end of the second cannot be recorded, the third continues.
    world.kernel.run_cancel(&world.me, cancelled.id).await.unwrap();
    disk.set_full(true);
    second.end(End::succeeded());
    store_change(&world, &mut events).await;
    let (begun, drain) = (world.clock.now(), Duration::from_millis(1_000));
    let stop = async {
        world.kernel.drain_for(drain).await;
        world.kernel.shutdown().await;
    };
    world.advance_until(100, stop).await;
    let took = world.clock.now().since(begun);
    assert!(took < 2_000, "{took} ms");
}

#[test]
fn a_process_stops_although_nothing_can_be_stored() {
    for disk in every_store() {
        let runs = run_process(async {
            let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
            let world = World::with(disk.clone(), Options::default(), vec![adapter]).await;
            let ended = world.send(puppet_request("a", "go")).await.unwrap().run;
            let execution = control.next().await;
            let running = world.send(puppet_request("b", "go")).await.unwrap().run;
            let _second = control.next().await;
            let (_, mut events) = world.subscribe("a", Some(Position::START)).await;
            disk.set_full(true);
            execution.end(End::succeeded());
            store_change(&world, &mut events).await;
            world.advance_until(100, world.kernel.shutdown()).await;
            [ended.id, running.id]
        });
        disk.set_full(false);
        run_process(async {
            let world = World::reboot(&disk).await;
            for run in runs {
                assert_eq!(world.get(run).await.state.status(), RunStatus::Orphaned, "{}", disk.name);
            }
        });
    }
}
