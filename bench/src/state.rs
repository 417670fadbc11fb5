//! State: reading and writing keys of a session that has 100,000 of them, beside one that has 100.

use std::sync::Arc;
use std::time::Instant;

use mainspring_core::{Expect, Limits, NodeId, SessionId, Time};
use mainspring_kernel::kernel::{Kernel, Options, SessionTarget, StateOf};
use mainspring_kernel::store::{Commit, Row, SessionRef, StatePlace, StateRow, Store};
use mainspring_store::SqliteStore;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::stats::{median, ms};
use crate::table::{Goal, Table};
use crate::world;

const FEW: usize = 100;
const MANY: usize = 100_000;
const ROUNDS: usize = 400;

/// Rows of one commit while a session is filled.
const FILL_ROWS: usize = 5_000;

/// A change or a read of one key.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Get,
    Replace,
    /// Sets a new key. It is deleted again outside of the measured time.
    Add,
}

const OPERATIONS: [(Operation, &str); 3] = [
    (Operation::Get, "get"),
    (Operation::Replace, "set of a key that exists"),
    (Operation::Add, "set of a new key"),
];

async fn kernel(store: Arc<SqliteStore>) -> Kernel {
    let limits = Limits { state_keys: 1_000_000, ..Limits::default() };
    world::start(store, Options { limits, ..Options::default() }).await
}

async fn create(kernel: &Kernel, key: &str) -> SessionId {
    let target = SessionTarget { key: Some(key.into()), ..SessionTarget::default() };
    kernel.session_open(&world::caller(), &target, None).await.unwrap().0.id
}

/// Writes the keys of a session directly into the store.
async fn fill(store: &SqliteStore, session: SessionId, keys: usize) {
    let fence = store.lease_take(session, NodeId::from_random([0; 16])).await.unwrap();
    for first in (0..keys).step_by(FILL_ROWS) {
        let row = |no: usize| StateRow {
            place: StatePlace::Session { at: None, aside: false },
            key: key(no),
            version: 1,
            value: Some(value(no)),
            at: Time(0),
        };
        let rows = (first..keys.min(first + FILL_ROWS)).map(|no| Row::State(Box::new(row(no)))).collect();
        store.commit(Arc::new(Commit { fence, events: vec![], rows })).await.unwrap();
    }
}

fn key(no: usize) -> String {
    format!("key-{no}")
}

fn value(no: usize) -> Value {
    json!({"no": no, "text": world::text(50)})
}

/// Carries out an operation on a session with `keys` keys and returns its duration in milliseconds.
async fn measure_one(
    kernel: &Kernel,
    session: SessionId,
    keys: usize,
    operation: Operation,
    no: usize,
) -> f64 {
    let (me, of) = (world::caller(), StateOf::Session(SessionRef::Id(session), None));
    // Spread over all keys.
    let known = key(no * 7_919 % keys);
    let begin = Instant::now();
    match operation {
        Operation::Get => drop(kernel.state_get(&me, &of, &known).await.unwrap()),
        Operation::Replace => {
            kernel.state_set(&me, &of, &known, Some(value(no + keys)), Expect::Any).await.unwrap();
        }
        Operation::Add => {
            kernel.state_set(&me, &of, "new", Some(value(no)), Expect::Any).await.unwrap();
        }
    }
    let time = ms(begin.elapsed());
    if matches!(operation, Operation::Add) {
        kernel.state_set(&me, &of, "new", None, Expect::Any).await.unwrap();
    }
    time
}

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let many = world::scaled(MANY);
    let store = world::store(&folder.file("ours.sqlite3"));
    let measured = runtime.spawn(async move {
        let seeding = kernel(store.clone()).await;
        let sessions = [(create(&seeding, "few").await, FEW), (create(&seeding, "many").await, many)];
        seeding.shutdown().await;
        for (session, keys) in sessions {
            fill(&store, session, keys).await;
        }
        let kernel = kernel(store).await;
        let mut medians = vec![];
        for (operation, name) in OPERATIONS {
            let mut times = [vec![], vec![]];
            for no in 0..ROUNDS {
                for (times, (session, keys)) in times.iter_mut().zip(sessions) {
                    times.push(measure_one(&kernel, session, keys, operation, no).await);
                }
            }
            medians.push((name, times.map(|times| median(&times))));
        }
        kernel.shutdown().await;
        medians
    });
    for (name, [few, time]) in runtime.block_on(measured).unwrap() {
        let baseline = Some((few, "100 keys"));
        let measure = format!("state of a session with {many} keys, {name}, p50");
        table.line(measure, time, baseline, "ms", Goal::RatioAtMost(1.5));
    }
}
