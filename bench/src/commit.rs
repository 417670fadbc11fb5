//! Commits under load: 64 tasks that each await their commits, against a plain loop that inserts the same rows in
//! transactions of the same size.

use std::path::Path;
use std::sync::Arc;

use mainspring_core::{Body, Close, Mode, Session, SessionId};
use mainspring_kernel::store::{Commit, Fence, Row, Store};
use mainspring_store::SqliteStore;
use rusqlite::Connection;
use tokio::runtime::Runtime;

use crate::history::Builder;
use crate::stats::{median, seconds};
use crate::table::{Goal, Table};
use crate::{raw, world};

pub(crate) const TASKS: usize = 64;
const COMMITS_PER_TASK: usize = 100;
const ROUNDS: u32 = 9;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let (path, builder) = (folder.file("ours.sqlite3"), Builder::new());
    let store = world::store(&path);
    let fences = runtime.block_on(sessions(&store, &builder));
    let connection = raw::open(&folder.file("raw.sqlite3"));
    for fence in &fences {
        raw::session(&connection, fence.session);
    }
    let (mut ours, mut baseline, mut ratios, mut sizes, mut seq) = (vec![], vec![], vec![], vec![], 0);
    for round in 0..=ROUNDS {
        let work: Vec<Vec<Arc<Commit>>> =
            (fences.iter()).map(|fence| commits(&builder, *fence, round)).collect();
        let count = (TASKS * COMMITS_PER_TASK) as f64;
        let before = transactions(&path);
        let (time, ()) = seconds(|| runtime.block_on(commit_all(store.clone() as Arc<dyn Store>, &work)));
        let size = count / f64::from(transactions(&path).wrapping_sub(before));
        let (raw_time, ()) = seconds(|| by_hand(&connection, &work, size.round() as usize, &mut seq));
        // The first round warms up both.
        if round > 0 {
            ours.push(count / time);
            baseline.push(count / raw_time);
            ratios.push(raw_time / time);
            sizes.push(size);
        }
    }
    table.line_with_ratio(
        "commits under load, 64 tasks (2 events, 1 run, 1 attempt each)",
        median(&ours),
        Some((median(&baseline), "raw SQLite")),
        Some(median(&ratios)),
        "/s",
        Goal::RatioAtLeast(0.8),
    );
    table.batched(
        "commits that wait for the disk share a transaction; the baseline's transactions are as large",
    );
    table.line("commits per transaction under load", median(&sizes), None, "", Goal::None);
}

async fn sessions(store: &SqliteStore, builder: &Builder) -> Vec<Fence> {
    let mut fences = vec![];
    for _ in 0..TASKS {
        let session: Session = builder.session();
        let fence = store.lease_take(session.id, builder.ids.node()).await.unwrap();
        let rows = vec![Row::Session(Arc::new(session))];
        let commit = Commit { fence, events: vec![], rows };
        store.commit(Arc::new(commit)).await.unwrap();
        fences.push(fence);
    }
    fences
}

pub(crate) fn commits(builder: &Builder, fence: Fence, round: u32) -> Vec<Arc<Commit>> {
    let commit = |no: u32| {
        let mut run = builder.run(fence.session, round * COMMITS_PER_TASK as u32 + no);
        let attempt = builder.attempt(run.id);
        run.last_attempt = Some(attempt.id);
        let queued = Body::run_accepted(run.adapter.clone(), Mode::Act, None);
        let succeeded = Body::RunSucceeded { close: Close::default() };
        let events =
            vec![builder.event(run.id, None, queued), builder.event(run.id, Some(attempt.id), succeeded)];
        let rows = vec![Row::Run(Arc::new(run)), Row::Attempt(Box::new(attempt))];
        Arc::new(Commit { fence, events, rows })
    };
    (1..=COMMITS_PER_TASK as u32).map(commit).collect()
}

/// Runs a task for each list of commits. A task makes its commits one after the other.
pub(crate) async fn commit_all(store: Arc<dyn Store>, work: &[Vec<Arc<Commit>>]) {
    let task = |commits: &Vec<Arc<Commit>>| {
        let (store, commits) = (store.clone(), commits.clone());
        tokio::spawn(async move {
            for commit in commits {
                store.commit(commit).await.unwrap();
            }
        })
    };
    let tasks: Vec<_> = work.iter().map(task).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

fn by_hand(connection: &Connection, work: &[Vec<Arc<Commit>>], size: usize, seq: &mut i64) {
    // The order in which the tasks would commit: each session once, then all again.
    let order: Vec<&Arc<Commit>> =
        (0..COMMITS_PER_TASK).flat_map(|no| work.iter().map(move |commits| &commits[no])).collect();
    for group in order.chunks(size.max(1)) {
        raw::transaction(connection, || {
            for commit in group {
                write(connection, commit, commit.fence.session, seq);
            }
        });
    }
}

fn write(connection: &Connection, commit: &Commit, session: SessionId, seq: &mut i64) {
    for row in &commit.rows {
        match row {
            Row::Run(run) => raw::run(connection, run, *seq),
            Row::Attempt(attempt) => raw::attempt(connection, attempt),
            other => unreachable!("{other:?}"),
        }
    }
    let payloads = [r#"{"adapter":"answer","mode":"act"}"#, "{}"];
    for (event, payload) in commit.events.iter().zip(payloads) {
        *seq += 1;
        raw::event(connection, session, event, payload, *seq);
    }
}

/// How many transactions a database has seen: the counter in the header of its WAL index.
fn transactions(path: &Path) -> u32 {
    let index = std::fs::read(path.with_extension("sqlite3-shm")).unwrap();
    u32::from_ne_bytes(index[8..12].try_into().unwrap())
}
