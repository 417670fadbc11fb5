//! mainspring on PostgreSQL, which is started for the benchmark with its default durability: commits beside the same
//! statements by hand, turns beside raw transactions, durable steps, and what a cluster of servers costs.

use std::sync::Arc;
use std::time::Instant;

use mainspring_core::SessionId;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Kernel, Options};
use mainspring_kernel::store::{Commit, Fence, Row, SessionRef, Store};
use mainspring_store::{PostgresOptions, PostgresStore};
use tokio::runtime::Runtime;

use self::floor::Floor;
use self::instance::Instance;
use crate::history::Builder;
use crate::http::server::Server;
use crate::stats::{median, ms, percentile};
use crate::table::{Goal, Table};
use crate::{adapter, commit, steps, turn, world};

mod cluster;
mod floor;
mod instance;

const ROUNDS: u32 = 5;
const TURNS: usize = 200;
const CLIENTS: usize = 32;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let instance = Instance::start();
    runtime.block_on(commits(&instance, table));
    runtime.block_on(turns(&instance, table));
    runtime.block_on(durable_steps(&instance, table));
    runtime.block_on(cluster::measure(&instance, table));
}

fn open(url: &str) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::open(url, PostgresOptions::default()).unwrap())
}

/// Commits of 64 tasks through the store. The baseline writes the same rows in the same transactions on as
/// many connections.
async fn commits(instance: &Instance, table: &mut Table) {
    let (ours_url, floor_url) = (instance.database("ours"), instance.database("floor"));
    let (store, builder) = (open(&ours_url), Builder::new());
    let fences = sessions(&store, &open(&floor_url), &builder).await;
    let mut floor = Floor::connect(&ours_url, &floor_url, PostgresOptions::default().writers).await;
    let (mut ours, mut baseline, mut ratios, mut sizes) = (vec![], vec![], vec![], vec![]);
    for round in 0..=ROUNDS {
        let work: Vec<Vec<Arc<Commit>>> =
            fences.iter().map(|fence| commit::commits(&builder, *fence, round)).collect();
        let count = work.iter().map(Vec::len).sum::<usize>() as f64;
        let begin = Instant::now();
        commit::commit_all(Arc::clone(&store) as Arc<dyn Store>, &work).await;
        let time = begin.elapsed().as_secs_f64();
        let transactions = floor.read().await;
        let size = count / transactions.len() as f64;
        let raw_time = floor.write(transactions).await;
        // The first round warms up both.
        if round > 0 {
            ours.push(count / time);
            baseline.push(count / raw_time);
            ratios.push(raw_time / time);
            sizes.push(size);
        }
    }
    let name = "PostgreSQL: fenced commits, 64 tasks (2 events, 1 run, 1 attempt each)";
    let shared =
        "commits of a writer that wait for the database share a transaction; the baseline's are the same";
    table.line_with_ratio(
        name,
        median(&ours),
        Some((median(&baseline), "the same statements, batches and connections by hand")),
        Some(median(&ratios)),
        "/s",
        Goal::RatioAtLeast(0.6),
    );
    table.batched(shared);
    table.line(format!("{name}, absolute"), median(&ours), None, "/s", Goal::AtLeast(3_000.0));
    table.batched(shared);
    table.line("PostgreSQL: commits per transaction", median(&sizes), None, "", Goal::None);
}

/// Creates the same sessions in both databases.
async fn sessions(store: &PostgresStore, floor: &PostgresStore, builder: &Builder) -> Vec<Fence> {
    let mut fences = vec![];
    for _ in 0..commit::TASKS {
        let session = Arc::new(builder.session());
        for (store, is_ours) in [(store, true), (floor, false)] {
            let fence = store.lease_take(session.id, builder.ids.node()).await.unwrap();
            let rows = vec![Row::Session(Arc::clone(&session))];
            store.commit(Arc::new(Commit { fence, events: vec![], rows })).await.unwrap();
            fences.extend(is_ours.then_some(fence));
        }
    }
    fences
}

/// Turns of one session beside two raw transactions each.
async fn turns(instance: &Instance, table: &mut Table) {
    let (ours_url, floor_url) = (instance.database("turns"), instance.database("turns_floor"));
    let (store, builder) = (open(&ours_url), Builder::new());
    let fences = sessions(&store, &open(&floor_url), &builder).await;
    let mut floor = Floor::connect(&ours_url, &floor_url, 1).await;
    // The commits of a single task, one after the other, so that each has a transaction of its own.
    let work: Vec<Arc<Commit>> =
        (0..).flat_map(|round| commit::commits(&builder, fences[0], round)).take(2 * TURNS).collect();
    for commit in work {
        store.commit(commit).await.unwrap();
    }
    let transactions = floor.read().await;
    drop(store);
    let baseline: Vec<f64> = {
        let mut times = vec![];
        let mut left = transactions.into_iter();
        while let (Some(first), Some(second)) = (left.next(), left.next()) {
            times.push(floor.write(vec![first]).await * 1e3 + floor.write(vec![second]).await * 1e3);
        }
        times
    };
    let options =
        Options { adapter: adapter::ANSWER.into(), idle_unload_ms: 60 * 60 * 1_000, ..Options::default() };
    let store = open(&instance.database("kernel"));
    let session = builder.stored_session(&*store, 0).await;
    let kernel = Kernel::start(store, adapter::all(), options, Clock::system(), Ids::system()).await.unwrap();
    let times = run_turns(kernel, session).await;
    let floor = median(&baseline);
    table.line(
        "PostgreSQL: turn, p50",
        median(&times),
        Some((floor, "two raw transactions")),
        "ms",
        Goal::RatioAtMost(3.0),
    );
    let p99 = Some((percentile(&baseline, 0.99), "two raw transactions"));
    table.line("PostgreSQL: turn, p99", percentile(&times, 0.99), p99, "ms", Goal::None);
}

/// Runs turns from a task of the runtime, like the callers in a server.
async fn run_turns(kernel: Kernel, session: SessionId) -> Vec<f64> {
    let turns = tokio::spawn(async move {
        let mut times = vec![];
        for _ in 0..TURNS {
            let by = SessionRef::Id(session);
            let mut feed = kernel.session_subscribe(&world::caller(), &by, None).await.unwrap();
            times.push(turn::run_turn(&kernel, session, &mut feed).await);
        }
        kernel.shutdown().await;
        times
    });
    turns.await.unwrap()
}

/// Accepting a run, two durable steps and its result through the program.
async fn durable_steps(instance: &Instance, table: &mut Table) {
    let folder = world::Folder::new();
    let url = instance.database("steps");
    let server = Server::daemon_with(&folder.file("state"), &[("MAINSPRING_STORE", &url)]);
    let (mut rates, mut times) = (vec![], vec![]);
    for round in 0..3 {
        let (rate, of_round) = steps::load(&server, CLIENTS, round).await;
        rates.push(rate);
        times.extend(of_round);
    }
    let name = "PostgreSQL: accept, two durable tool steps, result: 32 clients";
    table.line(name, median(&rates), None, "/s", Goal::None);
    table.batched("commits of different sessions that wait for the database share a transaction");
    table.line(format!("{name}, p50"), percentile(&times, 0.5), None, "ms", Goal::None);
}

/// Milliseconds since `begin`.
fn since(begin: Instant) -> f64 {
    ms(begin.elapsed())
}
