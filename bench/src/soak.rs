//! Soak test: very many readers of one session, and very many sessions that stream concurrently. Nothing may be lost.
//!
//! The server is a separate daemon process, so that its memory can be measured alone.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::http::client::{Client, SseStream, between};
use crate::http::server::Server;
use crate::table::{Goal, Table};
use crate::world;

const READERS: usize = 10_000;
const SESSIONS: usize = 1_000;
/// Concurrent connection attempts.
const CONCURRENT_CONNECTS: usize = 200;
/// The agent's script: a word every 100 ms for 10 seconds.
const SCRIPT: &str = r#"{"prompt":"stream 100 every 100ms the-quick-brown-fox-jumps-over"}"#;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    raise_open_file_limit(READERS);
    runtime.block_on(async {
        readers(table).await;
        sessions(table).await;
    });
}

/// Raises the limit of open files to the hard limit; the server inherits it. It must allow this many connections.
pub(crate) fn raise_open_file_limit(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    assert!(
        maximum.is_none_or(|limit| limit > connections as u64 + 100),
        "too few open files are allowed: {maximum:?}"
    );
}

/// The items that one reader received.
#[derive(Default)]
struct Received {
    events: Vec<u64>,
    frames: u64,
    /// Bytes of text that arrived as deltas.
    bytes: u64,
    /// Bytes that arrived neither as deltas nor within a completed message.
    lost: u64,
    pos: u64,
}

impl Received {
    /// Records a frame; true when the run has ended.
    fn record(&mut self, frame: &str) -> bool {
        let Some((cursor, pos)) = between(frame, "id: ", "\n").and_then(|id| id.split_once('.')) else {
            return false;
        };
        let (cursor, pos): (u64, u64) = (cursor.parse().unwrap(), pos.parse().unwrap());
        self.frames += 1;
        if frame.contains("event: message.delta") {
            let text = between(frame, r#""text":""#, "\"").unwrap().len() as u64;
            self.bytes += text;
            self.lost += pos - text - self.pos;
        } else {
            self.events.push(cursor);
            // A completed message contains its whole text.
            self.lost += if frame.contains("event: message.completed") { 0 } else { pos - self.pos };
        }
        self.pos = pos;
        frame.contains("event: run.succeeded")
    }
}

async fn read(mut frames: SseStream, from: u64) -> Received {
    let mut received = Received { pos: from, ..Received::default() };
    while let Some(frame) = frames.next().await {
        if received.record(frame) {
            return received;
        }
    }
    panic!("a stream ended before the run did");
}

async fn readers(table: &mut Table) {
    let folder = world::Folder::new();
    let server = Server::daemon(&folder.file("state"));
    let mut client = Client::open(server.port, &server.token).await;
    client.send("POST", "/v1/sessions", r#"{"key":"one"}"#).await;
    let before = server.resident().0;
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    let count = world::scaled(READERS);
    for first in (0..count).step_by(CONCURRENT_CONNECTS) {
        let mut opening = JoinSet::new();
        for _ in first..count.min(first + CONCURRENT_CONNECTS) {
            let (port, token) = (server.port, server.token.clone());
            opening.spawn(async move {
                SseStream::open(port, &token, "GET", "/v1/sessions/one/events", "").await
            });
        }
        for frames in opening.join_all().await {
            tasks.spawn(read(frames, 0));
        }
    }
    let opened = begin.elapsed();
    let (begin, connected) = (Instant::now(), server.resident().0);
    client.send("POST", "/v1/sessions/one/runs", SCRIPT).await;
    let received = tasks.join_all().await;
    let streamed = begin.elapsed();
    let expected = stored(&mut client, "one").await;
    report(
        table,
        &format!("{count} readers of one session"),
        &received,
        |_| expected[1..].to_vec(),
        streamed,
    );
    table.line(format!("{count} readers: until all were there"), opened.as_secs_f64(), None, "s", Goal::None);
    let kilobytes = (connected - before) * 1024.0 / count as f64;
    table.line(format!("{count} readers: memory of a reader"), kilobytes, None, "KB", Goal::AtMost(20.0));
    report_memory(table, &format!("{count} readers"), &server, before, connected).await;
}

async fn sessions(table: &mut Table) {
    let folder = world::Folder::new();
    let server = Server::daemon(&folder.file("state"));
    let mut client = Client::open(server.port, &server.token).await;
    let before = server.resident().0;
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    let count = world::scaled(SESSIONS);
    for no in 0..count {
        let key = format!("s{no}");
        client.send("POST", "/v1/sessions", &format!(r#"{{"key":"{key}"}}"#)).await;
        let path = format!("/v1/sessions/{key}/runs");
        let frames = SseStream::open(server.port, &server.token, "POST", &path, SCRIPT).await;
        tasks.spawn(async move { (no, read(frames, 0).await) });
    }
    let connected = server.resident().0;
    let mut received = tasks.join_all().await;
    let streamed = begin.elapsed();
    received.sort_by_key(|(no, _)| *no);
    let mut expected = vec![];
    for no in 0..count {
        expected.push(stored_of_runs(&mut client, &format!("s{no}")).await);
    }
    let received: Vec<Received> = received.into_iter().map(|(_, received)| received).collect();
    report(
        table,
        &format!("{count} sessions that stream at once"),
        &received,
        |no| expected[no].clone(),
        streamed,
    );
    report_memory(table, &format!("{count} sessions"), &server, before, connected).await;
}

/// The cursors of all events of a session.
async fn stored(client: &mut Client, key: &str) -> Vec<u64> {
    cursors(&events(client, key).await)
}

/// The cursors of the events of a session's runs. The stream of a run has no other events: the title that the first
/// turn gives its session is an event of the session, not of the run.
async fn stored_of_runs(client: &mut Client, key: &str) -> Vec<u64> {
    let mut events = events(client, key).await;
    events.retain(|event| event["runId"].is_string());
    cursors(&events)
}

async fn events(client: &mut Client, key: &str) -> Vec<serde_json::Value> {
    let page = client.get(&format!("/v1/sessions/{key}/events?limit=500")).await;
    let mut page: serde_json::Value = serde_json::from_str(&page).unwrap();
    serde_json::from_value(page["items"].take()).unwrap()
}

fn cursors(events: &[serde_json::Value]) -> Vec<u64> {
    events.iter().map(|event| event["cursor"].as_u64().unwrap()).collect()
}

fn report(
    table: &mut Table,
    name: &str,
    received: &[Received],
    expected: impl Fn(usize) -> Vec<u64>,
    time: Duration,
) {
    let (mut lost, mut duplicates) = (0, 0);
    for (no, received) in received.iter().enumerate() {
        let expected = expected(no);
        lost +=
            expected.iter().filter(|cursor| !received.events.contains(cursor)).count() as u64 + received.lost;
        duplicates += (received.events.len()
            - received.events.iter().collect::<std::collections::HashSet<_>>().len())
            as u64;
        duplicates += received.events.iter().filter(|cursor| !expected.contains(cursor)).count() as u64;
    }
    let sum = |part: fn(&Received) -> u64| received.iter().map(part).sum::<u64>() as f64;
    let frames = sum(|received| received.frames);
    table.line(format!("{name}: events and deltas delivered"), frames, None, "", Goal::None);
    table.line(format!("{name}: delivered per second"), frames / time.as_secs_f64(), None, "/s", Goal::None);
    table.line(format!("{name}: events and bytes lost"), lost as f64, None, "", Goal::AtMost(0.0));
    table.line(format!("{name}: events seen twice"), duplicates as f64, None, "", Goal::AtMost(0.0));
    table.line(format!("{name}: time (the stream takes 10 s)"), time.as_secs_f64(), None, "s", Goal::None);
}

async fn report_memory(table: &mut Table, name: &str, server: &Server, before: f64, connected: f64) {
    // Memory of closed connections is released with a delay.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (after, peak) = server.resident();
    let parts = [("before", before), ("with all connected", connected), ("peak", peak), ("after", after)];
    for (when, resident) in parts {
        table.line(format!("{name}: RSS of the daemon, {when}"), resident, None, "MB", Goal::None);
    }
}
