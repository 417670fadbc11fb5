//! The lease of a PostgreSQL: one server of a cluster writes, and another takes over only when the first one has stopped.

use std::path::Path;
use std::sync::Arc;

use mainspring_core::placement::Offer;
use mainspring_core::*;
use mainspring_kernel::boot_time::boot_time_ms;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::store::{Commit, Fence, Store, StoreError};
use mainspring_store::{LocalServer, PostgresError, PostgresOptions, PostgresStore, Standby};

use crate::cluster::{database, pooled, psql, psql_open};
use crate::fixtures::*;

const LEASE_MS: u64 = 1_500;

pub(crate) fn local_server(n: u8) -> LocalServer {
    LocalServer {
        node: NodeId::from_random([n; 16]),
        name: format!("server {n}"),
        address: format!("http://server{n}"),
        place: Some(format!("place {n}")),
        times: LeaseTimes::new(LEASE_MS),
        limit_file: None,
        settings: mainspring_store::AnnouncedSettings::default(),
        offer: Offer::default(),
    }
}

async fn join(url: &str, local: LocalServer) -> Standby {
    Standby::join(url, PostgresOptions::default(), local).await.unwrap()
}

fn one_event(fence: Fence, n: u64) -> Arc<Commit> {
    Arc::new(Commit { fence, events: vec![progress(n)], rows: vec![] })
}

/// The time until which agents may live, as guards read it: milliseconds since the start of the machine.
fn limit(file: &Path) -> u64 {
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

/// Returns the expiry of the lease, which grows with each renewal.
fn renewed(url: &str) -> f64 {
    psql(url, "SELECT extract(epoch FROM expires_at) FROM server_lease").parse().unwrap()
}

/// Lets other processes work before the next look.
async fn pause() {
    Clock::system().sleep_for(10).await;
}

/// Makes every renewal of the lease fail. Nothing else is affected.
const REFUSE_RENEWALS: &str = "
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF new.epoch = old.epoch AND new.free_at > clock_timestamp() THEN RAISE 'no renewal'; END IF; RETURN new; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON server_lease FOR EACH ROW EXECUTE FUNCTION refuse()";

#[tokio::test(flavor = "multi_thread")]
async fn one_server_leads_and_another_one_takes_over_when_it_leaves() {
    let url = database();
    let (first, second) = (join(&url, local_server(1)).await, join(&url, local_server(2)).await);
    let store = first.lead().await.unwrap();
    assert!(first.is_active() && !second.is_active());
    let fence = create_session(&store, 1).await;
    store.commit(one_event(fence, 1)).await.unwrap();
    // The other server sees which server leads, and waits.
    let mut active = second.active();
    let leading = second.lead();
    let mut leading = std::pin::pin!(leading);
    tokio::select! {
        biased;
        known = active.wait_for(Option::is_some) => assert_eq!(known.unwrap().as_deref(), Some("http://server1")),
        _ = &mut leading => panic!("two servers lead"),
    }
    // A server without a cluster is refused, too.
    let alone = tokio::task::spawn_blocking({
        let url = url.clone();
        move || PostgresStore::open(&url, PostgresOptions::default()).map(drop)
    });
    tokio::select! {
        alone = alone => assert_eq!(alone.unwrap(), Err(PostgresError::InUse)),
        _ = &mut leading => panic!("two servers lead"),
    }
    first.leave().await.unwrap();
    let next = leading.await.unwrap();
    assert!(!first.is_active() && second.is_active());
    assert!(matches!(store.commit(one_event(fence, 2)).await, Err(StoreError::Lost(_))));
    assert!(matches!(
        store.lease_take(session_id(1), NodeId::from_random([9; 16])).await,
        Err(StoreError::Lost(_))
    ));
    let fence = lease(&next, 1).await;
    next.commit(one_event(fence, 2)).await.unwrap();
    assert_eq!(events(&next, 1).await.len(), 2);
    assert_eq!(psql(&url, "SELECT takeovers FROM server_lease"), "0", "it was handed over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_and_outlives_lost_connections() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limit");
    let url = database();
    let first = join(&url, LocalServer { limit_file: Some(file.clone()), ..local_server(1) }).await;
    let store = first.lead().await.unwrap();
    let fence = create_session(&store, 1).await;
    let begun = boot_time_ms();
    assert!(limit(&file) > begun && limit(&file) <= begun + LEASE_MS);
    let mut n = 0;
    // Longer than a lease.
    while boot_time_ms() < begun + 2 * LEASE_MS {
        let before = renewed(&url);
        psql(
            &url,
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()",
        );
        store.commit(one_event(fence, n)).await.unwrap();
        n += 1;
        while renewed(&url) == before {
            assert!(first.is_active(), "after {n} lost connections");
            pause().await;
        }
    }
    assert!(n >= 2);
    assert!(limit(&file) > boot_time_ms(), "the guards of agents know about the renewals");
    assert_eq!(psql(&url, "SELECT count(*) FROM events"), n.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_by_a_database_that_answers_slowly() {
    let times = LeaseTimes::new(8 * LEASE_MS);
    let url = database();
    let first = join(&url, LocalServer { times, ..local_server(1) }).await;
    let _store = first.lead().await.unwrap();
    // Renewals wait until the test answers them.
    let mut answers = psql_open(&url);
    answers.run("SELECT pg_advisory_lock(1);");
    let wait = "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
                  $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END $$;
                CREATE TRIGGER wait BEFORE UPDATE ON server_lease FOR EACH ROW EXECUTE FUNCTION wait()";
    psql(&url, wait);
    let has_opened_another_connection = || {
        let sql = "SELECT EXISTS (
              SELECT 1 FROM pg_stat_activity AS renewal JOIN pg_stat_activity AS opened USING (datname)
              WHERE datname = current_database() AND renewal.wait_event = 'advisory'
                AND renewal.application_name <> 'psql' AND opened.application_name <> 'psql'
                AND opened.backend_start > renewal.query_start)";
        psql(&url, sql) == "t"
    };
    for n in 0..2 {
        let before = renewed(&url);
        // The renewal takes longer than the time between two renewals.
        while !has_opened_another_connection() {
            assert!(first.is_active(), "after {n} renewals");
            pause().await;
        }
        // Answers this renewal, and none that is sent on the other connection.
        answers.run("SELECT pg_advisory_unlock(1), pg_advisory_lock(1);");
        while renewed(&url) == before {
            assert!(first.is_active(), "after {n} renewals");
            pause().await;
        }
    }
    assert!(first.is_active());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_renew_stops_before_another_one_takes_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limit");
    let url = database();
    let first = join(&url, LocalServer { limit_file: Some(file.clone()), ..local_server(1) }).await;
    let second = join(&url, local_server(2)).await;
    let store = first.lead().await.unwrap();
    let fence = create_session(&store, 1).await;
    psql(&url, REFUSE_RENEWALS);
    let (mut took_over, mut stopped) = (None, None);
    let (lead, lost) = (second.lead(), first.lost());
    let (mut lead, mut lost) = (std::pin::pin!(lead), std::pin::pin!(lost));
    while took_over.is_none() || stopped.is_none() {
        tokio::select! {
            next = &mut lead, if took_over.is_none() => took_over = Some((boot_time_ms(), next.unwrap())),
            () = &mut lost, if stopped.is_none() => stopped = Some(boot_time_ms()),
        }
    }
    let (took_over, next) = took_over.unwrap();
    assert!(limit(&file) + LEASE_MS / 4 <= took_over, "its agents had ended a margin before");
    assert!(stopped.unwrap() <= took_over && !first.is_active());
    assert!(matches!(store.commit(one_event(fence, 1)).await, Err(StoreError::Lost(_))));
    assert_eq!(psql(&url, "SELECT takeovers FROM server_lease"), "1");
    let fence = lease(&next, 1).await;
    next.commit(one_event(fence, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_know_about_its_successor_changes_nothing() {
    let url = database();
    let first = join(&url, local_server(1)).await;
    let store = first.lead().await.unwrap();
    let fences = [create_session(&store, 1).await, create_session(&store, 2).await];
    // As after a pause of the server: its lease has expired in the database, but not by its own clock.
    psql(&url, REFUSE_RENEWALS);
    psql(
        &url,
        "UPDATE server_lease SET expires_at = now() - interval '1 h', free_at = now() - interval '1 h'",
    );
    let second = join(&url, local_server(2)).await;
    let next = second.lead().await.unwrap();
    let refused = |error: StoreError| matches!(error, StoreError::Fenced | StoreError::Lost(_));
    assert!(refused(store.commit(one_event(fences[0], 1)).await.unwrap_err()));
    assert!(refused(store.lease_take(session_id(2), NodeId::from_random([9; 16])).await.unwrap_err()));
    assert!(refused(store.session_purge(session_id(2)).await.unwrap_err()));
    assert!(events(&next, 1).await.is_empty());
    let fence = lease(&next, 2).await;
    assert!(refused(store.commit(one_event(fences[1], 1)).await.unwrap_err()));
    next.commit(one_event(fence, 1)).await.unwrap();
    first.lost().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_the_place_of_one_that_was_killed_does_not_wait() {
    let url = database();
    let first = join(&url, local_server(1)).await;
    let killed = first.lead().await.unwrap();
    // As after `kill -9`: the lease is neither renewed nor released.
    psql(&url, REFUSE_RENEWALS);
    let again = join(&url, LocalServer { node: NodeId::from_random([3; 16]), ..local_server(1) }).await;
    again.lead().await.unwrap();
    assert!(again.is_active());
    let held = "SELECT clock_timestamp() < free_at FROM server_lease";
    assert_eq!(psql(&url, held), "t");
    drop(killed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_alone_and_a_cluster_exclude_each_other() {
    let url = database();
    let alone = PostgresStore::open(&url, PostgresOptions::default()).unwrap();
    let fence = create_session(&alone, 1).await;
    let first = join(&url, local_server(1)).await;
    let lead = first.lead();
    let mut lead = std::pin::pin!(lead);
    for n in 0..5 {
        tokio::select! {
            biased;
            _ = &mut lead => panic!("two servers write"),
            committed = alone.commit(one_event(fence, n)) => drop(committed.unwrap()),
        }
    }
    drop(alone);
    let store = lead.await.unwrap();
    assert_eq!(events(&store, 1).await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_cluster_work_behind_a_transaction_pooler() {
    let url = database();
    let first = join(&pooled(&url), local_server(1)).await;
    let store = first.lead().await.unwrap();
    let fence = create_session(&store, 1).await;
    let before = renewed(&url);
    while renewed(&url) == before {
        assert!(first.is_active());
        pause().await;
    }
    store.commit(one_event(fence, 1)).await.unwrap();
    first.leave().await.unwrap();
    let second = join(&pooled(&url), local_server(2)).await;
    second.lead().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_servers_that_start_together_one_leads() {
    let url = database();
    let mut starting = tokio::task::JoinSet::new();
    for n in 1..=5 {
        let url = url.clone();
        starting.spawn(async move {
            let standby = join(&url, local_server(n)).await;
            let store = standby.lead().await.unwrap();
            (standby, store)
        });
    }
    let mut epochs = vec![];
    while let Some(led) = starting.join_next().await {
        let (standby, store) = led.unwrap();
        assert!(standby.is_active());
        epochs.push(psql(&url, "SELECT epoch FROM server_lease"));
        drop(store);
        standby.leave().await.unwrap();
    }
    assert_eq!(epochs, ["1", "2", "3", "4", "5"], "one after the other");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_version_before_clusters_is_updated_by_the_first_server() {
    let url = database();
    let tables = include_str!("../../migrations/postgres/0001_tables.sql");
    let schema =
        "CREATE TABLE mainspring_schema (version bigint NOT NULL); INSERT INTO mainspring_schema VALUES (1);";
    psql(&url, &format!("{schema} {tables}"));
    psql(&url, "INSERT INTO meta VALUES ('boot', 7)");
    let first = join(&url, local_server(1)).await;
    let store = first.lead().await.unwrap();
    let fence = create_session(&store, 1).await;
    store.commit(one_event(fence, 1)).await.unwrap();
    assert_eq!(psql(&url, "SELECT epoch FROM server_lease"), "8");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_paused_server_do_not_prevent_a_takeover() {
    let url = database();
    let first = join(&url, local_server(1)).await;
    let store = first.lead().await.unwrap();
    create_session(&store, 1).await;
    // As a writer that was paused between its two round trips.
    let times = LeaseTimes::new(LEASE_MS);
    let mut stopped = psql_open(&url);
    stopped.run(&format!(
        "BEGIN; SET LOCAL idle_in_transaction_session_timeout = {}; SELECT * FROM leases FOR UPDATE;",
        times.idle_limit_ms()
    ));
    psql(&url, REFUSE_RENEWALS);
    let second = join(&url, local_server(2)).await;
    second.lead().await.unwrap();
    assert!(second.is_active() && !first.is_active());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_an_earlier_version_does_not_take_over() {
    let url = database();
    let (first, second) = (join(&url, local_server(1)).await, join(&url, local_server(2)).await);
    let store = first.lead().await.unwrap();
    let fence = create_session(&store, 1).await;
    psql(&url, "INSERT INTO mainspring_schema SELECT max(version) + 1 FROM mainspring_schema");
    store.commit(one_event(fence, 2)).await.unwrap();
    lease(&store, 3).await;
    first.leave().await.unwrap();
    let mut leading = Box::pin(second.lead());
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 3 {
        tokio::select! {
            biased;
            led = &mut leading => panic!("{:?}", led.map(drop)),
            () = tokio::task::yield_now() => {}
        }
        seen.insert(psql(&url, "SELECT seen_at FROM nodes WHERE name = 'server 2'"));
    }
    assert!(!second.is_active());
    psql(&url, "DELETE FROM mainspring_schema WHERE version = (SELECT max(version) FROM mainspring_schema)");
    leading.await.unwrap();
    assert!(second.is_active());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_an_unknown_place_keeps_the_database_from_another_one() {
    let url = database();
    drop(PostgresStore::open(&url, PostgresOptions::default()).unwrap());
    psql(
        &url,
        "INSERT INTO node_leases (node_id, expires_at, free_at)
         VALUES ('\\x01', clock_timestamp() + interval '1 hour', clock_timestamp() + interval '1 hour')",
    );
    assert_eq!(psql(&url, "SELECT count(*) FROM server_lease WHERE free_at IS NULL"), "1");
    let opened = PostgresStore::open(&url, PostgresOptions::default()).map(drop);
    assert_eq!(opened, Err(PostgresError::InUse));
}
