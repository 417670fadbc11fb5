//! After a restore from a backup, a cursor of a lost event is answered with a reset.

use std::sync::Arc;

use mainspring_core::{Cursor, Position};
use mainspring_kernel::feed::Item;
use mainspring_kernel::kernel::RunRequest;
use mainspring_reference_store::MemoryStore;

use crate::world::{Disk, World, by_key, read_until, with_timeout};

#[tokio::test]
async fn a_reader_of_lost_events_restarts_from_a_snapshot() {
    let store = Arc::<MemoryStore>::default();
    let before = World::on(Disk::on_memory(store.clone())).await;
    before.play("a", "say one").await;
    let last = before.events("a").await.pop().unwrap().position();
    before.kernel.shutdown().await;
    // The state directory went on to cursor 90, was lost, and restored from a backup made at `last`.
    store.lose_events(Cursor(100));
    let world = World::reboot(&Disk::on_memory(store)).await;
    let (kernel, me) = (&world.kernel, &world.me);
    let lost = Position { cursor: Cursor(90), pos: last.pos + 5 };

    let mut reader = kernel.session_subscribe(me, &by_key("a"), Some(lost)).await.unwrap();
    let first = with_timeout(reader.next()).await.unwrap().unwrap();
    let Item::Reset(snapshot) = first else { panic!("{first:?}") };
    assert_eq!((snapshot.position, snapshot.messages.len()), (last, 2));
    kernel.run_create(me, RunRequest::text("a", "say two")).await.unwrap();
    read_until(&mut reader, "run.succeeded").await;

    for after in [Cursor(last.cursor.0 + 1), Cursor(90), Cursor(99)] {
        let error = kernel.session_events(me, &by_key("a"), after, None).await.unwrap_err();
        assert_eq!(error.code(), "cursor_expired", "{after:?}");
        let error = kernel.owner_events(me, None, Some(after)).await.err().unwrap();
        assert_eq!(error.code(), "cursor_expired", "{after:?}");
        let error = kernel.owner_history(me, None, after, None).await.unwrap_err();
        assert!(error.to_string().contains("go on after 100"), "{error}");
    }
    // The cursor that the error names as the one to continue after.
    kernel.owner_events(me, None, Some(Cursor(100))).await.unwrap();
    // A reader that has seen no lost event misses nothing.
    let events = kernel.session_events(me, &by_key("a"), last.cursor, Some(500)).await.unwrap();
    assert_eq!(events.first().unwrap().body.kind(), "run.queued");
    assert!(
        events.iter().all(|event| event.cursor > Cursor(100)),
        "a lost cursor is given to no other event"
    );
}
