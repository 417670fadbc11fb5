//! Retention: pruned events are hidden from every reader at once, and a read that would skip them fails.

use mainspring_core::*;
use mainspring_kernel::store::{Fence, NewEvent, Row, Store, StoreError};
use rusqlite::Connection;

use crate::fixtures::*;

/// Writes ten events of session 1, the last four of run 2, each ten bytes further in the stream.
async fn write_events(store: &dyn Store) -> (Fence, Vec<Cursor>) {
    let fence = create_session(store, 1).await;
    let run_event = |n, run| NewEvent { pos: n * 10, run: Some(run_id(run)), ..progress(n) };
    let early = (1..=6).map(|n| run_event(n, 1)).collect();
    let mut cursors = commit(store, fence, vec![row_run(run(1, 1, 1, queued()))], early).await.unwrap();
    let late = (7..=10).map(|n| run_event(n, 2)).collect();
    cursors.extend(commit(store, fence, vec![row_run(run(2, 1, 2, queued()))], late).await.unwrap());
    (fence, cursors)
}

async fn prune(store: &dyn Store, n: u64) -> usize {
    let mut steps = 1;
    while store.events_prune(session_id(n)).await.unwrap() {
        steps += 1;
    }
    steps
}

#[tokio::test]
async fn events_below_a_floor_are_hidden_and_refused_at_once() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (fence, cursors) = write_events(store).await;
        let floor = store.event_before(session_id(1), cursors[5]).await.unwrap().unwrap();
        assert_eq!(floor, Position { cursor: cursors[4], pos: 50 }, "{name}");
        commit(store, fence, vec![Row::Floor(floor)], vec![]).await.unwrap();
        let read = async |run: Option<u64>, after| {
            let events = store.events_after(session_id(1), run.map(run_id), after, NO_LIMIT).await;
            events.map(|events| events.into_iter().map(|event| event.cursor).collect::<Vec<_>>())
        };
        for removed in [false, true] {
            for after in [Cursor::START, cursors[3]] {
                assert_eq!(read(None, after).await, Err(StoreError::Pruned(floor)), "{name} {removed}");
                assert_eq!(read(Some(1), after).await, Err(StoreError::Pruned(floor)), "{name} {removed}");
            }
            assert_eq!(read(None, cursors[4]).await.unwrap(), cursors[5..], "{name} {removed}");
            assert_eq!(
                read(Some(2), Cursor::START).await.unwrap(),
                cursors[6..],
                "{name}: all events of the run are kept"
            );
            assert_eq!(
                store.event_before(session_id(1), cursors[4]).await.unwrap(),
                None,
                "{name} {removed}"
            );
            assert_eq!(
                store.session_load(session_id(1)).await.unwrap().unwrap().floor,
                Some(floor),
                "{name}"
            );
            let left = if removed { vec![] } else { vec![session_id(1)] };
            assert_eq!(store.unfinished().await.unwrap().compacted, left, "{name}");
            prune(store, 1).await;
        }
        let lower = Position { cursor: cursors[1], pos: 20 };
        commit(store, fence, vec![Row::Floor(lower)], vec![]).await.unwrap();
        assert_eq!(
            read(None, cursors[1]).await,
            Err(StoreError::Pruned(floor)),
            "{name}: a floor is never lowered"
        );
    }
}

#[tokio::test]
async fn a_session_whose_events_are_pruned_keeps_its_position() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (fence, cursors) = write_events(store).await;
        let floor = Position { cursor: cursors[9], pos: 100 };
        commit(store, fence, vec![Row::Floor(floor)], vec![]).await.unwrap();
        prune(store, 1).await;
        let loaded = store.session_load(session_id(1)).await.unwrap().unwrap();
        assert_eq!((loaded.cursor, loaded.pos), (cursors[9], 100), "{name}");
        let next = commit(store, fence, vec![], vec![progress(11)]).await.unwrap();
        assert!(next[0] > cursors[9], "{name}");
        delete_session(store, fence).await;
        while store.session_purge(session_id(1)).await.unwrap() {}
        assert_eq!(store.events_after(session_id(1), None, Cursor::START, 9).await.unwrap(), [], "{name}");
    }
}

#[tokio::test]
async fn a_floor_and_the_last_cursor_are_kept_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    let many = (0..2_500).map(progress).collect();
    let cursors = commit(&store, fence, vec![], many).await.unwrap();
    let floor = Position { cursor: *cursors.last().unwrap(), pos: 0 };
    commit(&store, fence, vec![Row::Floor(floor)], vec![]).await.unwrap();
    assert!(store.events_prune(session_id(1)).await.unwrap(), "removed in steps");
    store.close();
    let store = sqlite_open(folder.path());
    assert_eq!(store.unfinished().await.unwrap().compacted, [session_id(1)], "the next start continues");
    assert_eq!(prune(&store, 1).await, 2);
    assert_eq!(
        store.check(true).await.unwrap().events,
        1,
        "the first event stays: it marks the creation of the session"
    );
    store.close();
    let store = sqlite_open(folder.path());
    let fence = lease(&store, 1).await;
    let next = commit(&store, fence, vec![], vec![progress(1)]).await.unwrap();
    assert!(next[0] > floor.cursor, "no cursor is reused");
}

/// Returns the application id of mainspring databases.
fn application_id() -> i64 {
    let folder = tempfile::tempdir().unwrap();
    sqlite_open(folder.path()).close();
    let ours = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    ours.pragma_query_value(None, "application_id", |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_database_without_retention_opens_with_all_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sqlite3");
    // A database of the version before this migration.
    let before = Connection::open(&path).unwrap();
    before
        .execute_batch(
            "CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, applied_at_ms INTEGER NOT NULL) STRICT;
             INSERT INTO schema_migrations VALUES (1, 0), (2, 0);",
        )
        .unwrap();
    before.execute_batch(include_str!("../../migrations/0001_tables.sql")).unwrap();
    before.execute_batch(include_str!("../../migrations/0002_views.sql")).unwrap();
    before.pragma_update(None, "application_id", application_id()).unwrap();
    before.pragma_update(None, "user_version", 2).unwrap();
    before
        .execute(
            "INSERT INTO sessions (session_id, owner_id, agent_definition_id, status, surface_kind, default_adapter_id,
               metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
             VALUES (?1, ?2, 'generalist', 'open', 'api', 'script', '{}', 1, 0, 0, 0)",
            (session_id(1).as_bytes(), OWNER),
        )
        .unwrap();
    for seq in 1..=5 {
        before
            .execute(
                "INSERT INTO events (event_seq, event_id, session_id, type, pos, created_at_ms, payload)
                 VALUES (?1, ?2, ?3, 'progress.updated', 0, 0, '{\"text\":\"old\"}')",
                (seq, event_id(1).as_bytes(), session_id(1).as_bytes()),
            )
            .unwrap();
    }
    drop(before);
    let store = sqlite_open(folder.path());
    let kept: Vec<Cursor> = events(&store, 1).await.iter().map(|event| event.cursor).collect();
    assert_eq!(kept, [1, 2, 3, 4, 5].map(Cursor));
    assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().floor, None);
    let floor = Position { cursor: kept[2], pos: 30 };
    let fence = lease(&store, 1).await;
    commit(&store, fence, vec![Row::Floor(floor)], vec![]).await.unwrap();
    let refused = store.events_after(session_id(1), None, Cursor::START, 9).await;
    assert_eq!(refused, Err(StoreError::Pruned(floor)));
}
