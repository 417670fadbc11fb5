//! Copies between the stores: the copy of a random store returns the same results as its source.

use mainspring_store::{CopyEnd, CopyError, CopyOptions, CopyReport, CopyStep, SqliteView, store_copy};

use super::*;
use crate::cluster::database;

/// Copies on a thread of its own, and returns the hashes of artifacts too.
pub(super) async fn copy(from: &CopyEnd, to: &CopyEnd) -> (Result<CopyReport, CopyError>, Vec<String>) {
    let (from, to) = (from.clone(), to.clone());
    let copied = tokio::task::spawn_blocking(move || {
        let mut hashes = vec![];
        let report = store_copy(&from, &to, CopyOptions::default(), NOW, &mut |step| {
            if let CopyStep::Blob(hash) = step {
                hashes.push(hash.to_owned());
            }
            Ok(())
        });
        (report, hashes)
    });
    copied.await.unwrap()
}

pub(super) fn postgres_at(url: &str) -> PostgresStore {
    PostgresStore::open(url, PostgresOptions::default()).unwrap()
}

fn verify(file: &Path) -> Vec<String> {
    let parts = SqliteView::open(file, false).unwrap().verify().unwrap();
    parts.into_iter().flat_map(|part| part.findings).collect()
}

pub(super) async fn compare_with(store: &dyn Store, cursors: &Cursors, expected: &[String], what: &str) {
    for (read, expected) in read_everything(store, cursors).await.iter().zip(expected) {
        assert_eq!(read, expected, "{what}");
    }
}

#[tokio::test]
async fn a_copy_answers_as_its_source_in_both_directions() {
    for seed in [11] {
        let folder = tempfile::tempdir().unwrap();
        let mut sequence = Sequence::new(seed, folder.path()).await;
        // Fewer steps than in the comparison of the stores: every read is repeated in four copies.
        for step in 0..STEPS / 3 {
            sequence.step(step).await;
        }
        let Sequence { memory, sqlite, postgres, cursors, url, .. } = sequence;
        let expected = read_everything(&memory, &cursors[0]).await;
        sqlite.close();
        drop(postgres);
        let file = folder.path().join("test.sqlite3");
        let sources = [(CopyEnd::Sqlite(file), &cursors[1]), (CopyEnd::Postgres(url), &cursors[2])];
        for (index, (from, cursors)) in sources.into_iter().enumerate() {
            let what = format!("seed {seed} source {index}");
            let (there, back) = (database(), folder.path().join(format!("back-{index}.sqlite3")));
            let (there_end, back_end) = (CopyEnd::Postgres(there.clone()), CopyEnd::Sqlite(back.clone()));
            let (report, hashes) = copy(&from, &there_end).await;
            let report = report.unwrap();
            assert!(report.count("events") > 20 && report.count("messages") > 1, "{what}: {report:?}");
            assert!(!hashes.is_empty(), "{what}");
            compare_with(&postgres_at(&there), cursors, &expected, &format!("{what} in PostgreSQL")).await;
            let (again, _) = copy(&there_end, &back_end).await;
            let again = again.unwrap();
            assert_eq!(again.count("events"), report.count("events"), "{what}");
            compare_with(&sqlite_at(&back), cursors, &expected, &format!("{what} in SQLite")).await;
            let (refused, _) = copy(&from, &there_end).await;
            assert!(matches!(refused, Err(CopyError::NotEmpty(_))), "{what}: {refused:?}");
            let (refused, _) = copy(&from, &back_end).await;
            assert!(matches!(refused, Err(CopyError::NotEmpty(_))), "{what}: {refused:?}");
        }
    }
}

pub(super) fn sqlite_at(file: &Path) -> SqliteStore {
    SqliteStore::open(file, mainspring_store::SqliteOptions::default(), NOW).unwrap()
}

#[tokio::test]
async fn new_events_of_a_copy_come_after_all_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let ends = [
        CopyEnd::Sqlite(file("a.sqlite3")),
        CopyEnd::Postgres(database()),
        CopyEnd::Sqlite(file("b.sqlite3")),
        CopyEnd::Sqlite(file("c.sqlite3")),
    ];
    let open = |end: &CopyEnd| -> Box<dyn Store> {
        match end {
            CopyEnd::Sqlite(path) => Box::new(sqlite_at(path)),
            CopyEnd::Postgres(url) => Box::new(postgres_at(url)),
        }
    };
    let mut last = Cursor::START;
    for (index, end) in ends.iter().enumerate() {
        let store = open(end);
        let fence = match index {
            0 => create_session(&*store, 1).await,
            _ => lease(&*store, 1).await,
        };
        let known = store.events_after(session_id(1), None, Cursor::START, 99).await.unwrap();
        assert_eq!(known.last().map_or(Cursor::START, |event| event.cursor), last, "cursors are kept");
        let events = vec![progress(10 + index as u64)];
        let made = store.commit(Arc::new(Commit { fence, events, rows: vec![] })).await.unwrap();
        assert!(made[0] > last, "{index}: {made:?} after {last:?}");
        last = made[0];
        drop(store);
        if let Some(next) = ends.get(index + 1) {
            copy(end, next).await.0.unwrap();
        }
    }
    assert_eq!(verify(&file("c.sqlite3")), Vec::<String>::new());
}

#[tokio::test]
async fn a_copy_refuses_a_database_in_use_and_a_source_that_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let (file, url) = (folder.path().join("a.sqlite3"), database());
    create_session(&sqlite_at(&file), 1).await;
    let (from, to) = (CopyEnd::Sqlite(file), CopyEnd::Postgres(url.clone()));
    let served = postgres_at(&url);
    let (refused, _) = copy(&from, &to).await;
    assert!(matches!(refused, Err(CopyError::Postgres(PostgresError::InUse))), "{refused:?}");
    drop(served);
    let missing = CopyEnd::Sqlite(folder.path().join("missing.sqlite3"));
    assert!(matches!(copy(&missing, &to).await.0, Err(CopyError::NoSource(_))));
    copy(&from, &to).await.0.unwrap();
    let found = postgres_at(&url).session_load(session_id(1)).await.unwrap();
    assert!(found.is_some());
}

/// Records that the random sequences do not make. A copy compares each of them with its source.
#[tokio::test]
async fn records_outside_sessions_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (file, back) = (folder.path().join("a.sqlite3"), folder.path().join("b.sqlite3"));
    let store = sqlite_at(&file);
    let fence = create_session(&store, 1).await;
    let work = Delegation { parent_session: session_id(1), ..crate::delegations::delegation(1) };
    let granted = Grant { session: session_id(1), ..crate::grants::grant(1, None, GrantEffect::Allow) };
    let rows = vec![Row::Delegation(Box::new(work)), Row::Grant(Box::new(granted))];
    commit(&store, fence, rows, vec![progress(1)]).await.unwrap();
    store.close();
    let id = session_id(1).as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection
        .execute_batch(&format!(
            "INSERT INTO owners VALUES ('ada', 'acme', 1);
             INSERT INTO api_keys (key_id, name, owner_id, role, hash, created_at_ms)
               VALUES (randomblob(16), 'k', 'ada', 'member', randomblob(32), 1);
             INSERT INTO key_spend VALUES (randomblob(16), 2, 3, 1);
             INSERT INTO agents (owner_id, agent_id, version, hash, created_at_ms) VALUES ('ada', 'a', 1, randomblob(32), 1);
             INSERT INTO goal_types (owner_id, name, type_json, created_at_ms, updated_at_ms)
               VALUES ('ada', 'g', '{{}}', 1, 2);
             INSERT INTO webhooks VALUES (x'000102030405060708090a0b0c0d0e0f', 'ada', '{{}}');
             INSERT INTO dead_letters VALUES (x'000102030405060708090a0b0c0d0e0f', 7, '{{}}');
             INSERT INTO native_owners (adapter_id, adapter_native_session_id, owner_id, native_key)
               VALUES ('pi', 'n', 'ada', 'n');
             INSERT INTO requests (owner_id, operation, key, fingerprint, answer, created_at_ms)
               VALUES ('ada', 'o', 'k', randomblob(16), 'answer', 1);
             INSERT INTO step_inputs (session_id, hash, input) VALUES (x'{id}', lower(hex(randomblob(32))), '{{}}');
             INSERT INTO feedback VALUES (x'{id}', randomblob(16), 'ada', '{{}}');
             INSERT INTO lost_events VALUES (100, 200);"
        ))
        .unwrap();
    drop(connection);
    let there = CopyEnd::Postgres(database());
    let copied = copy(&CopyEnd::Sqlite(file), &there).await.0.unwrap();
    let again = copy(&there, &CopyEnd::Sqlite(back)).await.0.unwrap();
    for table in [
        "delegations",
        "grants",
        "owners",
        "api_keys",
        "key_spend",
        "agents",
        "goal_types",
        "webhooks",
        "dead_letters",
        "native_owners",
        "requests",
        "step_inputs",
        "feedback",
        "lost_events",
    ] {
        assert_eq!((copied.count(table), again.count(table)), (1, 1), "{table}");
    }
}
