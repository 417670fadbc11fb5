//! State along paths, and artifacts with the hashes they refer to.

use mainspring_core::*;
use mainspring_kernel::store::{
    ArtifactPage, Fence, OwnerState, Row, StateAt, StateChangeRow, StateHistoryOf, StatePlace, StateRow,
    Store, StoreError,
};
use serde_json::{Value, json};

use crate::fixtures::*;
use crate::migrations::{RELEASED, create_database};

fn state(at: Option<Point>, aside: bool, key: &str, version: u64, value: Option<Value>) -> Row {
    let place = StatePlace::Session { at, aside };
    Row::State(Box::new(StateRow { place, key: key.into(), version, value, at: NOW }))
}

/// Writes `value` under `key` with a new version, as the actor of a session does.
async fn set(store: &dyn Store, fence: Fence, at: Option<Point>, key: &str, value: Option<Value>) {
    let slot = store.state_get(&visible_to(fence, at), key).await.unwrap();
    let row = state(at, false, key, slot.version + 1, value);
    commit(store, fence, vec![row], vec![progress(1)]).await.unwrap();
}

fn visible_to(fence: Fence, at: Option<Point>) -> StateAt {
    StateAt::Session { session: fence.session, at }
}

/// Returns the state that a session sees from a point, as text.
async fn state_text(store: &dyn Store, fence: Fence, at: Option<Point>) -> String {
    let entries = store.state_page(&visible_to(fence, at), None, NO_LIMIT).await.unwrap().items;
    assert_eq!(store.state_count(&visible_to(fence, at)).await.unwrap(), entries.len());
    for entry in &entries {
        let slot = store.state_get(&visible_to(fence, at), &entry.key).await.unwrap();
        assert_eq!(slot.entry.as_ref(), Some(entry));
        assert!(slot.version >= entry.version);
    }
    let texts = entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
    texts.collect::<Vec<_>>().join(" ")
}

/// Writes a line, as a branch or a fork does.
async fn write_line(store: &dyn Store, fence: Fence, line: Line) {
    commit(store, fence, vec![Row::Line(line)], vec![progress(1)]).await.unwrap();
}

#[tokio::test]
async fn a_branch_sees_the_state_at_its_point_and_no_later_changes() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let one = create_session(store, 1).await;
        set(store, one, None, "root", Some(json!(0))).await;
        write_line(store, one, line(1, None, 6)).await;
        for pos in 0..6 {
            set(store, one, Some(point(1, pos)), "depth", Some(json!(pos))).await;
        }
        set(store, one, Some(point(1, 1)), "early", Some(json!("yes"))).await;
        set(store, one, Some(point(1, 4)), "early", None).await;
        write_line(store, one, line(2, Some(point(1, 2)), 2)).await;
        assert_eq!(state_text(store, one, Some(point(1, 5))).await, "depth=5 root=0", "{name}");
        assert_eq!(state_text(store, one, Some(point(1, 3))).await, "depth=3 early=\"yes\" root=0", "{name}");
        assert_eq!(state_text(store, one, Some(point(2, 3))).await, "depth=2 early=\"yes\" root=0", "{name}");
        assert_eq!(state_text(store, one, None).await, "root=0", "{name}");
        // Later changes are visible only on the side that made them.
        set(store, one, Some(point(2, 3)), "depth", Some(json!("branch"))).await;
        set(store, one, Some(point(1, 2)), "depth", Some(json!("late"))).await;
        set(store, one, None, "root", Some(json!("late"))).await;
        assert_eq!(
            state_text(store, one, Some(point(2, 4))).await,
            "depth=\"branch\" early=\"yes\" root=0",
            "{name}"
        );
        assert_eq!(state_text(store, one, Some(point(2, 2))).await, "depth=2 early=\"yes\" root=0", "{name}");
        assert_eq!(
            state_text(store, one, Some(point(1, 2))).await,
            "depth=\"late\" early=\"yes\" root=0",
            "{name}"
        );
        assert_eq!(state_text(store, one, None).await, "root=\"late\"", "{name}: the next root sees it");
    }
}

#[tokio::test]
async fn a_fork_and_its_source_do_not_see_later_state_of_each_other() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let source = create_session(store, 1).await;
        set(store, source, None, "root", Some(json!(1))).await;
        write_line(store, source, line(1, None, 4)).await;
        let tip = Some(point(1, 3));
        set(store, source, tip, "a", Some(json!("before"))).await;
        // Two forks: one without a line of its own, one with an empty line.
        let (bare, empty) = (lease(store, 2).await, lease(store, 3).await);
        let fork_row = |n, tip| row_session(Session { tip: Some(tip), ..session(n) });
        commit(store, bare, vec![fork_row(2, point(1, 3))], vec![progress(1)]).await.unwrap();
        let rows = vec![fork_row(3, point(3, 3)), Row::Line(line(3, Some(point(1, 3)), 0))];
        commit(store, empty, rows, vec![progress(1)]).await.unwrap();

        set(store, source, tip, "a", Some(json!("source"))).await;
        set(store, source, None, "root", Some(json!("source"))).await;
        let inherited = "a=\"before\" root=1";
        assert_eq!(state_text(store, bare, tip).await, inherited, "{name}");
        assert_eq!(state_text(store, empty, Some(point(3, 3))).await, inherited, "{name}");
        set(store, bare, tip, "a", Some(json!("bare"))).await;
        set(store, empty, Some(point(3, 3)), "a", None).await;
        assert_eq!(state_text(store, bare, tip).await, "a=\"bare\" root=1", "{name}");
        assert_eq!(state_text(store, empty, Some(point(3, 3))).await, "root=1", "{name}");
        assert_eq!(state_text(store, source, tip).await, "a=\"source\" root=1", "{name}");
        // The first line of the bare fork is opened only now, but sees the same state as before.
        write_line(store, bare, line(2, Some(point(1, 3)), 2)).await;
        assert_eq!(state_text(store, bare, Some(point(2, 5))).await, "a=\"bare\" root=1", "{name}");
        set(store, source, tip, "b", Some(json!("later"))).await;
        assert_eq!(state_text(store, bare, Some(point(2, 5))).await, "a=\"bare\" root=1", "{name}");
        // A fork of the fork, and a new root of the source.
        let third = lease(store, 4).await;
        let rows = vec![fork_row(4, point(4, 4)), Row::Line(line(4, Some(point(2, 4)), 0))];
        commit(store, third, rows, vec![progress(1)]).await.unwrap();
        assert_eq!(state_text(store, third, Some(point(4, 4))).await, "a=\"bare\" root=1", "{name}");
        write_line(store, source, line(5, None, 1)).await;
        assert_eq!(state_text(store, source, Some(point(5, 0))).await, "root=\"source\"", "{name}");

        // Deleting the source removes nothing its forks see. Deleting the last fork removes everything.
        for (fence, n) in [(source, 1), (bare, 2), (empty, 3)] {
            delete_session(store, fence).await;
            while store.session_purge(session_id(n)).await.unwrap() {}
            assert_eq!(
                state_text(store, third, Some(point(4, 4))).await,
                "a=\"bare\" root=1",
                "{name} without {n}"
            );
        }
        delete_session(store, third).await;
        while store.session_purge(session_id(4)).await.unwrap() {}
        for n in 1..=4 {
            let at = StateAt::Session { session: session_id(n), at: None };
            for key in ["a", "b", "root"] {
                assert_eq!(
                    store.state_get(&at, key).await.unwrap(),
                    StateSlot::default(),
                    "{name} {n} {key}"
                );
            }
        }
    }
}

#[tokio::test]
async fn state_written_aside_is_not_visible_to_later_messages_of_the_line() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        write_line(store, fence, line(1, None, 4)).await;
        let row = state(Some(point(1, 1)), true, "k", 1, Some(json!(1)));
        commit(store, fence, vec![row], vec![progress(1)]).await.unwrap();
        assert_eq!(state_text(store, fence, Some(point(1, 1))).await, "k=1", "{name}");
        assert_eq!(state_text(store, fence, Some(point(1, 2))).await, "", "{name}");
        write_line(store, fence, line(2, Some(point(1, 1)), 1)).await;
        assert_eq!(state_text(store, fence, Some(point(2, 2))).await, "k=1", "{name}");
        // State written after the last message of a run is moved back to that message.
        set(store, fence, Some(point(2, 3)), "left", Some(json!(2))).await;
        assert_eq!(state_text(store, fence, Some(point(2, 2))).await, "k=1", "{name}");
        let back = Row::StateBack(point(2, 3), "left".into());
        commit(store, fence, vec![back], vec![progress(1)]).await.unwrap();
        assert_eq!(state_text(store, fence, Some(point(2, 2))).await, "k=1 left=2", "{name}");
    }
}

#[tokio::test]
async fn state_is_paged_by_key_and_a_version_is_used_once() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        commit(store, fence, vec![row_run(run(1, 1, 1, queued()))], vec![]).await.unwrap();
        for key in ["c", "a", "b"] {
            set(store, fence, None, key, Some(json!(key))).await;
            let place = StatePlace::Run(run_id(1));
            let row = StateRow { place, key: key.into(), version: 1, value: Some(json!(key)), at: NOW };
            commit(store, fence, vec![Row::State(Box::new(row))], vec![]).await.unwrap();
            let put = OwnerState {
                owner: OWNER.into(),
                key: key.into(),
                value: Some(json!(key)),
                expect: Expect::Absent,
                at: NOW,
                by: StateWriter::Caller { key_id: None },
            };
            assert!(store.state_put(put).await.unwrap().created, "{name}");
        }
        for at in [visible_to(fence, None), StateAt::Run(run_id(1)), StateAt::Owner(OWNER.into())] {
            let keys = async |after, limit| {
                let page = store.state_page(&at, after, limit).await.unwrap().items;
                page.into_iter().map(|entry| entry.key).collect::<String>()
            };
            assert_eq!(keys(None, 2).await, "ab", "{name}");
            assert_eq!(keys(Some("b"), 2).await, "c", "{name}");
            assert_eq!(store.state_count(&at).await.unwrap(), 3, "{name}");
        }
        let again = state(None, false, "a", 1, Some(json!(2)));
        assert!(commit(store, fence, vec![again], vec![]).await.is_err(), "{name}: a version is used once");
        let (nobody, gone) = (StateAt::Owner("bob".into()), StateAt::Run(run_id(9)));
        assert_eq!(store.state_count(&nobody).await.unwrap() + store.state_count(&gone).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn state_of_an_owner_is_changed_by_compare_and_set() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let put = async |value: Option<u64>, expect| {
            let (owner, key) = (OWNER.to_owned(), "k".to_owned());
            let (value, by) = (value.map(|value| json!(value)), StateWriter::Caller { key_id: None });
            let put = OwnerState { owner, key, value, expect, at: NOW, by };
            store.state_put(put).await.map(|outcome| outcome.entry.map(|entry| entry.version))
        };
        let first = put(Some(1), Expect::Absent).await.unwrap().unwrap();
        let refused = Err(StoreError::VersionMismatch(VersionMismatch { expected: 0, current: first }));
        assert_eq!(put(Some(2), Expect::Absent).await, refused, "{name}");
        let second = put(Some(2), Expect::Version(first)).await.unwrap().unwrap();
        assert!(second > first, "{name}");
        assert!(put(Some(3), Expect::Version(first)).await.is_err(), "{name}");
        assert_eq!(put(Some(2), Expect::Any).await, Ok(Some(second)), "{name}: nothing changed");
        assert_eq!(put(None, Expect::Version(second)).await, Ok(None), "{name}");
        let third = put(Some(1), Expect::Absent).await.unwrap().unwrap();
        assert!(third > second, "{name}: a key created again gets a new version");
    }
}

#[tokio::test]
async fn versions_of_an_owner_count_the_changes_of_that_owner_only() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let put = async |owner: &str, key: &str, value: Option<u64>| {
            let (owner, key, value) = (owner.to_owned(), key.to_owned(), value.map(|value| json!(value)));
            let put = OwnerState {
                owner,
                key,
                value,
                expect: Expect::Any,
                at: NOW,
                by: StateWriter::Caller { key_id: None },
            };
            store.state_put(put).await.unwrap().entry.map(|entry| entry.version)
        };
        assert_eq!(put("ada", "a", Some(1)).await, Some(1), "{name}");
        for value in 0..5 {
            put("eve", "a", Some(value)).await;
        }
        assert_eq!(put("ada", "b", Some(1)).await, Some(2), "{name}");
        assert_eq!(put("ada", "a", None).await, None, "{name}");
        assert_eq!(put("ada", "a", Some(1)).await, Some(4), "{name}: a version names one value");
        assert_eq!(put("eve", "b", Some(1)).await, Some(6), "{name}");
    }
}

#[tokio::test]
async fn state_versions_of_earlier_owners_continue_and_new_owners_start_at_one() {
    let folder = tempfile::tempdir().unwrap();
    let fill = "INSERT INTO owner_state (owner_id, key, version, value, updated_at_ms) VALUES ('ada', 'a', 5, '1', 1);
        INSERT INTO meta VALUES ('owner_state', 7);";
    create_database(folder.path(), RELEASED, fill);
    let store = sqlite_open(folder.path());
    for (owner, version) in [("ada", 8), ("new", 1), ("ada", 9)] {
        let (owner, value) = (owner.to_owned(), Some(json!(version)));
        let put = OwnerState {
            owner,
            key: "b".into(),
            value,
            expect: Expect::Any,
            at: NOW,
            by: StateWriter::Caller { key_id: None },
        };
        assert_eq!(store.state_put(put).await.unwrap().entry.unwrap().version, version);
    }
    for (owner, keys) in [("ada", 2), ("new", 1)] {
        assert_eq!(store.state_count(&StateAt::Owner(owner.into())).await.unwrap(), keys, "{owner}");
    }
}

/// The count is stored, not computed from all keys.
#[tokio::test]
async fn the_count_of_an_owners_keys_follows_every_change() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let put = async |owner: &str, key: &str, value: Option<u64>, expect| {
            let (owner, key, value) = (owner.to_owned(), key.to_owned(), value.map(|value| json!(value)));
            let by = StateWriter::Caller { key_id: None };
            store.state_put(OwnerState { owner, key, value, expect, at: NOW, by }).await.is_ok()
        };
        for (owner, key, value, expect, is_done, ada, eve) in [
            ("ada", "a", Some(1), Expect::Any, true, 1, 0),
            ("ada", "a", Some(2), Expect::Any, true, 1, 0),
            ("ada", "a", Some(2), Expect::Any, true, 1, 0),
            ("ada", "b", Some(1), Expect::Absent, true, 2, 0),
            ("ada", "b", Some(1), Expect::Absent, false, 2, 0),
            ("eve", "a", Some(1), Expect::Any, true, 2, 1),
            ("ada", "a", None, Expect::Any, true, 1, 1),
            ("ada", "a", None, Expect::Any, true, 1, 1),
            ("ada", "a", None, Expect::Present, false, 1, 1),
            ("ada", "a", Some(3), Expect::Any, true, 2, 1),
        ] {
            assert_eq!(put(owner, key, value, expect).await, is_done, "{name}: {owner} {key} {value:?}");
            for (owner, keys) in [("ada", ada), ("eve", eve)] {
                let count = store.state_count(&StateAt::Owner(owner.into())).await.unwrap();
                assert_eq!(count, keys, "{name}: {owner} after {key} {value:?} {expect:?}");
            }
        }
    }
}

#[tokio::test]
async fn artifacts_are_listed_and_their_hashes_become_loose() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (one, two) = (create_session(store, 1).await, create_session(store, 2).await);
        let row = |artifact: &Artifact| Row::Artifact(Box::new(artifact.clone()));
        let run = Some(run_id(1));
        let artifacts: Vec<Artifact> =
            (1..=3).map(|n| Artifact { run: run.filter(|_| n != 2), ..artifact(n, 1, "same") }).collect();
        let other = artifact(4, 2, "other");
        commit(store, one, artifacts.iter().map(row).collect(), vec![progress(1)]).await.unwrap();
        commit(store, two, vec![row(&other), row(&artifact(5, 2, "same"))], vec![]).await.unwrap();
        let list = async |run, before: Option<&Artifact>, limit| {
            let before = before.map(|artifact| (artifact.created_at, artifact.id));
            let page = ArtifactPage { session: session_id(1), run, before, limit };
            store.artifact_page(&page).await.unwrap().iter().map(|artifact| artifact.id).collect::<Vec<_>>()
        };
        assert_eq!(list(None, None, 2).await, [artifacts[2].id, artifacts[1].id], "{name}");
        assert_eq!(list(None, Some(&artifacts[1]), 2).await, [artifacts[0].id], "{name}");
        assert_eq!(list(run, None, 9).await, [artifacts[2].id, artifacts[0].id], "{name}");
        assert_eq!(
            store.artifact_get(artifacts[0].id).await.unwrap().as_ref(),
            Some(&artifacts[0]),
            "{name}"
        );
        assert_eq!(
            store.blob_page(None, 9).await.unwrap(),
            [("other".to_owned(), 7), ("same".to_owned(), 7)],
            "{name}"
        );

        // A session cannot remove an artifact of another session.
        let gone = vec![Row::ArtifactGone(artifacts[1].id), Row::ArtifactGone(other.id)];
        commit(store, one, gone, vec![progress(2)]).await.unwrap();
        assert_eq!(store.artifact_get(artifacts[1].id).await.unwrap(), None, "{name}");
        assert!(store.artifact_get(other.id).await.unwrap().is_some(), "{name}");
        assert_eq!(store.blob_loose(9).await.unwrap(), ["same"], "{name}");
        assert!(store.blob_is_used("same").await.unwrap(), "{name}: another artifact refers to it");
        assert_eq!(store.blob_loose(9).await.unwrap(), Vec::<String>::new(), "{name}");
        delete_session(store, two).await;
        assert_eq!(store.artifact_get(other.id).await.unwrap(), None, "{name}: removed at once");
        assert!(store.blob_is_used("other").await.unwrap(), "{name}: but its hash is not loose yet");
        while store.session_purge(session_id(2)).await.unwrap() {}
        assert_eq!(store.blob_loose(9).await.unwrap(), ["other", "same"], "{name}");
        assert!(!store.blob_is_used("other").await.unwrap(), "{name}");
        assert!(store.blob_is_used("same").await.unwrap(), "{name}");
        assert_eq!(store.blob_loose(9).await.unwrap(), ["other"], "{name}: until it is settled");
        store.blob_forget("other").await.unwrap();
        assert_eq!(store.blob_loose(9).await.unwrap(), Vec::<String>::new(), "{name}");
    }
}

#[tokio::test]
async fn the_history_of_a_key_keeps_the_last_changes_and_their_writers() {
    use mainspring_core::state::HISTORY_CHANGES;
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        commit(store, fence, vec![row_run(run(1, 1, 1, queued()))], vec![]).await.unwrap();
        let caller = StateWriter::Caller { key_id: None };
        let tool = Some("state_set".to_owned());
        let agent = StateWriter::Agent { run_id: run_id(1), attempt_id: attempt_id(1), tool };
        let (session, of_run) = (StateHistoryOf::Session(session_id(1)), StateHistoryOf::Run(run_id(1)));
        for version in 1..=HISTORY_CHANGES as u64 + 3 {
            let by = if version % 2 == 0 { agent.clone() } else { caller.clone() };
            let change = StateChange::new("k", version, Some(&json!(version)), NOW, by);
            let rows = [&session, &of_run].map(|of| {
                Row::StateChange(Box::new(StateChangeRow { of: of.clone(), change: change.clone() }))
            });
            commit(store, fence, rows.into(), vec![]).await.unwrap();
        }
        for of in [&session, &of_run] {
            let all = store.state_history(of, "k", None, 500).await.unwrap().items;
            assert_eq!(all.len(), HISTORY_CHANGES, "{name}");
            assert_eq!((all[0].version, all.last().unwrap().version), (53, 4), "{name}");
            assert_eq!((&all[0].by, &all[1].by), (&caller, &agent), "{name}");
            let page = store.state_history(of, "k", Some(10), 2).await.unwrap().items;
            assert_eq!(page.iter().map(|change| change.version).collect::<Vec<_>>(), [9, 8], "{name}");
            assert!(store.state_history(of, "other", None, 9).await.unwrap().items.is_empty(), "{name}");
        }
        // An owner of the same name as a session has a history of its own.
        let owner = StateHistoryOf::Owner(session_id(1).to_string());
        assert!(store.state_history(&owner, "k", None, 9).await.unwrap().items.is_empty(), "{name}");
        delete_session(store, fence).await;
        while store.session_purge(session_id(1)).await.unwrap() {}
        for of in [&session, &of_run] {
            assert!(store.state_history(of, "k", None, 9).await.unwrap().items.is_empty(), "{name}: purged");
        }
    }
}
