//! SQLite's own behaviour: pragmas, migrations, reopening, groups of commits.

use std::path::Path;
use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{NewEvent, Row, Store, StoreError};
use mainspring_store::{Durability, Fault, SCHEMA_VERSION, SqliteOptions, SqliteStore};
use rusqlite::{Connection, OpenFlags};

use crate::fixtures::*;

fn open_read_only(folder: &Path) -> Connection {
    Connection::open_with_flags(folder.join("test.sqlite3"), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

#[tokio::test]
async fn all_data_is_there_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    let completed = Body::MessageCompleted { message: Arc::new(message(2, 1, "hi")), parent_id: None };
    let rows = vec![
        Row::Line(line(1, None, 1)),
        row_message(message(2, 1, "hi"), Some(point(1, 0))),
        row_run(run(1, 1, 1, RunState::Running { attempt: attempt_id(1) })),
        row_attempt(attempt(1, 1, 1, RunStatus::Running)),
    ];
    commit(&store, fence, rows, vec![event(1, completed)]).await.unwrap();
    let (loaded_before, events_before) =
        (store.session_load(session_id(1)).await.unwrap(), events(&store, 1).await);
    store.close();

    let store = sqlite_open(folder.path());
    assert_eq!(store.session_load(session_id(1)).await.unwrap(), loaded_before);
    assert_eq!(events(&store, 1).await, events_before);
    assert_eq!(store.unfinished().await.unwrap().live, [session_id(1)]);
    let error = commit(&store, fence, vec![], vec![progress(2)]).await.unwrap_err();
    assert_eq!(error, StoreError::Fenced, "a fence is invalid after a restart");
    assert!(lease(&store, 1).await.epoch > fence.epoch);
}

#[tokio::test]
async fn reopening_applies_no_migration_again() {
    let folder = tempfile::tempdir().unwrap();
    let applied = |at: Time| {
        let path = folder.path().join("test.sqlite3");
        SqliteStore::open(&path, SqliteOptions::default(), at).unwrap().close();
        let connection = open_read_only(folder.path());
        let mut statement =
            connection.prepare("SELECT version, applied_at_ms FROM schema_migrations").unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.collect::<Result<Vec<(u32, i64)>, _>>().unwrap()
    };
    let first = applied(NOW);
    assert_eq!(first.last().map(|(version, _)| *version), Some(SCHEMA_VERSION));
    assert!(first.iter().all(|(_, at)| *at == NOW.0));
    assert_eq!(applied(NOW.plus(1)), first);
}

#[tokio::test]
async fn the_pragmas_are_in_force() {
    for (durability, synchronous) in [(Durability::Full, 2), (Durability::Normal, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions { durability, ..SqliteOptions::default() };
        let store = SqliteStore::open(&folder.path().join("test.sqlite3"), options, NOW).unwrap();
        let pragmas = store.pragmas();
        let value = |name: &str| pragmas.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        assert_eq!(value("synchronous"), Some(synchronous));
        assert_eq!(value("foreign_keys"), Some(1));
        assert_eq!(value("busy_timeout"), Some(5000));
        let check = store.check(true).await.unwrap();
        assert_eq!((check.journal_mode.as_str(), check.problems), ("wal", vec![]));
        assert_eq!(check.schema_version, SCHEMA_VERSION);
    }
}

/// Runs one group of eight commits under `fault`. Returns their results and the number of stored commits.
async fn commit_group_with(fault: Fault, text: &str) -> (Vec<Result<Vec<Cursor>, StoreError>>, usize) {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(sqlite_open(folder.path()));
    let mut fences = vec![];
    for n in 0..8 {
        fences.push(create_session(&*store, n).await);
    }
    // While the writer is paused, all commits queue up and form one group.
    let paused = store.pause_writer();
    let mut tasks = tokio::task::JoinSet::new();
    for (fence, n) in fences.iter().copied().zip(0..) {
        let store = Arc::clone(&store);
        let rows = vec![row_message(message(n, n, text), None)];
        tasks.spawn(async move { commit(&*store, fence, rows, vec![progress(1)]).await });
    }
    while store.queued() < 8 {
        tokio::task::yield_now().await;
    }
    store.inject_fault(fault);
    drop(paused);
    let answers = tasks.join_all().await;
    let mut stored = 0;
    for n in 0..8 {
        stored += events(&*store, n).await.len();
        assert_eq!(store.message_get(session_id(n), message_id(n)).await.unwrap().is_some(), stored > 0);
    }
    commit(&*store, fences[0], vec![], vec![progress(2)]).await.unwrap();
    assert_eq!(store.check(true).await.unwrap().problems, Vec::<String>::new());
    (answers, stored)
}

fn is_unavailable(answer: &Result<Vec<Cursor>, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unavailable(_)))
}

#[tokio::test]
async fn all_commits_of_a_group_fail_if_the_transaction_fails() {
    let (answers, stored) = commit_group_with(Fault::CommitFails, "hi").await;
    assert!(answers.len() == 8 && answers.iter().all(is_unavailable), "{answers:?}");
    assert_eq!(stored, 0);
}

#[tokio::test]
async fn a_commit_that_panics_is_undone_and_the_others_of_its_group_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(sqlite_open(folder.path()));
    let mut fences = vec![];
    for n in 0..3 {
        fences.push(create_session(&*store, n).await);
    }
    for alone in [false, true] {
        let paused = store.pause_writer();
        let count = if alone { 1 } else { fences.len() };
        let mut tasks = tokio::task::JoinSet::new();
        for fence in fences.iter().copied().take(count) {
            let store = Arc::clone(&store);
            tasks.spawn(async move { commit(&*store, fence, vec![], vec![progress(1)]).await });
        }
        while store.queued() < count {
            tokio::task::yield_now().await;
        }
        store.inject_fault(Fault::WritePanics);
        drop(paused);
        let answers = tasks.join_all().await;
        let failed: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        assert!(matches!(failed[..], [StoreError::Corrupt(_)]), "{answers:?}");
        assert!(failed[0].to_string().contains("panicked"), "{failed:?}");
    }
    let mut stored = 0;
    for n in 0..3 {
        stored += events(&*store, n).await.len();
    }
    assert_eq!(stored, 2);
    commit(&*store, fences[0], vec![], vec![progress(2)]).await.unwrap();
    assert_eq!(store.check(true).await.unwrap().problems, Vec::<String>::new());
}

#[tokio::test]
async fn all_commits_of_a_group_fail_if_the_disk_is_full() {
    let (answers, stored) = commit_group_with(Fault::DiskFull, &"hello ".repeat(2000)).await;
    let is_full = |answer: &Result<_, StoreError>| matches!(answer, Err(StoreError::Full(_)));
    assert!(answers.len() == 8 && answers.iter().all(is_full), "{answers:?}");
    assert_eq!(stored, 0);
}

#[tokio::test]
async fn the_view_shows_a_cost_only_if_all_of_it_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    let known = Usage { cost: Cost(1_500_000_000), ..Usage::default() };
    let usages = [
        known,
        Usage { at_least: true, ..known },
        Usage { cost: Cost::UNKNOWN, ..Usage::default() },
        Usage::UNKNOWN,
        Usage { cost: Cost::UNKNOWN, at_least: true, ..Usage::default() },
    ];
    let runs = (1..).zip(usages).map(|(n, usage)| {
        let no = u32::try_from(n).unwrap();
        row_run(Run { usage, ..run(n, 1, no, RunState::Succeeded {}) })
    });
    commit(&store, fence, runs.collect(), vec![]).await.unwrap();
    let connection = open_read_only(folder.path());
    let mut costs = connection.prepare("SELECT cost_usd FROM omi_runs ORDER BY created_at_ms").unwrap();
    let costs = costs.query_map([], |row| row.get::<_, Option<f64>>(0)).unwrap();
    let costs: Vec<Option<f64>> = costs.map(Result::unwrap).collect();
    assert_eq!(costs, [Some(1.5), None, None, None, None]);
}

#[tokio::test]
async fn a_text_turn_costs_at_most_four_kilobytes() {
    const TURNS: u64 = 500;
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let before = store.check(false).await.unwrap();
    let fence = create_session(&store, 1).await;
    for n in 0..TURNS {
        for (rows, events) in turn(n) {
            commit(&store, fence, rows, events).await.unwrap();
        }
    }
    let after = store.check(true).await.unwrap();
    assert_eq!(after.problems, Vec::<String>::new());
    let bytes = (after.pages - before.pages) * after.page_size / TURNS;
    assert!(bytes <= 4096, "{bytes} bytes a turn");
}

/// The two commits of a text turn: accepted to running, last message to succeeded.
fn turn(n: u64) -> [(Vec<Row>, Vec<NewEvent>); 2] {
    let (no, pos) = (u32::try_from(n + 1).unwrap(), u32::try_from(2 * n).unwrap());
    let (prompt, answer) = (2 * n, 2 * n + 1);
    let run_event = |id: u64, body| NewEvent {
        run: Some(run_id(n)),
        attempt: Some(attempt_id(n)),
        ..event(8 * n + id, body)
    };
    let completed = |id| Body::MessageCompleted {
        message: Arc::new(message(id, 1, "ok")),
        parent_id: Some(message_id(id)),
    };
    let run_in = |state| Run {
        request: RequestName {
            client_id: Some("desktop".into()),
            request_id: Some(run_id(n).to_string()),
            idempotency_key: None,
        },
        prompt: Some(message_id(prompt)),
        last_attempt: Some(attempt_id(n)),
        pen: Some(point(1, pos)),
        ..run(n, 1, no, state)
    };
    let session_at = |pos| row_session(Session { tip: Some(point(1, pos)), version: n, ..session(1) });
    [
        (
            vec![
                Row::Line(line(1, None, pos + 1)),
                row_message(message(prompt, 1, "ok"), Some(point(1, pos))),
                row_run(run_in(RunState::Running { attempt: attempt_id(n) })),
                row_attempt(attempt(n, n, 1, RunStatus::Running)),
                session_at(pos),
            ],
            vec![
                run_event(1, Body::run_accepted("native".into(), Mode::Act, None)),
                run_event(2, completed(prompt)),
                run_event(3, Body::RunStarting {}),
                run_event(
                    4,
                    Body::AttemptCreated {
                        attempt_no: 1,
                        adapter: "native".into(),
                        resume_from_attempt_id: None,
                        checkpoint_artifact_id: None,
                        retry_reason: None,
                    },
                ),
                run_event(5, Body::RunRunning {}),
            ],
        ),
        (
            vec![
                Row::Line(line(1, None, pos + 2)),
                row_message(message(answer, 1, "ok"), Some(point(1, pos + 1))),
                row_run(Run { final_message: Some(message_id(answer)), ..run_in(RunState::Succeeded {}) }),
                row_attempt(attempt(n, n, 1, RunStatus::Succeeded)),
                session_at(pos + 1),
            ],
            vec![
                run_event(6, completed(answer)),
                run_event(
                    7,
                    Body::UsageUpdated {
                        usage: Usage { input_tokens: 900, output_tokens: 80, ..Usage::default() },
                    },
                ),
                run_event(
                    8,
                    Body::RunSucceeded {
                        close: Close { message_id: Some(message_id(answer)), ..Close::default() },
                    },
                ),
            ],
        ),
    ]
}

#[tokio::test]
async fn an_inconsistent_row_is_reported_as_corrupt() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    commit(&store, fence, vec![row_run(run(1, 1, 1, queued()))], vec![]).await.unwrap();
    store.close();
    let external = Connection::open(folder.path().join("test.sqlite3")).unwrap();
    external.execute("UPDATE runs SET status = 'failed', state_checksum = NULL", []).unwrap();
    drop(external);
    let store = sqlite_open(folder.path());
    let error = store.run_get(run_id(1)).await.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt(text) if text.contains("failed run")), "{error:?}");
}

#[tokio::test]
async fn queued_commits_are_written_before_the_store_closes() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite_open(folder.path());
    let fence = create_session(&store, 1).await;
    let paused = store.pause_writer();
    let mut pending = Box::pin(commit(&store, fence, vec![], vec![progress(1)]));
    // The first poll queues the commit.
    assert!(
        std::future::poll_fn(|context| std::task::Poll::Ready(pending.as_mut().poll(context).is_pending()))
            .await
    );
    drop(pending);
    drop(paused);
    store.close();
    assert_eq!(events(&sqlite_open(folder.path()), 1).await.len(), 1);
}
