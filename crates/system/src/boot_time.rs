//! The time since the machine was started, which all processes of the machine share.
//!
//! This time never goes back and cannot be set. Unlike other monotonic clocks it also counts the time for which the
//! machine was suspended, so a server that was suspended notices that its lease has ended.

use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
// On macOS, this clock also counts the time for which the machine was suspended.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Returns the milliseconds since the machine was started.
pub fn boot_time_ms() -> u64 {
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000).saturating_add(nanoseconds / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_is_the_uptime_and_never_goes_back() {
        let first = boot_time_ms();
        assert!(first > 0);
        assert!(boot_time_ms() >= first);
        if let Ok(uptime) = std::fs::read_to_string("/proc/uptime") {
            let seconds: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
            let difference = (seconds * 1_000.0 - boot_time_ms() as f64).abs();
            assert!(difference < 600_000.0, "{uptime} is not {first} ms");
        }
    }
}
