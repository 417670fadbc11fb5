//! Copies of whole databases: backups, restores, copies before migrations; verification and repair.

use std::fs;
use std::path::{Path, PathBuf};

use mainspring_core::{Cursor, Time};
use mainspring_kernel::search::Query;
use mainspring_kernel::store::{Row, Store};
use mainspring_store::{
    OpenError, SCHEMA_VERSION, SqliteOptions, SqliteStore, SqliteView, Verified, database_repair,
    database_restore, database_vacuum,
};
use rusqlite::Connection;
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
        let cursors = database_restore(&database(&restored), now).unwrap();
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
    assert!(matches!(database_restore(&copy, NOW).unwrap_err(), OpenError::Corrupt { .. }));
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
async fn verification_names_what_disagrees() {
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
async fn repair_rebuilds_the_search_index_and_names_the_rest() {
    let (folder, store) = filled().await;
    while store.search_index().await.unwrap() {}
    store.close();
    let connection = Connection::open(database(&folder)).unwrap();
    connection
        .execute_batch("DELETE FROM search_titles; UPDATE events SET payload = '{}' WHERE event_seq = 1")
        .unwrap();
    drop(connection);
    let repaired = database_repair(&database(&folder), None, NOW).unwrap();
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
    let damaged = damage
        .execute("UPDATE messages SET content = '[{\"type' WHERE message_id = ?1", [message_id(1).as_bytes()]);
    assert_eq!(damaged.unwrap(), 1);
    drop(damage);
    let found = async |word: &str| {
        let store = sqlite_open(folder.path());
        while store.search_index().await.unwrap() {}
        let query = Query::parse(word).unwrap();
        let found = store.search_messages(OWNER, &query, None, 9).await.unwrap().len();
        store.close();
        found
    };
    assert_eq!((found("omega").await, found("alpha").await), (1, 0), "the index goes on");
    let repaired = database_repair(&database(&folder), None, NOW).unwrap();
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
    // An event of another history is not taken.
    connection.execute_batch("UPDATE events SET event_id = randomblob(16) WHERE event_seq = 3").unwrap();
    drop(connection);
    let repaired = database_repair(&database(&folder), Some(&copy), NOW).unwrap();
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
