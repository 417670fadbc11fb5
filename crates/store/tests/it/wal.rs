//! A WAL is replayed only into the database it belongs to, and a missing database is noticed.

use std::fs;
use std::path::{Path, PathBuf};

use mainspring_kernel::store::{Fence, StoreError};
use mainspring_store::{OpenError, SqliteOptions, SqliteStore, SqliteView};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::fixtures::*;

const FILES: [&str; 3] = ["test.sqlite3", "test.sqlite3-wal", "test.sqlite3-history"];

fn database(folder: &TempDir) -> PathBuf {
    folder.path().join(FILES[0])
}

/// Copies some files, as they would be found after `kill -9`.
fn copy(from: &Path, to: &Path, files: &[&str]) {
    for file in files {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

/// Copies the files of a store that is in use into a new folder.
fn crash(folder: &TempDir) -> TempDir {
    let copied = tempfile::tempdir().unwrap();
    copy(folder.path(), copied.path(), &FILES);
    assert!(fs::metadata(copied.path().join(FILES[1])).unwrap().len() > 0);
    copied
}

async fn write(store: &SqliteStore, fence: Fence, from: u64, to: u64) {
    for n in from..to {
        commit(store, fence, vec![], vec![progress(n)]).await.unwrap();
    }
}

/// Creates a store with `count` events that is in use.
async fn store_with(count: u64) -> (TempDir, SqliteStore, Fence) {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    write(&store, fence, 0, count).await;
    (folder, store, fence)
}

async fn event_count(folder: &TempDir) -> usize {
    let store = sqlite_open(folder.path());
    assert_eq!(store.check(true).await.unwrap().problems, Vec::<String>::new());
    events(&store, 1).await.len()
}

/// Opens a database that must be refused, and checks that no file changed.
fn open_error(folder: &TempDir) -> OpenError {
    let files = || FILES.map(|file| fs::read(folder.path().join(file)).ok());
    let before = files();
    let error = SqliteStore::open(&database(folder), SqliteOptions::default(), NOW).unwrap_err();
    assert!(files() == before, "{error}: a file changed");
    error
}

fn assert_stale(folder: &TempDir) {
    let error = open_error(folder);
    assert!(matches!(error, OpenError::StaleWal { .. }), "{error:?}");
    assert!(error.to_string().contains("move"), "{error}");
}

/// Merges the whole WAL into the database, so that the next transaction restarts it.
fn checkpoint(folder: &TempDir) {
    let connection = Connection::open(database(folder)).unwrap();
    let (log, done): (i64, i64) = connection
        .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))
        .unwrap();
    assert_eq!(log, done);
}

#[tokio::test]
async fn a_crashed_store_opens_with_its_wal() {
    let (folder, store, fence) = store_with(5).await;
    let crashed = crash(&folder);
    checkpoint(&folder);
    let merged = crash(&folder);
    write(&store, fence, 5, 8).await;
    let restarted = crash(&folder);
    store.close();
    assert_eq!(event_count(&crashed).await, 5);
    assert_eq!(event_count(&merged).await, 5, "a WAL that was merged");
    assert_eq!(event_count(&restarted).await, 8, "a WAL that was restarted");
    assert_eq!(event_count(&folder).await, 8);
}

#[tokio::test]
async fn a_store_opens_after_a_crash_at_any_point_of_the_wal() {
    let (folder, store, _) = store_with(3).await;
    let crashed = crash(&folder);
    store.close();
    let wal = fs::read(crashed.path().join(FILES[1])).unwrap();
    for length in (0..wal.len()).step_by(3989) {
        let torn = tempfile::tempdir().unwrap();
        copy(crashed.path(), torn.path(), &FILES);
        fs::write(torn.path().join(FILES[1]), &wal[..length]).unwrap();
        assert!(event_count(&torn).await <= 3, "the first {length} bytes");
    }
}

/// A checkpoint writes pages one by one: after a crash, some are of the database before and some of the one after.
#[tokio::test]
async fn a_store_opens_after_a_crash_during_a_checkpoint() {
    let (folder, store, fence) = store_with(3).await;
    checkpoint(&folder);
    write(&store, fence, 3, 40).await;
    let before = crash(&folder);
    checkpoint(&folder);
    let after = fs::read(database(&folder)).unwrap();
    store.close();
    let mut pages = fs::read(database(&before)).unwrap();
    pages.resize(after.len(), 0);
    for written in 0..after.len() / 4096 {
        let page = written * 4096..(written + 1) * 4096;
        pages[page.clone()].copy_from_slice(&after[page.clone()]);
        let crashed = tempfile::tempdir().unwrap();
        copy(before.path(), crashed.path(), &FILES);
        fs::write(
            database(&crashed),
            &pages[..page.end.max(fs::metadata(database(&before)).unwrap().len() as usize)],
        )
        .unwrap();
        assert_eq!(event_count(&crashed).await, 40, "up to page {written}");
    }
}

#[tokio::test]
async fn a_wal_is_not_replayed_into_an_earlier_copy_of_its_database() {
    let (folder, store, _) = store_with(3).await;
    store.close();
    let backup = fs::read(database(&folder)).unwrap();
    let store = sqlite_open(folder.path());
    let fence = lease(&store, 1).await;
    write(&store, fence, 3, 6).await;
    let crashed = crash(&folder);
    fs::write(database(&crashed), &backup).unwrap();
    assert_stale(&crashed);
    // The remedy that the message names.
    fs::remove_file(crashed.path().join(FILES[1])).unwrap();
    assert_eq!(event_count(&crashed).await, 3);
}

#[tokio::test]
async fn a_wal_is_not_replayed_into_a_copy_from_before_it_was_restarted() {
    let (folder, store, fence) = store_with(3).await;
    checkpoint(&folder);
    let backup = fs::read(database(&folder)).unwrap();
    write(&store, fence, 3, 6).await;
    checkpoint(&folder);
    write(&store, fence, 6, 9).await;
    let crashed = crash(&folder);
    fs::write(database(&crashed), &backup).unwrap();
    assert_stale(&crashed);
}

#[tokio::test]
async fn a_wal_is_not_replayed_into_a_backup_made_by_sqlite() {
    for vacuum in [true, false] {
        let (folder, store, fence) = store_with(3).await;
        let backup = folder.path().join("backup");
        if vacuum {
            let source = Connection::open(database(&folder)).unwrap();
            source.execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
        } else {
            copy_pages(&folder, &backup);
        }
        write(&store, fence, 3, 6).await;
        let crashed = crash(&folder);
        fs::copy(&backup, database(&crashed)).unwrap();
        assert_stale(&crashed);
        let restored = tempfile::tempdir().unwrap();
        fs::copy(&backup, database(&restored)).unwrap();
        assert_eq!(event_count(&restored).await, 3, "a backup in an empty folder");
    }
}

/// Copies a database as `.backup` of the `sqlite3` program does: the pages, and a schema cookie of its own.
fn copy_pages(folder: &TempDir, to: &Path) {
    let copied = crash(folder);
    Connection::open(database(&copied)).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let mut bytes = fs::read(database(&copied)).unwrap();
    bytes[40..44].copy_from_slice(&1_u32.to_be_bytes());
    fs::write(to, bytes).unwrap();
}

#[tokio::test]
async fn a_wal_is_not_replayed_into_another_database() {
    let (folder, _store, _) = store_with(3).await;
    let (other, _other_store, _) = store_with(5).await;
    let crashed = crash(&folder);
    copy(other.path(), crashed.path(), &FILES[..1]);
    assert_stale(&crashed);
    let swapped = crash(&folder);
    copy(other.path(), swapped.path(), &FILES[1..2]);
    assert_stale(&swapped);
}

#[tokio::test]
async fn a_wal_is_not_replayed_into_another_copy_of_the_same_database() {
    let (folder, store, _) = store_with(3).await;
    let crashed = crash(&folder);
    store.close();
    let sides = [crash(&crashed), crash(&crashed)];
    let mut after = vec![];
    for side in &sides {
        let store = sqlite_open(side.path());
        write(&store, lease(&store, 1).await, 3, 5).await;
        after.push(crash(side));
    }
    copy(after[0].path(), after[1].path(), &FILES[1..2]);
    assert_stale(&after[1]);
}

#[tokio::test]
async fn a_missing_or_empty_database_with_a_history_is_refused() {
    for with_wal in [true, false] {
        let (folder, store, _) = store_with(3).await;
        let crashed = crash(&folder);
        store.close();
        let lost = if with_wal { crashed } else { folder };
        let bytes = fs::read(database(&lost)).unwrap();
        fs::write(database(&lost), "").unwrap();
        assert!(matches!(open_error(&lost), OpenError::Missing { .. }));
        fs::remove_file(database(&lost)).unwrap();
        let error = open_error(&lost);
        assert!(matches!(error, OpenError::Missing { .. }), "{error:?}");
        assert_eq!(error.to_string().contains("-wal"), with_wal, "{error}");
        fs::write(database(&lost), bytes).unwrap();
        assert_eq!(event_count(&lost).await, 3, "it was put back");
        for file in &FILES {
            let _ = fs::remove_file(lost.path().join(file));
        }
        sqlite_open(lost.path()).close();
    }
}

#[tokio::test]
async fn a_wal_of_a_version_without_tokens_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    crate::migrations::create_database(folder.path(), crate::migrations::RELEASED, "");
    let old = Connection::open(database(&folder)).unwrap();
    old.pragma_update(None, "journal_mode", "WAL").unwrap();
    old.execute("INSERT INTO meta VALUES ('kept', 7)", []).unwrap();
    let crashed = tempfile::tempdir().unwrap();
    copy(folder.path(), crashed.path(), &FILES[..2]);
    sqlite_open(crashed.path()).close();
    let kept = Connection::open(database(&crashed)).unwrap().query_row(
        "SELECT value FROM meta WHERE name = 'kept'",
        [],
        |row| row.get::<_, i64>(0),
    );
    assert_eq!(kept, Ok(7));
    // The database has a token now, and the old WAL has none.
    copy(folder.path(), crashed.path(), &FILES[1..2]);
    assert_stale(&crashed);
}

/// Destroys a leaf page of the events. When a store opens, only the check reads it.
fn damage(folder: &TempDir) {
    const LEAF: u8 = 0x0D;
    let mut bytes = fs::read(database(folder)).unwrap();
    let kind = progress(1).body.kind().as_bytes();
    // A page of the schema, which names the type in a view, is no page of events.
    let count = |page: &[u8]| page.windows(kind.len()).filter(|window| *window == kind).count();
    let is_leaf = |page: &[u8]| page[0] == LEAF && count(page) >= 5;
    let page = bytes.chunks_exact_mut(4096).find(|page| is_leaf(page)).unwrap();
    page[..12].fill(0xA5);
    fs::write(database(folder), bytes).unwrap();
}

#[tokio::test]
async fn a_store_is_checked_after_a_crash() {
    let (folder, store, fence) = store_with(200).await;
    checkpoint(&folder);
    write(&store, fence, 200, 201).await;
    let crashed = crash(&folder);
    damage(&crashed);
    let error = open_error(&crashed);
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error:?}");
}

/// Opens a store that is checked in the background.
fn open_large(folder: &TempDir) -> SqliteStore {
    let options = SqliteOptions { check_at_open_bytes: 0, ..SqliteOptions::default() };
    SqliteStore::open(&database(folder), options, NOW).unwrap()
}

#[tokio::test]
async fn a_large_store_is_checked_in_the_background_after_a_crash() {
    let (folder, store, fence) = store_with(200).await;
    checkpoint(&folder);
    write(&store, fence, 200, 201).await;
    let (sound, damaged) = (crash(&folder), crash(&folder));
    damage(&damaged);

    let store = open_large(&sound);
    while store.check(false).await.unwrap().crash_check_due {}
    commit(&store, lease(&store, 1).await, vec![], vec![progress(201)]).await.unwrap();

    let store = open_large(&damaged);
    let fence = lease(&store, 1).await;
    let error = loop {
        if let Err(error) = commit(&store, fence, vec![], vec![progress(201)]).await {
            break error;
        }
    };
    assert!(matches!(&error, StoreError::Corrupt(text) if text.contains("backup")), "{error:?}");
}

#[tokio::test]
async fn a_check_that_did_not_finish_is_repeated() {
    let (folder, store, _) = store_with(3).await;
    store.close();
    let connection = Connection::open(database(&folder)).unwrap();
    connection.execute("INSERT INTO meta VALUES ('crash_check_due', 1)", []).unwrap();
    drop(connection);
    let due = SqliteView::open(&database(&folder), true).unwrap().check(false).unwrap().crash_check_due;
    assert!(due, "doctor reports it");
    let store = sqlite_open(folder.path());
    assert!(!store.check(false).await.unwrap().crash_check_due);
}
