//! Compaction: pruned events are gone for every reader, and readers are notified of the gap.

use std::sync::Arc;

use mainspring_core::{Cursor, Event, Position, RequestName};
use mainspring_kernel::feed::Item;
use mainspring_kernel::kernel::{RunQuery, RunRequest};

use crate::world::{Disk, World, by_key, every_store, kinds, read_until, run_process, with_timeout};

impl World {
    async fn compact(&self, before: Cursor) -> Position {
        with_timeout(self.kernel.session_compact(&self.me, &by_key("a"), before)).await.unwrap()
    }

    async fn events_after(&self, after: Position) -> Vec<Event> {
        self.kernel.session_events(&self.me, &by_key("a"), after.cursor, Some(500)).await.unwrap()
    }
}

fn cursor_of(item: &Item) -> Option<Cursor> {
    match item {
        Item::Event(event) => Some(event.cursor),
        _ => None,
    }
}

#[tokio::test]
async fn a_reader_of_pruned_events_restarts_from_a_snapshot() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        let (_, mut behind) = world.subscribe("a", Some(Position::START)).await;
        with_timeout(behind.next()).await.unwrap().unwrap();
        world.play("a", "say two").await;
        let all = world.events("a").await;
        let floor = world.compact(all[12].cursor).await;
        assert_eq!(floor, all[11].position(), "{}", world.disk.name);

        let error =
            world.kernel.session_events(&world.me, &by_key("a"), all[10].cursor, None).await.unwrap_err();
        assert_eq!(error.code(), "cursor_expired");
        assert!(error.to_string().contains(&floor.to_string()), "{error}");
        let kept = world.events_after(floor).await;
        assert_eq!(kept[..kept.len() - 1], all[12..], "{}", world.disk.name);
        assert_eq!(kept.last().unwrap().body.kind(), "session.updated");

        // One connected reader, and one that reconnects with an old position.
        let mut back =
            world.kernel.session_subscribe(&world.me, &by_key("a"), Some(all[3].position())).await.unwrap();
        world.play("a", "say three").await;
        for reader in [&mut behind, &mut back] {
            let first = with_timeout(reader.next()).await.unwrap().unwrap();
            let Item::Reset(snapshot) = first else { panic!("{first:?}") };
            assert_eq!(snapshot.messages.len(), 6, "no text is lost");
            assert_eq!(reader.position(), snapshot.position);
        }
        world.play("a", "say four").await;
        let seen: Vec<_> =
            read_until(&mut behind, "run.succeeded").await.iter().filter_map(cursor_of).collect();
        let stored = world.events_after(floor).await;
        let later: Vec<_> = stored[stored.len() - seen.len()..].iter().map(|event| event.cursor).collect();
        assert_eq!(seen, later, "everything after the snapshot, once");

        // A reader at the floor or after it misses nothing and gets no notice.
        let mut at = world.kernel.session_observe(&world.me, &by_key("a"), Some(floor)).await.unwrap();
        let first = with_timeout(at.next()).await.unwrap().unwrap();
        assert_eq!(first, Item::Event(Arc::new(all[12].clone())));
    }
}

#[tokio::test]
async fn the_text_of_a_run_outlives_its_events() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let request = || {
            let (client_id, request_id) = (Some("c".into()), Some("1".into()));
            let name = RequestName { client_id, request_id, ..RequestName::default() };
            RunRequest { name, ..RunRequest::text("a", "say one; tool look {}; say two") }
        };
        let run = world.send(request()).await.unwrap().run;
        let ended = world.ended(run.id).await;
        assert_eq!(ended.final_text.as_deref(), Some("one\ntwo\n"), "{}", world.disk.name);
        world.play("a", "say three").await;
        let before = world.get(run.id).await;
        let last = world.events("a").await.last().unwrap().cursor;
        world.compact(last).await;
        assert_eq!(world.get(run.id).await, before, "{}", world.disk.name);
        assert_eq!(before.final_text.as_deref(), Some("one\ntwo\n"));
        let replayed = world.send(request()).await.unwrap();
        assert_eq!((replayed.replayed, replayed.run), (true, before));
        let listed = world.kernel.run_list(&world.me, RunQuery::default()).await.unwrap().items;
        assert!(listed.iter().all(|run| run.final_text.is_none()), "lists stay short");
    }
}

#[tokio::test]
async fn events_of_an_active_run_are_not_pruned() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        let before = world.events("a").await.len();
        let waits = world.prompt("a", "ask which?").await;
        world.wait_for_question(waits.id).await;
        world.prompt("a", "say queued").await;
        let all = world.events("a").await;
        let floor = world.compact(all.last().unwrap().cursor).await;
        assert_eq!(floor, all[before - 1].position(), "{}", world.disk.name);
        let kept = world.events_after(floor).await;
        assert_eq!(kinds(&kept)[..2], ["run.queued", "attempt.created"]);
        assert_eq!(world.compact(all.last().unwrap().cursor).await, floor, "again: nothing more can go");
        // All events of the run are kept, so that its stream is unchanged.
        let mut events = world.kernel.run_observe(&world.me, waits.id, None).await.unwrap();
        let first = with_timeout(events.next()).await.unwrap().unwrap();
        assert_eq!(cursor_of(&first), Some(kept[0].cursor));
        let page = world.kernel.run_events(&world.me, waits.id, Cursor::START, None).await.unwrap();
        assert_eq!(page[0], kept[0]);
    }
}

#[tokio::test]
async fn a_cursor_after_the_last_event_is_refused() {
    let world = World::on(Disk::memory()).await;
    world.play("a", "say one").await;
    let all = world.events("a").await;
    let ahead = Cursor(all.last().unwrap().cursor.0 + 1);
    let refused = world.kernel.session_compact(&world.me, &by_key("a"), ahead).await.unwrap_err();
    assert_eq!(refused.code(), "invalid_request");
    assert_eq!(world.compact(Cursor::START).await, Position::START);
    assert_eq!(world.events("a").await, all);
}

#[tokio::test]
async fn an_observer_of_an_unloaded_session_learns_of_the_compaction() {
    for disk in every_store() {
        let world = World::on(disk).await;
        world.play("a", "say one").await;
        world.kernel.session_close(&world.me, &by_key("a")).await.unwrap();
        let mut behind =
            world.kernel.session_observe(&world.me, &by_key("a"), Some(Position::START)).await.unwrap();
        let last = world.events("a").await.last().unwrap().cursor;
        world.compact(last).await;
        world.kernel.session_close(&world.me, &by_key("a")).await.unwrap();
        let first = with_timeout(behind.next()).await.unwrap().unwrap();
        let Item::Reset(snapshot) = first else { panic!("{first:?}") };
        assert_eq!(
            (snapshot.messages.len(), world.kernel.sessions_in_memory()),
            (2, 0),
            "{}",
            world.disk.name
        );
    }
}

#[test]
fn a_floor_survives_a_restart_and_the_stream_continues_above_it() {
    for disk in every_store() {
        let (floor, count) = run_process(async {
            let world = World::on(disk.clone()).await;
            world.play("a", "say one").await;
            let all = world.events("a").await;
            // The process crashes before any event is removed.
            (world.compact(all.last().unwrap().cursor).await, all.len())
        });
        run_process(async {
            let world = World::reboot(&disk).await;
            let removed = async {
                while !disk.store.unfinished().await.unwrap().compacted.is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            with_timeout(removed).await;
            let kept = world.events_after(floor).await;
            assert_eq!((kept.len(), count > 5), (2, true), "{}", disk.name);
            world.play("a", "say two").await;
            let run = world.send(RunRequest::text("a", "say three")).await.unwrap().run;
            world.ended(run.id).await;
            assert!(world.events_after(floor).await.windows(2).all(|pair| pair[0].cursor < pair[1].cursor));
            assert_eq!(world.path("a").await.len(), 6);
        });
    }
}
