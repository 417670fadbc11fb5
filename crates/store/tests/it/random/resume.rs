//! Copies that are interrupted: they continue, and their targets are not stores until then.

use mainspring_store::{
    CopyEnd, CopyError, CopyOptions, CopyReport, CopyStep, OpenError, PostgresView, SqliteOptions,
    SqliteView, Standby, copy_discard, store_copy,
};

use super::copy::{compare_with, copy, postgres_at, sqlite_at};
use super::*;
use crate::cluster::{database, psql, psql_open};

/// Small ranges, so that many of them are interrupted.
const SMALL: CopyOptions = CopyOptions { batch_records: 3, range_records: 7 };

/// The steps of one attempt.
#[derive(Default, Clone)]
struct Attempt {
    steps: u64,
    continues_after: Option<u64>,
    begins_again: bool,
    /// The records that were kept.
    kept: std::collections::BTreeMap<&'static str, u64>,
    batches: u64,
    is_complete: bool,
}

impl Attempt {
    fn add(&mut self, step: CopyStep<'_>) {
        self.steps += 1;
        match step {
            CopyStep::Continues(records) => self.continues_after = Some(records),
            CopyStep::BeginsAgain(_) => self.begins_again = true,
            CopyStep::Keeps(table, records) => drop(self.kept.insert(table, records)),
            CopyStep::Writes(..) => self.batches += 1,
            CopyStep::Verifies => self.is_complete = true,
            CopyStep::Blob(_) | CopyStep::Completes => {}
        }
    }
}

fn stopped() -> CopyError {
    CopyError::Blob { hash: "stopped here".into(), problem: "missing" }
}

/// Copies, and stops before a step.
async fn copy_until(from: &CopyEnd, to: &CopyEnd, stop: u64) -> (Result<CopyReport, CopyError>, Attempt) {
    let (from, to) = (from.clone(), to.clone());
    let copied = tokio::task::spawn_blocking(move || {
        let mut attempt = Attempt::default();
        let report = store_copy(&from, &to, SMALL, NOW, &mut |step| {
            attempt.add(step);
            if attempt.steps == stop { Err(stopped()) } else { Ok(()) }
        });
        (report, attempt)
    });
    copied.await.unwrap()
}

/// Checks that every way to open the target fails because it is an unfinished copy, and changes nothing.
fn refuses_to_open(end: &CopyEnd) {
    match end {
        CopyEnd::Sqlite(path) => {
            let opened = SqliteStore::open(path, SqliteOptions::default(), NOW).map(drop);
            assert!(matches!(opened, Err(OpenError::UnfinishedCopy { .. })), "{opened:?}");
            for is_served in [false, true] {
                let viewed = SqliteView::open(path, is_served).map(drop);
                assert!(matches!(viewed, Err(OpenError::UnfinishedCopy { .. })), "{viewed:?}");
            }
            // Versions before this one compare the schema: in the header, and in the table.
            let connection = rusqlite::Connection::open(path).unwrap();
            for sql in ["PRAGMA user_version", "SELECT max(version) FROM schema_migrations"] {
                let schema: u32 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
                assert!(schema > mainspring_store::SCHEMA_VERSION, "{sql}: {schema}");
            }
        }
        CopyEnd::Postgres(url) => {
            let opened = PostgresStore::open(url, PostgresOptions::default()).map(drop);
            assert_eq!(opened, Err(PostgresError::UnfinishedCopy));
            assert_eq!(psql(url, "SELECT max(version) FROM mainspring_schema"), "1000000000");
        }
    }
}

/// A store with records of many kinds, as SQLite and as PostgreSQL, and the expected results of its reads.
async fn sources(folder: &Path) -> (Vec<(CopyEnd, Cursors)>, Vec<String>) {
    let mut sequence = Sequence::new(12, folder).await;
    for step in 0..STEPS / 6 {
        sequence.step(step).await;
    }
    let Sequence { memory, sqlite, postgres, cursors, url, .. } = sequence;
    let expected = read_everything(&memory, &cursors[0]).await;
    sqlite.close();
    drop(postgres);
    let [_, of_sqlite, of_postgres] = cursors;
    let file = CopyEnd::Sqlite(folder.join("test.sqlite3"));
    (vec![(file, of_sqlite), (CopyEnd::Postgres(url), of_postgres)], expected)
}

async fn compare(end: &CopyEnd, cursors: &Cursors, expected: &[String], what: &str) {
    match end {
        CopyEnd::Sqlite(path) => compare_with(&sqlite_at(path), cursors, expected, what).await,
        CopyEnd::Postgres(url) => compare_with(&postgres_at(url), cursors, expected, what).await,
    }
}

/// The result of a copy that was interrupted several times.
struct Interrupted {
    attempts: u64,
    batches: u64,
    /// None if the last attempt was interrupted after it had written everything.
    report: Option<CopyReport>,
}

/// Copies in attempts, each of which stops after a different number of further steps.
async fn copy_interrupted(from: &CopyEnd, to: &CopyEnd) -> Interrupted {
    let (mut attempts, mut batches, mut kept) = (0, 0, std::collections::BTreeMap::new());
    loop {
        attempts += 1;
        let (report, attempt) = copy_until(from, to, 2 + attempts * 5 % 17).await;
        let before: u64 = kept.values().sum();
        assert!(!attempt.begins_again);
        assert_eq!(attempt.continues_after, (attempts > 1).then_some(before), "attempt {attempts}");
        batches += attempt.batches;
        kept.extend(attempt.kept);
        match report {
            Ok(report) => return Interrupted { attempts, batches, report: Some(report) },
            Err(CopyError::Blob { hash, .. }) if hash == "stopped here" && attempt.is_complete => {
                return Interrupted { attempts, batches, report: None };
            }
            Err(CopyError::Blob { hash, .. }) if hash == "stopped here" => refuses_to_open(to),
            Err(error) => panic!("attempt {attempts}: {error}"),
        }
    }
}

#[tokio::test]
async fn an_interrupted_copy_continues_after_any_step() {
    let folder = tempfile::tempdir().unwrap();
    let (sources, expected) = sources(folder.path()).await;
    for (index, (from, cursors)) in sources.iter().enumerate() {
        let file = |name: &str| CopyEnd::Sqlite(folder.path().join(format!("{name}-{index}.sqlite3")));
        let targets = [(CopyEnd::Postgres(database()), file("whole")), (file("parts"), file("whole-2"))];
        for (to, whole) in targets {
            let (reference, once) = copy_until(from, &whole, u64::MAX).await;
            let reference = reference.unwrap();
            assert!(once.steps > 60 && once.is_complete, "{}", once.steps);
            assert_eq!(reference.kept, 0);
            let Interrupted { attempts, batches, report } = copy_interrupted(from, &to).await;
            let what = format!("source {index} into {to:?}");
            assert!(attempts > 5, "{what}: {attempts}");
            if let Some(report) = report {
                assert_eq!(report.records, reference.records, "{what}");
            }
            // Only ranges that were not kept are written again.
            assert!(batches <= once.batches + 3 * attempts, "{what}: {batches} {} {attempts}", once.batches);
            compare(&to, cursors, &expected, &what).await;
            compare(&whole, cursors, &expected, &what).await;
            let (refused, _) = copy(from, &to).await;
            assert!(matches!(refused, Err(CopyError::NotEmpty(_))), "{what}: {refused:?}");
        }
    }
}

/// A copy that was interrupted after half of its steps writes only the other half.
#[tokio::test]
async fn records_that_were_kept_are_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let (sources, _) = sources(folder.path()).await;
    let (from, _) = &sources[0];
    for to in [CopyEnd::Postgres(database()), CopyEnd::Sqlite(folder.path().join("to.sqlite3"))] {
        let whole = CopyEnd::Sqlite(folder.path().join("whole.sqlite3"));
        let (_, once) = copy_until(from, &whole, u64::MAX).await;
        let CopyEnd::Sqlite(path) = whole else { unreachable!() };
        std::fs::remove_file(path).unwrap();
        let (_, first) = copy_until(from, &to, once.steps / 2).await;
        let (report, second) = copy_until(from, &to, u64::MAX).await;
        let report = report.unwrap();
        assert!(report.kept > 0 && report.kept < report.total(), "{} of {}", report.kept, report.total());
        assert_eq!(second.continues_after, Some(report.kept));
        let lost = SMALL.range_records.div_ceil(SMALL.batch_records as u64);
        assert!(first.batches + second.batches <= once.batches + lost);
    }
}

#[tokio::test]
async fn a_source_that_has_changed_is_copied_again_and_another_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (source, other) = (folder.path().join("a.sqlite3"), folder.path().join("b.sqlite3"));
    for file in [&source, &other] {
        create_session(&sqlite_at(file), 1).await;
    }
    let (from, other, mut sessions) = (CopyEnd::Sqlite(source.clone()), CopyEnd::Sqlite(other), 1);
    for to in [CopyEnd::Postgres(database()), CopyEnd::Sqlite(folder.path().join("to.sqlite3"))] {
        let (ended, first) = copy_until(&from, &to, 4).await;
        assert!(ended.is_err() && first.continues_after.is_none());
        let (ended, second) = copy_until(&from, &to, 2).await;
        assert!(ended.is_err() && second.continues_after.is_some_and(|records| records > 0));
        sessions += 1;
        create_session(&sqlite_at(&source), sessions).await;
        let (ended, third) = copy_until(&from, &to, 4).await;
        assert!(ended.is_err() && third.begins_again && third.continues_after.is_none());
        let (refused, _) = copy_until(&other, &to, u64::MAX).await;
        assert!(matches!(refused, Err(CopyError::OfAnother(_))), "{refused:?}");
        let discard = || copy_discard(&to, NOW);
        let discarded = std::thread::scope(|scope| scope.spawn(discard).join().unwrap()).unwrap();
        assert!(discarded > 0);
        let again = std::thread::scope(|scope| scope.spawn(discard).join().unwrap());
        assert!(matches!(again, Err(CopyError::NotACopy(_))), "{again:?}");
        let (copied, fourth) = copy_until(&other, &to, u64::MAX).await;
        assert_eq!(copied.unwrap().kept, 0);
        assert!(!fourth.begins_again && fourth.continues_after.is_none());
        let kept = std::thread::scope(|scope| scope.spawn(discard).join().unwrap());
        assert!(matches!(kept, Err(CopyError::NotACopy(_))), "a whole store is not removed: {kept:?}");
    }
}

#[tokio::test]
async fn two_copies_into_one_target_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.sqlite3");
    create_session(&sqlite_at(&source), 1).await;
    let from = CopyEnd::Sqlite(source);
    for to in [CopyEnd::Postgres(database()), CopyEnd::Sqlite(folder.path().join("to.sqlite3"))] {
        let (from, to) = (from.clone(), to.clone());
        let copied = tokio::task::spawn_blocking(move || {
            let mut second = None;
            let first = store_copy(&from, &to, SMALL, NOW, &mut |step| {
                if step == CopyStep::Completes {
                    second = Some(store_copy(&from, &to, SMALL, NOW, &mut |_| Ok(())));
                }
                Ok(())
            });
            (first, second.unwrap())
        });
        let (first, second) = copied.await.unwrap();
        first.unwrap();
        let is_refused = matches!(
            second,
            Err(CopyError::Postgres(PostgresError::InUse) | CopyError::Open(OpenError::Busy { .. }))
        );
        assert!(is_refused, "{second:?}");
    }
}

/// A server of a cluster that has joined before a copy begins waits until the copy is complete.
#[tokio::test]
async fn a_waiting_server_does_not_take_an_unfinished_copy() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.sqlite3");
    create_session(&sqlite_at(&source), 1).await;
    for works_with_others in [false, true] {
        let url = database();
        let (from, to) = (CopyEnd::Sqlite(source.clone()), CopyEnd::Postgres(url.clone()));
        let standby =
            Standby::join(&url, PostgresOptions::default(), crate::lease::local_server(1)).await.unwrap();
        assert!(copy_until(&from, &to, 4).await.0.is_err());
        // A server that did not check for an unfinished copy would take the database: the copy would fail.
        let mut taking = tokio::task::JoinSet::new();
        taking.spawn(async move {
            match works_with_others {
                true => standby.work().await,
                false => standby.lead().await,
            }
        });
        let (copied, attempt) = copy_until(&from, &to, u64::MAX).await;
        assert!(attempt.continues_after.is_some(), "{copied:?}");
        copied.unwrap();
        let store = taking.join_next().await.unwrap().unwrap().unwrap();
        assert!(store.session_load(session_id(1)).await.unwrap().is_some());
    }
}

/// A snapshot waits for a writer that has a transaction id already: its events have lower cursors than later ones.
#[tokio::test]
async fn a_snapshot_has_all_events_below_its_last_cursor() {
    let (folder, url) = (tempfile::tempdir().unwrap(), database());
    let store = postgres_at(&url);
    let fence = create_session(&store, 1).await;
    let mut writer = psql_open(&url);
    writer.run("BEGIN; SELECT pg_current_xact_id(), count(*) FROM (SELECT 1 FROM leases FOR UPDATE) AS l;");
    // The commit of another session has a higher transaction id, but ends first.
    let other = create_session(&store, 2).await;
    commit(&store, other, vec![], vec![progress(7)]).await.unwrap();
    let file = folder.path().join("backup.sqlite3");
    let (to, from) = (file.clone(), url.clone());
    let backup =
        std::thread::spawn(move || PostgresView::open(&from).unwrap().unwrap().copy_to(&to, NOW).unwrap());
    while psql(&url, "SELECT count(*) FROM pg_locks WHERE NOT granted") == "0" {}
    writer.run(
        "UPDATE meta SET value = value WHERE name = 'boot';
         INSERT INTO events SELECT (pg_current_xact_id()::text::bigint) * 16384, decode(repeat('ab', 16), 'hex'), session_id,
           owner_id, NULL, NULL, NULL, type, pos, created_at, payload FROM events ORDER BY cursor LIMIT 1;
         COMMIT;",
    );
    let summary = backup.join().unwrap();
    let stored: u64 = psql(&url, "SELECT count(*) FROM events").parse().unwrap();
    assert_eq!(summary.events, stored, "the lower cursor is in the backup");
    // The snapshot did not stop the server.
    commit(&store, fence, vec![], vec![progress(8)]).await.unwrap();
}

#[tokio::test]
async fn a_view_reads_the_tables_of_its_version_and_makes_none() {
    let url = database();
    let view = |url: &str| {
        let open = || PostgresView::open(url).map(|view| view.is_some());
        std::thread::scope(|scope| scope.spawn(open).join().unwrap())
    };
    assert_eq!(view(&url), Ok(false));
    let to = CopyEnd::Postgres(url.clone());
    let discard = || copy_discard(&to, NOW);
    let refused = std::thread::scope(|scope| scope.spawn(discard).join().unwrap());
    assert!(matches!(refused, Err(CopyError::NotACopy(_))), "{refused:?}");
    assert_eq!(psql(&url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), "0");
    drop(postgres_at(&url));
    assert_eq!(view(&url), Ok(true));
    psql(&url, "DELETE FROM mainspring_schema WHERE version = (SELECT max(version) FROM mainspring_schema)");
    assert!(matches!(view(&url), Err(PostgresError::Older { .. })));
    psql(&url, "INSERT INTO mainspring_schema VALUES (999)");
    assert!(matches!(view(&url), Err(PostgresError::Newer { found: 999, .. })));
}
