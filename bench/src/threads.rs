//! The threads API: polls of a thread at rest, how late a waiting poll is beside a stream, and thousands of waiting polls.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::adapter::{ANSWER, READ_INTERVAL, SLOW_PACE, ages};
use crate::history::Builder;
use crate::http::client::{Client, SseStream, between};
use crate::http::server::{OURS, Server};
use crate::readers::lateness;
use crate::soak::raise_open_file_limit;
use crate::stats::{median, ms, percentile};
use crate::table::{Goal, Table};
use crate::world;

const CLIENTS: usize = 64;
const REST: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;
const WAITING: usize = 100;
const DELTAS: usize = 60;
const MANY: usize = 5_000;
const OPENED_AT_ONCE: usize = 256;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    raise_open_file_limit(2 * MANY);
    let folder = world::Folder::new();
    let path = folder.file("ours.sqlite3");
    drop(world::store(&path));
    let server = Server::start(OURS, &path);
    runtime.block_on(async {
        at_rest(&server, table).await;
        poll_lateness(&server, table).await;
        many_polls(&server, table).await;
    });
}

/// Makes a session, and returns its id and its key.
async fn session(client: &mut Client) -> (String, String) {
    let key = format!("thread-{}", Builder::new().ids.session());
    let made = client.send("POST", "/v1/sessions", &format!(r#"{{"key":"{key}"}}"#)).await;
    (between(&made, r#""sessionId":""#, "\"").unwrap().to_owned(), key)
}

async fn run(client: &mut Client, key: &str, adapter: &str, deltas: usize) {
    let run = format!(r#"{{"prompt":"{deltas}","adapter":"{adapter}"}}"#);
    client.send("POST", &format!("/v1/sessions/{key}/runs"), &run).await;
}

/// Asks for a delta, and returns it.
async fn delta(client: &mut Client, thread: &str, token: &str) -> Value {
    let answer = client.get(&format!("/v1/ai/threads/{thread}/delta?next_token={token}")).await;
    serde_json::from_str::<Value>(&answer).unwrap()["data"].take()
}

fn token(delta: &Value) -> String {
    delta["continuation_token"].as_str().unwrap().to_owned()
}

fn is_working(delta: &Value) -> bool {
    delta["status"] == "roboto_turn"
}

/// Reads a thread until it is at rest, and returns the token of a reader that has read all of it.
async fn caught_up(client: &mut Client, thread: &str) -> String {
    let mut held = delta(client, thread, "").await;
    while is_working(&held) {
        held = delta(client, thread, &token(&held)).await;
    }
    token(&held)
}

async fn at_rest(server: &Server, table: &mut Table) {
    let mut client = Client::open(server.port, &server.token).await;
    let (thread, key) = session(&mut client).await;
    for _ in 0..3 {
        let path = format!("/v1/sessions/{key}/runs");
        client.send_waiting(&path, &format!(r#"{{"prompt":"hello","adapter":"{ANSWER}"}}"#)).await;
    }
    let held = caught_up(&mut client, &thread).await;
    let mut rates = vec![];
    for _ in 0..ROUNDS {
        let (begin, mut polling) = (Instant::now(), JoinSet::new());
        for _ in 0..CLIENTS {
            let mut client = Client::open(server.port, &server.token).await;
            let path = format!("/v1/ai/threads/{thread}/delta?next_token={held}");
            polling.spawn(async move {
                let mut polls = 0_u32;
                while begin.elapsed() < REST {
                    client.get(&path).await;
                    polls += 1;
                }
                f64::from(polls)
            });
        }
        let polls: f64 = polling.join_all().await.into_iter().sum();
        rates.push(polls / begin.elapsed().as_secs_f64());
    }
    let measure = format!("delta polls of a thread at rest, {CLIENTS} connections");
    table.line(measure, median(&rates), None, "/s", Goal::AtLeast(10_000.0));
}

/// Measures how late waiting polls get each delta, beside streams of the same session.
async fn poll_lateness(server: &Server, table: &mut Table) {
    let mut client = Client::open(server.port, &server.token).await;
    let (mut polled, mut streamed) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let (thread, key) = session(&mut client).await;
        run(&mut client, &key, SLOW_PACE, DELTAS).await;
        let mut polling = JoinSet::new();
        for _ in 0..WAITING {
            let client = Client::open(server.port, &server.token).await;
            polling.spawn(poll_to_end(client, thread.clone()));
        }
        polled.extend(polling.join_all().await.concat());
        let (_, key) = session(&mut client).await;
        let mut reading = JoinSet::new();
        for _ in 0..WAITING {
            let path = format!("/v1/sessions/{key}/events");
            let frames = SseStream::open(server.port, &server.token, "GET", &path, "").await;
            reading.spawn(lateness(frames));
        }
        run(&mut client, &key, SLOW_PACE, DELTAS).await;
        streamed.extend(reading.join_all().await.concat());
    }
    for (name, part, goal) in [("p50", 0.5, Goal::None), ("p99", 0.99, Goal::AtMost(5.0))] {
        table.line(
            format!("lateness of a delta to {WAITING} waiting polls, 20/s, {name}"),
            percentile(&polled, part),
            Some((percentile(&streamed, part), "streams of the same session")),
            "ms",
            goal,
        );
    }
}

/// Polls until the turn has ended. Returns how late each delta was after the first answer, in milliseconds.
async fn poll_to_end(mut client: Client, thread: String) -> Vec<f64> {
    let mut held = delta(&mut client, &thread, "").await;
    let mut lateness_ms = vec![];
    while is_working(&held) {
        held = delta(&mut client, &thread, &token(&held)).await;
        let messages = held["messages_by_idx"].as_object().unwrap().values();
        let streamed = messages.filter(|message| message["status"] == "generating");
        for content in streamed.flat_map(|message| message["content"].as_array().unwrap()) {
            lateness_ms.extend(ages(content["text"].as_str().unwrap_or_default()).map(ms));
        }
    }
    lateness_ms
}

/// Measures thousands of polls that wait for the same thread.
async fn many_polls(server: &Server, table: &mut Table) {
    let polls = world::scaled(MANY);
    let mut client = Client::open(server.port, &server.token).await;
    let (thread, key) = session(&mut client).await;
    let mut clients = Vec::with_capacity(polls);
    // Opens no more at once than the system queues for the server: it would drop the others.
    while clients.len() < polls {
        let some =
            (0..OPENED_AT_ONCE.min(polls - clients.len())).map(|_| Client::open(server.port, &server.token));
        clients.extend(futures_util::future::join_all(some).await);
        // The answer to the last client shows that all clients before it were accepted.
        if let Some(last) = clients.last_mut() {
            last.get("/health").await;
        }
    }
    // Long enough for all polls; each ends with the first delta after it.
    run(&mut client, &key, SLOW_PACE, 200).await;
    let begin = Instant::now();
    let mut waiting = JoinSet::new();
    for mut client in clients {
        let thread = thread.clone();
        waiting.spawn(async move {
            let held = delta(&mut client, &thread, "").await;
            delta(&mut client, &thread, &token(&held)).await
        });
    }
    let answered = waiting.join_all().await;
    assert!(answered.iter().all(|delta| !token(delta).is_empty()));
    table.line(
        format!("{polls} polls that wait at once, all answered within"),
        ms(begin.elapsed()),
        None,
        "ms",
        Goal::None,
    );
    let answer = format!("the next delta comes after {} ms", READ_INTERVAL.as_millis());
    table.batched(&answer);
}
