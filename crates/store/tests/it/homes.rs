//! Servers that execute sessions at the same time on one PostgreSQL: each session has one home.

use std::sync::Arc;

use mainspring_core::permits::{Demand, PermitPool};
use mainspring_core::placement::Offer;
use mainspring_core::quota::OwnerPool;
use mainspring_core::*;
use mainspring_kernel::boot_time::boot_time_ms;
use mainspring_kernel::store::{
    AnnouncedWait, BlobClaim, BlobPurpose, Commit, Fence, OwnerBlock, Row, SessionRef, Store, StoreError,
};
use mainspring_store::{
    Homes, LocalServer, PostgresError, PostgresOptions, PostgresStore, SharedPermits, Standby,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;

use crate::cluster::{database, psql};
use crate::fixtures::*;
use crate::keys::key;

const LEASE_MS: u64 = 1_500;

fn node(n: u8) -> NodeId {
    NodeId::from_random([n; 16])
}

fn local_server(n: u8) -> LocalServer {
    LocalServer {
        node: node(n),
        name: format!("server {n}"),
        address: format!("http://server{n}"),
        place: Some(format!("place {n}")),
        times: LeaseTimes::new(LEASE_MS),
        limit_file: None,
        settings: mainspring_store::AnnouncedSettings::default(),
        offer: Offer {
            adapters: vec!["script".into()],
            labels: vec![format!("label-{n}")],
            ..Offer::default()
        },
    }
}

async fn join(url: &str, local: LocalServer) -> (Standby, PostgresStore) {
    let server = Standby::join(url, PostgresOptions::default(), local).await.unwrap();
    let store = server.work().await.unwrap();
    (server, store)
}

/// Waits until the servers that `server` sees satisfy `is`.
async fn sees(server: &Standby, is: impl FnMut(&Homes) -> bool) -> Homes {
    server.homes().wait_for(is).await.unwrap().clone()
}

fn names(homes: &Homes) -> Vec<&str> {
    homes.servers.iter().map(|server| server.candidate.name.as_str()).collect()
}

/// Makes a session with an unfinished run. `home` becomes its home.
async fn make_session(store: &PostgresStore, n: u64, home: NodeId) -> Fence {
    let fence = store.lease_take(session_id(n), home).await.unwrap();
    let rows = vec![row_session(session(n)), row_run(run(n, n, 1, queued()))];
    store.commit(Arc::new(Commit { fence, events: vec![progress(n)], rows })).await.unwrap();
    fence
}

fn one_event(fence: Fence, n: u64) -> Arc<Commit> {
    Arc::new(Commit { fence, events: vec![progress(n)], rows: Vec::<Row>::new() })
}

/// Makes every renewal by one server fail. Nothing else is affected.
fn refuse_renewals(url: &str, of: NodeId) {
    let id: String = of.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    psql(
        url,
        &format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF new.node_id = '\\x{id}' THEN RAISE 'no renewal'; END IF; RETURN new; END $$;
             CREATE TRIGGER refuse BEFORE UPDATE ON node_leases FOR EACH ROW EXECUTE FUNCTION refuse()"
        ),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_write_at_the_same_time_and_a_session_has_one_home() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    let (second, b) = join(&url, local_server(2)).await;
    let homes = sees(&second, |homes| homes.servers.len() == 2 && homes.leader.is_some()).await;
    assert_eq!((names(&homes), homes.leader), (vec!["server 1", "server 2"], Some(node(1))));
    assert_eq!(homes.server(node(1)).unwrap().address, "http://server1");
    let offer = &homes.server(node(2)).unwrap().candidate.offer;
    assert_eq!((offer.adapters.join(" "), offer.labels.join(" ")), ("script".into(), "label-2".into()));
    let fences = [make_session(&a, 1, node(1)).await, make_session(&b, 2, node(2)).await];
    a.commit(one_event(fences[0], 3)).await.unwrap();
    b.commit(one_event(fences[1], 4)).await.unwrap();
    assert_eq!(events(&a, 2).await, events(&b, 2).await, "each reads what the other has written");
    let held = |by| Err(StoreError::HeldElsewhere { node: node(by) });
    assert_eq!(b.lease_take(session_id(1), node(2)).await.map(drop), held(1));
    assert_eq!(b.home_claim(session_id(1)).await, held(1));
    assert_eq!(b.home_find(session_id(1)).await, Ok(Some(node(1))));
    a.commit(one_event(fences[0], 5)).await.unwrap();
    // A session that is not in memory keeps its home, since its readers are there.
    a.lease_release(fences[0]).await.unwrap();
    assert_eq!(a.commit(one_event(fences[0], 6)).await, Err(StoreError::Fenced));
    assert_eq!(b.lease_take(session_id(1), node(2)).await.map(drop), held(1));
    let again = a.lease_take(session_id(1), node(1)).await.unwrap();
    assert!(again.epoch > fences[0].epoch);
    // Only the leader recovers, and only sessions without a home at another server.
    assert_eq!(a.unfinished().await.unwrap().live, [session_id(1)]);
    assert_eq!(b.unfinished().await.unwrap().live, []);
    let live = a.live_elsewhere().await.unwrap();
    let live: Vec<_> = live.iter().map(|(session, status)| (session.id, format!("{status:?}"))).collect();
    assert_eq!(live, [(session_id(2), "Busy".to_owned())]);
    // A server that leaves loses its sessions.
    first.leave().await.unwrap();
    assert!(matches!(a.commit(one_event(again, 7)).await, Err(StoreError::Lost(_))));
    let homes = sees(&second, |homes| homes.leader == Some(node(2))).await;
    assert_eq!((names(&homes), homes.lost_homes > 0), (vec!["server 2"], true));
    assert_eq!(b.unfinished().await.unwrap().live, [session_id(1), session_id(2)]);
    let taken = b.lease_take(session_id(1), node(2)).await.unwrap();
    b.commit(one_event(taken, 8)).await.unwrap();
    assert_eq!(psql(&url, "SELECT takeovers FROM server_lease"), "0", "it was handed over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_a_home_is_claimed_by_one_server() {
    let url = database();
    let (_first, a) = join(&url, local_server(1)).await;
    let (_second, b) = join(&url, local_server(2)).await;
    let fence = make_session(&a, 1, node(1)).await;
    psql(&url, "DELETE FROM leases");
    assert_eq!(a.commit(one_event(fence, 2)).await, Err(StoreError::Fenced));
    assert_eq!(a.home_find(session_id(1)).await, Ok(None));
    b.home_claim(session_id(1)).await.unwrap();
    b.home_claim(session_id(1)).await.unwrap();
    assert_eq!(
        a.lease_take(session_id(1), node(1)).await.map(drop),
        Err(StoreError::HeldElsewhere { node: node(2) })
    );
    // The claim is no lease, and does not void one.
    let fence = b.lease_take(session_id(1), node(2)).await.unwrap();
    b.home_claim(session_id(1)).await.unwrap();
    b.commit(one_event(fence, 3)).await.unwrap();
    // A session that was never made leaves nothing behind.
    let unmade = b.lease_take(session_id(9), node(2)).await.unwrap();
    b.lease_release(unmade).await.unwrap();
    assert_eq!(psql(&url, "SELECT count(*) FROM leases"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_not_in_memory_can_be_handed_to_another_server() {
    let url = database();
    let (_first, a) = join(&url, local_server(1)).await;
    let (second, b) = join(&url, local_server(2)).await;
    let fence = make_session(&a, 1, node(1)).await;
    assert_eq!(a.home_assign(session_id(1), node(2)).await, Ok(false), "it is in memory");
    a.lease_release(fence).await.unwrap();
    assert_eq!(b.home_assign(session_id(1), node(2)).await, Ok(false), "another server is its home");
    assert_eq!(a.home_assign(session_id(1), node(9)).await, Ok(false), "there is no such server");
    assert_eq!((a.home_find(session_id(1)).await, b.inbox_at_home().await), (Ok(Some(node(1))), Ok(vec![])));
    assert_eq!(a.home_assign(session_id(1), node(2)).await, Ok(true));
    assert_eq!(a.home_find(session_id(1)).await, Ok(Some(node(2))));
    assert_eq!((a.inbox_at_home().await, b.inbox_at_home().await), (Ok(vec![]), Ok(vec![session_id(1)])));
    let held = Err(StoreError::HeldElsewhere { node: node(2) });
    assert_eq!(a.lease_take(session_id(1), node(1)).await.map(drop), held);
    let taken = b.lease_take(session_id(1), node(2)).await.unwrap();
    b.commit(one_event(taken, 3)).await.unwrap();
    assert_eq!(b.inbox_at_home().await, Ok(vec![]), "it need not be loaded again");
    // A session whose server has ended has no home.
    second.leave().await.unwrap();
    assert_eq!(a.home_find(session_id(1)).await, Ok(None));
    assert_eq!(a.home_assign(session_id(1), node(2)).await, Ok(false));
    assert_eq!(a.home_assign(session_id(1), node(1)).await, Ok(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_memory_is_given_to_a_server_that_does_not_drain() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    let (second, b) = join(&url, local_server(2)).await;
    let fence = make_session(&a, 1, node(1)).await;
    assert_eq!(a.home_give(fence, node(9), true).await, Ok(false), "there is no such server");
    second.drain().await.unwrap();
    sees(&first, |homes| homes.server(node(2)).is_some_and(|server| server.candidate.is_draining)).await;
    assert_eq!(a.home_give(fence, node(2), true).await, Ok(false), "it drains");
    a.commit(one_event(fence, 2)).await.unwrap();
    let (_third, c) = join(&url, local_server(3)).await;
    assert_eq!(a.home_give(fence, node(3), true).await, Ok(true));
    assert_eq!(a.commit(one_event(fence, 3)).await, Err(StoreError::Fenced));
    assert_eq!(a.home_give(fence, node(3), true).await, Ok(false), "the lease is void");
    let held = Err(StoreError::HeldElsewhere { node: node(3) });
    assert_eq!(a.lease_take(session_id(1), node(1)).await.map(drop), held);
    assert_eq!(c.inbox_at_home().await, Ok(vec![session_id(1)]));
    let taken = c.lease_take(session_id(1), node(3)).await.unwrap();
    c.commit(one_event(taken, 3)).await.unwrap();
    // A session without work need not be loaded.
    assert_eq!(c.home_give(taken, node(1), false).await, Ok(true));
    assert_eq!((a.home_find(session_id(1)).await, a.inbox_at_home().await), (Ok(Some(node(1))), Ok(vec![])));
    // Sessions that are not in memory lose their home, except for the given ones.
    let fence = make_session(&a, 2, node(1)).await;
    a.lease_release(fence).await.unwrap();
    let in_memory = make_session(&a, 3, node(1)).await;
    a.homes_free(&[session_id(2)]).await.unwrap();
    for (n, home) in [(1, None), (2, Some(node(1))), (3, Some(node(1)))] {
        assert_eq!(b.home_find(session_id(n)).await, Ok(home), "{n}");
    }
    a.commit(one_event(in_memory, 4)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_steps_down_for_a_server_that_stays() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    sees(&first, |homes| homes.leader == Some(node(1))).await;
    make_session(&a, 1, node(1)).await;
    first.drain().await.unwrap();
    first.step_down();
    let (second, _b) = join(&url, local_server(2)).await;
    sees(&second, |homes| homes.leader == Some(node(2))).await;
    sees(&first, |homes| homes.leader == Some(node(2))).await;
    assert_eq!(a.unfinished().await.unwrap().live, [], "only the leader recovers");
    assert!(first.is_active(), "it is at work");
    assert_eq!(psql(&url, "SELECT takeovers FROM server_lease"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_another_server_goes_on_leading() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    sees(&first, |homes| homes.leader == Some(node(1))).await;
    make_session(&a, 1, node(1)).await;
    first.drain().await.unwrap();
    first.step_down();
    // The server goes on renewing the lease of the database.
    let lease = "SELECT expires_at FROM server_lease";
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 3 {
        let expires_at = psql(&url, lease);
        assert!(!expires_at.is_empty(), "the lease was released");
        seen.insert(expires_at);
    }
    assert_eq!(a.unfinished().await.unwrap().live, [session_id(1)]);
}

/// Numbers the tables as a later version would.
fn migrate_to_later(url: &str) {
    psql(url, "INSERT INTO mainspring_schema SELECT max(version) + 1 FROM mainspring_schema");
}

/// Makes the other servers believe that a server has the next version.
fn make_later(url: &str, name: &str) {
    psql(
        url,
        &format!(
            "UPDATE node_leases SET schema_version = schema_version + 1
             WHERE node_id = (SELECT node_id FROM nodes WHERE name = '{name}')"
        ),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_an_earlier_version_keeps_its_sessions_and_takes_no_others() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    let (second, b) = join(&url, local_server(2)).await;
    let known: u64 = psql(&url, "SELECT max(version) FROM mainspring_schema").parse().unwrap();
    let homes = sees(&first, |homes| homes.servers.len() == 2).await;
    assert!(homes.servers.iter().all(|server| server.candidate.schema_version == known));
    let own = make_session(&a, 1, node(1)).await;
    let other = make_session(&b, 2, node(2)).await;
    b.lease_release(other).await.unwrap();
    migrate_to_later(&url);
    // A server goes on with its own sessions, in memory or not.
    a.commit(one_event(own, 11)).await.unwrap();
    a.lease_release(own).await.unwrap();
    assert_eq!(a.home_claim(session_id(1)).await, Ok(()));
    let own = a.lease_take(session_id(1), node(1)).await.unwrap();
    a.commit(one_event(own, 12)).await.unwrap();
    // Sessions go to a server of the later version, but not to one of the earlier version.
    assert_eq!(a.home_give(own, node(2), true).await, Ok(false));
    let held = Err(StoreError::HeldElsewhere { node: node(2) });
    assert_eq!(a.lease_take(session_id(2), node(1)).await.map(drop), held);
    assert_eq!(a.home_claim(session_id(2)).await, held);
    a.lease_release(own).await.unwrap();
    assert_eq!(a.home_assign(session_id(1), node(2)).await, Ok(false));
    make_later(&url, "server 2");
    assert_eq!(a.home_assign(session_id(1), node(2)).await, Ok(true));
    // New sessions can still be made.
    let new = make_session(&a, 3, node(1)).await;
    a.commit(one_event(new, 13)).await.unwrap();
    assert_eq!(a.home_claim(session_id(4)).await, Ok(()), "it is not stored yet");
    // The sessions of a server that has ended wait for a server of the later version.
    second.leave().await.unwrap();
    for refused in [
        a.lease_take(session_id(2), node(1)).await.map(drop),
        a.home_claim(session_id(2)).await,
        a.home_assign(session_id(2), node(1)).await.map(drop),
        a.lease_take(session_id(1), node(1)).await.map(drop),
    ] {
        assert_eq!(refused, Err(StoreError::LaterVersion));
    }
    assert_eq!(a.home_find(session_id(2)).await, Ok(None));
    let refused = Standby::join(&url, PostgresOptions::default(), local_server(3)).await.unwrap_err();
    assert!(matches!(refused, PostgresError::Newer { .. }), "{refused:?}");
    // Once the tables have this version again, the server takes over.
    psql(&url, "DELETE FROM mainspring_schema WHERE version = (SELECT max(version) FROM mainspring_schema)");
    a.lease_take(session_id(2), node(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_announces_no_version_gets_no_session() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    let fence = make_session(&a, 1, node(1)).await;
    // The tables are as the previous version made them.
    psql(
        &url,
        "ALTER TABLE node_leases DROP COLUMN schema_version; DELETE FROM mainspring_schema WHERE version >= 16",
    );
    let (second, b) = join(&url, local_server(2)).await;
    let homes = sees(&second, |homes| homes.servers.len() == 2).await;
    let version = |n| homes.server(node(n)).unwrap().candidate.schema_version;
    assert_eq!((version(1), version(2) >= 17), (0, true));
    a.commit(one_event(fence, 11)).await.unwrap();
    let other = make_session(&b, 2, node(2)).await;
    assert_eq!(b.home_give(other, node(1), true).await, Ok(false));
    assert_eq!(a.home_give(fence, node(2), true).await, Ok(true));
    assert!(first.is_active());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_server_leads_while_one_of_a_later_version_can() {
    let url = database();
    let (first, _a) = join(&url, local_server(1)).await;
    sees(&first, |homes| homes.leader == Some(node(1))).await;
    let (second, _b) = join(&url, local_server(2)).await;
    let (third, _c) = join(&url, local_server(3)).await;
    // Server 2 only claims the later version: its program is of this version, so it does not lead either.
    make_later(&url, "server 2");
    first.leave().await.unwrap();
    sees(&third, |homes| homes.servers.len() == 2 && homes.leader.is_none()).await;
    // Server 3 tries to lead on each poll, several times per renewal. After two renewals it has tried often enough.
    let lease =
        "SELECT w.expires_at FROM node_leases AS w JOIN nodes USING (node_id) WHERE name = 'server 3'";
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 3 {
        seen.insert(psql(&url, lease));
    }
    assert_eq!(psql(&url, "SELECT free_at FROM server_lease"), "");
    second.leave().await.unwrap();
    sees(&third, |homes| homes.leader == Some(node(3))).await;
}

/// The permits of a server: those that it has, uses and wants.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Work {
    size: usize,
    used: usize,
    wanted: usize,
}

/// Shares four permits of runs with a process, as a server does whose work is `work`.
fn share_four(server: &Standby) -> watch::Sender<Work> {
    let work = watch::Sender::new(Work::default());
    let (for_demand, for_resize) = (work.clone(), work.clone());
    let demand = move |pool: PermitPool| {
        assert_eq!(pool, PermitPool::Workers, "the other pool is not shared");
        let Work { size, wanted, .. } = *for_demand.borrow();
        (Demand { cap: 9, owners: [("ada".to_owned(), wanted)].into() }, size)
    };
    let resize = move |_, permits: usize| for_resize.send_modify(|work| work.size = permits.max(work.used));
    server.share_permits(SharedPermits::new([Some(4), None], demand, resize));
    work
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_of_all_servers_follow_the_demand_and_end_with_their_server() {
    let url = database();
    let (first, _a) = join(&url, local_server(1)).await;
    let (second, _b) = join(&url, local_server(2)).await;
    sees(&first, |homes| homes.leader == Some(node(1)) && homes.servers.len() == 2).await;
    let (a, b) = (share_four(&first), share_four(&second));
    let reaches = async |work: &watch::Sender<Work>, size: usize| {
        let mut work = work.subscribe();
        tokio::select! {
            work = work.wait_for(|work| work.size == size) => drop(work.unwrap()),
            // Without their leases the servers exchange nothing.
            () = first.lost() => panic!("the first server lost its lease: did this machine stall?"),
            () = second.lost() => panic!("the second server lost its lease: did this machine stall?"),
        }
    };
    // Without demand the permits are divided evenly.
    tokio::join!(reaches(&a, 2), reaches(&b, 2));
    assert_eq!(second.servers().await.unwrap().servers[1].permits, [2, 0]);
    // The second server needs all permits, and the first server none.
    b.send_modify(|work| work.wanted = 9);
    tokio::join!(reaches(&a, 0), reaches(&b, 4));
    // The second server uses three permits, and the first server wants some too: it gets the fourth one, and no other
    // permit until one is returned.
    b.send_modify(|work| work.used = 3);
    a.send_modify(|work| work.wanted = 9);
    tokio::join!(reaches(&a, 1), reaches(&b, 3));
    let exchange_permits = async || {
        // Waits until both servers have exchanged their permits several times.
        let no = "SELECT min(permits_no) FROM node_leases";
        let before: u64 = psql(&url, no).parse().unwrap();
        while psql(&url, no).parse::<u64>().unwrap() < before + 3 {}
    };
    exchange_permits().await;
    assert_eq!((a.borrow().size, b.borrow().size), (1, 3));
    b.send_modify(|work| (work.used, work.size) = (2, 2));
    reaches(&a, 2).await;
    // The permits of a server that ends are given to the others only after it has left.
    refuse_renewals(&url, node(2));
    a.send_modify(|work| work.used = 2);
    let held = Mutex::new(vec![]);
    let watch = async {
        while a.borrow().size < 4 {
            held.lock().push((psql(&url, "SELECT count(*) FROM node_leases"), a.borrow().size));
        }
    };
    watch.await;
    let early = held.lock().iter().any(|(servers, size)| servers == "2" && *size > 2);
    assert!(!early, "{held:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_an_owner_never_exceed_its_limit_and_end_with_their_server() {
    let url = database();
    let (_first, a) = join(&url, local_server(1)).await;
    let (second, b) = join(&url, local_server(2)).await;
    let pool = OwnerPool::ActiveRuns;
    let block = |held, wanted| OwnerBlock { pool, owner: "ada".into(), held, wanted };
    assert_eq!(a.owner_block_take(pool, "ada", 3, 2).await, Ok(2));
    assert_eq!(b.owner_block_take(pool, "ada", 3, 2).await, Ok(1));
    assert_eq!(a.owner_block_take(pool, "ada", 3, 3).await, Ok(2), "nothing is left");
    assert_eq!(b.owner_block_take(pool, "bob", 3, 3).await, Ok(3), "owners have limits of their own");
    assert_eq!(b.owner_block_take(OwnerPool::QueuedPrompts, "ada", 3, 3).await, Ok(3));
    let known = [(pool, "ada".to_owned()), (pool, "bob".to_owned())];
    let wanting = a.owner_blocks_wanted(&known).await.unwrap();
    assert_eq!(wanting.into_iter().collect::<Vec<_>>(), [((pool, "ada".to_owned()), 1)]);
    // One server returns a part of its block, and the other one takes it.
    a.owner_blocks_write(&[block(1, 1)]).await.unwrap();
    assert_eq!(b.owner_block_take(pool, "ada", 3, 3).await, Ok(2));
    // Both servers take permits at the same time.
    a.owner_blocks_write(&[block(0, 0)]).await.unwrap();
    b.owner_blocks_write(&[block(0, 0)]).await.unwrap();
    assert_eq!(psql(&url, "SELECT count(*) FROM owner_blocks WHERE owner_id = 'ada' AND pool = 0"), "0");
    let (at_a, at_b) =
        tokio::join!(a.owner_block_take(pool, "ada", 3, 3), b.owner_block_take(pool, "ada", 3, 3));
    assert_eq!(at_a.unwrap() + at_b.unwrap(), 3);
    second.leave().await.unwrap();
    assert_eq!(a.owner_block_take(pool, "ada", 3, 3).await, Ok(3));
    assert!(b.owner_block_take(pool, "ada", 3, 1).await.is_err(), "a server that has left takes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_wait_for_labels_are_counted() {
    let url = database();
    let (server, a) = join(&url, local_server(1)).await;
    for (n, labels) in [(1, vec!["gpu".to_owned()]), (2, vec!["gpu".to_owned()]), (3, vec![])] {
        let fence = make_session(&a, n, node(1)).await;
        let metadata = json!({"a": "\0 and \\u0000"});
        let labelled = Session { labels, metadata, ..session(n) };
        commit(&a, fence, vec![row_session(labelled)], vec![]).await.unwrap();
    }
    assert_eq!(server.servers().await.unwrap().waiting, []);
    psql(&url, "DELETE FROM leases");
    assert_eq!(server.servers().await.unwrap().waiting, [(vec!["gpu".to_owned()], 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_takes_over_from_a_server_only_after_that_server_has_stopped() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    sees(&first, |homes| homes.leader == Some(node(1))).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limit");
    let (second, b) = join(&url, LocalServer { limit_file: Some(file.clone()), ..local_server(2) }).await;
    let fence = make_session(&b, 2, node(2)).await;
    sees(&first, |homes| homes.servers.len() == 2).await;
    let lost_before = first.homes().borrow().lost_homes;
    refuse_renewals(&url, node(2));
    let (mut taken, mut stopped) = (None, None);
    let (take, stop) = (sees(&first, |homes| homes.lost_homes > lost_before), second.lost());
    let (mut take, mut stop) = (std::pin::pin!(take), std::pin::pin!(stop));
    while taken.is_none() || stopped.is_none() {
        tokio::select! {
            homes = &mut take, if taken.is_none() => taken = Some((boot_time_ms(), homes)),
            () = &mut stop, if stopped.is_none() => stopped = Some(boot_time_ms()),
        }
    }
    let (taken_at, homes) = taken.unwrap();
    let limit: u64 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert!(limit + LEASE_MS / 4 <= taken_at, "its agents ended at least a margin earlier");
    assert!(stopped.unwrap() <= taken_at && !second.is_active() && first.is_active());
    assert_eq!(names(&homes), ["server 1"]);
    assert_eq!(psql(&url, "SELECT takeovers FROM server_lease"), "1");
    assert_eq!(a.unfinished().await.unwrap().live, [session_id(2)]);
    assert!(matches!(b.commit(one_event(fence, 3)).await, Err(StoreError::Lost(_))));
    let fence = a.lease_take(session_id(2), node(1)).await.unwrap();
    a.commit(one_event(fence, 3)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_know_about_a_takeover_changes_nothing() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    sees(&first, |homes| homes.leader == Some(node(1))).await;
    let (_second, b) = join(&url, local_server(2)).await;
    let fences = [make_session(&b, 2, node(2)).await, make_session(&b, 3, node(2)).await];
    sees(&first, |homes| homes.servers.len() == 2).await;
    let lost_before = first.homes().borrow().lost_homes;
    // Simulates a pause of the server: its lease has expired in the database, but not by its own clock.
    refuse_renewals(&url, node(2));
    psql(&url, "ALTER TABLE node_leases DISABLE TRIGGER refuse");
    psql(
        &url,
        "UPDATE node_leases SET expires_at = now() - interval '1 h', free_at = now() - interval '1 h'
           WHERE node_id = (SELECT node_id FROM nodes WHERE name = 'server 2');
         ALTER TABLE node_leases ENABLE TRIGGER refuse",
    );
    sees(&first, |homes| homes.lost_homes > lost_before).await;
    let refused = |error: StoreError| matches!(error, StoreError::Fenced | StoreError::Lost(_));
    assert!(refused(b.commit(one_event(fences[0], 4)).await.unwrap_err()), "its leases are void");
    assert!(refused(b.lease_take(session_id(3), node(2)).await.unwrap_err()));
    assert!(refused(b.lease_take(session_id(4), node(2)).await.unwrap_err()));
    assert!(refused(b.commit(one_event(fences[1], 5)).await.unwrap_err()));
    assert_eq!(events(&a, 2).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_share_the_work_and_a_server_alone_exclude_each_other() {
    let url = database();
    let alone = PostgresStore::open(&url, PostgresOptions::default()).unwrap();
    let server = Standby::join(&url, PostgresOptions::default(), local_server(1)).await.unwrap();
    {
        let mut working = std::pin::pin!(server.work());
        tokio::select! {
            biased;
            _ = &mut working => panic!("two kinds of servers write"),
            healthy = alone.health() => healthy.unwrap(),
        }
    }
    drop(alone);
    let _store = server.work().await.unwrap();
    let refused = tokio::task::spawn_blocking({
        let url = url.clone();
        move || PostgresStore::open(&url, PostgresOptions::default()).map(drop)
    });
    assert_eq!(refused.await.unwrap(), Err(PostgresError::InUse));
    // A server that would be active alone waits until the last server that shares the work has left.
    let (beside, _beside_store) = join(&url, local_server(2)).await;
    let other = Standby::join(&url, PostgresOptions::default(), local_server(3)).await.unwrap();
    let mut leading = std::pin::pin!(other.lead());
    sees(&server, |homes| homes.leader == Some(node(1))).await;
    server.leave().await.unwrap();
    tokio::select! {
        biased;
        _ = &mut leading => panic!("two kinds of servers write"),
        _ = sees(&beside, |homes| homes.leader == Some(node(2))) => {}
    }
    beside.leave().await.unwrap();
    leading.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_the_place_of_one_that_was_killed_frees_its_sessions_at_once() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    sees(&first, |homes| homes.leader == Some(node(1))).await;
    let (_killed, b) = join(&url, local_server(2)).await;
    make_session(&b, 2, node(2)).await;
    sees(&first, |homes| homes.servers.len() == 2).await;
    let lost_before = first.homes().borrow().lost_homes;
    let (again, c) = join(&url, LocalServer { node: node(3), ..local_server(2) }).await;
    // The agents of the earlier process may still be alive.
    assert_eq!(
        c.lease_take(session_id(2), node(3)).await.map(drop),
        Err(StoreError::HeldElsewhere { node: node(2) })
    );
    again.replace_earlier().await.unwrap();
    sees(&first, |homes| homes.lost_homes > lost_before).await;
    assert_eq!(a.unfinished().await.unwrap().live, [session_id(2)]);
    c.lease_take(session_id(2), node(3)).await.unwrap();
    assert_eq!(a.unfinished().await.unwrap().live, [], "it has a home again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_one_server_changes_is_noticed_by_the_others() {
    let url = database();
    let (first, _a) = join(&url, local_server(1)).await;
    let (_second, b) = join(&url, local_server(2)).await;
    let before = first.homes().borrow().keys_version;
    b.key_write(&key(1, None), None).await.unwrap();
    sees(&first, |homes| homes.keys_version > before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_announced_wait_is_known_to_all_servers_and_ends_with_its_server() {
    let url = database();
    let (_first, a) = join(&url, local_server(1)).await;
    let (second, b) = join(&url, local_server(2)).await;
    let wait = |n: u8, waiting, awaited| AnnouncedWait {
        id: WaitId::from_random([n; 16]),
        waiting: session_id(waiting),
        awaited: session_id(awaited),
    };
    let waits = [wait(1, 1, 2), wait(2, 2, 3), wait(3, 1, 2)];
    a.wait_announce(&waits[0]).await.unwrap();
    b.wait_announce(&waits[1]).await.unwrap();
    b.wait_announce(&waits[2]).await.unwrap();
    for store in [&a, &b] {
        let mut known = store.waits_announced().await.unwrap();
        known.sort_by_key(|wait| wait.id);
        assert_eq!(known, waits);
    }
    // Only one of two equal waits is withdrawn. Withdrawing it again changes nothing.
    b.wait_withdraw(waits[2].id).await.unwrap();
    b.wait_withdraw(waits[2].id).await.unwrap();
    assert_eq!(a.waits_announced().await.unwrap().len(), 2);
    second.leave().await.unwrap();
    assert_eq!(a.waits_announced().await, Ok(vec![waits[0]]));
    assert!(b.wait_announce(&waits[1]).await.is_err(), "a server that has left announces nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_a_version_without_announced_waits_gets_them() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    make_session(&a, 1, node(1)).await;
    first.leave().await.unwrap();
    psql(&url, "DROP TABLE announced_waits; DELETE FROM mainspring_schema WHERE version = 11");
    let (_again, b) = join(&url, local_server(2)).await;
    assert_eq!(b.waits_announced().await, Ok(vec![]));
    let kept = b.session_find(OWNER, &SessionRef::Id(session_id(1))).await.unwrap();
    assert!(kept.is_some(), "what was stored is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_does_not_remove_bytes_that_another_one_stores() {
    let url = database();
    let (first, a) = join(&url, local_server(1)).await;
    let (_second, b) = join(&url, local_server(2)).await;
    let claim = |n: u8, hash: &str, purpose| BlobClaim {
        id: ArtifactId::from_random([n; 16]),
        hash: hash.into(),
        purpose,
    };
    let store = |n, hash: &str| claim(n, hash, BlobPurpose::Store);
    let remove = |n, hash: &str| claim(n, hash, BlobPurpose::Remove);
    // Several servers store the same bytes; no server removes them until all have ended.
    assert_eq!(a.blob_claim(&store(1, "x")).await, Ok(true));
    assert_eq!(b.blob_claim(&store(2, "x")).await, Ok(true));
    assert_eq!(b.blob_claim(&remove(3, "x")).await, Ok(false));
    assert_eq!(b.blob_claim(&remove(4, "y")).await, Ok(true), "other bytes");
    a.blob_release(store(1, "x").id).await.unwrap();
    assert_eq!(a.blob_claim(&remove(5, "x")).await, Ok(false));
    b.blob_release(store(2, "x").id).await.unwrap();
    assert_eq!(a.blob_claim(&remove(6, "x")).await, Ok(true));
    assert_eq!(b.blob_claim(&remove(7, "x")).await, Ok(false), "one removal at a time");
    // A claim to store waits for the end of the removal.
    let storing = store(8, "x");
    let mut waiting = std::pin::pin!(b.blob_claim(&storing));
    tokio::select! {
        biased;
        claimed = &mut waiting => panic!("{claimed:?} during the removal"),
        () = async { assert_eq!(b.blob_claim(&remove(9, "x")).await, Ok(false)) } => {}
    }
    a.blob_release(remove(6, "x").id).await.unwrap();
    assert_eq!(waiting.await, Ok(true));
    // The claims of a server that has ended block no other server.
    assert_eq!(a.blob_claim(&store(10, "of a")).await, Ok(true));
    assert_eq!(a.blob_claim(&remove(11, "also of a")).await, Ok(true));
    assert_eq!(b.processes_at_work().await.unwrap().len(), 2);
    first.leave().await.unwrap();
    assert_eq!(b.processes_at_work().await, Ok(vec![node(2)]));
    assert_eq!(b.blob_claim(&remove(12, "of a")).await, Ok(true));
    assert_eq!(b.blob_claim(&store(13, "also of a")).await, Ok(true));
    assert!(a.blob_claim(&remove(14, "z")).await.is_err());
    assert!(a.blob_is_used("z").await.is_err(), "it may not remove bytes any more");
}
