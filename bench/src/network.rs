//! Networks of agents: a step that rules route beside the same step alone, and a network of five steps. The model
//! answers at once within the process, so that only the work around it is measured.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream};
use mainspring_agent::provider::{Completion, ModelError, Piece, Provider, Request};
use mainspring_agent::{Definition, Definitions, Models, ModelsConfig, NativeAdapter, Toolbox, native};
use mainspring_core::{KeyPresence, RunOptions};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Kernel, NewSession, Options, RunRequest, SessionTarget};
use mainspring_kernel::store::{SessionRef, Store};
use mainspring_reference_store::MemoryStore;
use tokio::runtime::Runtime;

use crate::stats::{median, ms};
use crate::table::{Goal, Table};
use crate::turn::wait_succeeded;
use crate::world;

const TURNS: usize = 200;
/// Turns on one store in memory.
const TURNS_IN_MEMORY: usize = 5;
const STEPS: u32 = 5;

/// A model that answers at once.
struct InstantProvider;

#[async_trait]
impl Provider for InstantProvider {
    async fn stream(&self, _request: Request) -> BoxStream<'static, Result<Piece, ModelError>> {
        let done = Piece::Done(Box::<Completion>::default());
        Box::pin(stream::iter([Ok(Piece::Text("ok".into())), Ok(done)]))
    }

    fn kind(&self) -> &'static str {
        "bench"
    }

    fn key(&self) -> KeyPresence {
        KeyPresence::NotNeeded
    }
}

fn network(id: &str, calls: u32) -> String {
    format!(
        "id = \"{id}\"\n[network]\nmembers = [{{ agent = \"worker\" }}]\n[network.router]\n\
         rules = [{{ when = \"calls < {calls}\", to = [\"worker\"] }}]"
    )
}

async fn kernel(store: Arc<dyn Store>) -> Kernel {
    let models =
        Models::new(&ModelsConfig::default()).unwrap().with_provider("bench", Arc::new(InstantProvider));
    let texts = ["id = \"worker\"".to_owned(), network("one", 1), network("five", STEPS)];
    let definitions =
        texts.iter().fold(Definitions::new(None), |all, text| all.with(Definition::parse(text).unwrap()));
    let adapter = NativeAdapter::new(models, Toolbox::default(), definitions);
    let options = Options { adapter: native::NAME.into(), ..Options::default() };
    Kernel::start(store, vec![Arc::new(adapter)], options, Clock::system(), Ids::system()).await.unwrap()
}

/// The duration of a run in milliseconds, with and without the time in which it waited for commits.
#[derive(Clone, Copy)]
struct RunTimes {
    all: f64,
    without_commits: f64,
}

/// Runs one prompt in a new session of an agent.
async fn run(kernel: &Kernel, agent: &str, no: usize) -> RunTimes {
    let new = NewSession { agent_definition: Some(agent.into()), ..NewSession::default() };
    let session = SessionTarget { key: Some(format!("{agent}-{no}")), new, ..SessionTarget::default() };
    let options = RunOptions { model: Some("bench/m".into()), ..RunOptions::default() };
    let prompt = vec![mainspring_core::Block::text("go")];
    let request = RunRequest { session, prompt, options, ..RunRequest::default() };
    let (begin, committed) = (Instant::now(), kernel.counts().commit_seconds);
    let accepted = kernel.run_create(&world::caller(), request).await.unwrap();
    let session = SessionRef::Id(accepted.session.id);
    let mut feed =
        kernel.session_subscribe(&world::caller(), &session, Some(accepted.position)).await.unwrap();
    wait_succeeded(&mut feed, accepted.run.id).await;
    let all = ms(begin.elapsed());
    RunTimes { all, without_commits: all - (kernel.counts().commit_seconds - committed) * 1e3 }
}

/// Runs the agent alone and the networks in turn, `turns` times, and returns their durations.
async fn rounds(store: Arc<dyn Store>, turns: usize) -> [Vec<RunTimes>; 3] {
    let kernel = kernel(store).await;
    let mut times = [vec![], vec![], vec![]];
    for no in 0..turns {
        for (times, agent) in times.iter_mut().zip(["worker", "one", "five"]) {
            times.push(run(&kernel, agent, no).await);
        }
    }
    kernel.shutdown().await;
    times
}

/// Runs the rounds on stores in memory. Such a store reads all of its rows for each query, so it is replaced before it
/// has many.
async fn rounds_in_memory() -> [Vec<RunTimes>; 3] {
    let mut all = [vec![], vec![], vec![]];
    for _ in 0..TURNS / TURNS_IN_MEMORY {
        let times = rounds(Arc::new(MemoryStore::default()), TURNS_IN_MEMORY).await;
        all.iter_mut().zip(times).for_each(|(all, times)| all.extend(times));
    }
    all
}

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let disk: Arc<dyn Store> = world::store(&folder.file("ours.sqlite3"));
    let in_memory = runtime.block_on(runtime.spawn(rounds_in_memory())).unwrap();
    let on_disk = runtime.block_on(runtime.spawn(rounds(disk, TURNS))).unwrap();
    // AgentKit needs 0.31 ms for a step in memory, on a model that answers at once.
    for (name, times, goal, five_goal) in [
        ("in memory", in_memory, Goal::AtMost(0.2), Goal::AtMost(0.31)),
        ("on disk, with one commit more", on_disk, Goal::None, Goal::None),
    ] {
        let without: Vec<f64> = times[2].iter().map(|run| run.without_commits).collect();
        let [alone, one, five] =
            times.map(|times| median(&times.iter().map(|run| run.all).collect::<Vec<_>>()));
        let baseline = Some((alone, "the step alone"));
        table.line(format!("a step routed by rules, {name}, p50"), one, baseline, "ms", Goal::None);
        table.line(format!("routing of a step by rules, {name}"), (one - alone).max(0.0), None, "ms", goal);
        table.line(
            format!("a network of five steps, {name}, per step"),
            five / f64::from(STEPS),
            baseline,
            "ms",
            five_goal,
        );
        table.line(
            format!("the same without the time of its commits, {name}"),
            median(&without) / f64::from(STEPS),
            None,
            "ms",
            Goal::None,
        );
    }
}
