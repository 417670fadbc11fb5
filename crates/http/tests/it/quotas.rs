//! Quotas: one owner takes all that it can get, and another owner is still served.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode};
use futures_util::stream;
use mainspring_core::Quotas;
use mainspring_http::HttpLimits;
use mainspring_test_support::{Listening, NodeBuilder, TOKEN, TestNode};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use crate::world::{RequestBuilder, Response, Server, send_request};

/// The owner that takes all that it can get.
const MALLORY: &str = "mallory";
/// The owner that must still be served.
const ADA: &str = "ada";

impl Server {
    fn by(&self, owner: &str, method: Method, path: &str) -> RequestBuilder {
        self.request(method, path).header("mainspring-owner", owner)
    }

    fn prompt_by(&self, owner: &str, session: &str, text: &str) -> RequestBuilder {
        self.by(owner, Method::POST, "/v1/runs").json(&json!({"prompt": text, "session": {"key": session}}))
    }
}

/// A body of which nothing ever arrives.
fn endless() -> Body {
    Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())
}

/// Checks that a request was refused because of a quota, and whether the response says when to try again.
async fn assert_quota(response: Response, retry_after: bool) {
    let has_header = response.headers().contains_key("retry-after");
    let status = response.status();
    let problem = response.json().await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::TOO_MANY_REQUESTS, &json!("quota_reached")),
        "{problem}"
    );
    assert_eq!((has_header, &problem["retryable"]), (retry_after, &json!(retry_after)), "{problem}");
}

async fn metric(server: &Server, name: &str) -> f64 {
    let (_, metrics) = server.get("/metrics").await;
    let metrics = metrics.as_str().unwrap().to_owned();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("mainspring_{name} ")));
    line.unwrap_or_else(|| panic!("{name} is missing: {metrics}")).parse().unwrap()
}

fn node(limits: HttpLimits) -> NodeBuilder {
    TestNode::builder().limits(limits)
}

#[tokio::test]
async fn one_owner_cannot_fill_the_queue() {
    let server = Server::with(TestNode::builder().options(|options| {
        options.limits.queue_total = 20;
        options.max_workers = 1;
    }))
    .await;
    let mut accepted = 0;
    let refused = loop {
        let response = server.prompt_by(MALLORY, &format!("s{accepted}"), "hang").send().await;
        if !response.status().is_success() {
            break response;
        }
        accepted += 1;
        assert!(accepted < 30, "the queue has no limit");
    };
    assert_eq!(accepted, 11, "one run is active, and ten prompts fill half of the queue");
    assert_quota(refused, true).await;
    assert_eq!(metric(&server, "quota_refusals_total{resource=\"queued_prompts\"}").await, 1.0);
    let (status, run) = send_request(server.prompt_by(ADA, "a", "say hi")).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{run}");
    // The owner that the server acts for takes what is left.
    for n in 0..9 {
        assert!(server.prompt(&format!("local{n}"), "hang").await["runId"].is_string());
    }
    let (status, problem) = send_request(server.prompt_by("newcomer", "n", "hang")).await;
    assert_eq!((status, &problem["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("overloaded")));
}

#[tokio::test]
async fn one_owner_cannot_take_all_workers() {
    let server = Server::with(TestNode::builder().options(|options| options.max_workers = 4)).await;
    let mut statuses = vec![];
    for n in 0..4 {
        let (_, run) = send_request(server.prompt_by(MALLORY, &format!("s{n}"), "hang")).await;
        statuses.push(run["status"].as_str().unwrap().to_owned());
    }
    assert_eq!(statuses, ["running", "running", "queued", "queued"]);
    let answered = server.prompt_by(ADA, "a", "say hi").header("prefer", "wait=60").send().await;
    assert_eq!(answered.json().await["status"], "succeeded");
}

#[tokio::test]
async fn configured_quotas_bind_every_owner_with_exceptions() {
    let server = Server::with(TestNode::builder().options(|options| {
        options.quotas = Quotas { queued_prompts: 1, active_runs: 1, agents: 1, ..Quotas::default() };
        let of_ada = options.owner_quotas.entry(ADA.into()).or_default();
        (of_ada.active_runs, of_ada.agents) = (Some(0), Some(2));
    }))
    .await;
    let status = async |owner: &str, n: u32| {
        let (status, run) = send_request(server.prompt_by(owner, &format!("{owner}{n}"), "hang")).await;
        run["status"].as_str().filter(|_| status.is_success()).unwrap_or("refused").to_owned()
    };
    for owner in [MALLORY, "local"] {
        assert_eq!(status(owner, 1).await, "running");
        assert_eq!(status(owner, 2).await, "queued");
        assert_eq!(status(owner, 3).await, "refused", "{owner}");
    }
    assert_eq!(status(ADA, 1).await, "running");
    assert_eq!(status(ADA, 2).await, "running");
    let agent = |owner: &'static str, id: &str| {
        server.by(owner, Method::POST, "/v1/agents").json(&json!({"id": id, "system": "x"}))
    };
    for (owner, id) in [(MALLORY, "one"), (MALLORY, "one"), (ADA, "one"), (ADA, "two")] {
        assert!(agent(owner, id).send().await.status().is_success(), "{owner} {id}");
    }
    for owner in [MALLORY, ADA] {
        assert_quota(agent(owner, "three").send().await, false).await;
    }
}

#[tokio::test]
async fn prompts_that_arrive_together_do_not_exceed_a_quota() {
    let quotas = Quotas { queued_prompts: 3, active_runs: 1, ..Quotas::default() };
    let server = Server::with(TestNode::builder().options(|options| options.quotas = quotas)).await;
    let prompt = async |n: u32| send_request(server.prompt_by(MALLORY, &format!("s{n}"), "hang")).await;
    let answers = futures_util::future::join_all((0..12).map(prompt)).await;
    let count = |status: &str| answers.iter().filter(|(_, run)| run["status"] == status).count();
    let refused = answers.iter().filter(|(_, problem)| problem["code"] == "quota_reached").count();
    assert_eq!((count("running"), count("queued"), refused), (1, 3, 8), "{answers:?}");
}

/// Sends `count` requests at once and waits for `answered` responses. Returns these and the requests without a
/// response.
async fn at_once(
    count: usize,
    answered: usize,
    request: impl Fn(usize) -> RequestBuilder,
) -> (Vec<Response>, JoinSet<Response>) {
    let mut sent = JoinSet::new();
    for n in 0..count {
        sent.spawn(request(n).send());
    }
    let mut responses = vec![];
    while responses.len() < answered {
        let next = tokio::time::timeout(Duration::from_secs(20), sent.join_next()).await;
        responses.push(next.expect("answered in time").unwrap().unwrap());
    }
    (responses, sent)
}

#[tokio::test]
async fn slow_bodies_of_one_owner_leave_room_for_others_and_none_is_read_in_vain() {
    let server = Server::with(node(HttpLimits { requests: 8, ..HttpLimits::default() })).await;
    let slow = |owner: &str| {
        let request = server.by(owner, Method::POST, "/v1/runs");
        request.header("content-type", "application/json").body(endless())
    };
    let (refused, held) = at_once(12, 8, |_| slow(MALLORY)).await;
    for response in refused {
        assert_quota(response, true).await;
    }
    assert_eq!(held.len(), 4);
    let (anonymous, _) = at_once(12, 12, |_| {
        let request = server.anonymous(Method::POST, "/v1/runs");
        request.header("content-type", "application/json").body(endless())
    })
    .await;
    assert!(anonymous.iter().all(|response| response.status() == StatusCode::UNAUTHORIZED));
    let (status, _) = send_request(server.by(ADA, Method::GET, "/v1/sessions")).await;
    assert_eq!(status, StatusCode::OK);
    let (status, run) = send_request(server.prompt_by(ADA, "a", "say hi")).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{run}");
    // A request that ends gives its place back.
    drop(held);
    let served = async {
        while server.by(MALLORY, Method::GET, "/v1/sessions").send().await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), served).await.unwrap();
}

#[tokio::test]
async fn waits_count_as_streams_and_leave_room_for_others() {
    let limits = HttpLimits { requests: 2, streams: 8, ..HttpLimits::default() };
    let server = Server::with(node(limits)).await;
    // One after the other: two requests of one owner are not handled at once here.
    let mut waiting = JoinSet::new();
    let mut at_once = 0;
    for n in 0..8 {
        let request = server.prompt_by(MALLORY, &format!("s{n}"), "hang").header("prefer", "wait=60");
        let mut sent = JoinSet::new();
        sent.spawn(request.send());
        let opened = async {
            while metric(&server, "http_streams").await < f64::from(n.min(3) + 1) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), opened).await.unwrap();
        if n < 4 {
            waiting.spawn(async move { sent.join_next().await });
            continue;
        }
        let response = sent.join_next().await.unwrap().unwrap();
        assert_eq!(response.status(), StatusCode::ACCEPTED, "answered at once");
        at_once += 1;
    }
    assert_eq!((waiting.len(), at_once), (4, 4));
    let answered = server.prompt_by(ADA, "a", "say hi").header("prefer", "wait=60").send().await;
    assert_eq!(answered.json().await["status"], "succeeded");
    let opened = server.by(ADA, Method::GET, "/v1/feed").header("accept", "text/event-stream").send().await;
    assert_eq!(opened.status(), StatusCode::OK);
    let refused =
        server.by(MALLORY, Method::GET, "/v1/feed").header("accept", "text/event-stream").send().await;
    assert_quota(refused, true).await;
}

#[tokio::test]
async fn stored_bytes_and_artifacts_are_limited_and_a_deletion_makes_room() {
    let server = Server::with(TestNode::builder().sqlite().options(|options| {
        options.quotas = Quotas { stored_bytes: 100_000, artifacts: 2, ..Quotas::default() };
    }))
    .await;
    send_request(server.prompt_by(MALLORY, "s", "say hi").header("prefer", "wait=60")).await;
    let upload = |body: Body| {
        let request = server.by(MALLORY, Method::POST, "/v1/sessions/s/artifacts");
        request.header("content-type", "text/plain").body(body)
    };
    let (status, first) = send_request(upload("x".repeat(60_000).into())).await;
    assert_eq!(status, StatusCode::CREATED, "{first}");
    assert_quota(upload("x".repeat(60_000).into()).send().await, false).await;
    assert_quota(server.prompt_by(MALLORY, "s", &"say x; ".repeat(9_000)).send().await, false).await;
    let (status, second) = send_request(upload("small".into())).await;
    assert_eq!(status, StatusCode::CREATED, "{second}");
    // Nothing of a refused upload is read.
    assert_quota(upload(endless()).send().await, false).await;
    let path = format!("/v1/artifacts/{}", first["artifactId"].as_str().unwrap());
    let (status, problem) = send_request(server.by(MALLORY, Method::DELETE, &path)).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{problem}");
    let (status, third) = send_request(upload("x".repeat(60_000).into())).await;
    assert_eq!(status, StatusCode::CREATED, "{third}");
    let (status, _) = send_request(server.by(MALLORY, Method::DELETE, "/v1/sessions/s")).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let long = "say x; ".repeat(9_000);
    let freed = async {
        // The data of a deleted session is removed in the background.
        while !server.prompt_by(MALLORY, "t", &long).send().await.status().is_success() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), freed).await.unwrap();
}

async fn connect(listening: &Listening) -> TcpStream {
    TcpStream::connect(&listening.address).await.unwrap()
}

/// Reads until the server closes the connection.
async fn closed(mut stream: impl AsyncRead + Unpin) -> String {
    let mut read = String::new();
    let reading = stream.read_to_string(&mut read);
    let read_all = tokio::time::timeout(Duration::from_secs(20), reading).await.expect("closed in time");
    // The server may reset a connection whose bytes it has not read.
    let _ = read_all;
    read
}

/// Sends a request on a connection that stays open, and reads the head of the response.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str) -> String {
    let sent = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\naccept: text/event-stream\r\n\r\n"
    );
    stream.write_all(sent.as_bytes()).await.unwrap();
    let (mut head, mut byte) = (vec![], [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn half_open_connections_make_room_for_an_honest_client_and_a_stream_goes_on() {
    let limits = HttpLimits { connections: 20, ..HttpLimits::default() };
    let server = Server::with(node(limits)).await;
    let listening = server.node.listen().await;
    let mut stream = connect(&listening).await;
    assert!(ask(&mut stream, "/v1/feed").await.starts_with("HTTP/1.1 200 OK\r\n"));
    let mut flood = vec![];
    for n in 0..60 {
        let mut half_open = connect(&listening).await;
        half_open.write_all(["", "G", "GET /health HT"][n % 3].as_bytes()).await.unwrap();
        flood.push(half_open);
    }
    let mut honest = connect(&listening).await;
    assert!(ask(&mut honest, "/health").await.starts_with("HTTP/1.1 200 OK\r\n"));
    // The oldest half-open connections were closed to make room.
    for half_open in flood.drain(..42) {
        assert_eq!(closed(half_open).await, "");
    }
    let (status, _) = server.get("/v1/sessions").await;
    assert_eq!(status, StatusCode::OK);
    // The stream was opened before all others, and is still read.
    server.prompt("a", "say hi").await;
    let mut frames = String::new();
    while !frames.contains("\"key\":\"a\"") {
        let mut part = [0; 1024];
        let read =
            tokio::time::timeout(Duration::from_secs(20), stream.read(&mut part)).await.unwrap().unwrap();
        assert!(read > 0, "the stream was closed");
        frames.push_str(&String::from_utf8_lossy(&part[..read]));
    }
}

#[tokio::test]
async fn a_connection_without_a_next_request_is_closed() {
    let limits = HttpLimits { header_ms: 200, ..HttpLimits::default() };
    let server = Server::with(node(limits).system_clock()).await;
    let listening = server.node.listen().await;
    let mut idle = connect(&listening).await;
    assert!(ask(&mut idle, "/health").await.starts_with("HTTP/1.1 200 OK\r\n"));
    closed(idle).await;
    let path = server.node.dir().join("socket");
    let _unix = server.node.listen_unix(&path);
    for sent in ["", "GET /hea"] {
        let mut half_open = UnixStream::connect(&path).await.unwrap();
        half_open.write_all(sent.as_bytes()).await.unwrap();
        assert_eq!(closed(half_open).await, "", "{sent:?}");
    }
}

#[tokio::test]
async fn an_upload_that_arrives_too_slowly_is_refused() {
    let limits = HttpLimits { body_ms: 200, body_rate: 1 << 20, ..HttpLimits::default() };
    let server = Server::with(node(limits).system_clock()).await;
    server.play("s", "say hi").await;
    let listening = server.node.listen().await;
    for path in ["/v1/sessions/s/artifacts", "/v1/import"] {
        let mut slow = connect(&listening).await;
        let sent = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
             content-type: application/jsonl\r\ncontent-length: 100000\r\n\r\n{{"
        );
        slow.write_all(sent.as_bytes()).await.unwrap();
        let answered = closed(slow).await;
        assert!(answered.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{path}: {answered}");
        assert!(answered.contains(r#""code":"request_timeout""#), "{answered}");
    }
    let (_, artifacts) = server.get("/v1/sessions/s/artifacts").await;
    assert_eq!(artifacts["items"], Value::Array(vec![]));
}
