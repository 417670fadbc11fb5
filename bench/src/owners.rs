//! Owners: the time until a prompt of one owner is accepted while another owner sends as many as it can, against the
//! time on a quiet server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use mainspring_core::{Block, SessionId};
use mainspring_kernel::kernel::{Caller, Kernel, RunRequest, SessionTarget};
use mainspring_kernel::store::SessionRef;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::history::Builder;
use crate::stats::{ms, percentile};
use crate::table::{Goal, Table};
use crate::turn::{prompt, wait_succeeded};
use crate::world;

/// Rounds of a quiet and a noisy server, and the measured prompts of each.
const ROUNDS: usize = 5;
const PROMPTS: usize = 100;
/// The tasks with which the noisy owner sends prompts, and the sessions of each.
const NOISY_TASKS: usize = 64;
const NOISY_SESSIONS: u64 = 8;
const NOISY_OWNER: &str = "mallory";

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let store = world::store(&folder.file("ours.sqlite3"));
    let measured = runtime.spawn(async move {
        let session = Builder::new().stored_session(&*store, 0).await;
        let kernel = world::shared_kernel(store.clone()).await;
        let (mut quiet, mut noisy, mut load) = (vec![], vec![], Load::default());
        for _ in 0..ROUNDS {
            accept(&kernel, session, &mut quiet).await;
            load.start(&kernel);
            accept(&kernel, session, &mut noisy).await;
            load.stop().await;
        }
        kernel.shutdown().await;
        (quiet, noisy, load.accepted.load(Ordering::Relaxed))
    });
    let (quiet, noisy, accepted) = runtime.block_on(measured).unwrap();
    assert!(accepted > 0, "the noisy owner was never served");
    for (name, part, goal) in [("p50", 0.5, Goal::None), ("p99", 0.99, Goal::RatioAtMost(3.0))] {
        table.line(
            format!("accept of one owner while another one is at full load, {name}"),
            percentile(&noisy, part),
            Some((percentile(&quiet, part), "quiet server")),
            "ms",
            goal,
        );
    }
}

/// Measures the acceptance of prompts, one after the other.
async fn accept(kernel: &Kernel, session: SessionId, times: &mut Vec<f64>) {
    let (caller, by) = (world::caller(), SessionRef::Id(session));
    for _ in 0..PROMPTS {
        let mut feed = kernel.session_subscribe(&caller, &by, None).await.unwrap();
        let request = prompt(session, world::text(500));
        let begin = Instant::now();
        let run = kernel.run_create(&caller, request).await.unwrap().run.id;
        times.push(ms(begin.elapsed()));
        wait_succeeded(&mut feed, run).await;
    }
}

/// The noisy owner.
#[derive(Default)]
struct Load {
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Load {
    fn start(&mut self, kernel: &Kernel) {
        self.stop.store(false, Ordering::Relaxed);
        for task in 0..NOISY_TASKS {
            let (kernel, stop, accepted) = (kernel.clone(), self.stop.clone(), self.accepted.clone());
            self.tasks.spawn(async move {
                let caller = Caller::new(NOISY_OWNER);
                for no in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = Some(format!("noisy-{task}-{}", no % NOISY_SESSIONS));
                    let request = RunRequest {
                        session: SessionTarget { key, ..SessionTarget::default() },
                        prompt: vec![Block::text(world::text(500))],
                        ..RunRequest::default()
                    };
                    match kernel.run_create(&caller, request).await {
                        Ok(_) => accepted.fetch_add(1, Ordering::Relaxed),
                        // The noisy owner has used up its share of the queue: try again at once.
                        Err(_) => {
                            tokio::task::yield_now().await;
                            0
                        }
                    };
                }
            });
        }
    }

    /// Stops the load and waits until its last request is answered.
    async fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}
