//! `mainspring audit`

use clap::{Args, ValueEnum};
use mainspring_client::{AuditKind, AuditListQuery, AuditRecord};
use mainspring_kernel::clock::Clock;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::follow::interrupt_signal;
use super::output::{DIM, Output, RED, format_clock};

/// Time between two reads of `--follow`.
const FOLLOW_INTERVAL_MS: u64 = 1_000;
/// Records of one page.
const PAGE: usize = 200;

/// Show the audit log: who did what, from where and with what outcome
#[derive(Args)]
#[command(
    after_help = "Shows what concerns you; with an org admin's key what concerns the org, with the token of the state directory \
everything. `mainspring verify` checks that no record was changed or removed."
)]
pub(super) struct Audit {
    /// Only records that concern this owner
    // Not `owner`: that is the global argument.
    #[arg(long = "for", value_name = "OWNER")]
    concerned: Option<String>,
    /// Only records of this time until now, such as 30m, 24h or 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration)]
    since: u64,
    /// Only records of this kind
    #[arg(long, value_name = "KIND")]
    kind: Option<Kind>,
    /// Only records of this operation, such as `run_create`
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,
    /// Only records about the object with this id or name
    #[arg(long, value_name = "ID")]
    about: Option<String>,
    /// Print new records as they are written, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Change,
    Decision,
    SignIn,
    Refusal,
    System,
}

impl From<Kind> for AuditKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Change => Self::Change,
            Kind::Decision => Self::Decision,
            Kind::SignIn => Self::SignIn,
            Kind::Refusal => Self::Refusal,
            Kind::System => Self::System,
        }
    }
}

/// Parses a duration such as `30m`, and returns its milliseconds.
fn parse_duration(text: &str) -> Result<u64, String> {
    let bad = || "a number and s, m, h or d, such as 24h".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(bad)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(seconds * 1_000).filter(|millis| *millis <= i64::MAX as u64 / 2).ok_or_else(bad)
}

impl Audit {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        // A long-running reader may own the state directory, so it also executes queued runs.
        let purpose = if self.follow { Purpose::Execute } else { Purpose::Records };
        let work = async |connection: &mut Connection<'_>| self.print(context.output, connection).await;
        context.with_connection(purpose, work).await.map(|()| Exit::Done)
    }

    async fn print(self, output: &Output, connection: &mut Connection<'_>) -> Result<(), CliError> {
        let clock = Clock::system();
        let since = clock.now().0.saturating_sub_unsigned(self.since).max(0);
        let mut query = AuditListQuery {
            since_ms: Some(mainspring_core::Time(since)),
            limit: Some(PAGE),
            kind: self.kind.map(AuditKind::from),
            operation: self.operation,
            owner: self.concerned,
            about: self.about,
            ..AuditListQuery::default()
        };
        let mut interrupt = std::pin::pin!(interrupt_signal());
        let mut count = 0;
        loop {
            let page = connection.request(async |client| client.audit_list(&query).await).await?;
            count += page.items.len();
            page.items.iter().try_for_each(|record| print_record(output, record))?;
            query.after = page.items.last().map(|record| record.seq).or(query.after);
            if let Some(next) = page.next {
                query.after = next.parse().ok().or(query.after);
                continue;
            }
            if !self.follow {
                break;
            }
            tokio::select! {
                () = clock.sleep_for(FOLLOW_INTERVAL_MS) => {}
                signal = &mut interrupt => return Ok(signal?),
            }
        }
        match count {
            0 if !output.json => Ok(output.print_note("no records; look further back with --since")?),
            _ => Ok(()),
        }
    }
}

fn print_record(output: &Output, record: &AuditRecord) -> std::io::Result<()> {
    if output.json {
        return output.print_json(record);
    }
    output.print_line(format_record(record))
}

fn format_record(record: &AuditRecord) -> String {
    let kind = match record.kind {
        AuditKind::Change => "change",
        AuditKind::Decision => "decision",
        AuditKind::SignIn => "sign-in",
        AuditKind::Refusal => "refusal",
        AuditKind::System => "system",
    };
    let mut line = format!("{DIM}{} {:<8}{DIM:#} {}", format_clock(record.at_ms), kind, record.operation);
    let mut add = |text: String| {
        line.push(' ');
        line.push_str(&text);
    };
    if !record.about.is_empty() {
        add(record.about.join(" "));
    }
    if let Some(decision) = record.decision {
        add(decision.name().to_owned());
    }
    match (record.status, &record.code) {
        (_, Some(code)) => add(format!("{RED}{code}{RED:#}")),
        (Some(status), None) => add(status.to_string()),
        (None, None) => {}
    }
    add(format!("{DIM}by{DIM:#} {}", record.by));
    if let Some(from) = record.from {
        add(format!("{DIM}from{DIM:#} {from}"));
    }
    if let Some(count) = record.count {
        add(format!("{DIM}({count} not recorded){DIM:#}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration("30m"), Ok(1_800_000));
        assert_eq!(parse_duration("7d"), Ok(604_800_000));
        for bad in ["", "h", "24", "1w", "-1h", "99999999999999999d", "1é"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
