//! The hottest paths of the kernel, prepared so that their instructions can be counted.
//!
//! Everything is deterministic: a runtime of one thread, a manual clock, seeded ids, and one operation at a time. A
//! store in SQLite has threads of its own, so its paths are counted as differences: each program below executes the
//! previous one and one more path, and every thread is counted from the start of the process.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first thing that goes wrong")]

use std::sync::Arc;

use mainspring_core::{Body, Position, Time};
use mainspring_kernel::adapter::Adapter;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::feed::{Item, Subscription};
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Caller, Kernel, Options, RunRequest, session_ref};
use mainspring_kernel::store::Store;
use mainspring_reference_store::MemoryStore;
use mainspring_store::{SqliteOptions, SqliteStore};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use agent::{Agent, Gates};

mod agent;

/// How many sessions a measured path goes through, one run each.
pub const SESSIONS: usize = 32;
/// How many deltas are streamed.
pub const DELTAS: usize = 1_000;

const NOW: Time = Time(1_700_000_000_000);
const PROMPT_CHARS: usize = 500;

/// A kernel whose agent waits for a signal to stream and for one to end.
pub struct World {
    runtime: Runtime,
    kernel: Kernel,
    gates: Arc<Gates>,
    feeds: Vec<Subscription>,
    _folder: Option<TempDir>,
}

/// Prepares [`delta`]: one run that streams, with one reader of it, over a store in memory.
pub fn streaming() -> World {
    let mut world = World::open(Arc::new(MemoryStore::default()), 1, None);
    world.accept();
    world
}

/// Streams [`DELTAS`] deltas, each sent when the reader has received the previous one.
pub fn delta(mut world: World) -> World {
    world.runtime.block_on(async {
        for _ in 0..DELTAS {
            world.gates.delta.add_permits(1);
            streamed(&mut world.feeds[0]).await;
        }
    });
    world
}

/// Opens a store in SQLite with [`SESSIONS`] sessions that have had a turn each.
pub fn idle() -> World {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let options = SqliteOptions { readers: 1, ..SqliteOptions::default() };
    let store = SqliteStore::open(&folder.path().join("store.sqlite3"), options, NOW).unwrap();
    World::open(Arc::new(store), SESSIONS, Some(folder))
}

/// Executes [`idle`], then sends each session a prompt and waits until its agent has streamed its answer.
pub fn accepted() -> World {
    let mut world = idle();
    world.accept();
    world
}

/// Executes [`accepted`], then ends each run and waits until its reader has received the end.
pub fn ended() -> World {
    let mut world = accepted();
    world.end();
    world
}

impl World {
    fn open(store: Arc<dyn Store>, sessions: usize, folder: Option<TempDir>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let gates = Arc::<Gates>::default();
        let adapters: Vec<Arc<dyn Adapter>> =
            vec![Arc::new(Agent { gates: gates.clone(), answer: text(PROMPT_CHARS) })];
        let options = Options {
            adapter: agent::NAME.into(),
            max_workers: sessions,
            idle_unload_ms: 60 * 60 * 1_000,
            ..Options::default()
        };
        let (clock, ids) = (Clock::manual(NOW), Ids::seeded(1));
        let (kernel, feeds) = runtime.block_on(async {
            let kernel = Kernel::start(store, adapters, options, clock, ids).await.unwrap();
            let mut feeds = vec![];
            for session in 0..sessions {
                kernel.run_create(&caller(), request(session)).await.unwrap();
                let session = session_ref(&session.to_string()).unwrap();
                let mut feed =
                    kernel.session_subscribe(&caller(), &session, Some(Position::START)).await.unwrap();
                streamed(&mut feed).await;
                gates.end.add_permits(1);
                succeeded(&mut feed).await;
                feeds.push(feed);
            }
            (kernel, feeds)
        });
        Self { runtime, kernel, gates, feeds, _folder: folder }
    }

    fn accept(&mut self) {
        self.runtime.block_on(async {
            for (session, feed) in self.feeds.iter_mut().enumerate() {
                self.kernel.run_create(&caller(), request(session)).await.unwrap();
                streamed(feed).await;
            }
        });
    }

    fn end(&mut self) {
        self.runtime.block_on(async {
            for feed in &mut self.feeds {
                self.gates.end.add_permits(1);
                succeeded(feed).await;
            }
        });
    }
}

fn caller() -> Caller {
    Caller::new("ada")
}

fn request(session: usize) -> RunRequest {
    RunRequest::text(session.to_string(), text(PROMPT_CHARS))
}

fn text(chars: usize) -> String {
    "the quick brown fox jumps over the lazy dog ".chars().cycle().take(chars).collect()
}

/// Reads up to the next delta.
async fn streamed(feed: &mut Subscription) {
    while !matches!(feed.next().await.unwrap().unwrap(), Item::Delta(_)) {}
}

/// Reads until the run has succeeded.
async fn succeeded(feed: &mut Subscription) {
    loop {
        match feed.next().await.unwrap().unwrap() {
            Item::Event(event) if matches!(event.body, Body::RunSucceeded { .. }) => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_completes() {
        delta(streaming());
        ended();
    }
}
