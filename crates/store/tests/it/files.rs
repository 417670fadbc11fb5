//! Files of an open store that are deleted, moved or replaced.

use std::fs;
use std::path::Path;

use mainspring_kernel::store::{Store, StoreError};

use crate::fixtures::*;

const FILES: [&str; 2] = ["test.sqlite3", "test.sqlite3-wal"];

async fn assert_lost(store: &dyn Store, fence: mainspring_kernel::store::Fence) {
    let refused = commit(store, fence, vec![], vec![progress(9)]).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Lost(text) if text.contains("restart")), "{refused:?}");
    assert!(matches!(store.health().await, Err(StoreError::Lost(_))));
}

#[tokio::test]
async fn a_store_whose_folder_is_moved_refuses_commits_until_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (here, away) = (folder.path().join("here"), folder.path().join("away"));
    fs::create_dir(&here).unwrap();
    let store = sqlite_open(&here);
    let fence = create_session(&store, 1).await;
    store.health().await.unwrap();
    fs::rename(&here, &away).unwrap();
    assert_lost(&store, fence).await;
    fs::rename(&away, &here).unwrap();
    store.health().await.unwrap();
    commit(&store, fence, vec![], vec![progress(1)]).await.unwrap();
    store.close();
    assert_eq!(events(&sqlite_open(&here), 1).await.len(), 1);
}

#[tokio::test]
async fn a_store_whose_file_is_deleted_refuses_commits() {
    for file in FILES {
        let folder = tempfile::tempdir().unwrap();
        let store = sqlite_open(folder.path());
        let fence = create_session(&store, 1).await;
        fs::remove_file(folder.path().join(file)).unwrap();
        assert_lost(&store, fence).await;
    }
}

fn copy_files(from: &Path, to: &Path) {
    for file in FILES {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

/// SQLite deletes the WAL by its path when it closes a database.
#[tokio::test]
async fn a_store_that_was_replaced_leaves_the_new_files_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (here, away, other) =
        (folder.path().join("here"), folder.path().join("away"), folder.path().join("other"));
    for path in [&here, &other] {
        fs::create_dir(path).unwrap();
    }
    let running = sqlite_open(&other);
    let fence = create_session(&running, 1).await;
    for n in 0..3 {
        commit(&running, fence, vec![], vec![progress(n)]).await.unwrap();
    }
    let store = sqlite_open(&here);
    let fence = create_session(&store, 1).await;
    fs::rename(&here, &away).unwrap();
    fs::create_dir(&here).unwrap();
    copy_files(&other, &here);
    assert_lost(&store, fence).await;
    store.close();
    assert_eq!(events(&sqlite_open(&here), 1).await.len(), 3);
}
