//! Streams over real sockets: every reader gets every event once, whatever other readers do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mainspring::core::{Cursor, Event};
use mainspring::{Caller, Kernel};
use mainspring_http::{Access, Http, HttpLimits};
use mainspring_kernel::Options;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::RunRequest;
use mainspring_kernel::store::SessionRef;
use mainspring_store::{SqliteOptions, SqliteStore};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::http::{EventStream, Server, SseFrame, send_request};
use crate::kill::Rng;

/// State that a client builds from its stream.
#[derive(Default)]
struct ReaderState {
    open: HashMap<String, String>,
    events: Vec<u64>,
    /// The agent's complete messages.
    answers: Vec<String>,
    /// Number of ended runs.
    ended: usize,
}

impl ReaderState {
    fn apply(&mut self, frame: &SseFrame) {
        let payload = &frame.data["payload"];
        if frame.event == "message.delta" {
            let text = self.open.entry(payload["messageId"].as_str().unwrap().to_owned()).or_default();
            text.push_str(payload["text"].as_str().unwrap());
            return;
        }
        assert_ne!(frame.event, "message.truncated", "no text was lost");
        self.events.push(frame.data["cursor"].as_u64().unwrap());
        self.ended += usize::from(frame.event == "run.succeeded");
        if frame.event == "message.completed" {
            let message = &payload["message"];
            let blocks = message["content"].as_array().unwrap();
            let whole: String = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            // The streamed text is an exact prefix of the message; the rest arrives with the completion.
            let streamed = self.open.remove(message["messageId"].as_str().unwrap()).unwrap_or_default();
            assert!(whole.starts_with(&streamed), "{streamed:?} is not the beginning of {whole:?}");
            if message["role"] == "assistant" {
                self.answers.push(whole);
            }
        }
    }
}

/// Disconnecting cancels no run, and a reader that reconnects often ends with the same text and every event.
#[tokio::test]
async fn a_reader_that_reconnects_a_thousand_times_gets_every_event_once() {
    const CONNECTIONS: usize = 1_000;
    let seed = u64::from(std::process::id()) | 1 << 40;
    eprintln!("seed {seed}");
    let mut rng = Rng(seed);
    let server = Server::start();
    let script = "stream 200 every 1ms ab; tool add {\"a\":1,\"b\":2}; stream 200 every 1ms cdé; say ü end";
    let (mut prompts, mut connections) = (0, 0);
    let (mut reader, mut last) = (ReaderState::default(), "0.0".to_owned());
    while reader.ended < prompts || connections < CONNECTIONS {
        if reader.ended == prompts {
            server.prompt("long", script).await;
            prompts += 1;
        }
        connections += 1;
        let mode = ["controller", "observer"][connections % 2];
        let path = format!("/v1/sessions/long/events?mode={mode}");
        let mut stream = EventStream::open(&server, &path, Some(&last)).await;
        // Reads a few frames, or none, then drops the connection.
        for _ in 0..rng.below(5) {
            let frame = stream.next().await.unwrap();
            reader.apply(&frame);
            last = frame.id.unwrap();
            if reader.ended == prompts {
                break;
            }
        }
    }
    let mut stored = vec![];
    let mut next = Some("0.0".to_owned());
    while let Some(after) = next {
        let (_, page) = server.get(&format!("/v1/sessions/long/events?limit=500&after={after}")).await;
        stored
            .extend(page["items"].as_array().unwrap().iter().map(|event| event["cursor"].as_u64().unwrap()));
        next = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(reader.events, stored, "seed {seed}: every event once, in order");
    let turn = ["ab ".repeat(200), "cdé ".repeat(200) + "ü end\n"];
    assert_eq!(reader.answers.len(), prompts * turn.len(), "seed {seed}");
    assert!(reader.answers.chunks(2).all(|answers| *answers == turn), "seed {seed}: byte for byte");
    assert!(prompts > 1, "seed {seed}: {prompts} turns");
}

/// A kernel and its HTTP server in this process, on a real socket.
struct Local {
    kernel: Kernel,
    url: String,
    stop: CancellationToken,
    _server: JoinSet<()>,
    _dir: tempfile::TempDir,
}

const TOKEN: &str = "a token that is long enough";

impl Local {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (clock, ids) = (Clock::system(), Ids::system());
        let file = dir.path().join("test.sqlite3");
        let store = Arc::new(SqliteStore::open(&file, SqliteOptions::default(), clock.now()).unwrap());
        let options = Options { max_workers: 100, ..Options::default() };
        let adapters: Vec<Arc<dyn mainspring_kernel::adapter::Adapter>> =
            vec![Arc::new(mainspring_adapters::ScriptAdapter)];
        let kernel = Kernel::start(store, adapters, options, clock, ids).await.unwrap();
        let stop = CancellationToken::new();
        let limits = HttpLimits::default();
        let router = Http::new(kernel.clone(), Access::new(TOKEN, "ada"), limits, stop.clone()).router();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut server = JoinSet::new();
        server.spawn(mainspring_http::serve(listener, router, limits, CancellationToken::new()));
        Self { kernel, url, stop, _server: server, _dir: dir }
    }

    async fn prompt(&self, key: &str, script: &str) {
        self.kernel.run_create(&Caller::new("ada"), RunRequest::text(key, script)).await.unwrap();
    }

    async fn read(&self, path: &str) -> EventStream {
        mainspring::install_tls();
        let request = reqwest::Client::new().get(format!("{}{path}", self.url)).bearer_auth(TOKEN);
        let response = request.header("accept", "text/event-stream").send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        EventStream::from_response(response)
    }

    /// Opens a stream and never reads from it.
    async fn open_unread(&self, path: &str) -> tokio::net::TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let address = self.url.trim_start_matches("http://");
        let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\naccept: text/event-stream\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    async fn events(&self, key: &str) -> Vec<u64> {
        let by = SessionRef::Key(key.into());
        let events: Vec<Event> =
            self.kernel.session_events(&Caller::new("ada"), &by, Cursor::START, Some(500)).await.unwrap();
        events.iter().map(|event| event.cursor.0).collect()
    }

    async fn wait_reader_count(&self, count: usize) {
        let counted = async {
            while self.kernel.feed_memory().readers != count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), counted).await.expect("timed out");
    }
}

async fn read_to_end(mut frames: EventStream) -> ReaderState {
    let mut reader = ReaderState::default();
    while reader.ended == 0 {
        reader.apply(&frames.next().await.unwrap());
    }
    reader
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_reader_affects_no_other_reader() {
    const READERS: usize = 200;
    const SESSIONS: usize = 50;
    let local = Local::start().await;
    local.prompt("shared", "say before; sleep 1ms").await;
    local.prompt("flood", "say before; sleep 1ms").await;
    local.kernel.drain().await;
    let before = local.events("shared").await.len();
    let from = |key: &str| format!("/v1/sessions/{key}/events");
    let _stalled = [local.open_unread(&from("shared")).await, local.open_unread(&from("flood")).await];
    let _idle_feed = local.open_unread("/v1/feed").await;
    local.wait_reader_count(2).await;
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        readers.spawn(read_to_end(local.read(&from("shared")).await));
    }
    local.wait_reader_count(READERS + 2).await;
    // Much more than all buffers on the way can hold.
    local.prompt("flood", &format!("stream 60000 {}", "x".repeat(199))).await;
    local.prompt("shared", "stream 300 every 1ms word; say done").await;
    let mut streams = JoinSet::new();
    for no in 0..SESSIONS {
        let key = format!("s{no}");
        local.prompt(&key, "stream 100 every 2ms tick; say done").await;
        let frames = local.read(&format!("{}?after=0.0", from(&key))).await;
        streams.spawn(async move { (key, read_to_end(frames).await) });
    }
    let peak = local.kernel.feed_memory();
    for reader in tokio::time::timeout(Duration::from_secs(60), readers.join_all()).await.unwrap() {
        assert_eq!(reader.answers, ["word ".repeat(300) + "done\n"]);
        assert_eq!(reader.events, local.events("shared").await[before..], "every event once");
    }
    for (key, reader) in tokio::time::timeout(Duration::from_secs(60), streams.join_all()).await.unwrap() {
        assert_eq!(reader.answers, ["tick ".repeat(100) + "done\n"], "{key}");
        assert_eq!(reader.events, local.events(&key).await, "{key}");
    }
    local.kernel.drain().await;
    local.wait_reader_count(2).await;
    let held = local.kernel.feed_memory();
    assert_eq!(held.bytes, 0, "bytes are kept for readers that never read: {held:?}, before {peak:?}");
    assert!(held.events <= 256 * (SESSIONS + 2), "{held:?}");
    local.stop.cancel();
    local.kernel.shutdown().await;
}

#[tokio::test]
async fn pruned_events_are_a_reset_for_streams_and_410_for_pages() {
    let server = Server::start();
    for text in ["say one", "say two"] {
        let run = server.prompt("a", text).await;
        server.wait_ended(&run).await;
    }
    let run = server.get("/v1/runs?session=a").await.1;
    let (_, page) = server.get("/v1/sessions/a/events?limit=500").await;
    let events = page["items"].as_array().unwrap();
    let position = |event: &Value| format!("{}.{}", event["cursor"], event["pos"]);
    let last = position(events.last().unwrap());
    let (status, compacted) = server.post("/v1/sessions/a/compact", json!({"before": last})).await;
    assert_eq!((status, &compacted["floor"]), (StatusCode::OK, &json!(position(&events[events.len() - 2]))));
    for after in ["", "?after=0.0", &format!("?after={}", position(&events[3]))] {
        let (status, problem) = server.get(&format!("/v1/sessions/a/events{after}")).await;
        assert_eq!((status, &problem["code"]), (StatusCode::GONE, &json!("cursor_expired")), "{after}");
        assert!(
            problem["detail"].as_str().unwrap().contains(compacted["floor"].as_str().unwrap()),
            "{problem}"
        );
    }
    let mut stream = EventStream::open(&server, "/v1/sessions/a/events", Some(&position(&events[3]))).await;
    let reset = stream.next().await.unwrap();
    assert_eq!((reset.event.as_str(), &reset.data["position"]), ("reset", &json!(reset.id)));
    assert_eq!(reset.data["messages"].as_array().unwrap().len(), 4, "messages stay");
    let (_, snapshot) = server.get("/v1/sessions/a/snapshot").await;
    assert_eq!(snapshot, reset.data);
    server.prompt("a", "say three").await;
    let next = stream.next().await.unwrap();
    assert_eq!(next.event, "run.queued");
    // The stream of a run ends even if the run's last event was pruned.
    let first = run["items"].as_array().unwrap().last().unwrap()["runId"].as_str().unwrap().to_owned();
    let mut of_run = EventStream::open(&server, &format!("/v1/runs/{first}/events"), None).await;
    assert_eq!(of_run.next().await.unwrap().event, "reset");
    assert!(of_run.next().await.is_none());
    let (status, problem) = server.post("/v1/sessions/a/compact", json!({"before": "9"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")));
}

#[tokio::test]
async fn the_feed_reports_the_status_of_each_session() {
    let server = Server::start();
    let (_, opened) = server.post("/v1/sessions", json!({"key": "a", "title": "Tea"})).await;
    assert_eq!(opened["opening"], "created");
    let mut feed = EventStream::open(&server, "/v1/feed", None).await;
    let first = feed.next().await.unwrap();
    let id = &opened["sessionId"];
    assert_eq!(first.event, "snapshot");
    assert_eq!(
        first.data["sessions"],
        json!([{"sessionId": id, "key": "a", "title": "Tea", "status": "idle"}])
    );
    let run = server.prompt("a", "ask which?").await;
    let mut seen = vec![];
    while seen.last() != Some(&json!("paused")) {
        seen.push(feed.next().await.unwrap().data["status"].clone());
    }
    let (status, problem) = server.post("/v1/sessions/a/close", json!({})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("session_busy")));
    server.post(&format!("/v1/runs/{}/cancel", run["runId"].as_str().unwrap()), json!({})).await;
    let mut idle = feed.next().await.unwrap();
    while idle.data["status"] == "busy" {
        idle = feed.next().await.unwrap();
    }
    assert_eq!(
        (idle.event.as_str(), &idle.data),
        ("status", &json!({"type": "status", "sessionId": id, "status": "idle"}))
    );
    for closed in [true, false] {
        let (_, answer) = server.post("/v1/sessions/a/close", json!({})).await;
        assert_eq!(answer, json!({"closed": closed}));
    }
    assert_eq!(feed.next().await.unwrap().event, "closed");
    let (_, opened) = server.post("/v1/sessions", json!({"key": "a"})).await;
    assert_eq!(opened["opening"], "started");
    assert_eq!(feed.next().await.unwrap().event, "opened");
    assert_eq!(
        send_request(server.request(Method::DELETE, "/v1/sessions/a")).await.0,
        StatusCode::NO_CONTENT
    );
    assert_eq!(feed.next().await.unwrap().event, "deleted");
}
