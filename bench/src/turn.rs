//! A turn: from the call with the prompt to the event that the run succeeded, for sessions of different lengths,
//! against two hand-written transactions.

use std::time::Instant;

use mainspring_core::{Block, Body, RunId, SessionId};
use mainspring_kernel::feed::{Item, Subscription};
use mainspring_kernel::kernel::{Kernel, RunRequest, SessionTarget};
use mainspring_kernel::store::{SessionRef, Store};
use tokio::runtime::Runtime;

use crate::by_hand::ByHand;
use crate::history::Builder;
use crate::stats::{median, ms, percentile};
use crate::table::{Goal, Table};
use crate::{raw, world};

/// Prior messages, and the number of sessions of that length: each session gets few turns, so that its length hardly
/// changes.
const SIZES: [(u32, usize); 4] = [(0, TURNS), (100, 20), (1_000, 4), (10_000, 1)];
const TURNS: usize = 300;

pub(crate) fn measure(runtime: &Runtime, table: &mut Table) {
    let folder = world::Folder::new();
    let store = world::store(&folder.file("ours.sqlite3"));
    let connection = raw::open(&folder.file("raw.sqlite3"));
    let mut by_hand = ByHand::new(connection, 1);
    let measured = runtime.spawn(async move {
        let builder = Builder::new();
        let mut sessions_by_size: Vec<Vec<SessionId>> = vec![];
        for (messages, count) in SIZES {
            let mut sessions = vec![];
            for _ in 0..count {
                sessions.push(builder.stored_session(&*store, messages / 2).await);
            }
            sessions_by_size.push(sessions);
        }
        // Otherwise the search index of the histories is written during the first turns.
        while store.search_index().await.unwrap() {}
        let kernel = world::kernel(store.clone()).await;
        let mut times = vec![vec![]; SIZES.len()];
        let mut baseline = vec![];
        for turn in 0..TURNS {
            for (sessions, times) in sessions_by_size.iter().zip(&mut times) {
                let session = sessions[turn % sessions.len()];
                let mut feed =
                    kernel.session_subscribe(&world::caller(), &SessionRef::Id(session), None).await.unwrap();
                times.push(run_turn(&kernel, session, &mut feed).await);
            }
            baseline.push(by_hand.turn());
        }
        kernel.shutdown().await;
        (times, baseline)
    });
    let (times, baseline) = runtime.block_on(measured).unwrap();
    let floor = median(&baseline);
    for ((messages, _), times) in SIZES.iter().zip(&times) {
        table.line(
            format!("turn, {messages} prior messages, p50"),
            median(times),
            Some((floor, "two raw transactions")),
            "ms",
            Goal::RatioAtMost(1.35),
        );
        let p99 = (percentile(&baseline, 0.99), "two raw transactions");
        table.line(
            format!("turn, {messages} prior messages, p99"),
            percentile(times, 0.99),
            Some(p99),
            "ms",
            Goal::RatioAtMost(1.5),
        );
    }
    let medians: Vec<f64> = times.iter().map(|times| median(times)).collect();
    let (shortest, longest) = (percentile(&medians, 0.0), percentile(&medians, 1.0));
    table.line(
        "turn, longest beside shortest of the four p50",
        longest,
        Some((shortest, "shortest")),
        "ms",
        Goal::RatioAtMost(1.2),
    );
}

/// Executes one turn and returns its duration in milliseconds. Call it from a task of the runtime, like the callers
/// in a server.
pub(crate) async fn run_turn(kernel: &Kernel, session: SessionId, feed: &mut Subscription) -> f64 {
    let request = prompt(session, world::text(500));
    let begin = Instant::now();
    let run = kernel.run_create(&world::caller(), request).await.unwrap().run.id;
    wait_succeeded(feed, run).await;
    ms(begin.elapsed())
}

pub(crate) fn prompt(session: SessionId, text: String) -> RunRequest {
    RunRequest {
        session: SessionTarget { id: Some(session), ..SessionTarget::default() },
        prompt: vec![Block::text(text)],
        ..RunRequest::default()
    }
}

/// Reads until `run` has succeeded.
pub(crate) async fn wait_succeeded(feed: &mut Subscription, run: RunId) {
    while let Some(item) = feed.next().await {
        match item.unwrap() {
            Item::Event(event) if event.run == Some(run) => match &event.body {
                Body::RunSucceeded { .. } => return,
                Body::RunFailed { error, .. } => panic!("{error:?}"),
                _ => {}
            },
            _ => {}
        }
    }
    panic!("the feed ended");
}
