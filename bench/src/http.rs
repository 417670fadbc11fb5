//! The HTTP API: the cost of a request and of a streamed delta, against a bare server that writes the same rows in one
//! commit, or does one read.

use std::time::{Duration, Instant};

use mainspring_core::SessionId;
use mainspring_kernel::store::{SessionRef, Store};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::adapter::{PACE, ages};
use crate::history::Builder;
use crate::stats::{median, ms, percentile};
use crate::table::{Goal, Table};
use crate::turn::run_turn;
use crate::{start, world};

pub(crate) mod client;
pub(crate) mod server;
use client::{Client, SseStream, between};
use server::{BARE, OURS, Server};

const ROUNDS: usize = 5;
/// The number of clients, and the requests of each per round.
const LOADS: [(usize, usize); 3] = [(1, 200), (64, 20), (256, 10)];
/// Sessions per client, so that a prompt does not wait for the previous turn.
const SESSIONS: usize = 16;
/// Turns of a keep-alive client, over HTTP and in process.
const TURNS: usize = 300;
const READ_CLIENTS: usize = 32;
const READ_TIME: Duration = Duration::from_millis(700);
const PACE_DELTAS: usize = 2_000;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let (path, bare) = (folder.file("ours.sqlite3"), folder.file("bare.sqlite3"));
    let (sessions, session, bare_session) = runtime.block_on(async {
        let (builder, store, other) = (Builder::new(), world::store(&path), world::store(&bare));
        let mut sessions = vec![];
        for _ in 0..LOADS.map(|(clients, _)| clients).into_iter().max().unwrap() * SESSIONS {
            sessions.push(builder.stored_session(&*store, 0).await);
        }
        let session = builder.stored_session(&*store, 50).await;
        // Otherwise the search index of these sessions is written while requests are measured.
        while store.search_index().await.unwrap() {}
        (sessions, session, builder.stored_session(&*other, 50).await)
    });
    let (ours, bare) = (Server::start(OURS, &path), Server::start(BARE, &bare));
    runtime.block_on(async {
        for (clients, requests) in LOADS {
            accept(&ours, &bare, &sessions, clients, requests, table).await;
        }
        turns(&ours, sessions[0], table).await;
        delta(&ours, &bare, session, table).await;
        let show = (format!("/v1/sessions/{session}"), format!("/session/{bare_session}"));
        reads(&ours, &bare, "session show", show, table).await;
        let page = (format!("/v1/sessions/{session}/events?limit=50"), format!("/events/{bare_session}"));
        reads(&ours, &bare, "page of 50 events", page, table).await;
    });
    daemon(runtime, table);
}

const BATCHED_PROMPTS: &str = "ours: prompts that wait for the disk share a transaction, and each turn is also run and \
    ended in the time measured; baseline: a transaction each";

async fn accept(
    ours: &Server,
    bare: &Server,
    sessions: &[SessionId],
    clients: usize,
    requests: usize,
    table: &mut Table,
) {
    let prompt = format!(r#"{{"prompt":"{}"}}"#, world::text(500));
    let (mut times, mut baseline) = (vec![], vec![]);
    let (mut rates, mut bare_rates) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let path = |client: usize, no: usize| {
            format!("/v1/sessions/{}/runs", sessions[client * SESSIONS + no % SESSIONS])
        };
        let (rate, of_ours) = posts(ours, clients, requests, &prompt, path).await;
        let (bare_rate, of_bare) = posts(bare, clients, requests, &prompt, |_, _| "/commit".into()).await;
        times.extend(of_ours);
        baseline.extend(of_bare);
        rates.push(rate);
        bare_rates.push(bare_rate);
    }
    let clients_text = if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
    let measure = format!("prompts accepted over HTTP, {clients_text}");
    let bare_rate = (median(&bare_rates), "bare axum, the same rows in one commit");
    table.line(measure, median(&rates), Some(bare_rate), "/s", Goal::RatioAtLeast(0.7));
    table.batched(BATCHED_PROMPTS);
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        let (ours, bare) = (percentile(&times, part), percentile(&baseline, part));
        let measure = format!("prompt to acknowledgement over HTTP, {clients_text}, {name}");
        table.line(measure, ours, Some((bare, "bare axum, the same rows in one commit")), "ms", Goal::None);
        table.batched(BATCHED_PROMPTS);
    }
}

/// The requests per second, and the duration of each in milliseconds.
async fn posts(
    server: &Server,
    clients: usize,
    requests: usize,
    body: &str,
    path: impl Fn(usize, usize) -> String,
) -> (f64, Vec<f64>) {
    let mut connections = vec![];
    for _ in 0..clients {
        connections.push(Client::open(server.port, &server.token).await);
    }
    let (mut tasks, begin) = (JoinSet::new(), Instant::now());
    for (client, mut connection) in connections.into_iter().enumerate() {
        let paths: Vec<String> = (0..requests).map(|no| path(client, no)).collect();
        let body = body.to_owned();
        tasks.spawn(async move {
            let mut times = vec![];
            for path in paths {
                let begin = Instant::now();
                connection.send("POST", &path, &body).await;
                times.push(ms(begin.elapsed()));
            }
            times
        });
    }
    let times = tasks.join_all().await.concat();
    (times.len() as f64 / begin.elapsed().as_secs_f64(), times)
}

/// Measures a whole turn by a client with one connection that waits for the result, against a turn in this process
/// without HTTP.
async fn turns(ours: &Server, session: SessionId, table: &mut Table) {
    let folder = world::Folder::new();
    let store = world::store(&folder.file("in-process.sqlite3"));
    let own = Builder::new().stored_session(&*store, 0).await;
    let kernel = world::kernel(store).await;
    let by = SessionRef::Id(own);
    let mut feed = kernel.session_subscribe(&world::caller(), &by, None).await.unwrap();
    let mut client = Client::open(ours.port, &ours.token).await;
    let path = format!("/v1/sessions/{session}/runs");
    let body = format!(r#"{{"prompt":"{}"}}"#, world::text(500));
    let (mut times, mut baseline) = (vec![], vec![]);
    for _ in 0..TURNS {
        let begin = Instant::now();
        let answer = client.send_waiting(&path, &body).await;
        times.push(ms(begin.elapsed()));
        assert!(answer.contains(r#""status":"succeeded""#), "{answer}");
        baseline.push(run_turn(&kernel, own, &mut feed).await);
    }
    drop(feed);
    kernel.shutdown().await;
    for (name, part, goal) in [("p50", 0.5, Goal::DifferenceAtMost(0.25)), ("p99", 0.99, Goal::None)] {
        table.line(
            format!("turn over HTTP, a client with one connection, {name}"),
            percentile(&times, part),
            Some((percentile(&baseline, part), "in process")),
            "ms",
            goal,
        );
    }
}

async fn delta(ours: &Server, bare: &Server, session: SessionId, table: &mut Table) {
    let (mut times, mut baseline) = (vec![], vec![]);
    for _ in 0..3 {
        let path = format!("/v1/sessions/{session}/runs");
        let body = format!(r#"{{"prompt":"{PACE_DELTAS}","adapter":"{PACE}"}}"#);
        let frames = SseStream::open(ours.port, &ours.token, "POST", &path, &body).await;
        times.extend(latencies(frames).await);
        let path = format!("/pace/{PACE_DELTAS}");
        baseline.extend(latencies(SseStream::open(bare.port, &bare.token, "GET", &path, "").await).await);
    }
    for (name, part, goal) in [("p50", 0.5, Goal::None), ("p99", 0.99, Goal::AtMost(2_000.0))] {
        table.line(
            format!("delta over HTTP to 1 subscriber, {name}, 1,000/s"),
            percentile(&times, part) * 1e3,
            Some((percentile(&baseline, part) * 1e3, "bare axum, from a timer")),
            "µs",
            goal,
        );
    }
}

/// The latency of each delta in milliseconds.
async fn latencies(mut frames: SseStream) -> Vec<f64> {
    let mut latencies_ms = vec![];
    while let Some(frame) = frames.next().await {
        let streams = frame.contains("message.delta") || !frame.contains("event: ");
        if let Some(text) = between(frame, r#""text":""#, "\"").filter(|_| streams) {
            latencies_ms.extend(ages(text).map(ms));
        }
    }
    latencies_ms
}

async fn reads(
    ours: &Server,
    bare: &Server,
    name: &str,
    (path, bare_path): (String, String),
    table: &mut Table,
) {
    let (mut rates, mut baseline) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        rates.push(rate(ours, &path).await);
        baseline.push(rate(bare, &bare_path).await);
    }
    let measure = format!("{name} over HTTP, {READ_CLIENTS} clients");
    table.line(measure, median(&rates), Some((median(&baseline), "bare axum, one read")), "/s", Goal::None);
}

/// Requests per second.
async fn rate(server: &Server, path: &str) -> f64 {
    let mut tasks = JoinSet::new();
    let mut clients = vec![];
    for _ in 0..READ_CLIENTS {
        clients.push(Client::open(server.port, &server.token).await);
    }
    let begin = Instant::now();
    for mut client in clients {
        let path = path.to_owned();
        tasks.spawn(async move {
            let mut count = 0;
            while begin.elapsed() < READ_TIME {
                client.get(&path).await;
                count += 1;
            }
            count
        });
    }
    let count: usize = tasks.join_all().await.into_iter().sum();
    count as f64 / begin.elapsed().as_secs_f64()
}

/// Measures the program as users run it: the time until it listens, and its memory at that moment.
fn daemon(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let (full, empty, bare) = (folder.file("full"), folder.file("empty"), folder.file("bare.sqlite3"));
    drop((Server::daemon(&full), Server::daemon(&empty), world::store(&bare)));
    let store = world::store(&full.join("mainspring.sqlite3"));
    runtime.block_on(start::fill(&store));
    drop(store);
    let measure_start = |start: &dyn Fn() -> Server| {
        let begin = Instant::now();
        let server = start();
        let time = ms(begin.elapsed());
        [time, server.resident().0]
    };
    let mut starts = [vec![], vec![], vec![]];
    for _ in 0..ROUNDS {
        starts[0].push(measure_start(&|| Server::daemon(&full)));
        starts[1].push(measure_start(&|| Server::daemon(&empty)));
        starts[2].push(measure_start(&|| Server::start(BARE, &bare)));
    }
    let part = |of: usize, at: usize| median(&starts[of].iter().map(|start| start[at]).collect::<Vec<_>>());
    let rows =
        [("start of the daemon until it listens", "ms", 0, 200.0), ("idle RSS of the daemon", "MB", 1, 30.0)];
    for (measure, unit, at, maximum) in rows {
        let goal = Goal::AtMost(maximum);
        table.line(
            format!("{measure}, none stored"),
            part(1, at),
            Some((part(2, at), "bare axum")),
            unit,
            goal,
        );
        let measure = format!("{measure}, 100,000 stored sessions");
        table.line(measure, part(0, at), Some((part(1, at), "none stored")), unit, goal);
    }
}
