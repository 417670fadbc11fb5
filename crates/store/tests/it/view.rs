//! The read-only handle sees all commits and changes no file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use mainspring_store::{OpenError, SCHEMA_VERSION, SqliteView};
use tempfile::TempDir;

use crate::fixtures::*;
use crate::migrations::{RELEASED, create_database};

const DATABASE: &str = "test.sqlite3";

/// Bytes and modification time of every file of a folder.
fn files(folder: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let read = |entry: fs::DirEntry| {
        let modified = entry.metadata().unwrap().modified().unwrap();
        (entry.file_name().into_string().unwrap(), (fs::read(entry.path()).unwrap(), modified))
    };
    fs::read_dir(folder).unwrap().map(|entry| read(entry.unwrap())).collect()
}

/// Counts the events through the handle, and checks that no file changed.
fn events_seen(folder: &TempDir) -> u64 {
    let before = files(folder.path());
    let view = SqliteView::open(&folder.path().join(DATABASE), false).unwrap();
    let check = view.check(true).unwrap();
    assert_eq!(check.problems, Vec::<String>::new());
    view.unfinished_runs().unwrap();
    assert!(files(folder.path()) == before, "a file changed while it was read");
    drop(view);
    assert!(files(folder.path()) == before, "a file changed when the handle was closed");
    check.events
}

/// Creates a store with an event, and a copy of its files as a crash leaves them.
async fn crashed(suffixes: &[&str]) -> TempDir {
    let (folder, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    commit(&store, fence, vec![], vec![progress(1)]).await.unwrap();
    for suffix in suffixes {
        let name = format!("{DATABASE}{suffix}");
        fs::copy(folder.path().join(&name), copied.path().join(&name)).unwrap();
    }
    copied
}

#[tokio::test]
async fn a_crashed_database_is_read_with_its_wal() {
    assert_eq!(events_seen(&crashed(&["", "-wal", "-shm", "-history"]).await), 1);
    assert_eq!(events_seen(&crashed(&["", "-wal", "-history"]).await), 1, "without its index");
}

#[tokio::test]
async fn a_closed_database_is_read_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    commit(&store, fence, vec![], vec![progress(1)]).await.unwrap();
    store.close();
    assert_eq!(events_seen(&folder), 1);
}

#[tokio::test]
async fn an_earlier_schema_is_reported_and_not_migrated() {
    let folder = tempfile::tempdir().unwrap();
    create_database(folder.path(), &RELEASED[..1], "");
    assert_eq!(events_seen(&folder), 0);
    let view = SqliteView::open(&folder.path().join(DATABASE), false).unwrap();
    assert_eq!((view.schema_version().unwrap(), view.check(false).unwrap().schema_version), (1, 1));
    assert_ne!(SCHEMA_VERSION, 1);
}

#[tokio::test]
async fn a_wal_of_another_database_is_refused() {
    let folder = crashed(&["", "-wal", "-shm", "-history"]).await;
    let other = crashed(&[""]).await;
    fs::copy(other.path().join(DATABASE), folder.path().join(DATABASE)).unwrap();
    let before = files(folder.path());
    let error = SqliteView::open(&folder.path().join(DATABASE), false).unwrap_err();
    assert!(matches!(error, OpenError::StaleWal { .. }), "{error:?}");
    assert!(files(folder.path()) == before);
}
