//! Notes that cannot be read. Such a note is never dropped.

use mainspring_kernel::store::{InboxItem, Note, Row, Store, StoreError};
use mainspring_store::{PostgresOptions, PostgresStore};
use rusqlite::Connection;

use crate::cluster::{database, psql};
use crate::fixtures::*;

/// Leaves a note for session 2, and replaces its text with `rewrite` while the store is closed.
async fn check_unreadable_notes<S: Store>(open: impl Fn() -> S, rewrite: impl Fn(&str)) {
    let item = InboxItem { id: event_id(1), at: NOW, note: Note::Cancel { run: run_id(1) } };
    let store = open();
    let from = create_session(&store, 1).await;
    create_session(&store, 2).await;
    commit(&store, from, vec![Row::Inbox(session_id(2), item.clone())], vec![]).await.unwrap();
    drop(store);
    for unreadable in ["nonsense", "{}", r#"{"note": "hologram"}"#, r#"{"note": "cancel"}"#] {
        rewrite(unreadable);
        let store = open();
        assert_eq!(store.unfinished().await.unwrap().live, [session_id(2)], "{unreadable}");
        let error = store.inbox(session_id(2)).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "{unreadable}: {error:?}");
        let error = store.session_load(session_id(2)).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "{unreadable}: {error:?}");
    }
    rewrite(&format!(r#"{{"note": "cancel", "run": "{}"}}"#, run_id(1)));
    assert_eq!(open().inbox(session_id(2)).await.unwrap(), [item]);
}

#[tokio::test]
async fn an_unreadable_note_is_corrupt_and_stays_in_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let rewrite = |note: &str| {
        let connection = Connection::open(folder.path().join("test.sqlite3")).unwrap();
        assert_eq!(connection.execute("UPDATE inbox SET item = ?1", [note]).unwrap(), 1);
    };
    check_unreadable_notes(|| sqlite_open(folder.path()), rewrite).await;
}

#[tokio::test]
async fn an_unreadable_note_is_corrupt_and_stays_in_postgres() {
    let url = database();
    let rewrite = |note: &str| {
        let sql = format!(
            "WITH changed AS (UPDATE inbox SET note = '{note}' RETURNING 1) SELECT count(*) FROM changed"
        );
        assert_eq!(psql(&url, &sql), "1");
    };
    let open = || PostgresStore::open(&url, PostgresOptions::default()).unwrap();
    check_unreadable_notes(open, rewrite).await;
}
