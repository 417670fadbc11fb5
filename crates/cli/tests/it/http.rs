//! The HTTP API of a real server, over real sockets.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

mod agents;
mod client_tools;
mod data;
mod keys;
mod tree;

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

    fn start_in(dir: Arc<tempfile::TempDir>, settings: &[(&str, &str)]) -> Self {
        let command = mainspring(dir.path());
        Self::start_command(command, dir, settings)
    }

    /// Starts a server with a soft limit of `open_files`, which it may raise.
    pub(crate) fn start_with_open_files(open_files: u32) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let program = mainspring(dir.path());
        let mut shell = Command::new("sh");
        shell.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
            .args(["-c", &format!("ulimit -Sn {open_files} && exec \"$0\" \"$@\"")])
            .arg(program.get_program());
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
            .find(|word| word.starts_with("http://"))
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
        let mut stream = EventStream::open(self, &path, None).await;
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

    /// Path of the socket in the state directory.
    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("state/mainspring.sock")
    }
}

fn mainspring(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainspring"));
    command.env_clear().env("HOME", dir).env("MAINSPRING_STATE_DIR", dir.join("state"));
    command
}

pub(crate) async fn send_request(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Client of a stream of server-sent events.
pub(crate) struct EventStream {
    response: reqwest::Response,
    buffer: Vec<u8>,
}

pub(crate) struct SseFrame {
    pub(crate) id: Option<String>,
    pub(crate) event: String,
    pub(crate) data: Value,
}

impl EventStream {
    pub(crate) async fn open(server: &Server, path: &str, last_id: Option<&str>) -> Self {
        let mut request = server.request(Method::GET, path).header("accept", "text/event-stream");
        if let Some(last_id) = last_id {
            request = request.header("last-event-id", last_id);
        }
        Self::from_response(request.send().await.unwrap())
    }

    pub(crate) fn from_response(response: reqwest::Response) -> Self {
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, buffer: vec![] }
    }

    pub(crate) async fn next(&mut self) -> Option<SseFrame> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let frame: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let frame = String::from_utf8(frame).unwrap();
                let fields: HashMap<&str, &str> =
                    frame.lines().filter_map(|line| line.split_once(": ")).collect();
                let Some(data) = fields.get("data") else { continue };
                let id = fields.get("id").map(|id| (*id).to_owned());
                let event = fields.get("event").copied().unwrap_or_default().to_owned();
                return Some(SseFrame { id, event, data: serde_json::from_str(data).unwrap() });
            }
            self.buffer.extend(self.response.chunk().await.unwrap()?);
        }
    }
}

#[tokio::test]
async fn prefer_wait_returns_the_ended_run() {
    let server = Server::start();
    let body = json!({"prompt": "say hi", "session": {"key": "a"}});
    let request = server.request(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&body);
    let (status, run) = send_request(request).await;
    assert_eq!((status, &run["status"]), (StatusCode::OK, &json!("succeeded")), "{run}");
    let (_, messages) = server.get("/v1/sessions/a/messages").await;
    assert_eq!(messages["items"][1]["content"][0]["text"], "hi\n");
    let (_, page) = server.get("/v1/sessions/a/events?limit=3").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 3);
    let next = page["next"].as_str().unwrap();
    let (_, rest) = server.get(&format!("/v1/sessions/a/events?after={next}")).await;
    assert_eq!(rest["items"].as_array().unwrap().last().unwrap()["type"], "run.succeeded");
    assert!(rest.get("next").is_none(), "{rest}");
}

#[tokio::test]
async fn the_same_idempotency_key_returns_the_same_run() {
    let server = Server::start();
    let send = |text: &str| {
        let body = json!({"prompt": text, "session": {"key": "a"}});
        send_request(server.request(Method::POST, "/v1/runs").header("idempotency-key", "k1").json(&body))
    };
    let (first, again) = (send("say once").await.1, send("say once").await.1);
    assert_eq!(first["runId"], again["runId"]);
    assert_eq!((&first["replayed"], &again["replayed"]), (&json!(false), &json!(true)));
    let (status, problem) = send("say twice").await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("request_conflict")));
}

#[tokio::test]
async fn requests_from_other_sites_are_refused() {
    let server = Server::start();
    let with = |name: &'static str, value: &str| {
        send_request(server.request(Method::GET, "/v1/sessions").header(name, value))
    };
    assert_eq!(with("host", "evil.example").await.1["code"], "forbidden_host");
    assert_eq!(with("origin", "http://evil.example").await.1["code"], "forbidden_origin");
    let own = server.url.clone();
    assert_eq!(with("origin", &own).await.0, StatusCode::OK);
}

#[tokio::test]
async fn bad_requests_are_problems_with_stable_codes() {
    let server = Server::start();
    let unknown = "/v1/runs/run_00000000000040008000000000000000";
    let cases = [
        (server.request(Method::GET, "/v1/sessions/nobody"), 404, "not_found"),
        (server.request(Method::GET, unknown), 404, "not_found"),
        (server.request(Method::GET, "/v1/runs/run_1"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/sessions?limit=0"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/sessions?limit=-1"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/sessions?nonsense=1"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/sessions?before=x"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/nothing"), 404, "not_found"),
        (server.request(Method::PUT, "/v1/sessions"), 405, "method_not_allowed"),
        (server.request(Method::POST, "/v1/runs").body("{"), 415, "unsupported_media_type"),
        (
            server.request(Method::POST, "/v1/runs").header("content-type", "application/json").body("{"),
            400,
            "invalid_request",
        ),
        (server.request(Method::POST, "/v1/runs").json(&json!({"promt": "x"})), 400, "invalid_request"),
        (server.request(Method::POST, "/v1/sessions").json(&json!([null, "k"])), 400, "invalid_request"),
        (server.request(Method::POST, "/v1/runs").json(&json!({"prompt": ""})), 400, "invalid_request"),
        (
            server.request(Method::POST, "/v1/runs").json(&json!({"prompt": "x", "adapter": "no"})),
            400,
            "adapter_not_registered",
        ),
        (
            server.request(Method::POST, "/v1/runs").json(&json!({"prompt": "a".repeat(2 << 20)})),
            413,
            "too_large",
        ),
        (
            server.request(Method::POST, "/v1/runs").json(&json!({"prompt": "a".repeat(20 << 20)})),
            413,
            "too_large",
        ),
        (server.request(Method::POST, &format!("{unknown}/cancel")), 404, "not_found"),
    ];
    for (request, status, code) in cases {
        let label = format!("{request:?}").chars().take(200).collect::<String>();
        let response = request.send().await.unwrap();
        let kind = response.headers().get("content-type").cloned();
        assert_eq!(response.status().as_u16(), status, "{label}");
        assert_eq!(kind.unwrap(), "application/problem+json", "{label}");
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["code"], code, "{label}");
    }
    assert_eq!(server.get("/v1/sessions").await.1["items"], json!([]));
}

#[tokio::test]
async fn two_writers_do_not_overwrite_each_other() {
    let server = Server::start();
    let (status, session) = server.post("/v1/sessions", json!({"key": "a", "title": "first"})).await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, same) = server.post("/v1/sessions", json!({"key": "a"})).await;
    assert_eq!((status, &same["sessionId"]), (StatusCode::OK, &session["sessionId"]));
    let tag = server.request(Method::GET, "/v1/sessions/a").send().await.unwrap().headers()["etag"].clone();
    let patch = |title: &str| {
        let body = json!({"title": title});
        send_request(
            server.request(Method::PATCH, "/v1/sessions/a").header("if-match", tag.clone()).json(&body),
        )
    };
    assert_eq!(patch("mine").await.0, StatusCode::OK);
    let (status, problem) = patch("theirs").await;
    assert_eq!((status, &problem["code"]), (StatusCode::PRECONDITION_FAILED, &json!("version_conflict")));
    assert_eq!(server.get("/v1/sessions/a").await.1["title"], "mine");
}

#[tokio::test]
async fn questions_are_answered_and_runs_cancelled() {
    let server = Server::start();
    let body = json!({"prompt": "ask Who?; say fine", "session": {"key": "a"}});
    let request = server.request(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&body);
    let (status, run) = send_request(request).await;
    assert_eq!((status, &run["status"]), (StatusCode::ACCEPTED, &json!("waiting_input")), "{run}");
    let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let reply = json!({"waitId": run["wait"]["waitId"], "answer": {"kind": "input", "input": "me"}});
    assert_eq!(server.post(&format!("{path}/answer"), reply.clone()).await.0, StatusCode::OK);
    assert_eq!(server.wait_ended(&run).await["status"], "succeeded");
    let (status, problem) = server.post(&format!("{path}/answer"), reply).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("not_waiting")));

    let run = server.prompt("b", "say begun; hang").await;
    let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let (status, outcome) = server.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!((status, &outcome["accepted"]), (StatusCode::OK, &json!(true)), "{outcome}");
    assert_eq!(server.wait_ended(&run).await["status"], "cancelled");
}

#[tokio::test]
async fn a_stopping_server_lets_short_runs_finish() {
    let mut server = Server::start();
    let run = server.prompt("a", "stream 20 every 20ms x; say done").await;
    let path = format!("/v1/runs/{}/events", run["runId"].as_str().unwrap());
    let mut stream = EventStream::open(&server, &path, None).await;
    stream.next().await.unwrap();
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    let mut last = Value::Null;
    while let Some(frame) = stream.next().await {
        last = frame.data;
    }
    assert_eq!(last["type"], "run.succeeded");
    assert!(server.child.wait().unwrap().success());
}
