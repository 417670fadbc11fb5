//! Start: how long a process takes to open a store with many sessions and start a kernel, and how much memory it
//! uses.
//!
//! Each start is a separate process: this program with the argument [`CHILD`].

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use mainspring_kernel::store::{Commit, Row, Store};
use mainspring_store::SqliteStore;
use tokio::runtime::Runtime;

use crate::history::Builder;
use crate::stats::{median, ms};
use crate::table::{Goal, Table};
use crate::world;

/// The argument that selects the child mode.
pub(crate) const CHILD: &str = "--start";
const SESSIONS: usize = 100_000;
const ROUNDS: usize = 9;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let (full, empty) = (folder.file("full.sqlite3"), folder.file("empty.sqlite3"));
    let store = world::store(&full);
    runtime.block_on(fill(&store));
    drop(store);
    drop(world::store(&empty));
    let (mut ours, mut baseline) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        ours.push(start(&full));
        baseline.push(start(&empty));
    }
    let part =
        |starts: &[[f64; 2]], at: usize| median(&starts.iter().map(|start| start[at]).collect::<Vec<_>>());
    table.line(
        "start with 100,000 stored sessions",
        part(&ours, 0),
        Some((part(&baseline, 0), "none stored")),
        "ms",
        Goal::AtMost(200.0),
    );
    table.line(
        "idle RSS with 100,000 stored sessions",
        part(&ours, 1),
        Some((part(&baseline, 1), "none stored")),
        "MB",
        Goal::AtMost(30.0),
    );
}

pub(crate) async fn fill(store: &Arc<SqliteStore>) {
    let builder = Builder::new();
    for _ in 0..world::scaled(SESSIONS / 1_000) {
        let tasks: Vec<_> = (0..1_000)
            .map(|_| {
                let (store, builder) = (store.clone(), builder.clone());
                tokio::spawn(async move {
                    let session = builder.session();
                    let fence = store.lease_take(session.id, builder.ids.node()).await.unwrap();
                    let rows = vec![Row::Session(Arc::new(session))];
                    let commit = Commit { fence, events: vec![], rows };
                    store.commit(Arc::new(commit)).await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
    // A process with unindexed data is not idle.
    while store.search_index().await.unwrap() {}
}

/// The milliseconds and megabytes of one start.
fn start(path: &Path) -> [f64; 2] {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).arg(CHILD).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<f64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// The child process: starts, then prints the duration and its resident memory.
pub(crate) fn child(path: &Path) {
    let begin = Instant::now();
    let runtime = world::runtime();
    let store = world::store(path);
    let kernel = runtime.block_on(world::kernel(store));
    let time = ms(begin.elapsed());
    println!("{time} {}", resident());
    runtime.block_on(kernel.shutdown());
}

/// Resident memory of this process in megabytes.
pub(crate) fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().unwrap();
    kilobytes / 1024.0
}
