//! The HTTP API of a real server, over real sockets.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use mainspring_test_support::EventStream;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

mod agents;
mod artifacts;
mod client_tools;
mod names;
mod serving;

/// A `mainspring serve` process, killed on drop.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) token: String,
    pub(crate) client: Client,
    pub(crate) dir: Arc<tempfile::TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with these environment variables.
    pub(crate) fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_in(Arc::new(tempfile::tempdir().unwrap()), settings)
    }

    pub(crate) fn start_in(dir: Arc<tempfile::TempDir>, settings: &[(&str, &str)]) -> Self {
        let command = mainspring(dir.path());
        Self::start_command(command, dir, settings)
    }

    /// Starts a server with a soft limit of `open_files`, which it may raise.
    pub(crate) fn start_with_open_files(open_files: u32) -> Self {
        Self::start_in_shell(Arc::new(tempfile::tempdir().unwrap()), &format!("ulimit -Sn {open_files}"))
    }

    /// Starts a server from a shell that executes `first` beforehand.
    pub(crate) fn start_in_shell(dir: Arc<tempfile::TempDir>, first: &str) -> Self {
        let program = mainspring(dir.path());
        let mut shell = Command::new("sh");
        shell.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.args(["-c", &format!("{first} && exec \"$0\" \"$@\"")]).arg(program.get_program());
        Self::start_command(shell, dir, &[])
    }

    fn start_command(mut command: Command, dir: Arc<tempfile::TempDir>, settings: &[(&str, &str)]) -> Self {
        let mut child = command
            .envs(settings.iter().copied())
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        let url = line
            .split_whitespace()
            .find(|word| word.starts_with("http://") || word.starts_with("https://"))
            .unwrap_or_else(|| panic!("{line}"));
        let token = mainspring(dir.path()).args(["serve", "--print-token"]).output().unwrap().stdout;
        let token = String::from_utf8(token).unwrap().trim().to_owned();
        mainspring::install_tls();
        Self { url: url.to_owned(), token, client: Client::new(), child, dir }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        send_request(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        send_request(self.request(Method::POST, path).json(&body)).await
    }

    pub(crate) async fn prompt(&self, session: &str, text: &str) -> Value {
        let body = json!({"prompt": text, "session": {"key": session}});
        let (status, run) = self.post("/v1/runs", body).await;
        assert!(status.is_success(), "{run}");
        run
    }

    /// Waits for the end of the run on its event stream.
    pub(crate) async fn wait_ended(&self, run: &Value) -> Value {
        let path = format!("/v1/runs/{}/events", run["runId"].as_str().unwrap());
        let mut stream = open_stream(self, &path).await;
        while stream.next().await.is_some() {}
        self.get(&format!("/v1/runs/{}", run["runId"].as_str().unwrap())).await.1
    }
}

impl Server {
    /// Returns the soft and hard limits of open files.
    pub(crate) fn open_files(&self) -> (u64, u64) {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.child.id())).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let mut numbers = line.split_whitespace().map(|number| number.parse().unwrap_or(u64::MAX));
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// Ends the process as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has ended by itself.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    /// Path of the socket in the state directory.
    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("state/mainspring.sock")
    }
}

fn mainspring(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.env_clear().env("HOME", dir).env("MAINSPRING_STATE_DIR", dir.join("state"));
    command.env("MAINSPRING_ADAPTER", "script");
    command
}

pub(crate) async fn send_request(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Opens a stream of server-sent events.
pub(crate) async fn open_stream(server: &Server, path: &str) -> EventStream {
    let request = server.request(Method::GET, path).header("accept", "text/event-stream");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    EventStream::new(response.bytes_stream())
}

#[tokio::test]
async fn a_stopping_server_lets_short_runs_finish() {
    let mut server = Server::start();
    let run = server.prompt("a", "stream 20 every 20ms x; say done").await;
    let path = format!("/v1/runs/{}/events", run["runId"].as_str().unwrap());
    let mut stream = open_stream(&server, &path).await;
    stream.next().await.unwrap();
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    let mut last = Value::Null;
    while let Some(frame) = stream.next().await {
        last = frame.data;
    }
    assert_eq!(last["type"], "run.succeeded");
    assert!(server.child.wait().unwrap().success());
}
