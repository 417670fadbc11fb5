//! Copies of whole databases: backups, restores, copies before migrations; verification and repair.

use std::fs;
use std::path::{Path, PathBuf};

use mainspring_core::*;
use mainspring_kernel::search::Query;
use mainspring_kernel::store::{NewEvent, Row, StatePlace, StateRow, Store};
use mainspring_store::{
    OpenError, SCHEMA_VERSION, SqliteOptions, SqliteStore, SqliteView, Verified, database_repair,
    database_restore, database_vacuum,
};
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;

use crate::fixtures::*;
use crate::migrations::{RELEASED, create_database};

fn database(folder: &TempDir) -> PathBuf {
    folder.path().join("test.sqlite3")
}

/// Creates a store with a session, three events and an API key.
async fn filled() -> (TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    for n in 0..3 {
        commit(&store, fence, vec![], vec![progress(n)]).await.unwrap();
    }
    store.key_write(&crate::keys::key(1, None), None).await.unwrap();
    (folder, store)
}

/// Names the findings of a database that no process uses.
fn findings(path: &Path) -> Vec<(Verified, String)> {
    let parts = SqliteView::open(path, false).unwrap().verify().unwrap();
    let named = |part: mainspring_store::Verification| {
        part.findings.into_iter().map(move |finding| (part.part, finding))
    };
    parts.into_iter().flat_map(named).collect()
}

#[tokio::test]
async fn a_copy_of_a_database_in_use_is_complete_and_has_no_keys() {
    let (folder, store) = filled().await;
    let copy = folder.path().join("copy.sqlite3");
    let summary = SqliteView::open(&database(&folder), true).unwrap().copy_to(&copy).unwrap();
    assert_eq!((summary.sessions, summary.events, summary.last_cursor), (1, 3, Cursor(3)));
    assert_eq!(summary.schema_version, SCHEMA_VERSION);
    let fence = lease(&store, 1).await;
    commit(&store, fence, vec![], vec![progress(9)]).await.unwrap();
    assert_eq!(events(&store, 1).await.len(), 4, "the store goes on");

    let keys: i64 = Connection::open(&copy)
        .unwrap()
        .query_row("SELECT count(*) FROM api_keys", [], |row| row.get(0))
        .unwrap();
    assert_eq!(keys, 0);
    assert_eq!(findings(&copy), []);
    let again = SqliteView::open(&database(&folder), true).unwrap().copy_to(&copy).unwrap_err();
    assert!(matches!(again, OpenError::Io { .. }), "an existing file is not replaced: {again:?}");
}

#[tokio::test]
async fn a_restored_database_gives_no_cursor_twice() {
    let (folder, store) = filled().await;
    let restored = tempfile::tempdir().unwrap();
    SqliteView::open(&database(&folder), true).unwrap().copy_to(&database(&restored)).unwrap();
    let mut ends = vec![];
    for now in [NOW, Time(NOW.0 + 1)] {
        let cursors = database_restore(&database(&restored), NOW, now).unwrap();
        assert!(cursors.continues_after.0 >= cursors.last.0 + (1 << 32));
        assert!(cursors.continues_after.0 < 1 << 53, "a number of JavaScript");
        let opened = sqlite_open(restored.path());
        let lost = opened.lost_events().await.unwrap();
        assert_eq!(lost.last().unwrap().until, cursors.continues_after);
        assert!(lost.last().unwrap().contains(Cursor(cursors.last.0 + 1)));
        assert_eq!(opened.event_last().await.unwrap(), cursors.continues_after);
        let fence = lease(&opened, 1).await;
        let given = commit(&opened, fence, vec![], vec![progress(9)]).await.unwrap();
        assert!(given[0] > cursors.continues_after);
        ends.push(given[0]);
        let mut after = Cursor::START;
        for _ in 0..3 {
            after = opened.owner_events(OWNER, None, after, 100).await.unwrap().1;
        }
        assert_eq!(after, given[0], "a reader of all events crosses the gap at once");
        opened.close();
    }
    assert!(ends[1] > ends[0]);
    drop(store);
}

#[tokio::test]
async fn a_damaged_copy_is_not_restored() {
    let (folder, store) = filled().await;
    let copy = folder.path().join("copy.sqlite3");
    SqliteView::open(&database(&folder), true).unwrap().copy_to(&copy).unwrap();
    drop(store);
    let bytes = fs::read(&copy).unwrap();
    fs::write(&copy, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(database_restore(&copy, NOW, NOW).unwrap_err(), OpenError::Corrupt { .. }));
}

#[tokio::test]
async fn a_copy_is_kept_before_a_migration_for_a_week() {
    let folder = tempfile::tempdir().unwrap();
    create_database(folder.path(), &RELEASED[..3], "INSERT INTO meta VALUES ('mine', 7)");
    let before = fs::read(database(&folder)).unwrap();
    let copy = folder.path().join("test.sqlite3.schema-3");
    let open = |days: i64| {
        let now = Time(NOW.0 + days * 24 * 60 * 60 * 1_000);
        SqliteStore::open(&database(&folder), SqliteOptions::default(), now).unwrap().close();
    };
    open(0);
    assert!(fs::read(&copy).unwrap() == before, "the copy is the file as it was");
    open(6);
    assert!(copy.exists());
    open(7);
    assert!(!copy.exists());
    open(8);
}

#[tokio::test]
async fn verification_names_rows_that_disagree() {
    let (folder, store) = filled().await;
    store.close();
    assert_eq!(findings(&database(&folder)), []);
    let damage = |sql: &str| {
        let damaged = tempfile::tempdir().unwrap();
        fs::copy(database(&folder), database(&damaged)).unwrap();
        Connection::open(database(&damaged)).unwrap().execute_batch(sql).unwrap();
        let found = findings(&database(&damaged));
        assert!(!found.is_empty(), "{sql}");
        found
    };
    let found = damage("UPDATE sessions SET title = 'Tee'");
    assert!(found[0].0 == Verified::Checksums && found[0].1.contains("session ses_"), "{found:?}");
    let found = damage("UPDATE events SET pos = 9 WHERE event_seq = 1");
    assert!(
        found.iter().any(|(part, text)| *part == Verified::Events && text.contains("event 2")),
        "{found:?}"
    );
    let found =
        damage("PRAGMA foreign_keys = OFF; UPDATE sessions SET tip_line = 7, tip_pos = 1, checksum = NULL");
    assert!(found.iter().any(|(part, _)| *part == Verified::Trees), "{found:?}");
}

#[tokio::test]
async fn repair_rebuilds_the_search_index_and_reports_other_damage() {
    let (folder, store) = filled().await;
    while store.search_index().await.unwrap() {}
    store.close();
    let connection = Connection::open(database(&folder)).unwrap();
    connection
        .execute_batch("DELETE FROM search_titles; UPDATE events SET payload = '{}' WHERE event_seq = 1")
        .unwrap();
    drop(connection);
    let repaired = database_repair(&database(&folder), None, false, NOW).unwrap();
    assert!(repaired.iter().all(|part| part.what != "indexes"), "{repaired:?}");
    let left = findings(&database(&folder));
    assert_eq!(left.len(), 1, "{left:?}");
    let store = sqlite_open(folder.path());
    let query = Query::parse("session").unwrap();
    assert_eq!(store.search_titles(OWNER, &query, None, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_unreadable_message_stops_neither_repair_nor_the_index() {
    let (folder, store) = filled().await;
    let fence = lease(&store, 1).await;
    let rows = vec![
        Row::Line(line(1, None, 2)),
        row_message(message(1, 1, "alpha"), Some(point(1, 0))),
        row_message(message(2, 1, "omega"), Some(point(1, 1))),
    ];
    commit(&store, fence, rows, vec![]).await.unwrap();
    store.close();
    let damage = Connection::open(database(&folder)).unwrap();
    let damaged = damage.execute(
        "UPDATE messages SET content = '[{\"type' WHERE message_id = ?1",
        [message_id(1).as_bytes()],
    );
    assert_eq!(damaged.unwrap(), 1);
    drop(damage);
    let found = async |word: &str| {
        let store = sqlite_open(folder.path());
        while store.search_index().await.unwrap() {}
        let query = Query::parse(word).unwrap();
        let found = store.search_messages(OWNER, &query, None, 9).await.unwrap().rows.len();
        store.close();
        found
    };
    assert_eq!((found("omega").await, found("alpha").await), (1, 0), "the index goes on");
    let repaired = database_repair(&database(&folder), None, false, NOW).unwrap();
    assert!(repaired.iter().any(|part| part.what.contains("search") && part.rows == 2), "{repaired:?}");
    assert_eq!(found("omega").await, 1);
    let left = findings(&database(&folder));
    assert!(left.len() == 1 && left[0].1.contains(&message_id(1).to_string()), "{left:?}");
}

#[tokio::test]
async fn repair_takes_damaged_events_from_a_backup() {
    let (folder, store) = filled().await;
    let copy = folder.path().join("copy.sqlite3");
    SqliteView::open(&database(&folder), true).unwrap().copy_to(&copy).unwrap();
    let written = events(&store, 1).await;
    store.close();
    let connection = Connection::open(database(&folder)).unwrap();
    connection.execute_batch("UPDATE events SET payload = '{}' WHERE event_seq = 2").unwrap();
    // Repair does not copy an event of another history.
    connection.execute_batch("UPDATE events SET event_id = randomblob(16) WHERE event_seq = 3").unwrap();
    drop(connection);
    let repaired = database_repair(&database(&folder), Some(&copy), false, NOW).unwrap();
    assert!(
        repaired.iter().any(|part| part.what.contains("from the backup") && part.rows == 1),
        "{repaired:?}"
    );
    let left = findings(&database(&folder));
    assert!(left.len() == 1 && left[0].1.contains("at 3"), "{left:?}");
    let store = sqlite_open(folder.path());
    let read = store.events_after(session_id(1), None, Cursor::START, 2).await.unwrap();
    assert_eq!(read, written[..2]);
}

/// Creates a store with a session whose run has ended.
async fn with_ended_run() -> (TempDir, SqliteStore) {
    let (folder, store) = filled().await;
    let fence = lease(&store, 1).await;
    let usage = Usage { input_tokens: 7, ..Usage::default() };
    let close = Close { message_id: Some(message_id(2)), usage, ..Close::default() };
    let of_run = |n, at: u64, attempt, body| NewEvent {
        run: Some(run_id(1)),
        attempt,
        at: NOW.plus(at),
        ..event(n, body)
    };
    let titled = SessionChange::Title { title: Some("session 1".into()), source: TitleSource::Manual };
    let state = StateRow {
        place: StatePlace::Session { at: None, aside: false },
        key: "k".into(),
        value: Some(json!("v")),
        version: 1,
        at: NOW,
    };
    let ended = Run {
        attempts: 1,
        last_attempt: Some(attempt_id(1)),
        final_message: Some(message_id(2)),
        usage,
        pen: Some(point(1, 2)),
        started_at: Some(NOW.plus(1)),
        completed_at: Some(NOW.plus(2)),
        updated_at: NOW.plus(2),
        ..run(1, 1, 1, RunState::Succeeded {})
    };
    let message_of_run = |n| Message { run: Some(run_id(1)), ..message(n, 1, "text") };
    let rows = vec![
        Row::Line(line(1, None, 2)),
        row_message(message_of_run(1), Some(point(1, 0))),
        row_message(message_of_run(2), Some(point(1, 1))),
        row_run(ended),
        row_attempt(attempt(1, 1, 1, RunStatus::Succeeded)),
        Row::State(Box::new(state)),
    ];
    let created = Body::AttemptCreated {
        attempt_no: 1,
        adapter: "native".into(),
        retry_reason: None,
        resume_from_attempt_id: None,
        checkpoint_artifact_id: None,
    };
    let changed = Body::StateChanged {
        scope: StateScope::Session,
        key: "k".into(),
        version: 1,
        by: StateAuthor::Caller,
        deleted: false,
        value: Some(json!("v")),
    };
    let events = vec![
        event(20, Body::SessionUpdated { change: titled }),
        event(21, changed),
        of_run(22, 0, None, Body::run_accepted("native".into(), Mode::Act, None)),
        of_run(23, 1, Some(attempt_id(1)), created),
        of_run(24, 2, Some(attempt_id(1)), Body::RunSucceeded { close }),
    ];
    commit(&store, fence, rows, events).await.unwrap();
    (folder, store)
}

#[tokio::test]
async fn verification_compares_rows_with_their_events() {
    let (folder, store) = with_ended_run().await;
    store.close();
    assert_eq!(findings(&database(&folder)), []);
    // Without a checksum only the events show the damage.
    for (sql, says) in [
        ("UPDATE runs SET input_tokens = 8, state_checksum = NULL", "has used 8 and 0 tokens"),
        ("UPDATE sessions SET title = 'Tee', checksum = NULL", "has another title"),
        ("UPDATE session_state SET value = '\"w\"', checksum = NULL", "state \"k\""),
    ] {
        let damaged = tempfile::tempdir().unwrap();
        fs::copy(database(&folder), database(&damaged)).unwrap();
        Connection::open(database(&damaged)).unwrap().execute_batch(sql).unwrap();
        let found = findings(&database(&damaged));
        assert!(matches!(&found[..], [(Verified::Events, text)] if text.contains(says)), "{sql}: {found:?}");
    }
}

#[tokio::test]
async fn repair_takes_rows_that_have_not_changed_from_a_backup() {
    let (folder, store) = with_ended_run().await;
    let copy = folder.path().join("copy.sqlite3");
    SqliteView::open(&database(&folder), true).unwrap().copy_to(&copy).unwrap();
    store.close();
    for sql in [
        "UPDATE sessions SET title = 'Tee'",
        "UPDATE sessions SET version = 9",
        "UPDATE runs SET adapter_id = 'other'",
        "UPDATE runs SET fingerprint = randomblob(16)",
        "UPDATE session_state SET value = '7'",
    ] {
        let damaged = tempfile::tempdir().unwrap();
        fs::copy(database(&folder), database(&damaged)).unwrap();
        fs::copy(&copy, damaged.path().join("copy.sqlite3")).unwrap();
        Connection::open(database(&damaged)).unwrap().execute_batch(sql).unwrap();
        assert!(!findings(&database(&damaged)).is_empty(), "{sql}");
        let from = damaged.path().join("copy.sqlite3");
        let repaired = database_repair(&database(&damaged), Some(&from), false, NOW).unwrap();
        assert!(
            repaired.iter().any(|part| part.what.contains("from the backup") && part.rows == 1),
            "{sql}: {repaired:?}"
        );
        assert_eq!(findings(&database(&damaged)), [], "{sql}");
    }
}

#[tokio::test]
async fn a_row_that_has_changed_since_the_backup_is_not_taken() {
    let (folder, store) = with_ended_run().await;
    let copy = folder.path().join("copy.sqlite3");
    SqliteView::open(&database(&folder), true).unwrap().copy_to(&copy).unwrap();
    let fence = lease(&store, 1).await;
    let later = Session { title: Some("later".into()), version: 2, updated_at: NOW.plus(9), ..session(1) };
    let change = SessionChange::Title { title: later.title.clone(), source: TitleSource::Manual };
    let rows = vec![row_session(later)];
    commit(&store, fence, rows, vec![event(30, Body::SessionUpdated { change })]).await.unwrap();
    store.close();
    let connection = Connection::open(database(&folder)).unwrap();
    connection.execute_batch("UPDATE sessions SET surface_kind = 'else'").unwrap();
    drop(connection);
    database_repair(&database(&folder), Some(&copy), false, NOW).unwrap();
    let left = findings(&database(&folder));
    assert!(left.len() == 1 && left[0].1.contains("session ses_"), "{left:?}");
}

#[tokio::test]
async fn repair_rebuilds_the_outcome_of_a_run_from_its_events() {
    let (folder, store) = with_ended_run().await;
    let written = store.run_get(run_id(1)).await.unwrap().unwrap();
    store.close();
    let connection = Connection::open(database(&folder)).unwrap();
    connection
        .execute_batch("UPDATE runs SET status = 'failed', input_tokens = 1, attempts = 3, pen_pos = 9, completed_at_ms = 1")
        .unwrap();
    drop(connection);
    let repaired = database_repair(&database(&folder), None, false, NOW).unwrap();
    assert!(
        repaired.iter().any(|part| part.what.contains("from their events") && part.rows == 1),
        "{repaired:?}"
    );
    assert_eq!(findings(&database(&folder)), []);
    assert_eq!(sqlite_open(folder.path()).run_get(run_id(1)).await.unwrap().unwrap(), written);
}

#[tokio::test]
async fn a_run_without_a_checksum_gets_none_that_contradicts_its_events() {
    let (folder, store) = with_ended_run().await;
    let written = store.run_get(run_id(1)).await.unwrap().unwrap();
    store.close();
    let connection = Connection::open(database(&folder)).unwrap();
    connection.execute_batch("UPDATE runs SET status = 'failed', state_checksum = NULL").unwrap();
    drop(connection);
    database_repair(&database(&folder), None, false, NOW).unwrap();
    assert_eq!(findings(&database(&folder)), []);
    assert_eq!(sqlite_open(folder.path()).run_get(run_id(1)).await.unwrap().unwrap(), written);
}

#[tokio::test]
async fn repair_deletes_damaged_sessions_on_request() {
    let (folder, store) = with_ended_run().await;
    create_session(&store, 2).await;
    store.close();
    let connection = Connection::open(database(&folder)).unwrap();
    connection
        .execute("UPDATE sessions SET title = 'Tee' WHERE session_id = ?1", [session_id(1).as_bytes()])
        .unwrap();
    drop(connection);
    database_repair(&database(&folder), None, false, NOW).unwrap();
    assert_eq!(findings(&database(&folder)).len(), 2, "the checksum and the last change of the title");
    database_repair(&database(&folder), None, true, NOW).unwrap();
    let store = sqlite_open(folder.path());
    assert_eq!(store.unfinished().await.unwrap().deleted, [session_id(1)]);
    while store.session_purge(session_id(1)).await.unwrap() {}
    assert!(!store.session_exists(session_id(1)).await.unwrap());
    assert!(store.session_exists(session_id(2)).await.unwrap());
    store.close();
    assert_eq!(findings(&database(&folder)), []);
}

#[tokio::test]
async fn repair_and_vacuum_add_missing_checksums() {
    for vacuum in [false, true] {
        let (folder, store) = with_ended_run().await;
        store.close();
        let connection = Connection::open(database(&folder)).unwrap();
        let before: Vec<i64> = sums(&connection);
        connection
            .execute_batch(
                "UPDATE sessions SET checksum = NULL; UPDATE runs SET checksum = NULL, state_checksum = NULL;
                 UPDATE messages SET checksum = NULL; UPDATE events SET checksum = NULL;
                 UPDATE session_state SET checksum = NULL",
            )
            .unwrap();
        drop(connection);
        match vacuum {
            true => drop(database_vacuum(&database(&folder)).unwrap()),
            false => drop(database_repair(&database(&folder), None, false, NOW).unwrap()),
        }
        assert_eq!(sums(&Connection::open(database(&folder)).unwrap()), before);
        assert_eq!(findings(&database(&folder)), []);
    }
}

/// Reads all checksums.
fn sums(connection: &Connection) -> Vec<i64> {
    let sql = "SELECT checksum FROM sessions UNION ALL SELECT checksum FROM runs UNION ALL SELECT state_checksum FROM runs
               UNION ALL SELECT checksum FROM messages UNION ALL SELECT checksum FROM events
               UNION ALL SELECT checksum FROM session_state";
    let mut statement = connection.prepare(sql).unwrap();
    let sums = statement.query_map([], |row| row.get(0)).unwrap();
    sums.map(Result::unwrap).collect()
}

#[tokio::test]
async fn vacuum_makes_the_file_smaller_and_keeps_everything() {
    let (folder, store) = filled().await;
    store.close();
    let connection = Connection::open(database(&folder)).unwrap();
    connection
        .execute_batch("CREATE TABLE filler AS SELECT zeroblob(4000000) AS bytes; DROP TABLE filler")
        .unwrap();
    drop(connection);
    let (before, after) = database_vacuum(&database(&folder)).unwrap();
    assert!(after + 3_000_000 < before, "{before} {after}");
    assert_eq!(findings(&database(&folder)), []);
    assert_eq!(events(&sqlite_open(folder.path()), 1).await.len(), 3);
}
