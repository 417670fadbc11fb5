//! Two servers on one PostgreSQL: a prompt through the one that stands by, and the time of a takeover.

use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::Instant;

use reqwest::Client;
use serde_json::{Value, json};

use super::instance::Instance;
use super::since;
use crate::http::server::mainspring;
use crate::stats::{median, percentile};
use crate::table::{Goal, Table};
use crate::world;

const LEASE_MS: f64 = 3_000.0;
/// The time after the expiry in which no server may take the lease.
const GRACE_MS: f64 = LEASE_MS / 5.0;
const PROMPTS: usize = 100;
const TAKEOVERS: usize = 3;

struct Member {
    child: Child,
    port: u16,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Members {
    folder: world::Folder,
    database: String,
    client: Client,
    servers: [Member; 2],
}

pub(super) async fn measure(instance: &Instance, table: &mut Table) {
    mainspring_agent::provider::install_tls();
    let mut members = Members::start(instance.database("cluster")).await;
    let active = members.active().await;
    let (mut direct, mut forwarded) = (vec![], vec![]);
    for n in 0..PROMPTS {
        direct.push(members.first_event(active, n).await);
        forwarded.push(members.first_event(1 - active, n + PROMPTS).await);
    }
    let name = "cluster: prompt at a server that stands by to its first event";
    let baseline = |part| Some((percentile(&direct, part), "at the active one"));
    table.line(format!("{name}, p50"), median(&forwarded), baseline(0.5), "ms", Goal::AtMost(15.0));
    let p99 = percentile(&forwarded, 0.99);
    table.line(format!("{name}, p99"), p99, baseline(0.99), "ms", Goal::AtMost(50.0));
    let mut takeovers = vec![];
    for _ in 0..TAKEOVERS {
        takeovers.push(members.takeover().await);
    }
    let limit = LEASE_MS + GRACE_MS;
    table.line(
        "cluster: kill -9 of the active server until another one answers",
        percentile(&takeovers, 1.0),
        Some((limit, "lease and grace")),
        "ms",
        Goal::DifferenceAtMost(1_000.0),
    );
}

impl Members {
    async fn start(database: String) -> Self {
        let folder = world::Folder::new();
        std::fs::write(folder.file("secret"), "the secret of a benchmark").unwrap();
        let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = [0, 1].map(|n| held[n].local_addr().unwrap().port());
        drop(held);
        let servers = [0, 1].map(|n| spawn(&folder, &database, n, ports[n]));
        let members = Self { folder, database, client: Client::new(), servers };
        for n in 0..2 {
            members.ready(n).await;
        }
        members
    }

    fn url(&self, n: usize, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.servers[n].port)
    }

    async fn ready(&self, n: usize) {
        loop {
            let answer = self.client.get(self.url(n, "/ready")).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
        }
    }

    fn token(&self) -> String {
        std::fs::read_to_string(self.folder.file("state0").join("token")).unwrap().trim().to_owned()
    }

    /// The number of the active server.
    async fn active(&self) -> usize {
        let request = self.client.get(self.url(0, "/v1/cluster")).bearer_auth(self.token());
        let status: Value = request.send().await.unwrap().json().await.unwrap();
        let servers = status["servers"].as_array().unwrap();
        let active = servers.iter().find(|server| server["active"] == true).unwrap();
        active["name"].as_str().unwrap().parse().unwrap()
    }

    /// Prompts through a server, and waits for the first event of the run through the same one.
    async fn first_event(&self, n: usize, no: usize) -> f64 {
        let body = json!({"prompt": "say hi", "adapter": "script", "session": {"key": format!("s{no}")}});
        let begin = Instant::now();
        let request = self.client.post(self.url(n, "/v1/runs")).bearer_auth(self.token()).json(&body);
        let run: Value = request.send().await.unwrap().json().await.unwrap();
        let path = format!("/v1/runs/{}/events", run["runId"].as_str().unwrap());
        let request = self.client.get(self.url(n, &path)).bearer_auth(self.token());
        let mut stream = request.header("accept", "text/event-stream").send().await.unwrap();
        assert!(stream.chunk().await.unwrap().is_some());
        since(begin)
    }

    /// Kills the active server, waits until the other one answers for the cluster, and starts the first one again.
    async fn takeover(&mut self) -> f64 {
        let active = self.active().await;
        let port = self.servers[active].port;
        let begin = Instant::now();
        self.servers[active].child.kill().unwrap();
        self.ready(1 - active).await;
        let took = since(begin);
        self.servers[active].child.wait().unwrap();
        self.servers[active] = spawn(&self.folder, &self.database, active, port);
        self.ready(active).await;
        took
    }
}

fn spawn(folder: &world::Folder, database: &str, n: usize, port: u16) -> Member {
    let address = format!("127.0.0.1:{port}");
    let child = mainspring(&folder.file(&format!("state{n}")))
        .env("MAINSPRING_STORE", database)
        .env("MAINSPRING_LISTEN", &address)
        .env("MAINSPRING_CLUSTER_ADDRESS", format!("http://{address}"))
        .env("MAINSPRING_CLUSTER_NAME", n.to_string())
        .env("MAINSPRING_CLUSTER_SECRET_FILE", folder.file("secret"))
        .env("MAINSPRING_CLUSTER_LEASE_MS", LEASE_MS.to_string())
        .arg("serve")
        .stderr(Stdio::null())
        .spawn()
        .expect("build it first: cargo build --profile dist -p mainspring-cli");
    Member { child, port }
}
