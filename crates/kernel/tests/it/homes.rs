//! Kernels that share a PostgreSQL: a session is served by its home alone, and another kernel takes the
//! session over when the home ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainspring_adapters::ScriptAdapter;
use mainspring_api::{LiveChange, LiveStatus};
use mainspring_core::placement::Offer;
use mainspring_core::{Answer, LeaseTimes, NodeId, Position, Run, RunId, RunStatus};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::feed::Item;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::homes::{Homes, placeable};
use mainspring_kernel::kernel::{Caller, RunRequest, SessionQuery};
use mainspring_kernel::owner_events::OwnerItem;
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Kernel, Options};
use mainspring_store::{HomeServer, LocalServer, PostgresOptions, Standby};
use serde_json::json;

use crate::cluster::{database, psql};
use crate::world::{NOW, by_key, with_timeout};

/// A server of a group: its membership and its kernel.
pub(crate) struct Server {
    standby: Standby,
    pub(crate) kernel: Kernel,
    pub(crate) me: Caller,
}

pub(crate) fn node(n: u8) -> NodeId {
    NodeId::from_random([n; 16])
}

/// Starts a server that offers the adapters to others. The kernel has the script agent in any case.
async fn server(url: &str, n: u8, adapters: &[&str]) -> Server {
    server_with_labels(url, n, adapters, &[]).await
}

async fn server_with_labels(url: &str, n: u8, adapters: &[&str], labels: &[&str]) -> Server {
    server_with(url, n, adapters, labels, Options::default()).await
}

pub(crate) async fn server_with(
    url: &str,
    n: u8,
    adapters: &[&str],
    labels: &[&str],
    options: Options,
) -> Server {
    server_under_load(url, n, adapters, labels, options, None).await
}

/// Starts a server that believes to have as many sessions in memory as `load` says.
async fn server_under_load(
    url: &str,
    n: u8,
    adapters: &[&str],
    labels: &[&str],
    options: Options,
    load: Option<Arc<AtomicU64>>,
) -> Server {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let local = LocalServer {
        node: node(n),
        name: format!("server {n}"),
        address: format!("http://server{n}"),
        place: None,
        times: LeaseTimes::new(60_000),
        limit_file: None,
        settings: mainspring_store::AnnouncedSettings::default(),
        offer: Offer { adapters: owned(adapters), folders: vec![], labels: owned(labels) },
    };
    let standby = Standby::join(url, PostgresOptions::default(), local).await.unwrap();
    let store = standby.work().await.unwrap();
    standby.homes().wait_for(|homes| homes.leader.is_some()).await.unwrap();
    let homes = standby.homes();
    let candidate = move |server: &HomeServer| {
        let mut candidate = server.candidate.clone();
        if let Some(load) = load.as_ref().filter(|_| candidate.node == node(n)) {
            candidate.sessions = load.load(Ordering::Relaxed);
        }
        candidate
    };
    let candidates = move || homes.borrow().servers.iter().map(&candidate).collect();
    let options = Options {
        node: Some(node(n)),
        homes: Some(Homes::new(candidates)),
        labels: owned(labels),
        ..options
    };
    let (clock, ids) = (Clock::manual(NOW), Ids::seeded(n.into()));
    let kernel =
        Kernel::start(Arc::new(store), vec![Arc::new(ScriptAdapter)], options, clock, ids).await.unwrap();
    Server { standby, kernel, me: Caller::new("ada") }
}

impl Server {
    async fn prompt(&self, key: &str, script: &str) -> Result<Run, Error> {
        let accepted = with_timeout(self.kernel.run_create(&self.me, RunRequest::text(key, script))).await;
        accepted.map(|accepted| accepted.run)
    }

    async fn status(&self, run: RunId) -> RunStatus {
        self.kernel.run_get(&self.me, run).await.unwrap().state.status()
    }

    /// Waits until the run has this status, by reading.
    async fn reaches(&self, run: RunId, status: RunStatus) {
        let reach = async {
            while self.status(run).await != status {
                tokio::task::yield_now().await;
            }
        };
        with_timeout(reach).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_served_by_its_home_alone() {
    let url = database();
    let (a, b) = (server(&url, 1, &["script"]).await, server(&url, 2, &["script"]).await);
    let run = a.prompt("a", "say hi").await.unwrap();
    a.reaches(run.id, RunStatus::Succeeded).await;
    let by = SessionRef::Id(run.session);
    let elsewhere = Error::Elsewhere { node: node(1) };
    assert_eq!(b.prompt("a", "say more").await.unwrap_err(), elsewhere);
    assert_eq!(b.kernel.session_subscribe(&b.me, &by, None).await.map(drop).unwrap_err(), elsewhere);
    assert_eq!(b.kernel.session_observe(&b.me, &by_key("a"), None).await.map(drop).unwrap_err(), elsewhere);
    assert_eq!(b.kernel.session_snapshot(&b.me, &by).await.map(drop).unwrap_err(), elsewhere);
    assert_eq!(b.kernel.run_cancel(&b.me, run.id).await.map(drop).unwrap_err(), elsewhere);
    assert!(elsewhere.is_retryable());
    // Stored data can be read at any server.
    assert_eq!(b.status(run.id).await, RunStatus::Succeeded);
    assert_eq!(b.kernel.session_home(run.session).await, Ok(Some(node(1))));
    assert_eq!(b.kernel.run_home(run.id).await, Ok(Some(node(1))));
    assert_eq!(a.kernel.run_home(run.id).await, Ok(None));
    assert_eq!(
        (a.kernel.session_is_here(run.session).await, b.kernel.session_is_here(run.session).await),
        (Ok(true), Ok(false))
    );
    // An unloaded session keeps its home.
    assert!(a.kernel.session_close(&a.me, &by).await.unwrap());
    assert_eq!(b.prompt("a", "say more").await.unwrap_err(), elsewhere);
    let more = a.prompt("a", "say more").await.unwrap();
    assert_eq!(more.session, run.session);
    a.reaches(more.id, RunStatus::Succeeded).await;
    // Request names hold across servers.
    let named = |script: &str| {
        let mut request = RunRequest::text("named", script);
        (request.name.client_id, request.name.request_id) = (Some("c".into()), Some("r".into()));
        request
    };
    let first = a.kernel.run_create(&a.me, named("say once")).await.unwrap();
    let again = b.kernel.run_create(&b.me, named("say once")).await.unwrap();
    assert_eq!((again.run.id, again.replayed), (first.run.id, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_goes_to_a_server_that_can_execute_it() {
    let url = database();
    let (a, b) = (server(&url, 1, &["script"]).await, server(&url, 2, &[]).await);
    b.standby.homes().wait_for(|homes| homes.servers.len() == 2).await.unwrap();
    let elsewhere = Error::Elsewhere { node: node(1) };
    assert_eq!(placeable(b.prompt("x", "say hi")).await.unwrap_err(), elsewhere);
    assert!(b.kernel.session_get(&b.me, &by_key("x")).await.is_err(), "nothing was made");
    // Where no other server can be asked, it is made here.
    let run = b.prompt("y", "say hi").await.unwrap();
    assert_eq!(a.kernel.session_home(run.session).await, Ok(Some(node(2))));
    a.standby.homes().wait_for(|homes| homes.servers.len() == 2).await.unwrap();
    let kept = placeable(a.prompt("z", "say hi")).await.unwrap();
    assert_eq!(b.kernel.session_home(kept.session).await, Ok(Some(node(1))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_recovers_the_sessions_of_a_server_that_has_ended() {
    let url = database();
    let a = server(&url, 1, &["script"]).await;
    let b = server(&url, 2, &["script"]).await;
    let lost = b.prompt("lost", "sleep 60m").await.unwrap();
    b.reaches(lost.id, RunStatus::Running).await;
    let asks = b.prompt("asks", "ask what?").await.unwrap();
    b.reaches(asks.id, RunStatus::WaitingInput).await;
    let own = a.prompt("own", "sleep 60m").await.unwrap();
    a.reaches(own.id, RunStatus::Running).await;
    a.standby.homes().wait_for(|homes| homes.servers.len() == 2).await.unwrap();
    let lost_before = a.standby.homes().borrow().lost_homes;
    // The server ends without stopping its kernel, as in a crash.
    b.standby.leave().await.unwrap();
    a.standby.homes().wait_for(|homes| homes.lost_homes > lost_before).await.unwrap();
    with_timeout(a.kernel.homes_recover()).await.unwrap();
    assert_eq!(a.status(lost.id).await, RunStatus::Orphaned);
    assert_eq!(a.status(asks.id).await, RunStatus::WaitingInput, "a question survives its server");
    assert_eq!(a.status(own.id).await, RunStatus::Running, "the leader's own runs go on");
    assert_eq!(a.kernel.run_home(asks.id).await, Ok(None));
    let more = a.prompt("lost", "say more").await.unwrap();
    a.reaches(more.id, RunStatus::Succeeded).await;
}

/// A prompt for a session that needs labels.
fn labelled(key: &str, script: &str, labels: &[&str]) -> RunRequest {
    let mut request = RunRequest::text(key, script);
    request.session.new.labels = labels.iter().map(|&label| label.to_owned()).collect();
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_labels_is_executed_only_where_they_are() {
    let url = database();
    let a = server_with_labels(&url, 1, &["script"], &[]).await;
    let b = server_with_labels(&url, 2, &["script"], &["gpu", "eu"]).await;
    for server in [&a, &b] {
        server.standby.homes().wait_for(|homes| homes.servers.len() == 2).await.unwrap();
    }
    let elsewhere = Error::Elsewhere { node: node(2) };
    let ask = async |server: &Server, key: &str, labels: &[&str]| {
        let request = labelled(key, "sleep 60m", labels);
        server.kernel.run_create(&server.me, request).await.map(|accepted| accepted.run)
    };
    assert_eq!(ask(&a, "x", &["gpu"]).await.unwrap_err(), elsewhere);
    let refused = ask(&a, "x", &["gpu", "tpu"]).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_retryable()), ("unavailable", true));
    let why = "no server has the label `tpu` that the session needs: server 1 has none; server 2 has gpu, eu";
    assert!(refused.to_string().starts_with(why), "{refused}");
    assert!(matches!(ask(&a, "x", &["no label"]).await.unwrap_err(), Error::Invalid(_)));
    let run = ask(&b, "x", &["gpu"]).await.unwrap();
    b.reaches(run.id, RunStatus::Running).await;
    let queued = b.prompt("x", "say queued").await.unwrap();
    // The session's server ends: the leader may not take the session, which waits.
    let lost_before = a.standby.homes().borrow().lost_homes;
    b.standby.leave().await.unwrap();
    a.standby.homes().wait_for(|homes| homes.lost_homes > lost_before).await.unwrap();
    assert_eq!(with_timeout(a.kernel.homes_recover()).await, Ok(1));
    assert_eq!(a.kernel.session_home(run.session).await, Ok(None));
    let why = "no server has the label `gpu` that the session needs: server 1 has none";
    let by = SessionRef::Id(run.session);
    for refused in [
        a.prompt("x", "say no").await.map(drop).unwrap_err(),
        a.kernel.session_subscribe(&a.me, &by, None).await.map(drop).unwrap_err(),
        a.kernel.run_cancel(&a.me, queued.id).await.map(drop).unwrap_err(),
    ] {
        assert!(refused.to_string().starts_with(why), "{refused}");
    }
    assert_eq!(a.status(queued.id).await, RunStatus::Queued, "it can be read, and waits");
    // A server with the label joins, and the leader hands it the session.
    let c = server_with_labels(&url, 3, &["script"], &["gpu"]).await;
    a.standby.homes().wait_for(|homes| homes.servers.len() == 2).await.unwrap();
    assert_eq!(with_timeout(a.kernel.homes_recover()).await, Ok(0));
    assert_eq!(a.kernel.session_home(run.session).await, Ok(Some(node(3))));
    c.kernel.homes_poll().await.unwrap();
    c.reaches(run.id, RunStatus::Orphaned).await;
    c.reaches(queued.id, RunStatus::Succeeded).await;
    assert_eq!(a.prompt("x", "say no").await.unwrap_err(), Error::Elsewhere { node: node(3) });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_of_an_earlier_version_keeps_its_sessions_and_takes_no_others() {
    let url = database();
    let (a, b) = (server(&url, 1, &["script"]).await, server(&url, 2, &["script"]).await);
    let own = a.prompt("own", "say hi").await.unwrap();
    a.reaches(own.id, RunStatus::Succeeded).await;
    let other = b.prompt("other", "say hi").await.unwrap();
    b.reaches(other.id, RunStatus::Succeeded).await;
    for (server, run) in [(&a, &own), (&b, &other)] {
        assert!(server.kernel.session_close(&server.me, &SessionRef::Id(run.session)).await.unwrap());
    }
    let node_of = |name: &str| format!("node_id = (SELECT node_id FROM nodes WHERE name = '{name}')");
    psql(&url, &format!("UPDATE node_leases SET schema_version = 0 WHERE {}", node_of("server 1")));
    for server in [&a, &b] {
        let is_earlier = |server: &HomeServer| server.candidate.schema_version == 0;
        let mut homes = server.standby.homes();
        homes
            .wait_for(|homes| homes.servers.len() == 2 && homes.server(node(1)).is_some_and(is_earlier))
            .await
            .unwrap();
    }
    // A session without a home gets one at the later server.
    psql(&url, &format!("DELETE FROM leases WHERE {}", node_of("server 2")));
    assert_eq!(a.prompt("other", "say no").await.unwrap_err(), Error::Elsewhere { node: node(2) });
    assert_eq!(a.kernel.run_home(other.id).await, Ok(Some(node(2))));
    // The earlier one goes on with its own session, which is not in memory, and makes new ones.
    for key in ["own", "new"] {
        let run = a.prompt(key, "say more").await.unwrap();
        a.reaches(run.id, RunStatus::Succeeded).await;
        assert_eq!(b.kernel.run_home(run.id).await, Ok(Some(node(1))), "{key}");
    }
    // The later server hands no session over to the earlier one.
    let lost = b.prompt("lost", "sleep 60m").await.unwrap();
    b.reaches(lost.id, RunStatus::Running).await;
    with_timeout(b.kernel.hand_over()).await;
    assert_eq!(a.kernel.run_home(other.id).await, Ok(Some(node(2))));
    // Without a later server, the database refuses.
    psql(&url, "INSERT INTO mainspring_schema SELECT max(version) + 1 FROM mainspring_schema");
    b.standby.leave().await.unwrap();
    a.standby.homes().wait_for(|homes| homes.servers.len() == 1).await.unwrap();
    let refused = a.prompt("other", "say no").await.unwrap_err();
    assert_eq!((refused.code(), refused.is_retryable()), ("unavailable", true));
    let why = "a server of a later version has changed the tables: this one goes on with its own sessions";
    assert!(refused.to_string().starts_with(why), "{refused}");
    assert_eq!(with_timeout(a.kernel.homes_recover()).await, Ok(1));
    let run = a.prompt("own", "say still").await.unwrap();
    a.reaches(run.id, RunStatus::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_kernel_hands_over_each_session_as_soon_as_no_run_acts_for_it() {
    let url = database();
    let a = server(&url, 1, &["script"]).await;
    let two = Options { max_workers: 2, ..Options::default() };
    let b = server_with(&url, 2, &["script"], &["gpu"], two).await;
    for server in [&a, &b] {
        server.standby.homes().wait_for(|homes| homes.servers.len() == 2).await.unwrap();
    }
    let idle = b.prompt("idle", "say hi").await.unwrap();
    b.reaches(idle.id, RunStatus::Succeeded).await;
    let by = SessionRef::Id(idle.session);
    let mut reader = b.kernel.session_subscribe(&b.me, &by, Some(Position::START)).await.unwrap();
    let unloaded = b.prompt("unloaded", "say hi").await.unwrap();
    b.reaches(unloaded.id, RunStatus::Succeeded).await;
    let observed = SessionRef::Id(unloaded.session);
    let mut observer = b.kernel.session_observe(&b.me, &observed, None).await.unwrap();
    assert!(b.kernel.session_close(&b.me, &observed).await.unwrap());
    let asks = b.prompt("asks", "say first; ask what?; say thanks").await.unwrap();
    b.reaches(asks.id, RunStatus::WaitingInput).await;
    let acts = b.prompt("acts", "hang").await.unwrap();
    let behind = b.prompt("acts", "say behind").await.unwrap();
    let stays = b.kernel.run_create(&b.me, labelled("stays", "hang", &["gpu"])).await.unwrap().run;
    for run in [&acts, &stays] {
        b.reaches(run.id, RunStatus::Running).await;
    }
    let queued = b.prompt("queued", "say queued").await.unwrap();
    assert_eq!(b.status(queued.id).await, RunStatus::Queued, "no permit is free");

    with_timeout(b.kernel.hand_over()).await;
    let home = async |run: &Run| a.kernel.run_home(run.id).await.unwrap();
    for run in [&asks, &queued] {
        assert_eq!(home(run).await, None, "here");
    }
    for run in [&acts, &behind, &stays] {
        assert_eq!(home(run).await, Some(node(2)));
    }
    let elsewhere = Error::Elsewhere { node: node(1) };
    // A reader gets all events, then an error that names the new home.
    let mut kinds = vec![];
    let end = loop {
        match with_timeout(reader.next()).await.unwrap() {
            Ok(Item::Event(event)) => kinds.push(event.body.kind()),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!((kinds.last().copied(), &end), (Some("run.succeeded"), &elsewhere), "{kinds:?}");
    assert_eq!(with_timeout(observer.next()).await.unwrap().unwrap_err(), elsewhere);
    let mut again = a.kernel.session_subscribe(&a.me, &by, Some(reader.position())).await.unwrap();
    // Commands are refused with the new home, also for sessions that were not in memory.
    for key in ["idle", "unloaded", "asks", "queued"] {
        assert_eq!(b.prompt(key, "say no").await.unwrap_err(), elsewhere, "{key}");
    }
    assert_eq!(placeable(b.prompt("new", "say no")).await.unwrap_err(), elsewhere);
    let more = a.prompt("idle", "say more").await.unwrap();
    let first = with_timeout(again.next()).await.unwrap().unwrap();
    assert!(matches!(&first, Item::Event(event) if event.run == Some(more.id)), "{first:?}");
    // The new home continues the queued run, and the question can be answered there.
    with_timeout(a.kernel.homes_poll()).await.unwrap();
    a.reaches(queued.id, RunStatus::Succeeded).await;
    let wait = a.kernel.run_get(&a.me, asks.id).await.unwrap().state.wait().unwrap().id;
    a.kernel.run_answer(&a.me, asks.id, wait, Answer::Input { input: json!("this") }).await.unwrap();
    a.reaches(asks.id, RunStatus::Succeeded).await;
    // A prompt behind an active run moves once that run has ended. Sessions that only this server can execute stay.
    b.kernel.run_cancel(&b.me, acts.id).await.unwrap();
    let moves = async {
        while home(&behind).await.is_some() {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(moves).await;
    with_timeout(a.kernel.homes_poll()).await.unwrap();
    a.reaches(behind.id, RunStatus::Succeeded).await;
    assert_eq!(b.status(acts.id).await, RunStatus::Cancelled);
    assert_eq!((home(&stays).await, b.status(stays.id).await), (Some(node(2)), RunStatus::Running));
    for run in [&idle, &unloaded, &asks, &behind, &queued, &more] {
        assert_eq!(a.kernel.run_get(&a.me, run.id).await.unwrap().attempts, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_of_a_busy_kernel_moves_with_its_next_prompt() {
    let url = database();
    let load = Arc::new(AtomicU64::new(0));
    let a = server_under_load(&url, 1, &["script"], &[], Options::default(), Some(Arc::clone(&load))).await;
    let b = server(&url, 2, &["script"]).await;
    a.standby.homes().wait_for(|homes| homes.servers.len() == 2).await.unwrap();
    let unloaded = async |key: &str, cwd: Option<&str>| {
        let mut request = RunRequest::text(key, "say hi");
        request.session.new.cwd = cwd.map(str::to_owned);
        let run = Box::pin(placeable(a.kernel.run_create(&a.me, request))).await.unwrap().run;
        a.reaches(run.id, RunStatus::Succeeded).await;
        let by = SessionRef::Id(run.session);
        assert!(a.kernel.session_close(&a.me, &by).await.unwrap());
        by
    };
    let (idle, read) = (unloaded("idle", None).await, unloaded("read", None).await);
    let _reader = a.kernel.session_observe(&a.me, &read, None).await.unwrap();
    unloaded("here", None).await;
    unloaded("folder", Some("/")).await;
    let placed = async |key: &str| placeable(a.prompt(key, "say more")).await;
    let more = placed("idle").await.unwrap();
    a.reaches(more.id, RunStatus::Succeeded).await;
    assert!(a.kernel.session_close(&a.me, &idle).await.unwrap());
    load.store(9, Ordering::Relaxed);

    let elsewhere = Error::Elsewhere { node: node(2) };
    assert_eq!(placed("idle").await.unwrap_err(), elsewhere);
    let moved = b.prompt("idle", "say there").await.unwrap();
    b.reaches(moved.id, RunStatus::Succeeded).await;
    assert_eq!(moved.session, more.session);
    assert_eq!(b.kernel.session_home(moved.session).await, Ok(None), "here");
    // A session that is read, one in a folder, and one whose prompt cannot be sent elsewhere stay.
    for key in ["read", "folder"] {
        let run = placed(key).await.unwrap();
        assert_eq!(b.kernel.run_home(run.id).await, Ok(Some(node(1))), "{key}");
    }
    let run = a.prompt("here", "say more").await.unwrap();
    assert_eq!(b.kernel.run_home(run.id).await, Ok(Some(node(1))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_kernel_without_another_one_keeps_its_sessions() {
    let url = database();
    let a = server(&url, 1, &["script"]).await;
    let idle = a.prompt("idle", "say hi").await.unwrap();
    a.reaches(idle.id, RunStatus::Succeeded).await;
    with_timeout(a.kernel.hand_over()).await;
    let more = a.prompt("idle", "say more").await.unwrap();
    a.reaches(more.id, RunStatus::Succeeded).await;
    let new = placeable(a.prompt("new", "say hi")).await.unwrap();
    a.reaches(new.id, RunStatus::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_all_sessions_see_the_sessions_of_other_servers() {
    let url = database();
    let (a, b) = (server(&url, 1, &["script"]).await, server(&url, 2, &["script"]).await);
    let mut events = a.kernel.owner_events(&a.me, None, None).await.unwrap();
    let mut board = a.kernel.live_feed(&a.me);
    let mut notices = a.standby.notices();
    notices.borrow_and_update();
    assert!(matches!(with_timeout(events.next()).await, Ok(OwnerItem::CaughtUp(_))));
    let is_started =
        |item: &OwnerItem| matches!(item, OwnerItem::Event(event) if event.body.kind() == "run.running");
    let read = async { while !is_started(&events.next().await.unwrap()) {} };
    let write = async {
        let run = b.prompt("b", "sleep 60m").await.unwrap();
        b.reaches(run.id, RunStatus::Running).await;
        // The other server has announced its write.
        notices.changed().await.unwrap();
        a.kernel.homes_poll().await.unwrap();
        run
    };
    let ((), run) = Box::pin(with_timeout(async { tokio::join!(read, write) })).await;
    a.kernel.homes_show().await.unwrap();
    match with_timeout(board.next()).await.unwrap() {
        LiveChange::Opened(session) => {
            assert_eq!((session.session_id, session.status), (run.session, LiveStatus::Busy));
        }
        change => panic!("{change:?}"),
    }
    let open = SessionQuery { open: true, ..SessionQuery::default() };
    let listed = a.kernel.session_list(&a.me, open).await.unwrap();
    assert_eq!(listed.items.iter().map(|(session, _)| session.id).collect::<Vec<_>>(), [run.session]);
    b.kernel.shutdown().await;
    b.standby.leave().await.unwrap();
    a.kernel.homes_show().await.unwrap();
    assert!(
        matches!(with_timeout(board.next()).await.unwrap(), LiveChange::Closed { session_id } if session_id == run.session)
    );
}
