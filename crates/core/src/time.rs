//! Points in time: milliseconds since the Unix epoch, always passed in.

use serde::{Deserialize, Serialize};

/// A point in time, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Time(pub i64);

/// Formats the time in UTC to the second: `2026-11-17 09:30:05 UTC`.
impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.div_euclid(1000);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Days since 0000-03-01 in the Gregorian calendar, so that a leap day is the last day of its year.
        let days = days + 719_468;
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

impl Time {
    /// The time `millis` milliseconds later.
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add_unsigned(millis))
    }

    /// The date, such as `2026-11-17`, in a time zone that is `utc_offset_minutes` ahead of UTC.
    pub fn date(self, utc_offset_minutes: i64) -> String {
        let local = Self(self.0.saturating_add(utc_offset_minutes.saturating_mul(60_000)));
        let text = local.to_string();
        text.split(' ').next().unwrap_or_default().to_owned()
    }

    /// Milliseconds from `earlier` to this time; 0 if this time is not later.
    pub const fn since(self, earlier: Self) -> u64 {
        if self.0 > earlier.0 { self.0.abs_diff(earlier.0) } else { 0 }
    }

    /// Adjusts this deadline, which was set at `set_at`, for a process that starts at `now`. If the clock was set
    /// back in between, the deadline is as far from `now` as it was from `set_at`.
    #[must_use]
    pub const fn kept_from(self, set_at: Self, now: Self) -> Self {
        if now.0 < set_at.0 { now.plus(self.since(set_at)) } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_depends_on_the_utc_offset() {
        let midnight = Time(951_782_400_000);
        assert_eq!(
            [0, 60, -1].map(|offset| midnight.date(offset)),
            ["2000-02-29", "2000-02-29", "2000-02-28"]
        );
    }

    #[test]
    fn a_time_is_formatted_in_utc() {
        for (ms, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400_000, "2000-02-29 00:00:00 UTC"),
            (1_795_253_405_999, "2026-11-21 09:30:05 UTC"),
            (4_107_542_399_000, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400_000, "2100-03-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(Time(ms).to_string(), text);
        }
    }

    #[test]
    fn a_deadline_keeps_its_length_if_the_clock_was_set_back() {
        let (set_at, deadline) = (Time(10_000), Time(10_500));
        assert_eq!(deadline.kept_from(set_at, Time(10_200)), deadline);
        assert_eq!(deadline.kept_from(set_at, Time(99_000)), deadline, "a passed deadline stays");
        assert_eq!(deadline.kept_from(set_at, Time(2_000)), Time(2_500));
        assert_eq!(
            Time(9_000).kept_from(set_at, Time(2_000)),
            Time(2_000),
            "a deadline that had passed when it was set counts as reached"
        );
    }
}
