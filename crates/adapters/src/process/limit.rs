//! The time limit of the agents of a cluster's server.
//!
//! The server renews the limit in a file, together with the lease of its database. A server that is stopped or paused renews
//! nothing, and cannot end its agents either. So each guard reads the file and ends its tree by itself, before another server
//! can take the lease and start an agent for the same run.

use std::path::{Path, PathBuf};

use mainspring_kernel::boot_time::boot_time_ms;
use mainspring_kernel::clock::Clock;

/// The longest time between two checks of the clock: timers of the system stand still while the machine is suspended.
const CHECK_INTERVAL_MS: u64 = 100;

/// A file that holds the time until which agents may live, in milliseconds since the start of the machine.
#[derive(Debug, Clone)]
pub struct Limit(PathBuf);

impl Limit {
    /// Returns the limit that `file` holds.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self(file.into())
    }

    /// Returns the milliseconds that are left. A file that cannot be read leaves none.
    pub fn left_ms(&self) -> u64 {
        left(&self.0, boot_time_ms())
    }

    /// Resolves when no time is left.
    pub async fn expired(&self, clock: &Clock) {
        loop {
            match self.left_ms() {
                0 => return,
                left => clock.sleep_for(left.min(CHECK_INTERVAL_MS)).await,
            }
        }
    }
}

fn left(file: &Path, now_ms: u64) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.trim().parse::<u64>().unwrap_or(0).saturating_sub(now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_has_passed_or_cannot_be_read_leaves_no_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limit");
        assert_eq!(left(&file, 5), 0, "no file");
        for (text, expected) in [("", 0), ("soon", 0), ("5\n", 0), ("4\n", 0), ("12\n", 7), ("12", 7)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(left(&file, 5), expected, "{text:?}");
        }
    }
}
