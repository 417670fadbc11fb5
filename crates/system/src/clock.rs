//! The clock: the only place that reads wall-clock time or waits for it.
//!
//! The time of a clock never goes back. When the system's time is set forward, the clock follows at once. When it is
//! set back, the clock runs at half speed until the system's time has caught up: a deadline 10 s ahead then comes
//! after at most 20 s, even if the system's time was set back by an hour.
//!
//! To wait for a duration, use [`Clock::sleep_for`] or a [`Moment`]: setting the system's time does not affect them.
//! Wait for a point in time only if it is stored, such as an expiry.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mainspring_core::Time;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The longest single sleep until a point in time. If the system's time is set forward, a waiting task notices within
/// this time.
const MAX_TIME_SLEEP_MS: u64 = 10_000;
/// The longest single sleep until a moment: a day.
const MAX_MOMENT_SLEEP_MS: u64 = 86_400_000;

/// Reads the time and waits for it: the system's clock, or a manual clock that a test advances.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    /// Holds the creation time of the clock, its last reading, and the milliseconds that a test adds to the
    /// system's time.
    System(Instant, Mutex<Reading>, AtomicI64),
    Manual(watch::Sender<ManualReading>),
}

/// The reading of a manual clock.
#[derive(Debug, Clone, Copy)]
struct ManualReading {
    time: Time,
    /// The sum of all changes by [`Clock::set_system_time`]. The monotonic time does not include them.
    set_by_ms: i64,
}

impl ManualReading {
    fn moment(self) -> Moment {
        Moment(Duration::from_millis(Time(self.time.0.saturating_sub(self.set_by_ms)).since(Time(0))))
    }
}

/// A point of a clock's monotonic time. Setting the system's time does not move it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// A moment later than any other.
    pub const NEVER: Self = Self(Duration::MAX);

    /// The moment `millis` milliseconds later.
    pub fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(Duration::from_millis(millis)))
    }

    /// Milliseconds since `earlier`; 0 if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        to_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Clock {
    /// Returns the system's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the home of the clock")]
    pub fn system() -> Self {
        let reading = Reading { time: system_now(), elapsed_ms: 0 };
        Self(Arc::new(Source::System(Instant::now(), Mutex::new(reading), AtomicI64::new(0))))
    }

    /// Creates a clock that stays at `start` until [`Clock::advance`] moves it.
    pub fn manual(start: Time) -> Self {
        Self(Arc::new(Source::Manual(watch::Sender::new(ManualReading { time: start, set_by_ms: 0 }))))
    }

    /// Returns the current time.
    pub fn now(&self) -> Time {
        match &*self.0 {
            Source::System(created_at, last, set_by) => {
                let system = Time(system_now().0.saturating_add(set_by.load(Ordering::Relaxed)));
                let mut last = last.lock();
                *last = last.next(system, to_millis(created_at.elapsed()));
                last.time
            }
            Source::Manual(now) => now.borrow().time,
        }
    }

    /// Returns monotonic time since an arbitrary start, to measure durations.
    pub fn elapsed(&self) -> Duration {
        self.moment().0
    }

    /// Returns the current moment.
    pub fn moment(&self) -> Moment {
        match &*self.0 {
            Source::System(created_at, ..) => Moment(created_at.elapsed()),
            Source::Manual(now) => now.borrow().moment(),
        }
    }

    /// Waits for `millis` milliseconds from this call on.
    pub fn sleep_for(&self, millis: u64) -> impl Future<Output = ()> + Send + use<> {
        let (clock, until) = (self.clone(), self.moment().plus(millis));
        async move { clock.sleep_until_moment(until).await }
    }

    /// Waits until `moment`.
    pub async fn sleep_until_moment(&self, moment: Moment) {
        match &*self.0 {
            Source::System(..) => {
                while let Some(left) =
                    moment.0.checked_sub(self.elapsed()).filter(|left| *left > Duration::ZERO)
                {
                    // At least 1 ms: a remainder below a millisecond would make this loop spin.
                    system_sleep(to_millis(left).clamp(1, MAX_MOMENT_SLEEP_MS)).await;
                }
            }
            Source::Manual(now) => {
                // The sender lives as long as this clock, so the wait cannot fail.
                let _ = now.subscribe().wait_for(|now| now.moment() >= moment).await;
            }
        }
    }

    /// Waits until `time`.
    pub async fn sleep_until(&self, time: Time) {
        match &*self.0 {
            Source::System(..) => loop {
                match time.since(self.now()) {
                    0 => return,
                    millis => system_sleep(millis.min(MAX_TIME_SLEEP_MS)).await,
                }
            },
            Source::Manual(now) => {
                // The sender lives as long as this clock, so the wait cannot fail.
                let _ = now.subscribe().wait_for(|now| now.time >= time).await;
            }
        }
    }

    /// Behaves as if the system's time was set forward or back by `millis`. A manual clock ignores negative `millis`,
    /// since no clock goes back.
    #[doc(hidden)]
    pub fn set_system_time(&self, millis: i64) {
        match &*self.0 {
            Source::System(_, _, set_by) => {
                set_by.fetch_add(millis, Ordering::Relaxed);
            }
            Source::Manual(now) => now.send_modify(|now| {
                let millis = millis.max(0);
                now.time = Time(now.time.0.saturating_add(millis));
                now.set_by_ms = now.set_by_ms.saturating_add(millis);
            }),
        }
    }

    /// Advances a manual clock. Does nothing to the system's clock.
    pub fn advance(&self, millis: u64) {
        if let Source::Manual(now) = &*self.0 {
            now.send_modify(|now| now.time = now.time.plus(millis));
        }
    }
}

/// One reading of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reading {
    time: Time,
    /// Monotonic time since the creation of the clock.
    elapsed_ms: u64,
}

impl Reading {
    /// Returns the next reading, when the system's time is `system` and the monotonic time is `elapsed_ms`.
    fn next(self, system: Time, elapsed_ms: u64) -> Self {
        let passed_ms = elapsed_ms.saturating_sub(self.elapsed_ms);
        let half_speed = self.time.plus(passed_ms / 2);
        match system >= half_speed {
            true => Self { time: system, elapsed_ms },
            // The division drops an odd millisecond: the next reading counts it. Otherwise a clock that is
            // read every millisecond would stand still.
            false => Self { time: half_speed, elapsed_ms: elapsed_ms - passed_ms % 2 },
        }
    }
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "this is the home of the wall clock")]
pub(crate) fn system_now() -> Time {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "this is the home of the wall clock")]
async fn system_sleep(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a clock every 10 ms of monotonic time, while the system's time takes the values `system`. Returns the
    /// readings.
    fn readings(system: &[i64]) -> Vec<i64> {
        let mut last = Reading { time: Time(system[0]), elapsed_ms: 0 };
        let read = |(at, system): (usize, &i64)| {
            last = last.next(Time(*system), at as u64 * 10);
            last.time.0
        };
        system.iter().enumerate().map(read).collect()
    }

    #[test]
    fn the_clock_shows_the_system_time_and_follows_it_forward() {
        assert_eq!(readings(&[1_000, 1_010, 1_020]), [1_000, 1_010, 1_020]);
        assert_eq!(readings(&[1_000, 9_000_000, 9_000_010]), [1_000, 9_000_000, 9_000_010]);
        // The system's time is adjusted in small steps all the time.
        assert_eq!(readings(&[1_000, 1_008, 1_019]), [1_000, 1_008, 1_019]);
    }

    #[test]
    fn after_the_system_time_is_set_back_the_clock_runs_at_half_speed() {
        assert_eq!(
            readings(&[1_000, 970, 980, 990, 1_000, 1_030]),
            [1_000, 1_005, 1_010, 1_015, 1_020, 1_030]
        );
        let far: Vec<i64> = (0..1_000).map(|n| if n == 0 { 3_600_000 } else { n * 10 }).collect();
        let shown = readings(&far);
        assert!(shown.windows(2).all(|pair| pair[0] < pair[1]), "the clock always advances");
        assert_eq!(shown.last(), Some(&(3_600_000 + 999 * 5)), "in 10 s the clock advances by 5 s");
    }

    #[test]
    fn a_clock_that_is_read_every_millisecond_does_not_stand_still() {
        let mut last = Reading { time: Time(1_000), elapsed_ms: 0 };
        for elapsed_ms in 1..=100 {
            last = last.next(Time(0), elapsed_ms);
        }
        assert_eq!(last.time, Time(1_050));
    }

    #[tokio::test]
    async fn setting_the_time_forward_shortens_no_sleep() {
        for clock in [Clock::system(), Clock::manual(Time(1_000))] {
            let (begun, grace) = (clock.moment(), clock.sleep_for(600_000));
            let expiry = clock.now().plus(3_000_000);
            clock.set_system_time(3_600_000);
            clock.sleep_until(expiry).await;
            assert!(
                clock.moment().since(begun) < 600_000,
                "the expiry is reached, although little monotonic time has passed"
            );
            tokio::select! {
                biased;
                () = grace => panic!("the grace period has only begun"),
                () = std::future::ready(()) => {}
            }
        }
        let clock = Clock::manual(Time(1_000));
        let grace = clock.sleep_for(40);
        clock.advance(40);
        grace.await;
    }

    #[tokio::test]
    async fn the_system_clock_waits_until_the_time() {
        let clock = Clock::system();
        let until = clock.now().plus(20);
        clock.sleep_until(until).await;
        assert!(clock.now() >= until);
    }
}
