//! Bytes on disk: how much a turn of two 500-character messages adds to the file, by table and index.

use std::collections::BTreeMap;
use std::path::Path;

use mainspring_kernel::store::{SessionRef, Store};
use mainspring_store::SqliteStore;
use rusqlite::Connection;
use tokio::runtime::Runtime;

use crate::history::Builder;
use crate::table::{Goal, Table};
use crate::{turn, world};

const TURNS: usize = 1_000;
const PAYLOAD_BYTES: f64 = 1_000.0;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let empty = bytes_per_turn(runtime, 0);
    let long = bytes_per_turn(runtime, 10_000);
    let total = |parts: &BTreeMap<String, f64>| parts.values().sum::<f64>();
    for (messages, parts) in [(0, &empty), (10_000, &long)] {
        table.line(
            format!("bytes on disk per turn, {messages} prior messages"),
            total(parts),
            Some((PAYLOAD_BYTES, "payload")),
            "B",
            Goal::AtMost(PAYLOAD_BYTES + 4096.0),
        );
    }
    table.line(
        "bytes on disk per turn, long beside empty",
        total(&long),
        Some((total(&empty), "empty")),
        "B",
        Goal::RatioAtMost(1.2),
    );
    let mut parts: Vec<_> = long.iter().filter(|(_, bytes)| **bytes >= 1.0).collect();
    parts.sort_by(|a, b| b.1.total_cmp(a.1));
    let parts: Vec<String> = (parts.iter().map(|(name, bytes)| format!("{name} {bytes:.0}"))).collect();
    table.note(format!("Bytes per turn at 10,000 prior messages: {}.", parts.join(", ")));
}

/// Bytes per turn of each table and index.
fn bytes_per_turn(runtime: &Runtime, messages: u32) -> BTreeMap<String, f64> {
    let folder = world::Folder::new();
    let path = folder.file("ours.sqlite3");
    let store = world::store(&path);
    let session = runtime.block_on(Builder::new().stored_session(&*store, messages / 2));
    // The search index is written lazily: complete it before and after the measurement.
    runtime.block_on(complete_index(&store));
    // Closing the store leaves one file without a WAL.
    drop(store);
    let before = sizes(&path);
    let store = world::store(&path);
    runtime.block_on(async {
        let kernel = world::kernel(store.clone()).await;
        let by = SessionRef::Id(session);
        let mut feed = kernel.session_subscribe(&world::caller(), &by, None).await.unwrap();
        for _ in 0..TURNS {
            turn::run_turn(&kernel, session, &mut feed).await;
        }
        drop(feed);
        kernel.shutdown().await;
    });
    runtime.block_on(complete_index(&store));
    drop(store);
    let after = sizes(&path);
    let per_turn = |(name, bytes): (String, f64)| {
        let before = before.get(&name).copied().unwrap_or(0.0);
        (name, (bytes - before) / TURNS as f64)
    };
    after.into_iter().map(per_turn).collect()
}

async fn complete_index(store: &SqliteStore) {
    while store.search_index().await.unwrap() {}
}

/// The bytes of each table and index; together with the free pages they are the size of the file.
fn sizes(path: &Path) -> BTreeMap<String, f64> {
    let connection = Connection::open(path).unwrap();
    let mut sizes: BTreeMap<String, f64> = connection
        .prepare("SELECT name, sum(pgsize) FROM dbstat GROUP BY name")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let file = std::fs::metadata(path).unwrap().len() as f64;
    let free = file - sizes.values().sum::<f64>();
    sizes.insert("(free)".into(), free);
    sizes
}
