//! The cluster of the demo: three servers on a temporary PostgreSQL database. One of the servers is killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use mainspring_api::Prompt;
use mainspring_client::Client;
use mainspring_core::{Run, RunId, RunStatus};
use mainspring_kernel::boot_time::boot_time_ms;
use mainspring_kernel::clock::Clock;
use tokio::process::{Child, Command};

use super::runner::DemoRunner;
use crate::error::{CliError, Exit};
use crate::output::{self, DIM, format_duration};
use postgres::Postgres;

mod postgres;

/// The names of the servers.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// A short lease, so that a takeover is quick.
const LEASE_MS: u64 = 2_000;
/// Short prompts that are acknowledged before the kill.
const SHORT_PROMPTS: usize = 5;
/// The prompt whose run is interrupted.
const LONG_PROMPT: &str = "stream 60 every 50ms tick; say the answer is complete";
/// Time between two polls of a server.
const POLL_MS: u64 = 20;
/// The configuration file of the servers.
const CONFIG: &str = "demo.toml";
/// The longest wait of the demo.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A server of the demo.
struct DemoServer {
    name: &'static str,
    port: u16,
    child: Child,
}

/// Three servers and clients of them.
struct DemoCluster {
    folder: tempfile::TempDir,
    postgres: Postgres,
    servers: Vec<DemoServer>,
    clock: Clock,
}

impl DemoRunner<'_> {
    /// Sends prompts through every server, kills the active one, and checks that nothing is lost.
    pub(super) async fn run_cluster(&self) -> Result<Exit, CliError> {
        self.print_title("Three servers on one PostgreSQL")?;
        let mut cluster = DemoCluster::start().await?;
        let version = cluster.postgres.version();
        self.print_line(&format!("{DIM}PostgreSQL {version} in {}{DIM:#}", cluster.postgres.folder()))?;
        let first = cluster.client(0)?;
        self.show_servers(&first).await?;

        self.print_title("Prompts through each of them")?;
        let mut runs: BTreeMap<RunId, String> = BTreeMap::new();
        for n in 0..SHORT_PROMPTS {
            let (client, name) = (cluster.client(n % NAMES.len())?, NAMES[n % NAMES.len()]);
            let prompt = prompt(&format!("short-{n}"), &format!("say prompt {n}"));
            let run = client.run_create(&prompt).await?.run;
            self.print_line(&format!("  accepted through {name}: {}", output::format_id(run.id)))?;
            runs.insert(run.id, format!("prompt {n}"));
        }
        let killed = cluster.active(&first).await?;
        let other = (killed + 1) % NAMES.len();
        let client = cluster.client(other)?;
        let long = client.run_create(&prompt("long", LONG_PROMPT)).await?.run;
        runs.insert(long.id, "the answer is complete".into());
        cluster.wait_run(&client, long.id, |run| run.attempts > 0).await?;
        self.print_line(&format!("  accepted through {}: a run of 3 s", NAMES[other]))?;

        let (killed_at_ms, name) = (boot_time_ms(), NAMES[killed]);
        self.print_title(&format!("kill -9 of server {name}, the active one"))?;
        cluster.servers[killed].child.kill().await?;
        cluster.wait_ready(&client).await?;
        let took = format_duration(boot_time_ms() - killed_at_ms);
        self.print_line(&format!("  another server answers after {took} (lease {LEASE_MS} ms and a fifth)"))?;
        let run = cluster.wait_run(&client, long.id, |run| run.state.status().is_ended()).await?;
        let took = format_duration(boot_time_ms() - killed_at_ms);
        let (status, attempts) = (run.state.status(), run.attempts);
        self.print_line(&format!(
            "  its run is {} in attempt {attempts}, {took} after the kill",
            output::format_status(status)
        ))?;
        self.check_runs(&cluster, &client, &runs).await?;
        cluster.restart(killed).await?;
        self.print_line(&format!("  server {name} is started again:"))?;
        self.show_servers(&client).await?;
        cluster.stop().await;
        self.print_line("")?;
        self.print_line("Your own cluster: docs/cluster.md")?;
        Ok(Exit::Done)
    }

    async fn show_servers(&self, client: &Client) -> Result<(), CliError> {
        for server in client.cluster_status().await?.servers {
            let role = if server.active { "active" } else { "stands by" };
            self.print_line(&format!("  {} at {}: {role}", server.name, server.address))?;
        }
        Ok(())
    }

    /// Checks that every acknowledged run succeeds with its answer, and that no other run is stored.
    async fn check_runs(
        &self,
        cluster: &DemoCluster,
        client: &Client,
        acknowledged: &BTreeMap<RunId, String>,
    ) -> Result<(), CliError> {
        let lost = |what: String| CliError { code: "corrupt".into(), ..CliError::unusable(what) };
        for (run, text) in acknowledged {
            let found = cluster.wait_run(client, *run, |run| run.state.status().is_ended()).await?;
            let answer = found.final_text.as_deref().unwrap_or_default();
            if found.state.status() != RunStatus::Succeeded || !answer.contains(text) {
                return Err(lost(format!("the run {run} is {}: {answer:?}", found.state.status())));
            }
        }
        let listed = client.run_list(&Default::default()).await?.items;
        if listed.len() != acknowledged.len() {
            return Err(lost(format!("{} runs instead of {}", listed.len(), acknowledged.len())));
        }
        self.print_line(&format!(
            "  nothing is lost: {} prompts were accepted, and {} runs are stored, each with its answer",
            acknowledged.len(),
            listed.len()
        ))
    }
}

fn prompt(key: &str, text: &str) -> Prompt {
    Prompt { adapter: Some(mainspring_adapters::script::NAME.into()), ..Prompt::text(key, text) }
}

impl DemoCluster {
    async fn start() -> Result<Self, CliError> {
        let postgres = Postgres::start().await?;
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("secret"), "the secret of a demo, which nobody else reaches")?;
        // Written once, before any server reads it.
        std::fs::write(folder.path().join(CONFIG), "on_orphan = \"retry\"\n")?;
        // Free ports, held together so that they differ.
        let held = NAMES.iter().map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let ports =
            held.iter().map(|held| Ok(held.local_addr()?.port())).collect::<std::io::Result<Vec<_>>>()?;
        drop(held);
        let mut cluster = Self { folder, postgres, servers: vec![], clock: Clock::system() };
        for (name, port) in NAMES.into_iter().zip(ports) {
            let child = cluster.spawn(name, port)?;
            cluster.servers.push(DemoServer { name, port, child });
        }
        for n in 0..NAMES.len() {
            cluster.wait_started(n).await?;
        }
        Ok(cluster)
    }

    /// Starts a server, with settings of its own and none of the user's.
    fn spawn(&self, name: &str, port: u16) -> Result<Child, CliError> {
        let folder = self.folder.path();
        let address = format!("127.0.0.1:{port}");
        let log = File::create(folder.join(format!("{name}.log")))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.env_clear().env("HOME", folder).envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.env("MAINSPRING_STATE_DIR", folder.join(name)).env("MAINSPRING_CONFIG", folder.join(CONFIG));
        command.env("MAINSPRING_STORE", self.postgres.url()).env("MAINSPRING_LISTEN", &address);
        command.env("MAINSPRING_CLUSTER_ADDRESS", format!("http://{address}"));
        command.env("MAINSPRING_CLUSTER_NAME", name);
        command.env("MAINSPRING_CLUSTER_SECRET_FILE", folder.join("secret"));
        command.env("MAINSPRING_CLUSTER_LEASE_MS", LEASE_MS.to_string());
        command.arg("serve").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        Ok(command.spawn()?)
    }

    fn client(&self, n: usize) -> Result<Client, CliError> {
        let server = &self.servers[n];
        let token = std::fs::read_to_string(self.folder.path().join(server.name).join("token"))?;
        Ok(Client::over_tcp(&format!("http://127.0.0.1:{}", server.port), token.trim())?)
    }

    /// The number of the active server.
    async fn active(&self, client: &Client) -> Result<usize, CliError> {
        let servers = client.cluster_status().await?.servers;
        let active = servers.iter().find(|server| server.active).map(|server| server.name.as_str());
        let found = self.servers.iter().position(|server| Some(server.name) == active);
        found.ok_or_else(|| CliError::unusable("no server of the demo is active"))
    }

    /// Waits until a server has written its token and answers for the cluster.
    async fn wait_started(&mut self, n: usize) -> Result<(), CliError> {
        let token = self.folder.path().join(self.servers[n].name).join("token");
        let deadline = boot_time_ms() + WAIT_TIMEOUT.as_millis() as u64;
        loop {
            if token.exists() && self.client(n)?.ready().await.is_ok() {
                return Ok(());
            }
            let server = &mut self.servers[n];
            let ended = server.child.try_wait()?.is_some();
            if ended || boot_time_ms() > deadline {
                let log = self.folder.path().join(format!("{}.log", server.name));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                return Err(CliError::unusable(format!(
                    "a server of the demo did not start: {}",
                    log.trim()
                )));
            }
            self.clock.sleep_for(POLL_MS).await;
        }
    }

    /// Waits until a server answers for the cluster.
    async fn wait_ready(&self, client: &Client) -> Result<(), CliError> {
        let deadline = boot_time_ms() + WAIT_TIMEOUT.as_millis() as u64;
        while let Err(error) = client.ready().await {
            if boot_time_ms() > deadline {
                return Err(error.into());
            }
            self.clock.sleep_for(POLL_MS).await;
        }
        Ok(())
    }

    /// Waits until a run fulfils a condition. Ignores retryable errors: no server is active during the takeover.
    async fn wait_run(
        &self,
        client: &Client,
        run: RunId,
        is_met: impl Fn(&Run) -> bool,
    ) -> Result<Run, CliError> {
        let deadline = boot_time_ms() + WAIT_TIMEOUT.as_millis() as u64;
        loop {
            match client.run_get(run).await {
                Ok(found) if is_met(&found) => return Ok(found),
                Err(error) if !error.is_retryable() => return Err(error.into()),
                _ if boot_time_ms() > deadline => {
                    return Err(CliError::unusable(format!("the run {run} did not go on within a minute")));
                }
                _ => self.clock.sleep_for(POLL_MS).await,
            }
        }
    }

    async fn restart(&mut self, n: usize) -> Result<(), CliError> {
        let (name, port) = (self.servers[n].name, self.servers[n].port);
        self.servers[n].child = self.spawn(name, port)?;
        self.wait_started(n).await
    }

    /// Ends all servers, then the database.
    async fn stop(mut self) {
        for server in &mut self.servers {
            let _ = server.child.kill().await;
        }
        self.postgres.stop().await;
    }
}
