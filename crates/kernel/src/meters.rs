//! Meters: counters of this process, cheap enough for the hot paths.
//!
//! A commit costs a few atomic additions, a delta none: streamed text is counted when it is flushed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mainspring_core::{Resource, RunStatus, Time};
use parking_lot::Mutex;

/// Upper bounds of the buckets of the commit duration histogram, in seconds.
pub const COMMIT_SECONDS: [f64; 13] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// Counters since the process started.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Counts {
    /// Seconds since the kernel started.
    pub uptime: f64,
    /// Accepted prompts.
    pub runs_accepted: u64,
    /// Ended runs, by adapter and status.
    pub runs_ended: BTreeMap<(String, &'static str), u64>,
    /// Prompts refused because a queue was full.
    pub queue_refusals: u64,
    /// Requests refused because their owner had used up its share or its quota, by resource.
    pub quota_refusals: Vec<(Resource, u64)>,
    /// Successful commits.
    pub commits: u64,
    /// Failed commits.
    pub commit_failures: u64,
    /// Committed events.
    pub events: u64,
    /// Commits per bucket of [`COMMIT_SECONDS`]; the last entry counts longer ones.
    pub commit_buckets: [u64; COMMIT_SECONDS.len() + 1],
    /// Total duration of all commits, in seconds.
    pub commit_seconds: f64,
    /// Pieces of text streamed by agents.
    pub deltas: u64,
    /// Bytes of text streamed by agents.
    pub streamed_bytes: u64,
    /// Calls refused because their attempt had lost its authority.
    pub late_calls: u64,
    /// Subscriptions now.
    pub subscribers: usize,
}

/// The counters, updated from any task.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    started: Time,
    pub(crate) runs_accepted: Meter,
    pub(crate) queue_refusals: Meter,
    quota_refusals: [Meter; Resource::ALL.len()],
    pub(crate) commit_failures: Meter,
    pub(crate) late_calls: Meter,
    commits: Meter,
    events: Meter,
    commit_buckets: [Meter; COMMIT_SECONDS.len() + 1],
    commit_nanos: Meter,
    deltas: Meter,
    streamed_bytes: Meter,
    runs_ended: Mutex<BTreeMap<(String, &'static str), u64>>,
    pub(crate) subscribers: AtomicUsize,
}

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Meter(AtomicU64);

impl Meter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Meters {
    pub(crate) fn new(started: Time) -> Self {
        Self { started, ..Self::default() }
    }

    /// Counts a successful commit of `events` events.
    pub(crate) fn committed(&self, events: usize, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = COMMIT_SECONDS.iter().position(|edge| seconds <= *edge).unwrap_or(COMMIT_SECONDS.len());
        self.commits.add(1);
        self.events.add(events as u64);
        self.commit_buckets[bucket].add(1);
        self.commit_nanos.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts a request that was refused because its owner had used up its share or its quota.
    pub(crate) fn refused(&self, resource: Resource) {
        let refused = Resource::ALL.iter().zip(&self.quota_refusals).find(|(known, _)| **known == resource);
        if let Some((_, meter)) = refused {
            meter.add(1);
        }
    }

    /// Counts streamed text.
    pub(crate) fn streamed(&self, deltas: u64, bytes: u64) {
        self.deltas.add(deltas);
        self.streamed_bytes.add(bytes);
    }

    /// Counts an ended run.
    pub(crate) fn ended(&self, adapter: &str, status: RunStatus) {
        *self.runs_ended.lock().entry((adapter.to_owned(), status.name())).or_default() += 1;
    }

    pub(crate) fn counts(&self, now: Time) -> Counts {
        Counts {
            uptime: now.since(self.started) as f64 / 1e3,
            runs_accepted: self.runs_accepted.get(),
            runs_ended: self.runs_ended.lock().clone(),
            queue_refusals: self.queue_refusals.get(),
            quota_refusals: Resource::ALL
                .into_iter()
                .zip(&self.quota_refusals)
                .map(|(resource, meter)| (resource, meter.get()))
                .collect(),
            commits: self.commits.get(),
            commit_failures: self.commit_failures.get(),
            events: self.events.get(),
            commit_buckets: std::array::from_fn(|bucket| self.commit_buckets[bucket].get()),
            commit_seconds: self.commit_nanos.get() as f64 / 1e9,
            deltas: self.deltas.get(),
            streamed_bytes: self.streamed_bytes.get(),
            late_calls: self.late_calls.get(),
            subscribers: self.subscribers.load(Ordering::Relaxed),
        }
    }
}
