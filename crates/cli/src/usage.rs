//! `mainspring usage`

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use mainspring_client::{UsageGroup, UsageQuery};
use mainspring_core::{Time, UsageSum};
use mainspring_kernel::clock::Clock;

use super::Context;
use super::connection::Purpose;
use super::error::{CliError, Exit};
use super::output::DIM;

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// Show tokens and cost of your runs by day, agent, model or session; unknown costs are counted apart
#[derive(Args)]
pub(super) struct Usage {
    /// Group the runs by this; may be repeated
    #[arg(long, value_enum, default_value = "day")]
    by: Vec<By>,
    /// Number of days, today included
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=3660))]
    days: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Day,
    Agent,
    Model,
    Session,
}

impl Usage {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let mut connection = context.connect(Purpose::Records).await?;
        let now = Clock::system().now();
        let zoned = Timestamp::from_millisecond(now.0).map(|now| now.to_zoned(TimeZone::system()));
        let utc_offset_minutes = zoned.map_or(0, |now| i64::from(now.offset().seconds() / 60));
        let by: Vec<&str> = self.by.iter().map(|by| by.name()).collect();
        let query = UsageQuery {
            by: Some(by.join(",")),
            from: Some(start(now, utc_offset_minutes, self.days)),
            // Includes runs of the current millisecond.
            to: Some(now.plus(1)),
            utc_offset_minutes: Some(utc_offset_minutes),
        };
        let report = connection.request(async |client| client.usage_report(&query).await).await;
        connection.close().await?;
        let (report, output) = (report?, context.output);
        if output.json {
            output.print_json(&report)?;
            return Ok(Exit::Done);
        }
        let mut rows: Vec<Vec<String>> = report.groups.iter().map(|group| self.row(group)).collect();
        let mut total = vec![String::new(); self.by.len().saturating_sub(1)];
        total.insert(0, format!("{DIM}in all{DIM:#}"));
        rows.push(total.into_iter().chain(numbers(&report.total)).collect());
        let heads = self.by.iter().map(|by| by.name()).chain(["runs", "tokens", "cost", "unknown"]);
        output.print_table(&heads.collect::<Vec<_>>(), rows)?;
        if report.damaged_runs > 0 {
            output.print_note(format_args!(
                "{} runs cannot be read and are not counted",
                report.damaged_runs
            ))?;
        }
        Ok(Exit::Done)
    }

    fn row(&self, group: &UsageGroup) -> Vec<String> {
        let name = |by: &By| match by {
            By::Day => group.day.clone().unwrap_or_default(),
            By::Agent => group.agent.clone().unwrap_or_default(),
            By::Model => group.model.clone().unwrap_or_else(|| "the agent's default".into()),
            By::Session => group.session_id.map(|id| id.to_string()).unwrap_or_default(),
        };
        self.by.iter().map(name).chain(numbers(&group.usage)).collect()
    }
}

impl By {
    const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Agent => "agent",
            Self::Model => "model",
            Self::Session => "session",
        }
    }
}

/// Returns the start of a span of `days` local days that ends with today.
fn start(now: Time, utc_offset_minutes: i64, days: u16) -> Time {
    let local = now.0.saturating_add(utc_offset_minutes * 60_000);
    let midnight = local - local.rem_euclid(DAY_MS) - utc_offset_minutes * 60_000;
    Time(midnight - (i64::from(days) - 1) * DAY_MS)
}

/// Formats the columns of a row: runs, tokens, the known cost, and the number of runs of unknown cost.
fn numbers(usage: &UsageSum) -> [String; 4] {
    let tokens = [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens];
    let tokens: u64 = tokens.into_iter().fold(0, u64::saturating_add);
    let at_least = if usage.at_least_runs > 0 { "at least " } else { "" };
    let cost = match usage.unknown_cost_runs == usage.runs && usage.runs > 0 {
        true => "unknown".to_owned(),
        false => format!("{at_least}${:.4}", usage.known_cost.usd().unwrap_or_default()),
    };
    let unknown = match usage.unknown_cost_runs {
        0 => String::new(),
        1 => "1 run".to_owned(),
        runs => format!("{runs} runs"),
    };
    [usage.runs.to_string(), format!("{at_least}{tokens}"), cost, unknown]
}

#[cfg(test)]
mod tests {
    use mainspring_core::{Cost, Usage as Used};

    use super::*;

    #[test]
    fn days_begin_at_midnight_of_the_zone() {
        // 2027-01-15 08:00 UTC.
        let now = Time(1_800_000_000_000);
        assert_eq!(start(now, 0, 1).to_string(), "2027-01-15 00:00:00 UTC");
        assert_eq!(start(now, 60, 1).to_string(), "2027-01-14 23:00:00 UTC");
        assert_eq!(start(now, -600, 2).to_string(), "2027-01-13 10:00:00 UTC");
    }

    #[test]
    fn a_cost_that_is_not_known_is_not_shown_as_a_number() {
        let mut sum = UsageSum::default();
        sum.add(Used { input_tokens: 5, cost: Cost::UNKNOWN, ..Used::default() });
        assert_eq!(numbers(&sum), ["1", "5", "unknown", "1 run"]);
        sum.add(Used { cost: Cost::from(0.5), at_least: true, ..Used::default() });
        assert_eq!(numbers(&sum), ["2", "at least 5", "at least $0.5000", "1 run"]);
    }
}
