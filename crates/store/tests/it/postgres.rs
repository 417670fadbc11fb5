//! Behaviour that only the PostgreSQL store has: batches, transaction ids, lost connections, several servers.

use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{Commit, Fence, Row, Store, StoreError, Unique};
use mainspring_store::{PostgresError, PostgresOptions, PostgresStore};

use crate::cluster::{database, pooled, psql, psql_open};
use crate::fixtures::*;

const UNLOCKED: PostgresOptions = PostgresOptions { writers: 2, takes_lock: false, feed_wait_ms: 60_000 };

fn open(url: &str) -> PostgresStore {
    PostgresStore::open(url, PostgresOptions::default()).unwrap()
}

fn one_event(fence: Fence, n: u64) -> Arc<Commit> {
    Arc::new(Commit { fence, events: vec![progress(n)], rows: vec![] })
}

async fn create_sessions(store: &PostgresStore, count: u64) -> Vec<Fence> {
    let mut fences = vec![];
    for n in 0..count {
        fences.push(create_session(store, n).await);
    }
    fences
}

/// Makes all commits at the same time.
async fn commit_together(
    store: &Arc<PostgresStore>,
    commits: Vec<Arc<Commit>>,
) -> Vec<Result<Vec<Cursor>, StoreError>> {
    let mut waiting = vec![];
    for commit in commits {
        let store = Arc::clone(store);
        waiting.push(tokio::task::spawn_blocking(move || {
            tokio::runtime::Handle::current().block_on(async move { store.commit(commit).await })
        }));
    }
    let mut results = vec![];
    for one in waiting {
        results.push(one.await.unwrap());
    }
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_many_sessions_are_all_stored_in_the_order_of_their_cursors() {
    let store = Arc::new(open(&database()));
    let fences = create_sessions(&store, 24).await;
    let mut last = vec![Cursor::START; fences.len()];
    for round in 0..4 {
        let results =
            commit_together(&store, fences.iter().map(|fence| one_event(*fence, round)).collect()).await;
        for (last, result) in last.iter_mut().zip(results) {
            let cursor = result.unwrap()[0];
            assert!(cursor > *last, "the cursors of a session grow");
            *last = cursor;
        }
    }
    let (all, until) = store.owner_events(OWNER, None, Cursor::START, NO_LIMIT).await.unwrap();
    assert_eq!(all.len(), 24 * 4);
    assert!(all.is_sorted_by(|a, b| a.cursor < b.cursor));
    assert_eq!(until, all.last().unwrap().cursor);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_commit_does_not_affect_other_commits_of_its_batch() {
    let store =
        Arc::new(PostgresStore::open(&database(), PostgresOptions { writers: 1, ..UNLOCKED }).unwrap());
    let fences = create_sessions(&store, 16).await;
    let running = |n| RunState::Running { attempt: attempt_id(n) };
    let two_active = vec![row_run(run(1, 3, 1, running(1))), row_run(run(2, 3, 2, running(2)))];
    let stale = Fence { epoch: fences[5].epoch - 1, ..fences[5] };
    let mut commits: Vec<Arc<Commit>> =
        fences.iter().zip(0..).map(|(fence, n)| one_event(*fence, n)).collect();
    commits[3] = Arc::new(Commit { fence: fences[3], events: vec![progress(3)], rows: two_active });
    commits[5] = one_event(stale, 5);
    let results = commit_together(&store, commits).await;
    for (n, result) in results.iter().enumerate() {
        match n {
            3 => assert_eq!(*result, Err(StoreError::Conflict(Unique::Other))),
            5 => assert_eq!(*result, Err(StoreError::Fenced)),
            _ => assert!(result.is_ok(), "{n}: {result:?}"),
        }
        let stored = events(&*store, n as u64).await.len();
        assert_eq!(stored, usize::from(result.is_ok()), "session {n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_all_sessions_wait_for_older_transactions_and_readers_of_one_do_not() {
    let url = database();
    let store = Arc::new(PostgresStore::open(&url, UNLOCKED).unwrap());
    let fence = create_session(&*store, 1).await;
    // The transaction id of the other connection is older than that of the commit.
    let mut other = psql_open(&url);
    other.run("CREATE TABLE other (n int); BEGIN; INSERT INTO other VALUES (1);");
    let cursors = store.commit(one_event(fence, 1)).await.unwrap();
    assert_eq!(events(&*store, 1).await.len(), 1, "the session's own stream does not wait");
    assert_eq!(store.event_last().await.unwrap(), cursors[0]);
    let mut reading = tokio::task::JoinSet::new();
    reading.spawn({
        let store = Arc::clone(&store);
        async move { store.owner_events(OWNER, None, Cursor::START, 10).await.unwrap() }
    });
    let impatient = PostgresStore::open(&url, PostgresOptions { feed_wait_ms: 0, ..UNLOCKED }).unwrap();
    let early = impatient.owner_events(OWNER, None, Cursor::START, 10).await.unwrap();
    assert_eq!(early, (vec![], Cursor::START), "an event could still come before that of the commit");
    assert!(reading.try_join_next().is_none(), "it waits for the other transaction");
    other.run("COMMIT;");
    let (found, until) = reading.join_next().await.unwrap().unwrap();
    assert_eq!(found.iter().map(|event| event.cursor).collect::<Vec<_>>(), cursors);
    assert_eq!(until, cursors[0]);
    assert_eq!(impatient.owner_events(OWNER, None, Cursor::START, 10).await.unwrap().0, found);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_connections_neither_lose_nor_repeat_commits() {
    let url = database();
    let store = Arc::new(open(&url));
    let fences = create_sessions(&store, 8).await;
    for round in 0..12 {
        let killer = std::thread::spawn({
            let url = url.clone();
            let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                        WHERE datname = current_database() AND pid <> pg_backend_pid()";
            move || psql(&url, kill)
        });
        let commits = fences.iter().map(|fence| one_event(*fence, round)).collect();
        let results = commit_together(&store, commits).await;
        killer.join().unwrap();
        assert!(results.iter().all(Result::is_ok), "round {round}: {results:?}");
    }
    for n in 0..8 {
        // A reader's connection may have been lost as well.
        let read = async || store.events_after(session_id(n), None, Cursor::START, NO_LIMIT).await;
        let stored = match read().await {
            Err(_) => read().await.unwrap(),
            Ok(stored) => stored,
        };
        let bodies: Vec<Body> = stored.into_iter().map(|event| event.body).collect();
        assert_eq!(bodies, (0..12).map(|n| progress(n).body).collect::<Vec<_>>(), "session {n}");
    }
}

#[tokio::test]
async fn one_server_at_a_time_uses_a_database() {
    let url = database();
    let first = open(&url);
    assert_eq!(PostgresStore::open(&url, PostgresOptions::default()).unwrap_err(), PostgresError::InUse);
    drop(first);
    open(&url);
}

#[tokio::test]
async fn a_server_that_starts_voids_the_leases_of_the_one_before() {
    let url = database();
    let first = PostgresStore::open(&url, UNLOCKED).unwrap();
    let fence = create_session(&first, 1).await;
    let second = PostgresStore::open(&url, UNLOCKED).unwrap();
    assert_eq!(first.commit(one_event(fence, 1)).await, Err(StoreError::Fenced));
    let fence = lease(&second, 1).await;
    second.commit(one_event(fence, 1)).await.unwrap();
    assert_eq!(second.histories().await.unwrap().len(), 2);
}

#[tokio::test]
async fn servers_that_start_together_make_the_tables_once() {
    let url = database();
    let starting: Vec<_> = (0..6)
        .map(|_| {
            let url = url.clone();
            std::thread::spawn(move || PostgresStore::open(&url, UNLOCKED).map(drop))
        })
        .collect();
    for start in starting {
        start.join().unwrap().unwrap();
    }
    assert_eq!(psql(&url, "SELECT count(*) = count(DISTINCT version) FROM mainspring_schema"), "t");
}

#[tokio::test]
async fn pins_of_the_first_version_become_pins_of_the_owners() {
    let url = database();
    let store = open(&url);
    for n in 1..=2 {
        create_session(&store, n).await;
    }
    drop(store);
    psql(&url, "DROP TABLE pins, inherited_artifacts; DELETE FROM mainspring_schema WHERE version = 2");
    psql(
        &url,
        "UPDATE sessions SET pinned = true WHERE session_id = (SELECT session_id FROM sessions ORDER BY 1 LIMIT 1)",
    );
    let pins = open(&url).pins(OWNER).await.unwrap();
    assert_eq!(pins.iter().map(|(session, _)| *session).collect::<Vec<_>>(), [session_id(1)]);
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_and_unchanged() {
    let url = database();
    drop(open(&url));
    psql(&url, "INSERT INTO mainspring_schema VALUES (1000)");
    let error = PostgresStore::open(&url, UNLOCKED).unwrap_err();
    assert!(matches!(error, PostgresError::Newer { found: 1_000, known } if known < 1_000), "{error:?}");
    assert_eq!(psql(&url, "SELECT value FROM meta WHERE name = 'boot'"), "1");
}

#[tokio::test]
async fn cursors_grow_when_a_dump_is_restored_into_another_server() {
    let url = database();
    let store = open(&url);
    let fence = create_session(&store, 1).await;
    store.commit(one_event(fence, 1)).await.unwrap();
    drop(store);
    // As if the events were written by a server that is far ahead.
    psql(&url, "UPDATE events SET cursor = cursor + (1000000::bigint << 14)");
    let store = open(&url);
    let last = store.event_last().await.unwrap();
    let fence = lease(&store, 1).await;
    assert!(store.commit(one_event(fence, 2)).await.unwrap()[0] > last);
    assert_eq!(store.owner_events(OWNER, None, Cursor::START, 9).await.unwrap().0.len(), 2);
}

#[tokio::test]
async fn text_of_agents_may_contain_zero_characters() {
    let store = open(&database());
    let fence = create_session(&store, 1).await;
    let said = message(1, 1, "a\0b");
    let rows = vec![Row::Line(line(1, None, 1)), row_message(said.clone(), Some(point(1, 0)))];
    commit(&store, fence, rows, vec![]).await.unwrap();
    let (found, _) = store.message_get(session_id(1), said.id).await.unwrap().unwrap();
    assert_eq!(*found.message, said);
}

#[tokio::test]
async fn an_address_that_is_not_usable_is_refused_with_the_reason() {
    for (url, reason) in [
        ("postgres://localhost:1/none", "refused"),
        ("postgres://localhost/none?sslrootcert=/nowhere.pem", "/nowhere.pem"),
        ("postgres://localhost/none?colour=red", "colour"),
    ] {
        let error = PostgresStore::open(url, PostgresOptions::default()).unwrap_err().to_string();
        assert!(error.contains(reason), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_pooler_works_without_the_server_lock() {
    let store = Arc::new(PostgresStore::open(&pooled(&database()), UNLOCKED).unwrap());
    let fences = create_sessions(&store, 12).await;
    for round in 0..5 {
        let commits = fences.iter().map(|fence| one_event(*fence, round)).collect();
        let results = commit_together(&store, commits).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        for n in 0..12 {
            let loaded = store.session_load(session_id(n)).await.unwrap().unwrap();
            assert_eq!(loaded.session, session(n));
            assert_eq!(events(&*store, n).await.len() as u64, round + 1);
        }
    }
    assert_eq!(store.owner_events(OWNER, None, Cursor::START, NO_LIMIT).await.unwrap().0.len(), 60);
}
