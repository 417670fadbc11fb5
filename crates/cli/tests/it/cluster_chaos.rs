//! A cluster of real servers under load while its database is restarted, its connections are ended, delayed and cut, and
//! servers are killed. A checker compares all acknowledgements and the feed with what is stored.
//!
//! `MAINSPRING_CHAOS_ROUNDS` repeats the faults; `MAINSPRING_CHAOS_SEED` repeats a run's choices.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mainspring_test_support::Rng;
use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::database::Database;
use self::proxy::Proxy;
use crate::pace::pause;
use crate::processes::{Processes, free_ports};

mod database;
mod proxy;

const SERVERS: usize = 3;
const WRITERS: usize = 4;
/// The lease of the servers.
const LEASE_MS: &str = "3000";
/// The number of acknowledgements that are awaited after each fault.
const PROGRESS: usize = 12;
/// A connection that hangs must not block the test.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The servers of a cluster, each behind a proxy of its own to the database.
struct Servers {
    folder: tempfile::TempDir,
    proxies: Vec<Proxy>,
    ports: Vec<u16>,
    children: Processes,
}

impl Servers {
    async fn start(database: &Database, client: &Client) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "a secret of all servers").unwrap();
        let mut proxies = vec![];
        for _ in 0..SERVERS {
            proxies.push(Proxy::start(database.socket()).await);
        }
        let mut servers =
            Self { folder, proxies, ports: free_ports(SERVERS), children: Processes::default() };
        for n in 0..SERVERS {
            servers.spawn(n);
        }
        for n in 0..SERVERS {
            servers.ready(n, client).await;
        }
        servers
    }

    fn spawn(&mut self, n: usize) {
        let folder = self.folder.path();
        let (address, proxy) = (format!("127.0.0.1:{}", self.ports[n]), self.proxies[n].port());
        let store = format!("postgres://postgres@127.0.0.1:{proxy}/chaos?sslmode=disable");
        let log =
            fs::OpenOptions::new().create(true).append(true).open(folder.join(format!("log{n}"))).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_mainspring"))
            .env_clear()
            .env("HOME", folder)
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("MAINSPRING_STATE_DIR", folder.join(format!("state{n}")))
            .env("MAINSPRING_STORE", store)
            .env("MAINSPRING_LISTEN", &address)
            .env("MAINSPRING_ON_ORPHAN", "retry")
            .env("MAINSPRING_CLUSTER_ADDRESS", format!("http://{address}"))
            .env("MAINSPRING_CLUSTER_NAME", format!("server {n}"))
            .env("MAINSPRING_CLUSTER_SECRET_FILE", folder.join("secret"))
            .env("MAINSPRING_CLUSTER_LEASE_MS", LEASE_MS)
            .arg("serve")
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.children.insert(n, child);
    }

    /// Waits until the server answers for the cluster.
    async fn ready(&mut self, n: usize, client: &Client) {
        let url = format!("http://127.0.0.1:{}/ready", self.ports[n]);
        loop {
            let answer = client.get(&url).timeout(REQUEST_TIMEOUT).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            let ended = self.children.get_mut(&n).unwrap().try_wait().unwrap();
            let log = || fs::read_to_string(self.folder.path().join(format!("log{n}"))).unwrap_or_default();
            assert!(ended.is_none(), "server {n} ended: {ended:?}\n{}", log());
            pause().await;
        }
    }

    /// The token of the cluster, which is the same at each server.
    fn token(&self) -> String {
        fs::read_to_string(self.folder.path().join("state0/token")).unwrap().trim().to_owned()
    }
}

/// The servers for all clients, and the progress of the clients.
struct Load {
    client: Client,
    urls: Vec<String>,
    token: String,
    acknowledged: AtomicUsize,
    is_over: AtomicBool,
    is_settled: AtomicBool,
}

impl Load {
    /// Waits until `count` more prompts were acknowledged.
    async fn progress(&self, count: usize) {
        let target = self.acknowledged.load(Ordering::Acquire) + count;
        while self.acknowledged.load(Ordering::Acquire) < target {
            pause().await;
        }
    }

    /// Writes prompts through all servers in turn, each until it is acknowledged, and returns the run of each.
    async fn write(self: Arc<Self>, writer: usize) -> BTreeMap<String, String> {
        let (mut runs, mut turn) = (BTreeMap::new(), writer);
        loop {
            let request_id = format!("r{:05}", runs.len());
            let body = json!({
                "prompt": format!("say {request_id}"), "session": {"key": format!("s{writer}")},
                "clientId": format!("w{writer}"), "requestId": request_id, "adapter": "script",
            });
            let run = loop {
                if self.is_over.load(Ordering::Acquire) {
                    return runs;
                }
                turn += 1;
                let url = format!("{}/v1/runs", self.urls[turn % SERVERS]);
                if let Some(run) = send(self.client.post(url).bearer_auth(&self.token).json(&body)).await {
                    break run["runId"].as_str().unwrap().to_owned();
                }
            };
            runs.insert(request_id, run);
            self.acknowledged.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Reads the events of all sessions through all servers in turn, until all runs have ended and all events were
    /// read.
    async fn read(self: Arc<Self>) -> Vec<(u64, String)> {
        let (mut read, mut after, mut turn) = (vec![], "0.0".to_owned(), 0);
        loop {
            turn += 1;
            let was_settled = self.is_settled.load(Ordering::Acquire);
            let url = format!("{}/v1/events?limit=200&after={after}", self.urls[turn % SERVERS]);
            let Some(page) = send(self.client.get(url).bearer_auth(&self.token)).await else { continue };
            let items = page["items"].as_array().unwrap();
            for event in items {
                let run = event["runId"].as_str().unwrap_or_default().to_owned();
                read.push((event["cursor"].as_u64().unwrap(), run));
            }
            match items.last() {
                Some(last) => after = format!("{}.0", last["cursor"]),
                None if was_settled => return read,
                None => pause().await,
            }
        }
    }
}

/// Sends a request. None, after a pause, if the server is not reachable, or asks to try again.
async fn send(request: RequestBuilder) -> Option<Value> {
    let answer = answer(request).await;
    if answer.is_none() {
        pause().await;
    }
    answer
}

async fn answer(request: RequestBuilder) -> Option<Value> {
    let answer = request.timeout(REQUEST_TIMEOUT).send().await.ok()?;
    let status = answer.status();
    let text = answer.text().await.ok()?;
    match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => None,
        _ => {
            assert!(status.is_success(), "{status}: {text}");
            Some(serde_json::from_str(&text).unwrap())
        }
    }
}

/// Injects one fault after the other. Work must go on after each of them.
async fn inject_faults(servers: &mut Servers, database: &mut Database, load: &Load, rng: &mut Rng) {
    let server = |rng: &mut Rng| rng.below(SERVERS as u64) as usize;
    for _ in 0..8 {
        database.terminate_one(rng.below(1_000));
        load.progress(1).await;
    }
    load.progress(PROGRESS).await;
    for _ in 0..4 {
        servers.proxies[server(rng)].cut();
        load.progress(2).await;
    }
    for proxy in &servers.proxies {
        proxy.delay(5 + rng.below(60));
    }
    load.progress(PROGRESS).await;
    servers.proxies.iter().for_each(|proxy| proxy.delay(0));
    // A transaction of another database holds back readers of all sessions, but no other client.
    database.hold_feed();
    load.progress(PROGRESS).await;
    database.release_feed();
    for _ in 0..2 {
        database.restart();
        load.progress(PROGRESS).await;
    }
    let killed = server(rng);
    servers.children.kill(killed);
    load.progress(PROGRESS).await;
    servers.spawn(killed);
    servers.ready(killed, &load.client).await;
    servers.proxies[server(rng)].cut();
    database.restart();
    load.progress(PROGRESS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_loses_nothing_while_its_database_and_network_fail() {
    mainspring::install_tls();
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
    };
    let (rounds, seed) = (number("MAINSPRING_CHAOS_ROUNDS", 1), number("MAINSPRING_CHAOS_SEED", 21));
    eprintln!("MAINSPRING_CHAOS_SEED={seed}");
    let (client, mut rng) = (Client::new(), Rng::new(seed));
    let mut database = Database::start();
    let mut servers = Servers::start(&database, &client).await;
    let load = Arc::new(Load {
        client,
        urls: servers.ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect(),
        token: servers.token(),
        acknowledged: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        is_settled: AtomicBool::new(false),
    });
    let (mut writers, mut reader) = (JoinSet::new(), JoinSet::new());
    for writer in 0..WRITERS {
        writers.spawn(Arc::clone(&load).write(writer));
    }
    reader.spawn(Arc::clone(&load).read());
    for _ in 0..rounds {
        inject_faults(&mut servers, &mut database, &load, &mut rng).await;
    }
    load.is_over.store(true, Ordering::Release);
    let mut acknowledged = vec![];
    while let Some(written) = writers.join_next().await {
        acknowledged.extend(written.unwrap().into_values());
    }
    while database.query("SELECT count(*) FROM runs WHERE NOT ended") != "0" {
        pause().await;
    }
    load.is_settled.store(true, Ordering::Release);
    let read = reader.join_next().await.unwrap().unwrap();
    check(&database, &acknowledged, &read);
}

/// Compares the acknowledged runs and the events read with the stored rows.
fn check(database: &Database, acknowledged: &[String], read: &[(u64, String)]) {
    let stored = database.query("SELECT 'run_' || encode(run_id, 'hex') FROM runs");
    let stored: HashSet<&str> = stored.lines().collect();
    let lost: Vec<_> = acknowledged.iter().filter(|run| !stored.contains(run.as_str())).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged runs are lost", lost.len(), acknowledged.len());
    let distinct: HashSet<_> = acknowledged.iter().collect();
    assert_eq!(distinct.len(), acknowledged.len(), "two requests got one run");
    let named: usize = database.query("SELECT count(*) FROM runs WHERE client_id LIKE 'w%'").parse().unwrap();
    assert!(named <= acknowledged.len() + WRITERS, "at most the last request of each writer has no answer");
    let answers = database.query("SELECT count(*) FROM runs WHERE status <> 'succeeded'");
    assert_eq!(answers, "0", "every run ends with its answer");
    assert!(read.is_sorted_by(|a, b| a.0 < b.0), "an event came twice or out of order");
    let events = database.query("SELECT cursor FROM events ORDER BY cursor");
    let events: Vec<u64> = events.lines().map(|cursor| cursor.parse().unwrap()).collect();
    let cursors: Vec<u64> = read.iter().map(|(cursor, _)| *cursor).collect();
    assert_eq!(cursors, events, "the feed has exactly the stored events");
    eprintln!("{} runs acknowledged, {} events read", acknowledged.len(), read.len());
}
