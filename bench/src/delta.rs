//! Streamed text: throughput and latency of deltas through the kernel to every subscriber.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainspring_core::{Body, SessionId};
use mainspring_kernel::feed::{Item, Subscription};
use mainspring_kernel::kernel::{Kernel, RunRequest};
use mainspring_kernel::store::SessionRef;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::adapter::{FLOOD, FLOOD_PIECES, PACE, ages, timestamp};
use crate::history::Builder;
use crate::stats::{median, ms, percentile};
use crate::table::{Goal, Table};
use crate::turn::prompt;
use crate::world;

const FLOOD_DELTAS: usize = 2_000_000;
const PACE_DELTAS: usize = 3_000;
const READERS: [usize; 2] = [1, 8];
const ROUNDS: usize = 5;
/// Rounds of the paced measurement, which takes longer.
const PACE_ROUNDS: usize = 3;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let store = world::store(&folder.file("ours.sqlite3"));
    runtime.block_on(async {
        let session = Builder::new().stored_session(&*store, 0).await;
        let kernel = world::kernel(store.clone()).await;
        for readers in READERS {
            rate(&kernel, session, readers, table).await;
        }
        for readers in READERS {
            latency(&kernel, session, readers, table).await;
        }
        kernel.shutdown().await;
    });
}

async fn rate(kernel: &Kernel, session: SessionId, readers: usize, table: &mut Table) {
    let (mut ours, mut baseline, mut live) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let feeds = subscribe(kernel, session, readers).await;
        let readers: Vec<_> = feeds.into_iter().map(|feed| tokio::spawn(read_flood(feed))).collect();
        let begin = Instant::now();
        start(kernel, session, FLOOD, FLOOD_DELTAS).await;
        for reader in readers {
            live.push(reader.await.unwrap() * 100.0);
        }
        ours.push(FLOOD_DELTAS as f64 / begin.elapsed().as_secs_f64());
        baseline.push(FLOOD_DELTAS as f64 / channel_flood().await.as_secs_f64());
    }
    table.line(
        format!("deltas through the kernel to {}, every byte", subscribers(readers)),
        median(&ours),
        Some((median(&baseline), "a channel to one task")),
        "/s",
        Goal::AtLeast(200_000.0),
    );
    table.batched("a reader that is behind gets all text since its last delta as one");
    let (live, subscribers) = (median(&live), subscribers(readers));
    table.note(format!(
        "Of the flood to {subscribers}, {live:.0} % of the bytes came as deltas, the rest within the completed message."
    ));
}

/// Reads the flood to its end and checks that nothing is missing. Returns the fraction of bytes that arrived as
/// deltas; the rest arrived with the completed message because the reader was behind.
async fn read_flood(mut feed: Subscription) -> f64 {
    let mut expected = FLOOD_PIECES.concat().into_bytes().into_iter().cycle();
    let (mut streamed, mut total) = (0, 0);
    while let Some(item) = feed.next().await {
        match item.unwrap() {
            Item::Delta(delta) => {
                streamed += delta.text.len();
                assert!(delta.text.bytes().all(|byte| Some(byte) == expected.next()), "a byte is wrong");
            }
            Item::Event(event) => match &event.body {
                // Bytes that were not delivered as deltas are in the message.
                Body::MessageCompleted { message, .. }
                    if message.role == mainspring_core::Role::Assistant =>
                {
                    let text = message.text();
                    let rest = text.bytes().skip(streamed);
                    assert!(rest.eq(expected.by_ref().take(text.len() - streamed)), "a byte is wrong");
                    total = FLOOD_PIECES.iter().cycle().take(FLOOD_DELTAS).map(|piece| piece.len()).sum();
                    assert_eq!(text.len(), total, "bytes are missing");
                }
                Body::RunSucceeded { .. } => return streamed as f64 / total as f64,
                Body::RunFailed { error, .. } => panic!("{error:?}"),
                _ => {}
            },
            other => panic!("{other:?}"),
        }
    }
    panic!("the feed ended");
}

async fn channel_flood() -> Duration {
    let begin = Instant::now();
    let (sender, mut receiver) = mpsc::unbounded_channel::<Arc<str>>();
    let writer = tokio::spawn(async move {
        for piece in FLOOD_PIECES.iter().cycle().take(FLOOD_DELTAS) {
            sender.send((*piece).into()).unwrap();
        }
    });
    let mut bytes = 0;
    while let Some(piece) = receiver.recv().await {
        bytes += piece.len();
    }
    writer.await.unwrap();
    assert!(bytes > FLOOD_DELTAS);
    begin.elapsed()
}

async fn latency(kernel: &Kernel, session: SessionId, readers: usize, table: &mut Table) {
    let (mut ours, mut baseline) = (vec![], vec![]);
    for _ in 0..PACE_ROUNDS {
        let feeds = subscribe(kernel, session, readers).await;
        let readers: Vec<_> = feeds.into_iter().map(|feed| tokio::spawn(latencies(feed))).collect();
        start(kernel, session, PACE, PACE_DELTAS).await;
        for reader in readers {
            ours.extend(reader.await.unwrap());
        }
        baseline.extend(channel_pace().await);
    }
    for (name, part, goal) in [("p50", 0.5, Goal::None), ("p99", 0.99, Goal::AtMost(2_000.0))] {
        table.line(
            format!("delta to {}, {name}, 1,000/s", subscribers(readers)),
            percentile(&ours, part) * 1e3,
            Some((percentile(&baseline, part) * 1e3, "a channel to one task")),
            "µs",
            goal,
        );
    }
}

/// The latency of each delta of the paced stream.
async fn latencies(mut feed: Subscription) -> Vec<f64> {
    let mut latencies_ms = vec![];
    while let Some(item) = feed.next().await {
        match item.unwrap() {
            Item::Delta(delta) => latencies_ms.extend(ages(&delta.text).map(ms)),
            Item::Event(event) if matches!(event.body, Body::RunSucceeded { .. }) => break,
            _ => {}
        }
    }
    latencies_ms
}

async fn channel_pace() -> Vec<f64> {
    let (sender, mut receiver) = mpsc::unbounded_channel::<String>();
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        for _ in 0..PACE_DELTAS {
            tick.tick().await;
            sender.send(timestamp()).unwrap();
        }
    });
    let mut latencies_ms = vec![];
    while let Some(text) = receiver.recv().await {
        latencies_ms.extend(ages(&text).map(ms));
    }
    latencies_ms
}

async fn subscribe(kernel: &Kernel, session: SessionId, readers: usize) -> Vec<Subscription> {
    let mut feeds = vec![];
    for _ in 0..readers {
        let by = SessionRef::Id(session);
        let feed = kernel.session_subscribe(&world::caller(), &by, None).await.unwrap();
        feeds.push(feed);
    }
    feeds
}

async fn start(kernel: &Kernel, session: SessionId, adapter: &str, deltas: usize) {
    let request = RunRequest { adapter: Some(adapter.into()), ..prompt(session, deltas.to_string()) };
    kernel.run_create(&world::caller(), request).await.unwrap();
}

fn subscribers(readers: usize) -> String {
    match readers {
        1 => "1 subscriber".into(),
        count => format!("{count} subscribers"),
    }
}
