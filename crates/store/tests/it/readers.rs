//! Pins of readers, and artifacts that forks inherit.

use mainspring_core::*;
use mainspring_kernel::store::{Pin, Row, Store};

use crate::fixtures::*;
use crate::migrations::{RELEASED, create_database, insert_queued_run};

fn pin(owner: &str, session: u64, at: Option<Time>) -> Row {
    Row::Pin(Box::new(Pin { owner: owner.into(), session: session_id(session), at }))
}

async fn delete(store: &dyn Store, n: u64) {
    let session = store.session_load(session_id(n)).await.unwrap().unwrap().session;
    let fence = lease(store, n).await;
    let deleted = Session { status: SessionStatus::Deleted, ..session };
    commit(store, fence, vec![row_session(deleted)], vec![]).await.unwrap();
    while store.session_purge(session_id(n)).await.unwrap() {}
}

#[tokio::test]
async fn each_reader_has_its_own_pins() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (one, two) = (create_session(store, 1).await, create_session(store, 2).await);
        commit(store, two, vec![pin("ann", 2, Some(NOW))], vec![]).await.unwrap();
        let rows = vec![pin("ann", 1, Some(NOW.plus(1))), pin("ben", 1, Some(NOW.plus(2)))];
        commit(store, one, rows, vec![]).await.unwrap();
        commit(store, one, vec![pin("ann", 1, Some(NOW.plus(3)))], vec![]).await.unwrap();
        let both = [(session_id(1), NOW.plus(1)), (session_id(2), NOW)];
        assert_eq!(store.pins("ann").await.unwrap(), both, "{name}: a pin keeps its time");
        assert_eq!(store.pins("ben").await.unwrap(), [(session_id(1), NOW.plus(2))], "{name}");
        commit(store, one, vec![pin("ann", 1, None)], vec![]).await.unwrap();
        assert_eq!(store.pins("ann").await.unwrap(), [(session_id(2), NOW)], "{name}");
        delete(store, 1).await;
        assert_eq!(store.pins("ben").await.unwrap(), [], "{name}: the pins of a deleted session are gone");
    }
}

#[tokio::test]
async fn pins_of_an_earlier_version_become_pins_of_the_owners() {
    let folder = tempfile::tempdir().unwrap();
    let sql = format!("{}; UPDATE sessions SET pinned = 1;", insert_queued_run(0));
    create_database(folder.path(), RELEASED, &sql);
    let store = sqlite_open(folder.path());
    let check = store.check(true).await.unwrap();
    assert_eq!(check.problems, Vec::<String>::new());
    let owner = store.session_load(session_id(1)).await.unwrap().unwrap().session.owner;
    let pins = store.pins(&owner).await.unwrap();
    assert_eq!(pins.iter().map(|(session, _)| *session).collect::<Vec<_>>(), [session_id(1)]);
}

fn artifact(session: u64, hash: &str) -> Artifact {
    Artifact {
        id: ArtifactId::from_random([7; 16]),
        session: session_id(session),
        run: None,
        attempt: None,
        kind: "file".into(),
        role: ArtifactRole::Other,
        uri: format!("blake3:{hash}"),
        name: Some("plan".into()),
        mime_type: None,
        content_hash: Some(hash.into()),
        size_bytes: Some(3),
        created_at: NOW,
        metadata: serde_json::Map::new(),
    }
}

#[tokio::test]
async fn a_fork_keeps_the_artifacts_that_it_has_inherited() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (source, fork) = (create_session(store, 1).await, create_session(store, 2).await);
        let (original, copy) = (artifact(1, "abc"), artifact(2, "abc"));
        commit(store, source, vec![Row::Artifact(Box::new(original.clone()))], vec![]).await.unwrap();
        commit(store, fork, vec![Row::InheritedArtifact(Box::new(copy.clone()))], vec![]).await.unwrap();
        let copies = [copy];
        assert_eq!(store.artifact_heirs(original.id).await.unwrap(), copies, "{name}");
        assert_eq!(store.artifacts_inherited(session_id(2)).await.unwrap(), copies, "{name}");
        assert_eq!(store.artifacts_inherited(session_id(1)).await.unwrap(), [], "{name}");
        delete(store, 1).await;
        assert_eq!(store.artifact_get(original.id).await.unwrap(), None, "{name}");
        assert_eq!(store.artifact_heirs(original.id).await.unwrap(), copies, "{name}");
        assert_eq!(store.blob_page(None, 9).await.unwrap(), [("abc".to_owned(), 3)], "{name}");
        assert!(store.blob_is_used("abc").await.unwrap(), "{name}: the fork needs the bytes");
        delete(store, 2).await;
        assert_eq!(store.artifact_heirs(original.id).await.unwrap(), [], "{name}");
        assert_eq!(store.blob_loose(9).await.unwrap(), ["abc"], "{name}");
        assert!(!store.blob_is_used("abc").await.unwrap(), "{name}");
    }
}
