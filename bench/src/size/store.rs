//! Fills a store to 100,000 sessions of two turns each, and measures queries that could read all of it, against a store of
//! 1,000 sessions.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use mainspring_core::{Block, RunStatus};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Kernel, Options, RunRequest, SessionTarget};
use mainspring_kernel::store::Store;
use rusqlite::Connection;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::adapter;
use crate::http::client::Client;
use crate::http::server::{OURS, Server};
use crate::stats::{median, ms};
use crate::table::{Goal, Table};
use crate::world;

const LARGE_SESSIONS: usize = 100_000;
const SMALL_SESSIONS: usize = 1_000;
/// Parts of the fill whose rates are measured.
const PARTS: usize = 10;
/// Tasks that fill, each one session after the other.
const TASKS: usize = 64;
const TURNS: usize = 2;
const QUERY_ROUNDS: usize = 50;

/// The queries: a name, and a path of the API.
const QUERIES: [(&str, &str); 3] = [
    ("runs?status=failed, none", "/v1/runs?status=failed"),
    ("events?types= of a type that no event has", "/v1/events?types=artifact"),
    ("search of a word in every prompt and in no title", "/v1/search?q=zebra"),
];

pub(super) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let (large, small) = (folder.file("large.sqlite3"), folder.file("small.sqlite3"));
    let sessions = world::scaled(LARGE_SESSIONS);
    runtime.block_on(fill(&small, world::scaled(SMALL_SESSIONS)));
    let rates = runtime.block_on(fill(&large, sessions));
    table.line(
        format!("filling a store to {sessions} sessions, the last tenth"),
        *rates.last().unwrap(),
        Some((rates[0], "the first tenth")),
        "runs/s",
        Goal::RatioAtLeast(0.9),
    );
    table.batched("commits of 64 tasks that wait for the disk share a transaction");
    let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    table.note(format!("Runs per second of each tenth of the fill: {}.", rates.join(", ")));
    table.note(pages(&large));
    let (large, small) = (Server::start(OURS, &large), Server::start(OURS, &small));
    runtime.block_on(async {
        let mut clients =
            [Client::open(large.port, &large.token).await, Client::open(small.port, &small.token).await];
        for (name, path) in QUERIES {
            let mut times = [vec![], vec![]];
            for _ in 0..QUERY_ROUNDS {
                for (client, times) in clients.iter_mut().zip(&mut times) {
                    let begin = Instant::now();
                    client.get(path).await;
                    times.push(ms(begin.elapsed()));
                }
            }
            let small = (median(&times[1]), "a small store");
            let measure = format!("{name}, {sessions} sessions, p50");
            table.line(measure, median(&times[0]), Some(small), "ms", Goal::RatioAtMost(3.0));
        }
    });
}

/// Fills a store and completes its search index. Returns the runs per second of each part.
async fn fill(path: &Path, sessions: usize) -> Vec<f64> {
    let store = world::store(path);
    let options = Options {
        adapter: adapter::ANSWER.into(),
        idle_unload_ms: 500,
        max_workers: 1_024,
        ..Options::default()
    };
    let adapters = adapter::all();
    let kernel =
        Kernel::start(store.clone(), adapters, options, Clock::system(), Ids::system()).await.unwrap();
    let mut rates = vec![];
    for part in 0..PARTS {
        let of_part = (sessions / PARTS).max(1);
        let (mut tasks, begin) = (JoinSet::new(), Instant::now());
        for task in 0..TASKS {
            let own: Vec<usize> = (task..of_part).step_by(TASKS).collect();
            tasks.spawn(fill_sessions(kernel.clone(), part, own));
        }
        let runs: usize = tasks.join_all().await.into_iter().sum();
        rates.push(runs as f64 / begin.elapsed().as_secs_f64());
        eprintln!("  {} sessions: {:.0} runs/s", (part + 1) * of_part, rates.last().unwrap());
    }
    kernel.shutdown().await;
    while store.search_index().await.unwrap() {}
    drop(kernel);
    drop(Arc::into_inner(store));
    rates
}

/// Runs the turns of these sessions. Returns their number.
async fn fill_sessions(kernel: Kernel, part: usize, sessions: Vec<usize>) -> usize {
    let caller = world::caller();
    for no in &sessions {
        for _ in 0..TURNS {
            let key = Some(format!("fill-{part}-{no}"));
            let request = RunRequest {
                session: SessionTarget { key, ..SessionTarget::default() },
                prompt: vec![Block::text(format!("{} zebra", world::text(500)))],
                ..RunRequest::default()
            };
            let run = kernel.run_create(&caller, request).await.unwrap().run.id;
            let ended = kernel.run_wait_ended(&caller, run).await.unwrap();
            assert_eq!(ended.state.status(), RunStatus::Succeeded);
        }
    }
    sessions.len() * TURNS
}

/// The pages of the largest tables and indexes.
fn pages(path: &Path) -> String {
    let connection = Connection::open(path).unwrap();
    let sql = "SELECT name, count(*) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 12";
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))).unwrap();
    let parts: Vec<String> =
        rows.map(|row| row.map(|(name, pages)| format!("{name} {pages}")).unwrap()).collect();
    format!("Pages of the large store: {}.", parts.join(", "))
}
