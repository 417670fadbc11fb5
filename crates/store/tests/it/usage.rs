//! The amount of data that an owner stores: every change updates the counts.

use mainspring_core::*;
use mainspring_kernel::store::{OwnerUsage, Row, Store};

use crate::fixtures::*;
use crate::migrations::{RELEASED, create_database};

/// The size of a message of the fixtures, as it is stored.
fn size(text: &str) -> u64 {
    serde_json::to_string(&[Block::text(text)]).unwrap().len() as u64
}

async fn usage(store: &dyn Store) -> (u64, u64) {
    let OwnerUsage { bytes, artifacts } = store.owner_usage(OWNER).await.unwrap();
    (bytes, artifacts)
}

async fn purge(store: &dyn Store, n: u64) {
    while store.session_purge(session_id(n)).await.unwrap() {}
}

#[tokio::test]
async fn messages_and_artifacts_count_until_they_are_removed() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        assert_eq!(usage(store).await, (0, 0), "{name}");
        let fence = create_session(store, 1).await;
        let own = line(1, None, 1);
        let rows = vec![Row::Line(own), row_message(message(1, 1, "first"), Some(point(1, 0)))];
        commit(store, fence, rows, vec![progress(1)]).await.unwrap();
        assert_eq!(usage(store).await, (size("first"), 0), "{name}");
        // The same message, longer: it counts once.
        let rows = vec![row_message(message(1, 1, "first and more"), Some(point(1, 0)))];
        commit(store, fence, rows, vec![progress(2)]).await.unwrap();
        assert_eq!(usage(store).await, (size("first and more"), 0), "{name}");
        let stored = Artifact { size_bytes: Some(1000), ..artifact(1, 1, "a") };
        commit(store, fence, vec![Row::Artifact(Box::new(stored))], vec![progress(3)]).await.unwrap();
        assert_eq!(usage(store).await, (size("first and more") + 1000, 1), "{name}");
        commit(store, fence, vec![Row::ArtifactGone(artifact_id(1))], vec![progress(4)]).await.unwrap();
        assert_eq!(usage(store).await, (size("first and more"), 0), "{name}");
        delete_session(store, fence).await;
        purge(store, 1).await;
        assert_eq!(usage(store).await, (0, 0), "{name}");
    }
}

#[tokio::test]
async fn a_message_that_only_a_fork_reads_counts_for_no_owner() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let source = create_session(store, 1).await;
        let own = line(1, None, 1);
        let rows = vec![
            Row::Line(own),
            row_message(message(1, 1, "kept"), Some(point(1, 0))),
            row_session(Session { tip: own.last(), ..session(1) }),
        ];
        commit(store, source, rows, vec![progress(1)]).await.unwrap();
        let fork = create_session(store, 2).await;
        let forked = line(2, own.last(), 1);
        let rows = vec![
            Row::Line(forked),
            row_message(message(2, 2, "own"), Some(point(2, forked.start()))),
            row_session(Session { tip: forked.last(), base: own.last(), ..session(2) }),
        ];
        commit(store, fork, rows, vec![progress(2)]).await.unwrap();
        assert_eq!(usage(store).await, (size("kept") + size("own"), 0), "{name}");
        delete_session(store, source).await;
        purge(store, 1).await;
        assert_eq!(usage(store).await, (size("own"), 0), "{name}");
        delete_session(store, fork).await;
        purge(store, 2).await;
        assert_eq!(usage(store).await, (0, 0), "{name}");
    }
}

#[tokio::test]
async fn data_of_earlier_versions_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let fill = format!(
        "INSERT INTO sessions (session_id, owner_id, agent_definition_id, title, status, surface_kind,
           default_adapter_id, metadata_json, version, created_at_ms, updated_at_ms, last_activity_at_ms)
         VALUES (x'{id}', '{OWNER}', 'generalist@1', 'session 1', 'open', 'chat', 'native', '{{}}', 1, 1, 1, 1);
         INSERT INTO messages (message_id, session_id, role, status, created_at_ms, content)
         VALUES (x'{id}', x'{id}', 'user', 'completed', 1, '[{{\"type\":\"text\",\"text\":\"é\"}}]');
         INSERT INTO artifacts (artifact_id, session_id, kind, role, uri, size_bytes, created_at_ms)
         VALUES (x'{id}', x'{id}', 'file', 'input', 'blake3:x', 10, 1);",
        id = "01".repeat(16),
    );
    create_database(folder.path(), RELEASED, &fill);
    let store = sqlite_open(folder.path());
    assert_eq!(usage(&store).await, (size("é") + 10, 1));
}
