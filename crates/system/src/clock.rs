//! The clock: the only place that reads wall-clock time or waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mainspring_core::Time;
use tokio::sync::watch;

/// Reads the time and waits for it: the system's clock, or one that a test advances.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    /// Holds the creation time of the clock.
    System(Instant),
    Manual(watch::Sender<Time>),
}

impl Clock {
    /// Returns the system's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the home of the clock")]
    pub fn system() -> Self {
        Self(Arc::new(Source::System(Instant::now())))
    }

    /// Creates a clock that stays at `start` until [`Clock::advance`] moves it.
    pub fn manual(start: Time) -> Self {
        Self(Arc::new(Source::Manual(watch::Sender::new(start))))
    }

    /// Returns the current time.
    pub fn now(&self) -> Time {
        match &*self.0 {
            Source::System(_) => system_now(),
            Source::Manual(now) => *now.borrow(),
        }
    }

    /// Returns monotonic time since an arbitrary start, to measure durations.
    pub fn elapsed(&self) -> Duration {
        match &*self.0 {
            Source::System(created_at) => created_at.elapsed(),
            Source::Manual(now) => Duration::from_millis(now.borrow().since(Time(0))),
        }
    }

    /// Waits until `time`.
    pub async fn sleep_until(&self, time: Time) {
        match &*self.0 {
            Source::System(_) => system_sleep(time.since(system_now())).await,
            Source::Manual(now) => {
                // The sender lives as long as this clock, so the wait cannot fail.
                let _ = now.subscribe().wait_for(|now| *now >= time).await;
            }
        }
    }

    /// Advances a manual clock. Does nothing to the system's clock.
    pub fn advance(&self, millis: u64) {
        if let Source::Manual(now) = &*self.0 {
            now.send_modify(|now| *now = now.plus(millis));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the home of the wall clock")]
fn system_now() -> Time {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "this is the home of the wall clock")]
async fn system_sleep(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
