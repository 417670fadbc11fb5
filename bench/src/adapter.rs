//! Agents for benchmarks: one answers, one floods, one streams at a steady pace.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use mainspring_core::AttemptId;
use mainspring_kernel::adapter::{Adapter, AttemptHandle, Capabilities, Death, Dispatch, End, Executed};

use crate::world::text;

/// Streams 500 characters at once and ends.
pub(crate) const ANSWER: &str = "answer";
/// Streams as many deltas as its prompt says, as fast as possible.
pub(crate) const FLOOD: &str = "flood";
/// Streams as many deltas as its prompt says, one per millisecond; each contains the time it was sent.
pub(crate) const PACE: &str = "pace";

/// Like [`PACE`], with [`READ_INTERVAL`] between two deltas.
pub(crate) const SLOW_PACE: &str = "slow-pace";
/// 20 deltas per second, about as fast as people read.
pub(crate) const READ_INTERVAL: Duration = Duration::from_millis(50);

/// The pieces of the flood: 4 to 8 bytes each.
pub(crate) const FLOOD_PIECES: [&str; 5] = ["the ", "quick ", "brown", "foxes, ", "jumping "];

/// The number of digits of a timestamp.
const TIMESTAMP_DIGITS: usize = 19;

/// The current time in nanoseconds since 1970, comparable across processes.
pub(crate) fn timestamp() -> String {
    format!("{:0TIMESTAMP_DIGITS$}", now().as_nanos())
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The age of each timestamp in `text`.
pub(crate) fn ages(text: &str) -> impl Iterator<Item = Duration> {
    let now = now();
    let stamps = text.as_bytes().chunks(TIMESTAMP_DIGITS).map(|stamp| str::from_utf8(stamp).unwrap());
    stamps.map(move |stamp| now.saturating_sub(Duration::from_nanos(stamp.parse().unwrap())))
}

pub(crate) fn all() -> Vec<Arc<dyn Adapter>> {
    let answer = text(500);
    [ANSWER, FLOOD, PACE, SLOW_PACE]
        .map(|name| Arc::new(Agent { name, answer: answer.clone() }) as Arc<dyn Adapter>)
        .into()
}

struct Agent {
    name: &'static str,
    answer: String,
}

#[async_trait]
impl Adapter for Agent {
    fn capabilities(&self) -> Capabilities {
        Capabilities { supports_cancellation: true, ..Capabilities::minimal(self.name) }
    }

    async fn execute(&self, attempt: AttemptHandle) -> Executed {
        let count = || attempt.assignment().prompt.text().parse::<usize>().unwrap();
        match self.name {
            ANSWER => attempt.delta(0, &self.answer).unwrap(),
            FLOOD => {
                for piece in FLOOD_PIECES.iter().cycle().take(count()) {
                    attempt.delta(0, piece).unwrap();
                }
            }
            _ => {
                let slow = self.name == SLOW_PACE;
                let mut tick =
                    tokio::time::interval(if slow { READ_INTERVAL } else { Duration::from_millis(1) });
                for _ in 0..count() {
                    tick.tick().await;
                    attempt.delta(0, &timestamp()).unwrap();
                }
            }
        }
        End::succeeded()
    }

    async fn cancel(&self, _attempt: AttemptId) -> Dispatch {
        Dispatch { dispatched: true, acknowledged: false }
    }

    async fn kill(&self, _attempt: AttemptId) -> Death {
        Death::Proven
    }

    fn forget(&self, _native: &str) {}
}
