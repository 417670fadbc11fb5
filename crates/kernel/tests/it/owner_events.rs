//! The events of all sessions of an owner, in one order.

use mainspring_core::{Body, Cursor, Event};
use mainspring_kernel::kernel::{Caller, RunRequest};
use mainspring_kernel::owner_events::{OwnerEvents, OwnerItem};

use crate::world::{Disk, World, by_key, every_store, with_timeout};

/// Reads until the reader has caught up. Returns the events and the cursor.
async fn caught_up(events: &mut OwnerEvents) -> (Vec<Event>, Cursor) {
    let mut read = vec![];
    loop {
        match events.next().await.unwrap() {
            OwnerItem::Event(event) => read.push(*event),
            OwnerItem::CaughtUp(cursor) => return (read, cursor),
            OwnerItem::Store(..) => {}
        }
    }
}

#[tokio::test]
async fn every_event_of_an_owner_is_delivered_once_in_order() {
    for (no, disk) in every_store().into_iter().enumerate() {
        let name = ["memory", "sqlite"][no];
        let world = World::on(disk).await;
        let before = world.prompt("a", "say earlier").await;
        world.ended(before.id).await;
        let mut events = world.kernel.owner_events(&world.me, None, None).await.unwrap();
        let (earlier, start) = caught_up(&mut events).await;
        assert_eq!(earlier, [], "{name}: from now on");
        let them = Caller::new("them");
        let theirs = world.kernel.run_create(&them, RunRequest::text("t", "say theirs")).await.unwrap();
        let mut runs = vec![];
        for key in ["a", "b", "c", "a"] {
            runs.push(world.prompt(key, "say one; tool add {\"a\":1,\"b\":1}").await);
        }
        let mut read: Vec<Event> = vec![];
        while read.iter().filter(|event| event.body.ends_run()).count() < runs.len() {
            match events.next().await.unwrap() {
                OwnerItem::Event(event) => read.push(*event),
                OwnerItem::CaughtUp(at) => {
                    assert!(read.last().is_none_or(|last| last.cursor <= at), "{name}");
                }
                OwnerItem::Store(..) => {}
            }
        }
        assert!(read.is_sorted_by_key(|event| event.cursor), "{name}");
        assert!(
            read.iter().all(|event| event.run != Some(theirs.run.id)),
            "{name}: no events of another owner"
        );
        // Reading later, from any cursor and in pages of any size, returns the same events.
        let mut later = vec![];
        let mut after = start;
        loop {
            let page = world.kernel.owner_history(&world.me, None, after, Some(7)).await.unwrap();
            let Some(last) = page.last() else { break };
            after = last.cursor;
            later.extend(page);
        }
        assert_eq!(read[..], later[..read.len()], "{name}");
        let types = vec!["run.queued", "run.succeeded"];
        let mut some = world.kernel.owner_events(&world.me, Some(types), Some(start)).await.unwrap();
        let (some, _) = caught_up(&mut some).await;
        let kinds: Vec<_> = some.iter().map(|event| event.body.kind()).collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == "run.queued").count(), 4, "{name}");
        assert_eq!(kinds.len(), 8, "{name}: {kinds:?}");
        let ahead = world.kernel.owner_events(&world.me, None, Some(Cursor(u64::MAX))).await;
        assert_eq!(ahead.err().unwrap().code(), "cursor_expired", "{name}");
    }
}

#[tokio::test]
async fn a_deletion_event_is_delivered_after_the_purge() {
    let world = World::on(Disk::memory()).await;
    let run = world.prompt("a", "say here").await;
    world.ended(run.id).await;
    let mut events = world.kernel.owner_events(&world.me, None, None).await.unwrap();
    caught_up(&mut events).await;
    world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
    let (store, me) = (&world.disk.store, &world.me.owner);
    let purged = async || store.owner_events(me, None, Cursor::START, 9).await.unwrap().0.is_empty();
    with_timeout(async {
        while !purged().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (read, _) = caught_up(&mut events).await;
    assert!(matches!(read[..], [Event { body: Body::SessionDeleted {}, .. }]), "{read:?}");
}
