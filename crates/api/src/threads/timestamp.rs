//! Times as the threads API writes them: `2026-11-17T09:30:05.123+00:00`.

use std::fmt;

use mainspring_core::Time;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time that is written as text of ISO 8601, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub Time);

impl From<Time> for Timestamp {
    fn from(time: Time) -> Self {
        Self(time)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let text = text.trim_end_matches(" UTC").replace(' ', "T");
        write!(f, "{text}.{:03}+00:00", self.0.0.rem_euclid(1000))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is not a time of ISO 8601")))
    }
}

/// Parses `YYYY-MM-DDTHH:MM`, with optional seconds, fraction, and `Z` or offset. A space may stand for the `T`.
/// Without an offset, the time is UTC.
fn parse(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_once(['T', ' '])?;
    let mut parts = date.split('-').map(str::parse::<i64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let zone_at = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut parts = clock.split(':').map(str::parse::<i64>);
    let (hour, minute) = (parts.next()?.ok()?, parts.next()?.ok()?);
    let second = parts.next().transpose().ok()?.unwrap_or(0);
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && (0..=9999).contains(&year);
    if !in_range || !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..=60).contains(&second) {
        return None;
    }
    let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let seconds = days_from_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(Timestamp(Time((seconds - offset_minutes(zone)? * 60) * 1000 + millis)))
}

fn offset_minutes(zone: &str) -> Option<i64> {
    let sign = match zone.chars().next() {
        None | Some('Z' | 'z') => return Some(0),
        Some('-') => -1,
        Some(_) => 1,
    };
    let digits: String = zone.chars().filter(char::is_ascii_digit).collect();
    let hours: i64 = digits.get(..2)?.parse().ok()?;
    let minutes: i64 =
        digits.get(2..).filter(|minutes| !minutes.is_empty()).map_or(Ok(0), str::parse).ok()?;
    Some(sign * (hours * 60 + minutes))
}

/// Days from 1970-01-01 in the Gregorian calendar. Years are counted from March, so that a leap day is the last day of
/// its year.
fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_time_is_parsed_back() {
        for millis in [0, 1_782_240_000_123, 951_827_696_007, -1] {
            let time = Timestamp(Time(millis));
            assert_eq!(parse(&time.to_string()), Some(time), "{time}");
        }
        assert_eq!(Timestamp(Time(951_827_696_007)).to_string(), "2000-02-29T12:34:56.007+00:00");
    }

    #[test]
    fn offsets_fractions_and_a_missing_zone_are_read() {
        let noon = Some(Timestamp(Time(951_825_600_000)));
        for text in [
            "2000-02-29T12:00:00Z",
            "2000-02-29 12:00:00",
            "2000-02-29T14:30:00.000000+02:30",
            "2000-02-29T08:00:00.0-0400",
        ] {
            assert_eq!(parse(text), noon, "{text}");
        }
        for text in
            ["", "noon", "2000-02-29", "2000-13-01T00:00:00", "2000-01-01T25:00:00", "2000-01-01T00:00:00+x"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
