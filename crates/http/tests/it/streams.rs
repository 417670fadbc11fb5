//! Streams: every reader gets every event once, whatever other readers do.

use std::collections::HashMap;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use futures_util::StreamExt;
use mainspring_test_support::{EventStream, Listening, NodeBuilder, Rng, SseFrame, TOKEN, TestNode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::world::{Server, send_request};

/// A node on SQLite whose scripts sleep in real time.
fn on_disk() -> NodeBuilder {
    TestNode::builder().sqlite().system_clock().options(|options| options.max_workers = 100)
}

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
    let mut rng = Rng::new(seed);
    let server = Server::with(on_disk()).await;
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
        let mut stream = server.stream(&path, Some(&last)).await;
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
    assert_eq!(reader.events, server.cursors("long").await, "seed {seed}: every event once, in order");
    let turn = ["ab ".repeat(200), "cdé ".repeat(200) + "ü end\n"];
    assert_eq!(reader.answers.len(), prompts * turn.len(), "seed {seed}");
    assert!(reader.answers.chunks(2).all(|answers| *answers == turn), "seed {seed}: byte for byte");
    assert!(prompts > 1, "seed {seed}: {prompts} turns");
}

/// Opens a stream over a real socket and never reads from it.
async fn open_unread(listening: &Listening, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let address = &listening.address;
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\naccept: text/event-stream\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

impl Server {
    /// Returns the cursors of all events of a session.
    async fn cursors(&self, key: &str) -> Vec<u64> {
        let mut cursors = vec![];
        let mut next = Some("0.0".to_owned());
        while let Some(after) = next {
            let (_, page) = self.get(&format!("/v1/sessions/{key}/events?limit=500&after={after}")).await;
            let events = page["items"].as_array().unwrap();
            cursors.extend(events.iter().map(|event| event["cursor"].as_u64().unwrap()));
            next = page["next"].as_str().map(str::to_owned);
        }
        cursors
    }

    /// Waits until the kernel counts this many readers.
    async fn wait_reader_count(&self, count: usize) {
        let counted = async {
            while self.node.kernel.feed_memory().readers != count {
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
    let server = Server::with(on_disk()).await;
    let listening = server.node.listen().await;
    server.prompt("shared", "say before; sleep 1ms").await;
    server.prompt("flood", "say before; sleep 1ms").await;
    server.node.kernel.drain().await;
    let before = server.cursors("shared").await.len();
    let from = |key: &str| format!("/v1/sessions/{key}/events");
    let _stalled =
        [open_unread(&listening, &from("shared")).await, open_unread(&listening, &from("flood")).await];
    let _idle_feed = open_unread(&listening, "/v1/feed").await;
    server.wait_reader_count(2).await;
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        readers.spawn(read_to_end(server.stream(&from("shared"), None).await));
    }
    server.wait_reader_count(READERS + 2).await;
    // Much more than all buffers on the way can hold.
    server.prompt("flood", &format!("stream 60000 {}", "x".repeat(199))).await;
    server.prompt("shared", "stream 300 every 1ms word; say done").await;
    let mut streams = JoinSet::new();
    for no in 0..SESSIONS {
        let key = format!("s{no}");
        server.prompt(&key, "stream 100 every 2ms tick; say done").await;
        let frames = server.stream(&format!("{}?after=0.0", from(&key)), None).await;
        streams.spawn(async move { (key, read_to_end(frames).await) });
    }
    let peak = server.node.kernel.feed_memory();
    for reader in tokio::time::timeout(Duration::from_secs(60), readers.join_all()).await.unwrap() {
        assert_eq!(reader.answers, ["word ".repeat(300) + "done\n"]);
        assert_eq!(reader.events, server.cursors("shared").await[before..], "every event once");
    }
    for (key, reader) in tokio::time::timeout(Duration::from_secs(60), streams.join_all()).await.unwrap() {
        assert_eq!(reader.answers, ["tick ".repeat(100) + "done\n"], "{key}");
        assert_eq!(reader.events, server.cursors(&key).await, "{key}");
    }
    server.node.kernel.drain().await;
    server.wait_reader_count(2).await;
    let held = server.node.kernel.feed_memory();
    assert_eq!(held.bytes, 0, "bytes are kept for readers that never read: {held:?}, before {peak:?}");
    assert!(held.events <= 256 * (SESSIONS + 2), "{held:?}");
    server.node.stop.cancel();
    server.node.kernel.shutdown().await;
}

#[tokio::test]
async fn pruned_events_are_a_reset_for_streams_and_410_for_pages() {
    let server = Server::start().await;
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
    let mut stream = server.stream("/v1/sessions/a/events", Some(&position(&events[3]))).await;
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
    let mut of_run = server.stream(&format!("/v1/runs/{first}/events"), None).await;
    assert_eq!(of_run.next().await.unwrap().event, "reset");
    assert!(of_run.next().await.is_none());
    let (status, problem) = server.post("/v1/sessions/a/compact", json!({"before": "9"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")));
}

#[tokio::test]
async fn the_feed_reports_the_status_of_each_session() {
    let server = Server::start().await;
    let (_, opened) = server.post("/v1/sessions", json!({"key": "a", "title": "Tea"})).await;
    assert_eq!(opened["opening"], "created");
    let mut feed = server.stream("/v1/feed", None).await;
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

#[tokio::test]
async fn a_stream_resumes_after_the_last_event_that_the_reader_has() {
    let server = Server::start().await;
    server.play("a", "say one; tool add {\"a\":1,\"b\":2}; say two").await;
    let mut whole = vec![];
    let mut stream = server.stream("/v1/sessions/a/events", Some("0.0")).await;
    while whole.last().is_none_or(|frame: &SseFrame| frame.event != "run.succeeded") {
        whole.push(stream.next().await.unwrap());
    }
    for (at, frame) in whole.iter().enumerate() {
        let id = frame.id.as_deref().unwrap();
        // The header and the parameter mean the same. The header takes precedence: it comes from a reader that
        // reconnects.
        let by_header = server.stream("/v1/sessions/a/events?after=0.0", Some(id)).await;
        let by_parameter = server.stream(&format!("/v1/sessions/a/events?after={id}"), None).await;
        for mut stream in [by_header, by_parameter] {
            for expected in &whole[at + 1..] {
                assert_eq!(stream.next().await.as_ref(), Some(expected), "after {id}");
            }
        }
    }
    for bad in ["1", "x.0", "-1.0", "99999999999999999999.0"] {
        let request = server.request(Method::GET, "/v1/sessions/a/events").header("last-event-id", bad);
        let (status, problem) = send_request(request.header("accept", "text/event-stream")).await;
        assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")), "{bad}");
    }
    // Every stream ends when the server stops.
    server.node.stop.cancel();
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_prompt_is_answered_with_its_stream_if_the_caller_wants_one() {
    let server = Server::start().await;
    let body = json!({"prompt": "say hi", "session": {"key": "a"}});
    let request = || {
        let request = server.request(Method::POST, "/v1/runs").header("accept", "text/event-stream");
        request.header("idempotency-key", "k").json(&body)
    };
    let mut kinds = [vec![], vec![]];
    for kinds in &mut kinds {
        let mut stream = request().send().await.frames();
        while let Some(frame) = stream.next().await {
            kinds.push(frame.event);
        }
        kinds.retain(|kind| kind != "message.delta");
    }
    let [first, again] = kinds;
    assert_eq!(first.last().map(String::as_str), Some("run.succeeded"), "{first:?}");
    assert!(again.ends_with(&first), "the same request streams the same run: {again:?}");
}

#[tokio::test]
async fn an_idle_stream_sends_comments() {
    let server = Server::start().await;
    server.play("a", "say hi").await;
    let request = server.request(Method::GET, "/v1/sessions/a/events").header("accept", "text/event-stream");
    let mut body = request.send().await.pieces();
    for _ in 0..2 {
        let next = body.next();
        tokio::pin!(next);
        // The first poll sets the timer.
        tokio::select! {
            biased;
            piece = &mut next => panic!("{piece:?}"),
            () = std::future::ready(()) => {}
        }
        server.node.clock.advance(7_500);
        assert_eq!(next.await.unwrap().unwrap(), ":\n\n");
    }
}

#[tokio::test]
async fn the_stream_of_an_ended_run_ends_wherever_it_is_resumed() {
    let server = Server::start().await;
    let run = server.play("a", "say hi").await;
    let path = format!("/v1/runs/{}/events", run["runId"].as_str().unwrap());
    let read = async |path: &str, last: Option<&str>| {
        let (mut stream, mut frames) = (server.stream(path, last).await, vec![]);
        while let Some(frame) = stream.next().await {
            frames.push(frame);
        }
        frames.into_iter().map(|frame| (frame.event, frame.id.unwrap())).collect::<Vec<_>>()
    };
    let read = async |path: &str, last: Option<&str>| {
        tokio::time::timeout(Duration::from_secs(30), read(path, last))
            .await
            .expect("the stream does not end")
    };
    let whole = read(&path, None).await;
    for (index, (_, id)) in whole.iter().enumerate() {
        assert_eq!(read(&path, Some(id)).await, whole[index + 1..], "after {id}");
    }
    // Events of a later run are none of this one.
    server.play("a", "say more").await;
    let last = &whole.last().unwrap().1;
    assert_eq!(read(&path, Some(last)).await, []);
    // A position of another history begins with a reset nevertheless.
    let foreign = read(&format!("{path}?history=other"), Some(last)).await;
    assert_eq!(foreign.iter().map(|(event, _)| event.as_str()).collect::<Vec<_>>(), ["reset"]);
}
