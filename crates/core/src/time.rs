//! Points in time: milliseconds since the Unix epoch, always passed in.

use serde::{Deserialize, Serialize};

/// A point in time, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Time(pub i64);

impl Time {
    /// The time `millis` milliseconds later.
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add_unsigned(millis))
    }

    /// Milliseconds from `earlier` to this time; 0 if this time is not later.
    pub const fn since(self, earlier: Self) -> u64 {
        if self.0 > earlier.0 { self.0.abs_diff(earlier.0) } else { 0 }
    }

    /// This deadline, which was set at `set_at`, for a process that starts at `now`. If the clock was set back meanwhile,
    /// the deadline keeps its length instead of moving away by the whole step.
    #[must_use]
    pub const fn kept_from(self, set_at: Self, now: Self) -> Self {
        if now.0 < set_at.0 { now.plus(self.since(set_at)) } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_keeps_its_length_if_the_clock_was_set_back() {
        let (set_at, deadline) = (Time(10_000), Time(10_500));
        assert_eq!(deadline.kept_from(set_at, Time(10_200)), deadline);
        assert_eq!(deadline.kept_from(set_at, Time(99_000)), deadline, "it has passed");
        assert_eq!(deadline.kept_from(set_at, Time(2_000)), Time(2_500));
        assert_eq!(Time(9_000).kept_from(set_at, Time(2_000)), Time(2_000), "it had passed already");
    }
}
