//! The lease of a database: how long its holder may act, and when another server may take it.
//!
//! ```text
//! renewed                                  acts until        expires          free
//!    ├──────────────────────────────────────────┤──── margin ────┤──── grace ────┤
//!    │ the holder's clock, from when it asked   │                │ the database's clock
//! ```
//!
//! The holder counts from the moment at which it sent the renewal. The database counts from the later moment
//! at which it carried the renewal out. So the holder stops first, whatever the delays are. The margin is the
//! time in which agents are killed; the grace is for clocks that do not run equally fast.
//!
//! Invariant: nobody else may take the lease while its holder, or an agent of the holder, may act.

/// The shortest lease: a renewal has to survive a slow answer of the database.
pub const MIN_LEASE_MS: u64 = 1_000;

/// The durations of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    lease_ms: u64,
}

impl LeaseTimes {
    /// Creates the durations of a lease of `lease_ms`, or of [`MIN_LEASE_MS`] if that is longer.
    pub fn new(lease_ms: u64) -> Self {
        Self { lease_ms: lease_ms.max(MIN_LEASE_MS) }
    }

    /// How long the lease is valid after a renewal.
    pub fn lease_ms(self) -> u64 {
        self.lease_ms
    }

    /// Time between two renewals: several can fail before the lease expires.
    pub fn renewal_ms(self) -> u64 {
        self.lease_ms / 6
    }

    /// Time before the expiry at which the holder and its agents stop.
    pub fn margin_ms(self) -> u64 {
        self.lease_ms / 4
    }

    /// Time after the expiry before another server may take the lease.
    pub fn grace_ms(self) -> u64 {
        self.lease_ms / 5
    }

    /// Time after which the database ends an idle transaction. A paused server would otherwise keep its locks after
    /// another server has taken its lease.
    pub fn idle_limit_ms(self) -> u64 {
        self.lease_ms / 2
    }

    /// The time at which the holder must stop, after a renewal that it sent at `sent_ms`.
    pub fn acts_until(self, sent_ms: u64) -> u64 {
        sent_ms.saturating_add(self.lease_ms - self.margin_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_stops_before_its_lease_expires_and_can_miss_renewals() {
        for lease_ms in [0, 1_000, 1_001, 10_000, 3_600_000] {
            let times = LeaseTimes::new(lease_ms);
            let stops = times.acts_until(0);
            assert!(times.lease_ms() >= MIN_LEASE_MS);
            assert!(stops + times.margin_ms() <= times.lease_ms(), "{lease_ms}: it stops a margin before");
            assert!(times.margin_ms() >= 200 && times.grace_ms() >= 200, "{lease_ms}: time to kill agents");
            assert!(times.renewal_ms() * 4 <= stops, "{lease_ms}: three renewals may fail");
        }
    }
}
