//! Readers: how late each delta arrives at 1 and at 1,000 readers of one session over HTTP, against a bare server that
//! broadcasts the same frames; and the memory of a reader.

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::adapter::{SLOW_PACE, ages};
use crate::history::Builder;
use crate::http::client::{Client, SseStream, between};
use crate::http::server::{BARE, OURS, Server};
use crate::soak::raise_open_file_limit;
use crate::stats::{ms, percentile};
use crate::table::{Goal, Table};
use crate::world;

/// Readers, the deltas that each gets per round, and the goal of the median in milliseconds.
const LOADS: [(usize, usize, Goal); 2] = [(1, 60, Goal::None), (1_000, 60, Goal::AtMost(4.0))];
const ROUNDS: usize = 2;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    raise_open_file_limit(2 * 1_000);
    let folder = world::Folder::new();
    let (path, bare) = (folder.file("ours.sqlite3"), folder.file("bare.sqlite3"));
    drop((world::store(&path), world::store(&bare)));
    let (ours, bare) = (Server::start(OURS, &path), Server::start(BARE, &bare));
    runtime.block_on(async {
        for (readers, deltas, goal) in LOADS {
            let readers = if readers > 1 { world::scaled(readers) } else { readers };
            measure_readers(&ours, &bare, readers, deltas, goal, table).await;
        }
    });
}

async fn measure_readers(
    ours: &Server,
    bare: &Server,
    readers: usize,
    deltas: usize,
    goal: Goal,
    table: &mut Table,
) {
    let mut client = Client::open(ours.port, &ours.token).await;
    let mut bare_client = Client::open(bare.port, &bare.token).await;
    let (mut times, mut baseline, mut bytes) = (vec![], vec![], 0.0);
    for _ in 0..ROUNDS {
        let key = format!("read-{}", Builder::new().ids.session());
        client.send("POST", "/v1/sessions", &format!(r#"{{"key":"{key}"}}"#)).await;
        let before = ours.resident().0;
        let reading = open(ours, readers, &format!("/v1/sessions/{key}/events")).await;
        bytes = (ours.resident().0 - before) * 1024.0 * 1024.0 / readers as f64;
        let run = format!(r#"{{"prompt":"{deltas}","adapter":"{SLOW_PACE}"}}"#);
        client.send("POST", &format!("/v1/sessions/{key}/runs"), &run).await;
        times.extend(reading.join_all().await.concat());
        let reading = open(bare, readers, "/broadcast").await;
        bare_client.send("POST", &format!("/broadcast/{deltas}"), "").await;
        baseline.extend(reading.join_all().await.concat());
    }
    let expected = readers * deltas * ROUNDS;
    // A reader that is behind when the message is completed gets the rest of its text within that message.
    let in_message = expected - times.len();
    assert!(
        in_message * 100 <= expected && baseline.len() == expected,
        "{in_message} deltas arrived only within a message"
    );
    let readers_text = if readers == 1 { "1 reader".to_owned() } else { format!("{readers} readers") };
    for (name, part, goal) in [("p50", 0.5, goal), ("p99", 0.99, Goal::None)] {
        table.line(
            format!("lateness of a delta over HTTP, {readers_text}, 20/s, {name}"),
            percentile(&times, part),
            Some((percentile(&baseline, part), "bare axum, a broadcast of the same frames")),
            "ms",
            goal,
        );
        table.batched("a frame is serialized once for all readers, on both sides");
    }
    if in_message > 0 {
        table.note(format!(
            "Of {expected} deltas to {readers_text}, {in_message} came within the completed message."
        ));
    }
    if readers > 1 {
        let measure = format!("memory of a reader, {readers_text} of one session");
        table.line(measure, bytes / 1024.0, None, "KB", Goal::AtMost(20.0));
    }
}

/// Opens streams, and reads each to the end of its run.
async fn open(server: &Server, readers: usize, path: &str) -> JoinSet<Vec<f64>> {
    let mut reading = JoinSet::new();
    for _ in 0..readers {
        let frames = SseStream::open(server.port, &server.token, "GET", path, "").await;
        reading.spawn(lateness(frames));
    }
    reading
}

/// The lateness of each delta in milliseconds, until the run has ended.
pub(crate) async fn lateness(mut frames: SseStream) -> Vec<f64> {
    let mut lateness_ms = vec![];
    while let Some(frame) = frames.next().await {
        if frame.contains("event: run.succeeded") {
            break;
        }
        let is_delta = frame.contains("event: message.delta") || !frame.contains("event: ");
        if let Some(text) = between(frame, r#""text":""#, "\"").filter(|_| is_delta) {
            lateness_ms.extend(ages(text).map(ms));
        }
    }
    lateness_ms
}
