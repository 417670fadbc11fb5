//! Lists with a damaged row: the other rows are returned, and the list names the damaged one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::search::Query;
use mainspring_kernel::store::{
    ArtifactPage, NewEvent, Row, RunPage, SessionPage, SessionRef, SessionsOf, StateAt, StatePlace, StateRow,
    Store, StoreError,
};
use mainspring_store::{PostgresOptions, PostgresStore, SqliteStore};
use rusqlite::Connection;
use serde_json::json;

use crate::cluster::{database, psql};
use crate::fixtures::*;
use crate::migrations::hex;
use crate::steps::step;

/// Fills a new SQLite database.
async fn fill(folder: &Path) {
    let store = sqlite_open(folder);
    fill_store(&store).await;
    store.close();
}

/// Fills a session with five messages on one line, each with its event, and lists of three rows.
async fn fill_store(store: &dyn Store) {
    let fence = lease(store, 1).await;
    let session = Session { title: Some("title-1".into()), tip: Some(point(1, 4)), ..session(1) };
    let mut rows = vec![row_session(session), Row::Line(line(1, None, 5))];
    let mut events = vec![];
    for n in 1..=5u32 {
        let stored = message(n.into(), 1, &format!("word text-of-message-{n}"));
        let completed = Body::MessageCompleted { message: Arc::new(stored.clone()), parent_id: None };
        rows.push(row_message(stored, Some(point(1, n - 1))));
        events.push(NewEvent { pos: u64::from(n - 1) * 10, ..event(n.into(), completed) });
        let noted = Body::ProgressUpdated { text: format!("text-of-event-{n}") };
        events.push(NewEvent { pos: u64::from(n) * 10, ..event(u64::from(n) + 10, noted) });
    }
    for n in 1..=3u32 {
        let ended =
            Run { adapter: format!("adapter-of-run-{n}"), ..run(n.into(), 1, n, RunState::Succeeded {}) };
        rows.push(row_run(Run { created_at: NOW.plus(n.into()), ..ended }));
        let instance = Some(format!("instance-of-attempt-{n}"));
        rows.push(row_attempt(Attempt { instance, ..attempt(n.into(), 1, n, RunStatus::Succeeded) }));
        rows.push(Row::Step(Box::new(Step { model: format!("model-of-step-{n}"), ..step(n.into(), 1, n) })));
        let name = Some(format!("name-of-artifact-{n}"));
        rows.push(Row::Artifact(Box::new(Artifact { name, ..artifact(n.into(), 1, "abc") })));
        rows.push(Row::State(Box::new(StateRow {
            place: StatePlace::Session { at: None, aside: false },
            key: format!("key-{n}"),
            value: Some(json!(format!("value-of-state-{n}"))),
            version: 1,
            at: NOW,
        })));
    }
    commit(store, fence, rows, events).await.unwrap();
    for n in [2, 3] {
        let fence = lease(store, n).await;
        let titled = Session { title: Some(format!("title-{n}")), ..session_at(n) };
        commit(store, fence, vec![row_session(titled)], vec![]).await.unwrap();
    }
}

fn session_at(n: u64) -> Session {
    Session { last_activity_at: NOW.plus(n), ..session(n) }
}

/// Flips one bit of `text`, which is stored once.
fn flip(folder: &Path, text: &str) -> SqliteStore {
    let path = folder.join("test.sqlite3");
    let mut bytes = fs::read(&path).unwrap();
    let found: Vec<usize> =
        (0..bytes.len() - text.len()).filter(|at| bytes[*at..].starts_with(text.as_bytes())).collect();
    let [at] = found[..] else { panic!("{text} is stored {} times", found.len()) };
    bytes[at + 1] ^= 4;
    fs::write(&path, bytes).unwrap();
    sqlite_open(folder)
}

fn named(kind: &str, id: &impl ToString, index: usize, damaged: &[Damage]) {
    let [damage] = damaged else { panic!("{damaged:?}") };
    assert_eq!((damage.kind.as_str(), damage.id.clone(), damage.index), (kind, Some(id.to_string()), index));
    assert!(damage.message.contains("does not match its checksum: restore a backup"), "{damage:?}");
}

#[tokio::test]
async fn a_damaged_message_leaves_a_path_and_a_tree_readable() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let store = flip(folder.path(), "text-of-message-3");
    let whole = store.path(point(1, 4), None, 10).await.unwrap();
    named("message", &message_id(3), 2, &whole.damaged);
    let ids: Vec<_> = whole.iter().map(|placed| placed.message.id).collect();
    assert_eq!(ids, [1, 2, 4, 5].map(message_id));
    assert!(matches!(whole.intact().unwrap_err().into(), StoreError::Corrupt(_)));
    // Each page holds the requested number of intact messages, and one of the pages names the damage.
    let (mut read, mut damaged, mut before) = (vec![], vec![], None);
    loop {
        let page = store.path(point(1, 4), before, 1).await.unwrap();
        damaged.extend(page.damaged.clone());
        let Some(first) = page.items.into_iter().next() else { break };
        before = first.point.map(|point| point.pos);
        read.push(first.message.id);
    }
    assert_eq!((read.as_slice(), damaged.len()), (&[5, 4, 2, 1].map(message_id)[..], 1));
    let tree = store.tree_page(session_id(1), None, 3).await.unwrap();
    named("message", &message_id(3), 2, &tree.damaged);
    assert_eq!(tree.iter().map(|row| row.message.id).collect::<Vec<_>>(), [1, 2, 4].map(message_id));
    assert_eq!(tree[2].parent, Some(message_id(3)), "its place is known");
    let rest = store.tree_page(session_id(1), Some(tree[2].point), 3).await.unwrap();
    assert_eq!((rest.len(), rest.damaged.len()), (1, 0));
    assert_eq!(store.children(session_id(1), Some(point(1, 1)), 9).await.unwrap(), [message_id(3)]);
    let one = store.message_get(session_id(1), message_id(3)).await.unwrap_err();
    assert!(
        matches!(&one, StoreError::Corrupt(message) if message.contains(&message_id(3).to_string())),
        "{one}"
    );
    let found = store.search_messages(OWNER, &Query::parse("word").unwrap(), None, 9).await.unwrap().rows;
    assert_eq!(found.len(), 4);
    named("message", &message_id(3), 2, &found.damaged);
}

#[tokio::test]
async fn a_damaged_event_or_message_is_reported_in_its_place_among_the_events() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let intact = sqlite_open(folder.path());
    let sound = intact.events_after(session_id(1), None, Cursor(0), 99).await.unwrap();
    intact.close();
    flip(folder.path(), "text-of-message-3").close();
    let store = flip(folder.path(), "text-of-event-4");
    let events = store.events_after(session_id(1), None, Cursor(0), 99).await.unwrap();
    let (all, _) = store.owner_events(OWNER, None, Cursor(0), 99).await.unwrap();
    assert_eq!(all, events);
    assert_eq!(events.len(), sound.len());
    for (index, (event, sound)) in events.iter().zip(&sound).enumerate() {
        assert_eq!((event.cursor, event.session, event.pos), (sound.cursor, sound.session, sound.pos));
        match (index, &event.body) {
            (4, Body::EventDamaged { event_type: Some(kind), message_id: Some(id), message }) => {
                assert_eq!((kind.as_str(), *id), ("message.completed", message_id(3)));
                assert!(message.contains(&message_id(3).to_string()), "{message}");
            }
            (7, Body::EventDamaged { event_type: None, message_id: None, message }) => {
                assert!(message.starts_with("event "), "{message}");
            }
            (_, _) => assert_eq!(event, sound),
        }
    }
    // A page that begins with the damaged event, and one that ends with it.
    let after = events[6].cursor;
    assert_eq!(store.events_after(session_id(1), None, after, 1).await.unwrap(), events[7..8]);
}

#[tokio::test]
async fn the_request_id_of_a_damaged_run_is_not_served_with_its_events() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    let request = RequestName { request_id: Some("id-of-the-request".into()), ..RequestName::default() };
    let rows = vec![row_run(Run { request, ..run(1, 1, 1, queued()) }), row_run(run(2, 1, 2, queued()))];
    let events = [1, 2].map(|n| NewEvent { run: Some(run_id(n)), ..progress(n) });
    commit(&store, fence, rows, events.into()).await.unwrap();
    let requests = async |store: &SqliteStore| {
        let events = store.events_after(session_id(1), None, Cursor::START, NO_LIMIT).await.unwrap();
        events.into_iter().map(|event| (event.run, event.request)).collect::<Vec<_>>()
    };
    let (first, second) = (Some(run_id(1)), Some(run_id(2)));
    assert_eq!(requests(&store).await, [(first, Some("id-of-the-request".into())), (second, None)]);
    store.close();
    let connection = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    connection.execute("UPDATE runs SET request_id = 'id-of-another-one' WHERE run_no = 1", []).unwrap();
    drop(connection);
    let store = sqlite_open(folder.path());
    assert_eq!(requests(&store).await, [(first, None), (second, None)]);
}

#[tokio::test]
async fn a_damaged_position_is_bounded_by_its_neighbours() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let database = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    database
        .execute_batch("UPDATE events SET pos = pos + 4096 WHERE payload LIKE '%text-of-event-2%'")
        .unwrap();
    database.close().unwrap();
    let store = sqlite_open(folder.path());
    let events = store.events_after(session_id(1), None, Cursor(0), 99).await.unwrap();
    assert!(matches!(events[3].body, Body::EventDamaged { .. }));
    assert_eq!(events[3].pos, events[4].pos, "a reader may have seen the bytes up to the next event");
}

#[tokio::test]
async fn each_start_begins_a_history_after_the_last_event() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let second = sqlite_open(folder.path()).histories().await.unwrap();
    let [first, own] = &second[..] else { panic!("{second:?}") };
    assert_eq!((first.after, own.after), (Cursor(0), Cursor(10)));
    assert_ne!(first.token, own.token);
    let third = sqlite_open(folder.path()).histories().await.unwrap();
    assert_eq!((&third[..2], third[2].after), (&second[..], Cursor(10)));
    let database = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    database.execute_batch("UPDATE histories SET id = id + 5000 WHERE id = 3").unwrap();
    database.close().unwrap();
    let kept = sqlite_open(folder.path()).histories().await.unwrap();
    assert_eq!(kept.len(), 2, "only the latest are kept");
}

#[tokio::test]
async fn every_list_names_its_damaged_row() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    for text in [
        "adapter-of-run-2",
        "instance-of-attempt-2",
        "model-of-step-2",
        "name-of-artifact-2",
        "value-of-state-2",
    ] {
        flip(folder.path(), text).close();
    }
    let store = flip(folder.path(), "title-2");
    let runs = RunPage { owner: OWNER.into(), session: None, status: None, before: None, limit: 2 };
    let page = store.run_page(&runs).await.unwrap();
    assert_eq!(page.iter().map(|run| run.id).collect::<Vec<_>>(), [3, 1].map(run_id));
    named("run", &run_id(2), 1, &page.damaged);
    let attempts = store.attempts(run_id(1)).await.unwrap();
    assert_eq!(attempts.len(), 2);
    named("attempt", &attempt_id(2), 1, &attempts.damaged);
    let steps = store.steps(run_id(1)).await.unwrap();
    assert_eq!(steps.len(), 2);
    named("step", &step_id(2), 1, &steps.damaged);
    let artifacts = ArtifactPage { session: session_id(1), run: None, before: None, limit: 2 };
    let page = store.artifact_page(&artifacts).await.unwrap();
    assert_eq!(page.iter().map(|artifact| artifact.id).collect::<Vec<_>>(), [3, 1].map(artifact_id));
    named("artifact", &artifact_id(2), 1, &page.damaged);
    let state = StateAt::Session { session: session_id(1), at: None };
    let page = store.state_page(&state, None, 2).await.unwrap();
    assert_eq!(page.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["key-1", "key-3"]);
    named("state", &"key-2", 1, &page.damaged);
    let of = SessionsOf::Owner(OWNER.into());
    let sessions = SessionPage { of, pinned: None, status: None, surface_kind: None, before: None, limit: 9 };
    let page = store.session_page(&sessions).await.unwrap();
    assert_eq!(page.iter().map(|(session, _)| session.id).collect::<Vec<_>>(), [3, 1].map(session_id));
    named("session", &session_id(2), 1, &page.damaged);
    let found = store.search_titles(OWNER, &Query::parse("title").unwrap(), None, 9).await.unwrap();
    assert_eq!(found.iter().map(|session| session.id).collect::<Vec<_>>(), [3, 1].map(session_id));
    assert_eq!(found.damaged.len(), 1);
    let gone = store.session_find(OWNER, &SessionRef::Id(session_id(2))).await.unwrap_err();
    assert!(matches!(gone, StoreError::Corrupt(_)));
}

#[tokio::test]
async fn a_session_is_listed_although_its_latest_run_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let store = flip(folder.path(), "adapter-of-run-3");
    let of = SessionsOf::Owner(OWNER.into());
    let sessions = SessionPage { of, pinned: None, status: None, surface_kind: None, before: None, limit: 9 };
    let page = store.session_page(&sessions).await.unwrap();
    assert_eq!(page.len(), 3);
    assert_eq!(page[2].1, None);
    named("run", &run_id(3), 2, &page.damaged);
    assert!(page.damaged[0].message.starts_with(&format!("the latest run of session {}", session_id(1))));
    // The events of a damaged run are read as before.
    let events = store.events_after(session_id(1), None, Cursor(0), 99).await.unwrap();
    assert!(!events.iter().any(|event| matches!(event.body, Body::EventDamaged { .. })));
}

/// Fills a new PostgreSQL database.
async fn fill_postgres() -> (String, PostgresStore) {
    let url = database();
    let store = PostgresStore::open(&url, PostgresOptions::default()).unwrap();
    fill_store(&store).await;
    (url, store)
}

fn damage_message(url: &str, n: u64) {
    let id = hex(message_id(n).as_bytes());
    psql(url, &format!("UPDATE messages SET body = '{{' WHERE message_id = '\\x{id}'"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_message_of_postgresql_is_reported_in_its_place_among_the_events() {
    let (url, store) = fill_postgres().await;
    let sound = store.events_after(session_id(1), None, Cursor(0), 99).await.unwrap();
    damage_message(&url, 3);
    let events = store.events_after(session_id(1), None, Cursor(0), 99).await.unwrap();
    assert_eq!(store.owner_events(OWNER, None, Cursor(0), 99).await.unwrap().0, events);
    assert_eq!(events.len(), sound.len());
    for (index, (event, sound)) in events.iter().zip(&sound).enumerate() {
        let Body::EventDamaged { event_type, message_id: id, message } = &event.body else {
            assert_eq!(event, sound);
            continue;
        };
        let expected = (4, Some("message.completed"), Some(message_id(3)));
        assert_eq!((index, event_type.as_deref(), *id), expected);
        assert!(message.contains(&message_id(3).to_string()), "{message}");
    }
    assert!(matches!(events[4].body, Body::EventDamaged { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_of_postgresql_names_a_damaged_message() {
    let (url, store) = fill_postgres().await;
    damage_message(&url, 3);
    let found = store.search_messages(OWNER, &Query::parse("word").unwrap(), None, 9).await.unwrap().rows;
    let ids: Vec<_> = found.iter().map(|one| one.message.id).collect();
    assert_eq!(ids, [5, 4, 2, 1].map(message_id));
    let [damage] = &found.damaged[..] else { panic!("{:?}", found.damaged) };
    assert_eq!((damage.kind.as_str(), damage.index), ("message", 2));
    assert_eq!(damage.id, Some(message_id(3).to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_postgresql_is_full_although_a_row_is_damaged() {
    let (url, store) = fill_postgres().await;
    damage_message(&url, 3);
    psql(
        &url,
        "UPDATE runs SET body = '{' WHERE run_no = 2; UPDATE artifacts SET body = '{' WHERE body LIKE '%artifact-2%'",
    );
    psql(&url, "UPDATE sessions SET body = '{' WHERE body LIKE '%title-2%'");
    let path = store.path(point(1, 4), None, 3).await.unwrap();
    assert_eq!(path.iter().map(|placed| placed.message.id).collect::<Vec<_>>(), [2, 4, 5].map(message_id));
    assert_eq!((path.damaged.len(), path.damaged[0].index), (1, 1));
    let tree = store.tree_page(session_id(1), None, 3).await.unwrap();
    assert_eq!(tree.iter().map(|row| row.message.id).collect::<Vec<_>>(), [1, 2, 4].map(message_id));
    assert_eq!((tree.damaged.len(), tree.damaged[0].index), (1, 2));
    let runs = RunPage { owner: OWNER.into(), session: None, status: None, before: None, limit: 2 };
    let runs = store.run_page(&runs).await.unwrap();
    assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), [3, 1].map(run_id));
    assert_eq!((runs.damaged.len(), runs.damaged[0].index), (1, 1));
    let artifacts = ArtifactPage { session: session_id(1), run: None, before: None, limit: 2 };
    let artifacts = store.artifact_page(&artifacts).await.unwrap();
    assert_eq!(artifacts.iter().map(|artifact| artifact.id).collect::<Vec<_>>(), [3, 1].map(artifact_id));
    let of = SessionsOf::Owner(OWNER.into());
    let sessions = SessionPage { of, pinned: None, status: None, surface_kind: None, before: None, limit: 2 };
    let sessions = store.session_page(&sessions).await.unwrap();
    assert_eq!(sessions.iter().map(|(session, _)| session.id).collect::<Vec<_>>(), [3, 1].map(session_id));
    assert_eq!((sessions.damaged.len(), sessions.damaged[0].index), (1, 1));
}
