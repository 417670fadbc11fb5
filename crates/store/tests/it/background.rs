//! Background work: merges of the WAL, and the search index. Commits go on meanwhile, and no data is lost.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainspring_kernel::store::{Fence, Store};
use mainspring_store::{Durability, SqliteOptions, SqliteStore};
use parking_lot::Mutex;
use rusqlite::Connection;

use crate::fixtures::*;

/// Opens a store whose commits are not synced: the tests simulate crashes of the process.
fn unsynced(folder: &Path) -> Arc<SqliteStore> {
    let options = SqliteOptions { durability: Durability::Normal, ..SqliteOptions::default() };
    Arc::new(SqliteStore::open(&folder.join("test.sqlite3"), options, NOW).unwrap())
}

fn wal_bytes(folder: &Path) -> u64 {
    fs::metadata(folder.join("test.sqlite3-wal")).unwrap().len()
}

/// Stores `count` messages of a session, from message `from` on.
async fn write_messages(store: &SqliteStore, fence: Fence, session: u64, from: u64, count: u64, text: &str) {
    for n in from..from + count {
        let rows = vec![row_message(message(n, session, text), None)];
        commit(store, fence, rows, vec![]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_wal_stays_bounded_while_commits_go_on() {
    const WRITERS: u64 = 4;
    const COMMITS: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    let store = unsynced(folder.path());
    let text = Arc::new("word ".repeat(16 << 10));
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..WRITERS {
        let (store, text, path) = (store.clone(), text.clone(), folder.path().to_owned());
        writers.spawn(async move {
            let fence = create_session(&*store, n).await;
            let mut longest = 0;
            for no in 0..COMMITS {
                write_messages(&store, fence, n, n * COMMITS + no, 1, &text).await;
                longest = longest.max(wal_bytes(&path));
            }
            longest
        });
    }
    let longest = writers.join_all().await.into_iter().max().unwrap();
    let written = WRITERS * COMMITS * text.len() as u64;
    assert!(written > 100 << 20 && longest < 80 << 20, "the WAL had {longest} bytes");
    assert_eq!(store.check(true).await.unwrap().problems, Vec::<String>::new());
    let crashed = tempfile::tempdir().unwrap();
    // Closed first: a merge must not run while the files are copied one after the other.
    Arc::into_inner(store).unwrap().close();
    for file in ["test.sqlite3", "test.sqlite3-history"] {
        fs::copy(folder.path().join(file), crashed.path().join(file)).unwrap();
    }
    let store = sqlite_open(crashed.path());
    for n in 0..WRITERS * COMMITS {
        assert!(store.message_get(session_id(n / COMMITS), message_id(n)).await.unwrap().is_some(), "{n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wal_that_restarts_while_another_thread_merges_still_names_its_database() {
    let folder = tempfile::tempdir().unwrap();
    let store = unsynced(folder.path());
    let fence = create_session(&*store, 1).await;
    let mut next = 0;
    for round in 0..20 {
        let merges = Arc::new(AtomicBool::new(true));
        let thread = std::thread::spawn({
            let (merges, path) = (merges.clone(), folder.path().join("test.sqlite3"));
            move || {
                let connection = Connection::open(path).unwrap();
                while merges.load(Ordering::Relaxed) {
                    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
                }
            }
        });
        for _ in 0..50 {
            commit(&*store, fence, vec![], vec![progress(next)]).await.unwrap();
            next += 1;
        }
        merges.store(false, Ordering::Relaxed);
        thread.join().unwrap();
        let crashed = tempfile::tempdir().unwrap();
        for file in ["test.sqlite3", "test.sqlite3-wal", "test.sqlite3-history"] {
            fs::copy(folder.path().join(file), crashed.path().join(file)).unwrap();
        }
        let found = events(&sqlite_open(crashed.path()), 1).await.len();
        assert_eq!(found as u64, next, "round {round}");
    }
}

#[tokio::test]
async fn a_step_of_the_search_index_waits_for_queued_commits() {
    let folder = tempfile::tempdir().unwrap();
    let store = unsynced(folder.path());
    let fence = create_session(&*store, 1).await;
    write_messages(&store, fence, 1, 0, 10, "word").await;
    let paused = store.pause_writer();
    let order = Arc::new(Mutex::new(vec![]));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn({
        let (store, order) = (store.clone(), order.clone());
        async move {
            store.search_index().await.unwrap();
            order.lock().push("index");
        }
    });
    tasks.spawn({
        let (store, order) = (store.clone(), order.clone());
        async move {
            // The step is queued before the commit.
            while store.queued_background() == 0 {
                tokio::task::yield_now().await;
            }
            commit(&*store, fence, vec![], vec![progress(1)]).await.unwrap();
            order.lock().push("commit");
        }
    });
    while store.queued() == 0 {
        tokio::task::yield_now().await;
    }
    drop(paused);
    tasks.join_all().await;
    assert_eq!(*order.lock(), ["commit", "index"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_go_on_while_many_messages_are_indexed() {
    const MESSAGES: u64 = 3_000;
    let folder = tempfile::tempdir().unwrap();
    let store = unsynced(folder.path());
    let fence = create_session(&*store, 1).await;
    for from in (0..MESSAGES).step_by(500) {
        let rows = (from..from + 500).map(|n| row_message(message(n, 1, "some words to be found"), None));
        commit(&*store, fence, rows.collect(), vec![]).await.unwrap();
    }
    let mut tasks = tokio::task::JoinSet::new();
    let index = tasks.spawn({
        let store = store.clone();
        async move { while store.search_index().await.unwrap() {} }
    });
    let mut during = 0;
    while !index.is_finished() {
        commit(&*store, fence, vec![], vec![progress(during)]).await.unwrap();
        during += 1;
    }
    tasks.join_all().await;
    assert!(during >= 10, "{during} commits while {MESSAGES} messages were indexed");
    let path = folder.path().join("test.sqlite3");
    let indexed = "SELECT count(*) FROM search_messages_docsize";
    let indexed: i64 = Connection::open(path).unwrap().query_row(indexed, [], |row| row.get(0)).unwrap();
    assert_eq!(indexed.cast_unsigned(), MESSAGES);
}
