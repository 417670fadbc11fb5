//! Bit rot: a damaged row is reported by name, and its content is never returned.

use std::fs;
use std::path::Path;

use mainspring_core::*;
use mainspring_kernel::store::{
    Chunk, EndedToolCall, OpenToolCall, OwnerState, Row, SessionPage, SessionRef, SessionsOf, StateAt,
    StateChangeRow, StateHistoryOf, StatePlace, StateRow, Store, StoreError,
};
use mainspring_store::{
    ChecksumReport, CopyEnd, CopyError, CopyOptions, CopyReport, SqliteOptions, SqliteStore, store_copy,
};
use rusqlite::Connection;
use serde_json::json;

use crate::delegations::delegation;
use crate::digests::digest;
use crate::fixtures::*;
use crate::steps::step;

/// Texts that occur once in the database, each with the name of its row.
fn texts() -> [(&'static str, String); 15] {
    [
        ("title-of-session", format!("session {}", session_id(1))),
        ("adapter-of-run", format!("run {}", run_id(1))),
        ("output-of-run", format!("run {}", run_id(1))),
        ("text-of-message", format!("message {}", message_id(1))),
        ("text-of-event", "event ".into()),
        ("text-of-chunk", format!("streamed text of message {}", message_id(2))),
        ("state-of-session", "state \"session\"".into()),
        ("state-of-run", "state \"run\"".into()),
        ("state-of-owner", "state \"owner\"".into()),
        ("text-of-result", format!("tool call \"t1\" of run {}", run_id(1))),
        ("instance-of-attempt", format!("attempt {}", attempt_id(1))),
        ("model-of-step", format!("step {}", step_id(1))),
        ("text-of-digest", format!("digest at message {}", message_id(1))),
        ("name-of-artifact", format!("artifact {}", artifact_id(1))),
        ("change-of-state", "change of state of \"k\"".into()),
    ]
}

fn state_row(place: StatePlace, key: &str, value: &str) -> Row {
    Row::State(Box::new(StateRow { place, key: key.into(), value: Some(json!(value)), version: 1, at: NOW }))
}

fn caller() -> StateWriter {
    StateWriter::Caller { key_id: None }
}

async fn fill(folder: &Path) {
    let store = sqlite_open(folder);
    let fence = lease(&store, 1).await;
    let titled = Session { title: Some("title-of-session".into()), ..session(1) };
    let running = Run {
        adapter: "adapter-of-run".into(),
        output: Some(Box::new(RunOutput::new(json!("output-of-run"), None))),
        ..run(1, 1, 1, RunState::Running { attempt: attempt_id(1) })
    };
    let rows = vec![
        row_session(titled),
        Row::Line(line(1, None, 1)),
        row_message(message(1, 1, "text-of-message"), None),
        row_run(running),
        row_attempt(Attempt {
            instance: Some("instance-of-attempt".into()),
            ..attempt(1, 1, 1, RunStatus::Running)
        }),
        Row::Step(Box::new(Step { model: "model-of-step".into(), ..step(1, 1, 1) })),
        Row::Digest(Box::new(Digest {
            message: message_id(1),
            summary: Some("text-of-digest".into()),
            ..digest(1, 0)
        })),
        Row::Artifact(Box::new(Artifact { name: Some("name-of-artifact".into()), ..artifact(1, 1, "abc") })),
        state_row(StatePlace::Session { at: None, aside: false }, "session", "state-of-session"),
        Row::StateChange(Box::new(StateChangeRow {
            of: StateHistoryOf::Session(session_id(1)),
            change: StateChange::new("k", 1, Some(&json!("change-of-state")), NOW, caller()),
        })),
        state_row(StatePlace::Run(run_id(1)), "run", "state-of-run"),
        Row::ToolCall(Box::new(OpenToolCall {
            run: run_id(1),
            tool_use_id: "t1".into(),
            name: "look".into(),
            started_at: Some(NOW),
            ended: Some(EndedToolCall {
                message: message_id(3),
                result: CallResult { content: vec![Block::text("text-of-result")], ..CallResult::default() }
                    .into(),
            }),
        })),
    ];
    let said = event(1, Body::ProgressUpdated { text: "text-of-event".into() });
    commit(&store, fence, rows, vec![said]).await.unwrap();
    commit(&store, fence, vec![Row::MessagePlace(message_id(1), point(1, 0))], vec![]).await.unwrap();
    let chunk = Chunk { fence, message: message_id(2), block: 0, pos: 0, text: "text-of-chunk".into() };
    store.chunks_write(vec![chunk]).await.unwrap();
    let owned = OwnerState {
        owner: OWNER.into(),
        key: "owner".into(),
        // The history leaves out a large value, so that the text is stored once.
        value: Some(json!(format!("state-of-owner {}", "x".repeat(5_000)))),
        expect: Expect::Any,
        at: NOW,
        by: caller(),
    };
    store.state_put(owned).await.unwrap();
    store.close();
}

/// Reads every kind of row that holds one of the texts. Each read has a result of its own.
async fn read(store: &SqliteStore) -> Vec<Result<String, StoreError>> {
    fn shown<T: std::fmt::Debug>(read: Result<T, StoreError>) -> Result<String, StoreError> {
        read.map(|value| format!("{value:?}"))
    }
    let state = |at: StateAt, key: &'static str| async move { shown(store.state_get(&at, key).await) };
    let session_state = StateAt::Session { session: session_id(1), at: None };
    let changes = StateHistoryOf::Session(session_id(1));
    vec![
        shown(store.session_find(OWNER, &SessionRef::Id(session_id(1))).await),
        shown(store.run_get(run_id(1)).await),
        shown(store.run_get(run_id(1)).await),
        shown(store.message_get(session_id(1), message_id(1)).await),
        shown(store.events_after(session_id(1), None, Cursor(0), 10).await.and_then(readable)),
        shown(store.session_load(session_id(1)).await.map(|loaded| {
            loaded.map(|loaded| loaded.chunks.iter().map(|chunk| chunk.text.clone()).collect::<Vec<_>>())
        })),
        state(session_state, "session").await,
        state(StateAt::Run(run_id(1)), "run").await,
        state(StateAt::Owner(OWNER.into()), "owner").await,
        shown(
            store.session_load(session_id(1)).await.map(|loaded| loaded.map(|loaded| loaded.open_tool_calls)),
        ),
        shown(store.attempts(run_id(1)).await.and_then(|rows| Ok(rows.intact()?))),
        shown(store.steps(run_id(1)).await.and_then(|rows| Ok(rows.intact()?))),
        shown(store.digest(session_id(1), point(1, 1)).await),
        shown(store.artifact_get(artifact_id(1)).await),
        shown(store.state_history(&changes, "k", None, 9).await.and_then(|rows| Ok(rows.intact()?))),
    ]
}

/// Fails with the damage of an event, as other reads do.
fn readable(events: Vec<Event>) -> Result<Vec<Event>, StoreError> {
    let damage = events.iter().find_map(|event| match &event.body {
        Body::EventDamaged { message, .. } => Some(StoreError::Corrupt(message.clone())),
        _ => None,
    });
    damage.map_or(Ok(events), Err)
}

fn open_quietly(path: &Path) -> Option<SqliteStore> {
    SqliteStore::open(path, SqliteOptions::default(), NOW).ok()
}

#[tokio::test]
async fn a_flipped_bit_is_reported_with_the_name_of_its_row() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let path = folder.path().join("test.sqlite3");
    let intact = fs::read(&path).unwrap();
    let store = sqlite_open(folder.path());
    let sound = store.verify_checksums().await.unwrap();
    assert_eq!(sound, ChecksumReport { checked: 15, ..ChecksumReport::default() });
    assert!(read(&store).await.iter().all(Result::is_ok));
    store.close();
    for (number, (text, name)) in texts().into_iter().enumerate() {
        let mut damaged = intact.clone();
        let found = |bytes: &[u8]| bytes.windows(text.len()).position(|window| window == text.as_bytes());
        let at = found(&damaged).unwrap();
        assert_eq!(found(&damaged[at + 1..]), None, "{text} is stored once");
        damaged[at + 3] ^= 1;
        fs::write(&path, damaged).unwrap();
        let store = sqlite_open(folder.path());
        let error = read(&store).await.swap_remove(number).unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt(told) if told.starts_with(&name)), "{text}: {error:?}");
        let verified = store.verify_checksums().await.unwrap();
        assert_eq!(verified.problems.len(), 1, "{verified:?}");
        assert_eq!(StoreError::Corrupt(verified.problems[0].clone()), error);
        store.close();
        // A copy would give the damaged row a new checksum.
        let refused = copy(&path, &folder.path().join("copy.sqlite3")).await.unwrap_err();
        let CopyError::Damaged { records: 1, first, .. } = refused else { panic!("{text}: {refused:?}") };
        assert_eq!(first, verified.problems[0]);
        assert!(!folder.path().join("copy.sqlite3").exists(), "{text}");
    }
}

async fn copy(from: &Path, to: &Path) -> Result<CopyReport, CopyError> {
    let (from, to) = (CopyEnd::Sqlite(from.into()), CopyEnd::Sqlite(to.into()));
    let copying = move || store_copy(&from, &to, CopyOptions::default(), NOW, &mut |_| Ok(()));
    tokio::task::spawn_blocking(copying).await.unwrap()
}

#[tokio::test]
async fn every_row_of_a_copy_has_a_checksum() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let copied = folder.path().join("copy/test.sqlite3");
    fs::create_dir(copied.parent().unwrap()).unwrap();
    copy(&folder.path().join("test.sqlite3"), &copied).await.unwrap();
    let verified = sqlite_open(copied.parent().unwrap()).verify_checksums().await.unwrap();
    assert_eq!(verified, ChecksumReport { checked: 15, ..ChecksumReport::default() });
}

#[tokio::test]
async fn no_flipped_bit_changes_the_result_of_a_read() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let path = folder.path().join("test.sqlite3");
    let intact = fs::read(&path).unwrap();
    let store = sqlite_open(folder.path());
    let wanted = read(&store).await;
    store.close();
    let mut checked = 0;
    for (text, _) in texts() {
        let at = intact.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        // The record around the text: its header, ids, numbers and the checksum itself.
        for bit in (0..1024).step_by(73) {
            let mut damaged = intact.clone();
            damaged[at - 64 + bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, damaged).unwrap();
            let Some(store) = open_quietly(&path) else { continue };
            for (read, wanted) in read(&store).await.into_iter().zip(&wanted) {
                let is_missing =
                    |text: &str| ["None", "[]", "Some([])"].contains(&text) || text.contains("entry: None");
                let same = read.as_ref().map_or(true, |text| Ok(text) == wanted.as_ref() || is_missing(text));
                assert!(same, "bit {bit} at {text}: {read:?} instead of {wanted:?}");
                checked += 1;
            }
        }
    }
    assert!(checked > 500, "{checked}");
}

#[tokio::test]
async fn the_usage_of_a_session_with_a_damaged_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 2).await;
    let child = run(2, 2, 1, RunState::Succeeded {});
    let task = delegation(2);
    commit(&store, fence, vec![row_run(child), Row::Delegation(Box::new(task))], vec![]).await.unwrap();
    assert_eq!(store.session_usage(session_id(1)).await.unwrap().0, 1);
    assert_eq!(store.delegated_usage(session_id(1)).await.unwrap().0, 1);
    store.close();
    let connection = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    connection.execute("UPDATE runs SET input_tokens = input_tokens + 1", []).unwrap();
    drop(connection);
    let store = sqlite_open(folder.path());
    for (read, run) in
        [(store.session_usage(session_id(1)).await, 1), (store.delegated_usage(session_id(1)).await, 2)]
    {
        let error = read.unwrap_err();
        assert!(
            matches!(&error, StoreError::Corrupt(text) if text.contains(&run_id(run).to_string())),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn rows_of_versions_without_checksums_are_read() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path()).await;
    let connection = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    for table in [
        "sessions",
        "runs",
        "messages",
        "events",
        "effects",
        "chunks",
        "session_state",
        "run_state",
        "owner_state",
        "state_history",
        "run_attempts",
        "steps",
        "digests",
        "artifacts",
    ] {
        connection.execute(&format!("UPDATE {table} SET checksum = NULL"), []).unwrap();
    }
    drop(connection);
    let store = sqlite_open(folder.path());
    assert!(read(&store).await.iter().all(Result::is_ok));
    let report = store.verify_checksums().await.unwrap();
    assert_eq!(report, ChecksumReport { without_checksum: 15, ..ChecksumReport::default() });
    // A run that is written again gets a checksum of its state. Its request is not written again.
    let fence = lease(&store, 1).await;
    let done = Run { adapter: "adapter-of-run".into(), ..run(1, 1, 1, RunState::Succeeded {}) };
    commit(&store, fence, vec![row_run(done)], vec![]).await.unwrap();
    let report = store.verify_checksums().await.unwrap();
    assert_eq!((report.without_checksum, report.problems), (15, vec![]), "its request is as it was");
    let external = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    external.execute("UPDATE runs SET attempts = attempts + 1", []).unwrap();
    assert_eq!(store.verify_checksums().await.unwrap().problems.len(), 1);
}

#[tokio::test]
async fn a_damaged_session_hides_no_other_in_a_list() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    for n in 1..=4 {
        create_session(&store, n).await;
    }
    store.close();
    let connection = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    let damage = "UPDATE sessions SET title = 'Tee' WHERE session_id = ?1";
    for n in [2, 4] {
        connection.execute(damage, [session_id(n).as_bytes()]).unwrap();
    }
    drop(connection);
    let store = sqlite_open(folder.path());
    let of = SessionsOf::Owner(OWNER.into());
    let mut page = SessionPage { of, pinned: None, status: None, surface_kind: None, before: None, limit: 1 };
    let mut listed = vec![];
    while let Some((session, _)) = store.session_page(&page).await.unwrap().items.pop() {
        page.before = Some((session.last_activity_at, session.id));
        listed.push(session.id);
    }
    assert_eq!(listed, [session_id(3), session_id(1)]);
    let one = store.session_find(OWNER, &SessionRef::Id(session_id(2))).await.unwrap_err();
    assert!(matches!(one, StoreError::Corrupt(_)));
}

#[tokio::test]
async fn messages_from_before_agents_and_external_ids_keep_their_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    let named = Message { agent: Some("a".into()), external_id: Some("b".into()), ..message(2, 1, "x") };
    let rows = vec![
        Row::Line(line(1, None, 2)),
        row_message(message(1, 1, "x"), Some(point(1, 0))),
        row_message(named.clone(), Some(point(1, 1))),
    ];
    commit(&store, fence, rows, vec![]).await.unwrap();
    let (found, _) = store.message_get(session_id(1), message_id(2)).await.unwrap().unwrap();
    assert_eq!(*found.message, named);
    store.close();
    let connection = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    let sum = "SELECT checksum FROM messages WHERE agent IS NULL AND external_id IS NULL";
    let sum: i64 = connection.query_row(sum, [], |row| row.get(0)).unwrap();
    // The checksum that versions without these columns have computed.
    assert_eq!(sum, -994_185_330);
}
