//! A cluster of real servers on one PostgreSQL: any of them answers, one at a time is active, and killing, stopping or
//! disconnecting servers loses nothing, doubles nothing, and never leaves two agents alive.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use mainspring_kernel::boot_time::boot_time_ms;
use mainspring_test_support::{EventStream, tls_file};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::kill::example;
use crate::pace::pause;
use crate::postgres_cluster::{database, psql};
use crate::processes::{Processes, free_ports};

mod differences;
mod drain;
mod placement;
mod reach;
mod spread;
mod uploads;

use spread::until;

/// The longest duration of a test, shorter than the limit of the test runner.
const HANG_TIMEOUT: Duration = Duration::from_secs(110);
/// The longest wait until a response begins.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// The lease of the servers.
const LEASE_MS: &str = "4000";

/// An agent that records every other agent that is alive. Each server has one agent, so two living agents belong to two
/// servers.
const AGENT: &str = r#"#!/bin/sh
for pid in $(cat "$1" 2>/dev/null); do
  if kill -0 "$pid" 2>/dev/null; then echo "$pid lives beside $$" >> "$1.two"; fi
done
echo $$ >> "$1"
shift
exec "$@"
"#;

/// The statuses of a run that has ended.
const ENDED: [&str; 5] = ["succeeded", "failed", "cancelled", "timed_out", "orphaned"];

/// The servers of a cluster and a client of all of them.
struct Servers {
    folder: tempfile::TempDir,
    database: String,
    ports: Vec<u16>,
    children: Processes,
    client: Client,
    /// The value of `cluster.spread`.
    spread: bool,
    /// Further settings of each server, as variables of its environment.
    settings: Vec<Vec<(&'static str, &'static str)>>,
    /// True if the servers speak HTTPS, also with each other.
    is_tls: bool,
    /// The number of prompts for the agent.
    prompts: AtomicUsize,
    /// Ends a test that hangs.
    _watchdog: Watchdog,
}

impl Servers {
    /// Starts `count` servers, and waits until one of them is active and all of them answer.
    async fn start(count: usize) -> Self {
        Self::start_with(count, false).await
    }

    /// Starts `count` servers that stand by or share the work, and waits until all of them answer.
    async fn start_with(count: usize, spread: bool) -> Self {
        Self::start_with_settings(vec![vec![]; count], spread).await
    }

    /// Starts a server for each list of settings, and waits until all of them answer.
    async fn start_with_settings(settings: Vec<Vec<(&'static str, &'static str)>>, spread: bool) -> Self {
        let mut servers = Self::prepare(settings, spread, false);
        servers.start_all().await;
        servers
    }

    /// Starts all servers, and waits until they answer.
    async fn start_all(&mut self) {
        for n in 0..self.ports.len() {
            self.spawn(n);
        }
        for n in 0..self.ports.len() {
            self.ready(n).await;
        }
    }

    /// Makes a database and a folder for servers that are started later.
    fn prepare(settings: Vec<Vec<(&'static str, &'static str)>>, spread: bool, is_tls: bool) -> Self {
        let count = settings.len();
        mainspring::install_tls();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "a secret of all servers").unwrap();
        let script = folder.path().join("agent.sh");
        fs::write(&script, AGENT).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        let command = [
            script.display().to_string(),
            folder.path().join("agents").display().to_string(),
            example("acp_agent").display().to_string(),
            folder.path().display().to_string(),
        ];
        let config = format!(
            "[adapters.agent]\nkind = \"acp\"\ncommand = {command:?}\nsandbox = \"off\"\npermissions = \"legacy\"\ncwd = \"/\"\n"
        );
        fs::write(folder.path().join("config.toml"), config).unwrap();
        let (database, ports, children) = (database(), free_ports(count), Processes::default());
        let builder = Client::builder();
        let client = match is_tls {
            true => {
                let ca = fs::read(tls_file("ca.pem")).unwrap();
                let roots = reqwest::Certificate::from_pem_bundle(&ca).unwrap();
                builder.tls_certs_only(roots)
            }
            false => builder,
        };
        let client = client.build().unwrap();
        let watchdog = Watchdog::start(folder.path(), &database);
        Self {
            folder,
            database,
            ports,
            children,
            client,
            spread,
            settings,
            is_tls,
            prompts: AtomicUsize::new(0),
            _watchdog: watchdog,
        }
    }

    fn command(&self, n: usize) -> Command {
        let folder = self.folder.path();
        let address = format!("127.0.0.1:{}", self.ports[n]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
        command.env_clear().env("HOME", folder).env("PATH", std::env::var_os("PATH").unwrap());
        command.env("MAINSPRING_STATE_DIR", folder.join(format!("state{n}")));
        command.env("MAINSPRING_STORE", &self.database).env("MAINSPRING_LISTEN", &address);
        command.env("MAINSPRING_CLUSTER_ADDRESS", self.url(n, ""));
        if self.is_tls {
            command.env("MAINSPRING_TLS_CERT", tls_file("one.cert.pem"));
            command.env("MAINSPRING_TLS_KEY", tls_file("one.key.pem"));
            command.env("MAINSPRING_TLS_CA", tls_file("ca.pem"));
        }
        command.env("MAINSPRING_CLUSTER_NAME", format!("server {n}"));
        command.env("MAINSPRING_CLUSTER_SECRET_FILE", folder.join("secret"));
        command.env("MAINSPRING_CLUSTER_LEASE_MS", LEASE_MS).env("MAINSPRING_DRAIN_MS", "1000");
        command.env("MAINSPRING_CLUSTER_SPREAD", self.spread.to_string());
        command.envs(self.settings[n].iter().copied());
        command.arg("--config").arg(folder.join("config.toml"));
        command
    }

    fn spawn(&mut self, n: usize) {
        let path = self.folder.path().join(format!("log{n}"));
        let log = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        let child = self.command(n).arg("serve").stderr(log).stdout(Stdio::null()).spawn().unwrap();
        self.children.insert(n, child);
    }

    /// Waits until the server answers through the active one.
    async fn ready(&mut self, n: usize) {
        loop {
            let answer = send_once(self.client.get(self.url(n, "/ready"))).await;
            if answer.is_some_and(|answer| answer.status().is_success()) {
                return;
            }
            let ended = self.children.get_mut(&n).unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "server {n} ended: {ended:?}\n{}", self.log(n));
            pause().await;
        }
    }

    fn log(&self, n: usize) -> String {
        fs::read_to_string(self.folder.path().join(format!("log{n}"))).unwrap_or_default()
    }

    fn url(&self, n: usize, path: &str) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}{path}", self.ports[n])
    }

    /// The token of the cluster, which is the same at each server.
    fn token(&self) -> String {
        fs::read_to_string(self.folder.path().join("state0/token")).unwrap().trim().to_owned()
    }

    fn request(&self, n: usize, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(n, path)).bearer_auth(self.token())
    }

    /// The number of the active server.
    fn active(&self) -> Option<usize> {
        let sql = "SELECT n.name FROM server_lease l JOIN nodes n USING (node_id) WHERE clock_timestamp() < l.expires_at";
        psql(&self.database, sql).strip_prefix("server ").map(|n| n.parse().unwrap())
    }

    /// Waits until another server than `before` is active. Returns its number.
    async fn takeover(&mut self, before: usize) -> usize {
        let next = loop {
            match self.active() {
                Some(active) if active != before => break active,
                _ => pause().await,
            }
        };
        self.ready(next).await;
        next
    }

    /// Ends all connections to the database, several times.
    fn disconnect(&self) {
        for _ in 0..10 {
            psql(
                &self.database,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            );
        }
    }

    fn signal(&self, n: usize, signal: Signal) {
        let pid = Pid::from_child(&self.children[&n]);
        kill_process(pid, signal).unwrap();
    }

    /// Prompts the agent with a process, through the server `n`, and waits until its run has ended.
    async fn run_agent(&self, n: usize, prompt: &str) -> Value {
        let request_id = format!("r{}", self.prompts.fetch_add(1, Ordering::Relaxed));
        let body = json!({
            "prompt": prompt, "adapter": "agent", "session": {"key": "coding"},
            "clientId": "coder", "requestId": request_id,
        });
        let run = until(async || send(self.request(n, Method::POST, "/v1/runs").json(&body)).await).await;
        let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
        // A server that takes over or steps back closes the connections that it had before.
        until(async || {
            let run = send(self.request(n, Method::GET, &path)).await?;
            ENDED.contains(&run["status"].as_str()?).then_some(run)
        })
        .await
    }

    /// Fails if an agent has found another one alive. Returns the number of agents that were started.
    fn check_agents(&self) -> usize {
        let two = fs::read_to_string(self.folder.path().join("agents.two")).unwrap_or_default();
        assert!(two.is_empty(), "{two}");
        let started = fs::read_to_string(self.folder.path().join("agents")).unwrap_or_default();
        started.lines().count()
    }
}

impl Drop for Servers {
    /// Prints the logs if the test has failed.
    fn drop(&mut self) {
        if thread::panicking() {
            for n in 0..self.ports.len() {
                eprintln!("== log of server {n}\n{}", self.log(n));
            }
        }
    }
}

/// Aborts a test that takes longer than [`HANG_TIMEOUT`], after it has printed the logs of the servers and the open work.
struct Watchdog {
    /// Closed when the test ends.
    _open: Sender<()>,
}

impl Watchdog {
    fn start(folder: &Path, database: &str) -> Self {
        let (open, is_closed) = channel();
        let (folder, database) = (folder.to_owned(), database.to_owned());
        thread::spawn(move || {
            if is_closed.recv_timeout(HANG_TIMEOUT) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            for log in (0..).map_while(|n| fs::read_to_string(folder.join(format!("log{n}"))).ok()) {
                eprintln!("== log of a server\n{log}");
            }
            for sql in [
                "SELECT status, encode(run_id, 'hex'), encode(session_id, 'hex') FROM runs WHERE NOT ended",
                "SELECT encode(session_id, 'hex'), encode(node_id, 'hex') FROM leases",
                "SELECT * FROM nodes LEFT JOIN node_leases USING (node_id)",
                "SELECT * FROM server_lease",
                "SELECT pid, state, wait_event, left(query, 200) FROM pg_stat_activity WHERE datname = current_database()",
            ] {
                eprintln!("== {sql}\n{}", psql(&database, sql));
            }
            std::process::abort();
        });
        Self { _open: open }
    }
}

/// Sends a request. None if there is no answer: hyper may lose a request that is sent just when the server closes the
/// connection (https://github.com/hyperium/hyper/issues/2312).
async fn send_once(request: RequestBuilder) -> Option<Response> {
    timeout(ANSWER_TIMEOUT, request.send()).await.ok()?.ok()
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
    let answer = send_once(request).await?;
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

#[tokio::test(flavor = "multi_thread")]
async fn any_server_of_a_cluster_answers_for_the_active_one() {
    let mut servers = Servers::start(2).await;
    let active = servers.active().unwrap();
    let other = 1 - active;
    let run = json!({"prompt": "stream 5 every 10ms x; say done", "session": {"key": "a"}});
    let run = send(servers.request(other, Method::POST, "/v1/runs").json(&run)).await.unwrap();
    // Both servers stream the same durable events.
    let path = format!("/v1/sessions/{}/events", run["sessionId"].as_str().unwrap());
    let mut streams = vec![];
    for n in [active, other] {
        let request = servers.request(n, Method::GET, &path).query(&[("after", "0.0")]);
        let answer = request.header("accept", "text/event-stream").send().await.unwrap();
        assert!(answer.status().is_success(), "{n}: {}", answer.text().await.unwrap());
        let mut stream = EventStream::new(answer.bytes_stream());
        let mut frames = vec![];
        loop {
            let frame = stream.next().await.unwrap();
            let is_end = frame.event == "run.succeeded";
            frames.push((frame.id, frame.event, frame.data));
            if is_end {
                break;
            }
        }
        streams.push(frames);
    }
    let durable = |frames: &[(Option<String>, String, Value)]| -> Vec<(Option<String>, String)> {
        let kept =
            frames.iter().filter(|(_, event, _)| event.starts_with("run.") || event == "message.completed");
        kept.map(|(id, event, _)| (id.clone(), event.clone())).collect()
    };
    assert_eq!(durable(&streams[0]), durable(&streams[1]));
    assert!(durable(&streams[0]).len() >= 3, "{streams:?}");
    // The server that stands by checks no credential: the active server does.
    let refused =
        servers.client.get(servers.url(other, "/v1/sessions")).bearer_auth("wrong").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let alive = servers.client.get(servers.url(other, "/health")).send().await.unwrap();
    assert!(alive.status().is_success());
    let foreign = servers.client.get(servers.url(other, "/v1/sessions")).header("host", "evil.example");
    assert_eq!(foreign.send().await.unwrap().status(), StatusCode::FORBIDDEN);
    // The active server also answers a command beside the server that stands by.
    let listed = servers.command(other).args(["session", "list", "--json"]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("\"a\""), "{listed:?}");
    let status = servers.command(other).args(["cluster", "status", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let shown: Vec<(&str, bool)> = status["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|server| (server["name"].as_str().unwrap(), server["active"].as_bool().unwrap()))
        .collect();
    assert_eq!(shown, [("server 0", active == 0), ("server 1", active == 1)]);
    assert!(status["leaseLeftMs"].as_u64().unwrap() > 0, "{status}");
    // A server that is stopped hands over at once. If its lease had to expire first, a takeover would be counted.
    servers.signal(active, Signal::TERM);
    assert!(servers.children.get_mut(&active).unwrap().wait().unwrap().success(), "{}", servers.log(active));
    assert_eq!(servers.takeover(active).await, other);
    assert_eq!(psql(&servers.database, "SELECT takeovers FROM server_lease"), "0");
    let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let found = send(servers.request(other, Method::GET, &path)).await.unwrap();
    assert_eq!(found["status"], "succeeded");
}

/// Writes prompts through all servers in turn, each until it is acknowledged, and returns the run of each.
async fn write_load(
    servers: Arc<(Client, Vec<String>, String)>,
    writer: usize,
    is_over: Arc<AtomicBool>,
) -> BTreeMap<String, String> {
    let (client, urls, token) = &*servers;
    let mut acknowledged = BTreeMap::new();
    let mut turn = writer;
    while !is_over.load(Ordering::Acquire) {
        let request_id = format!("r{:05}", acknowledged.len());
        let body = json!({
            "prompt": format!("say {request_id}"), "session": {"key": format!("s{writer}")},
            "clientId": format!("w{writer}"), "requestId": request_id, "adapter": "script",
        });
        let run = loop {
            turn += 1;
            let url = format!("{}/v1/runs", urls[turn % urls.len()]);
            // A stopped server answers nothing.
            let request = client.post(url).bearer_auth(token).json(&body).timeout(Duration::from_secs(3));
            if let Some(run) = send(request).await {
                break run["runId"].as_str().unwrap().to_owned();
            }
            if is_over.load(Ordering::Acquire) {
                return acknowledged;
            }
        };
        acknowledged.insert(request_id, run);
    }
    acknowledged
}

/// Reads the events of all sessions page by page through all servers in turn, until `is_settled` and no more follow.
async fn read_feed(
    servers: Arc<(Client, Vec<String>, String)>,
    is_settled: Arc<AtomicBool>,
) -> Vec<(u64, String)> {
    let (client, urls, token) = &*servers;
    let (mut read, mut after, mut turn) = (vec![], "0.0".to_owned(), 0);
    loop {
        turn += 1;
        let was_settled = is_settled.load(Ordering::Acquire);
        let url = format!("{}/v1/events?limit=100&after={after}", urls[turn % urls.len()]);
        let request = client.get(url).bearer_auth(token).timeout(Duration::from_secs(3));
        let Some(page) = send(request).await else { continue };
        let items = page["items"].as_array().unwrap();
        for event in items {
            read.push((
                event["cursor"].as_u64().unwrap(),
                event["runId"].as_str().unwrap_or_default().to_owned(),
            ));
        }
        match items.last() {
            Some(last) => after = format!("{}.0", last["cursor"]),
            None if was_settled => return read,
            None => pause().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_stopped_and_disconnected_servers_neither_lose_nor_repeat_work() {
    let mut servers = Servers::start(3).await;
    let load = Load::start(&servers);
    let mut active = servers.active().unwrap();
    for fault in ["kill", "stop", "disconnect", "stop", "term"] {
        // The agent of the active server is alive, but idle, when the server ends.
        assert_eq!(
            servers.run_agent(active, "hello").await["status"],
            "succeeded",
            "{}",
            servers.log(active)
        );
        servers.check_agents();
        let before = active;
        match fault {
            "kill" => {
                servers.children.kill(before);
                active = servers.takeover(before).await;
                servers.spawn(before);
            }
            "stop" => {
                servers.signal(before, Signal::STOP);
                active = servers.takeover(before).await;
                // The stopped server cannot end its agent: the guard has done so.
                assert_eq!(
                    servers.run_agent(active, "hello").await["status"],
                    "succeeded",
                    "{}",
                    servers.log(active)
                );
                servers.check_agents();
                servers.signal(before, Signal::CONT);
            }
            "disconnect" => {
                servers.disconnect();
            }
            _ => {
                servers.signal(before, Signal::TERM);
                servers.children.get_mut(&before).unwrap().wait().unwrap();
                active = servers.takeover(before).await;
                servers.spawn(before);
            }
        }
        servers.ready(before).await;
    }
    assert!(servers.check_agents() >= 4, "one for each server that was active");
    load.end(&servers.database, 3).await;
}

/// Writers and a reader of all sessions, through all servers in turn.
struct Load {
    writers: JoinSet<BTreeMap<String, String>>,
    reader: JoinSet<Vec<(u64, String)>>,
    is_over: Arc<AtomicBool>,
    is_settled: Arc<AtomicBool>,
}

impl Load {
    fn start(servers: &Servers) -> Self {
        let urls = (0..3).map(|n| servers.url(n, "")).collect();
        let shared = Arc::new((servers.client.clone(), urls, servers.token()));
        let (is_over, is_settled) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (mut writers, mut reader) = (JoinSet::new(), JoinSet::new());
        for writer in 0..3 {
            writers.spawn(write_load(Arc::clone(&shared), writer, Arc::clone(&is_over)));
        }
        reader.spawn(read_feed(shared, Arc::clone(&is_settled)));
        Self { writers, reader, is_over, is_settled }
    }

    /// Ends the load, and compares its answers with the database. Servers were taken over at least `takeovers` times.
    async fn end(mut self, database: &str, takeovers: u64) {
        self.is_over.store(true, Ordering::Release);
        let mut acknowledged = vec![];
        while let Some(written) = self.writers.join_next().await {
            let written = written.unwrap();
            assert!(!written.is_empty());
            acknowledged.extend(written.into_values());
        }
        wait_until_settled(database);
        self.is_settled.store(true, Ordering::Release);
        let read = self.reader.join_next().await.unwrap().unwrap();
        check(database, &acknowledged, &read);
        let taken: u64 = psql(database, "SELECT takeovers FROM server_lease").parse().unwrap();
        assert!(taken >= takeovers, "{taken} after {takeovers} servers were killed or stopped");
    }
}

/// Waits until every run has ended.
fn wait_until_settled(database: &str) {
    while psql(database, "SELECT count(*) FROM runs WHERE NOT ended") != "0" {}
}

/// Compares the acknowledged runs and the events read with the stored rows.
fn check(database: &str, acknowledged: &[String], read: &[(u64, String)]) {
    let stored = psql(database, "SELECT 'run_' || encode(run_id, 'hex') FROM runs");
    let stored: std::collections::HashSet<&str> = stored.lines().collect();
    let lost: Vec<_> = acknowledged.iter().filter(|run| !stored.contains(run.as_str())).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged runs are lost", lost.len(), acknowledged.len());
    let distinct: std::collections::HashSet<_> = acknowledged.iter().collect();
    assert_eq!(distinct.len(), acknowledged.len(), "two requests got one run");
    assert!(read.is_sorted_by(|a, b| a.0 < b.0), "an event came twice or out of order");
    let events = psql(database, "SELECT cursor FROM events ORDER BY cursor");
    let events: Vec<u64> = events.lines().map(|cursor| cursor.parse().unwrap()).collect();
    let cursors: Vec<u64> = read.iter().map(|(cursor, _)| *cursor).collect();
    assert_eq!(cursors, events[..cursors.len()], "the feed has the stored events");
    let seen: std::collections::HashSet<&str> = read.iter().map(|(_, run)| run.as_str()).collect();
    assert!(acknowledged.iter().all(|run| seen.contains(run.as_str())), "the feed has all runs");
    let named: usize = psql(database, "SELECT count(*) FROM runs WHERE client_id LIKE 'w%'").parse().unwrap();
    assert!(named <= acknowledged.len() + 3, "at most the last request of each writer has no answer");
    eprintln!("{} runs acknowledged, {} events read", acknowledged.len(), read.len());
}

#[test]
fn a_cluster_without_its_settings_is_refused_with_the_name_of_the_setting() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |settings: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
        command
            .env_clear()
            .env("HOME", folder.path())
            .env("MAINSPRING_STATE_DIR", folder.path().join("state"));
        command
            .env("MAINSPRING_LISTEN", "127.0.0.1:0")
            .env("MAINSPRING_CLUSTER_ADDRESS", "http://127.0.0.1:1");
        let output = command.envs(settings.iter().copied()).arg("serve").output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&[]).contains("`store`"), "{}", refused(&[]));
    let store = ("MAINSPRING_STORE", "postgres://localhost:1/none");
    assert!(refused(&[store]).contains("`cluster.secret_file`"));
    let file = Path::new("/nowhere/secret").to_str().unwrap();
    assert!(refused(&[store, ("MAINSPRING_CLUSTER_SECRET_FILE", file)]).contains(file));
}

#[test]
fn a_guard_ends_its_tree_when_its_server_does_not_renew_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let limit = folder.path().join("limit");
    let guard = || {
        let mut guard = Command::new(env!("CARGO_BIN_EXE_mainspring"));
        guard.arg("guard").arg("--limit").arg(&limit).args(["--grace-ms", "60000", "--"]);
        guard.args(["sh", "-c", "echo $$; setsid sleep 1000 & echo $!; wait"]);
        guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        guard
    };
    // Without the file, and after the time in it, the guard starts nothing.
    for text in [None, Some("1\n")] {
        if let Some(text) = text {
            fs::write(&limit, text).unwrap();
        }
        let refused = guard().output().unwrap();
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(127), 0), "{refused:?}");
    }
    fs::write(&limit, (boot_time_ms() + 3_600_000).to_string()).unwrap();
    let mut running = guard().spawn().unwrap();
    // Stays open to the end, like the pipe of a server that exists but hangs.
    let input = running.stdin.take();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    let pids: Vec<String> = (0..2).map(|_| lines.next().unwrap().unwrap()).collect();
    let lives = |pid: &str| Path::new("/proc").join(pid).exists();
    assert!(pids.iter().all(|pid| lives(pid)));
    let until = boot_time_ms() + 300;
    fs::write(folder.path().join("next"), until.to_string()).unwrap();
    fs::rename(folder.path().join("next"), &limit).unwrap();
    running.wait().unwrap();
    assert!(boot_time_ms() >= until, "it ended for another reason");
    drop(input);
    assert!(!pids.iter().any(|pid| lives(pid)), "{pids:?}");
}
