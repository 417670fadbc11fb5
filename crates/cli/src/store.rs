//! `mainspring store`

use std::io;

use clap::Subcommand;
use mainspring_kernel::clock::Clock;
use mainspring_store::{CopyReport, CopyStep};
use serde::Serialize;
use tokio::sync::mpsc;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{DIM, GREEN, Output, RED, Spinner};
use mainspring::store_copy::{self, CopySide};

/// Move data between SQLite and PostgreSQL
#[derive(Subcommand)]
pub(super) enum StoreCommand {
    /// Copy all data into an empty database, compare and verify them; continues a copy that was interrupted
    #[command(
        after_help = "A side is a state directory, with its data in SQLite, or the URL of a PostgreSQL. Ids, cursors and the order \
of events are kept. Neither side may be in use. A copy that ends early leaves a target that nothing else uses: the same command \
continues it, and begins again if the source has changed. Exit code 5 if the copied data do not pass `mainspring verify`."
    )]
    Copy {
        /// State directory or PostgreSQL to copy from
        #[arg(long, value_name = "DIR|URL")]
        from: CopySide,
        /// Empty state directory or PostgreSQL to copy into
        #[arg(long, value_name = "DIR|URL")]
        to: CopySide,
    },
    /// Remove a copy that was interrupted, so that its target is empty
    #[command(after_help = "The bytes of artifacts that it had copied stay: they are named by their hashes.")]
    Discard {
        /// State directory or PostgreSQL with an unfinished copy
        #[arg(value_name = "DIR|URL")]
        target: CopySide,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CopyOutput {
    sessions: u64,
    runs: u64,
    messages: u64,
    events: u64,
    artifacts: u64,
    records: u64,
    /// Records that an interrupted copy had written before.
    kept: u64,
    findings: Vec<String>,
}

/// A line about a copy that is not the first attempt.
#[derive(Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
enum Attempt {
    Continues { records: u64 },
    BeginsAgain { reason: String },
}

/// A step of a copy, for the display.
enum Progress {
    Attempt(Attempt),
    Work(String),
}

impl Progress {
    fn of(step: CopyStep<'_>) -> Self {
        match step {
            CopyStep::Continues(records) => Self::Attempt(Attempt::Continues { records }),
            CopyStep::BeginsAgain(reason) => Self::Attempt(Attempt::BeginsAgain { reason: reason.into() }),
            CopyStep::Writes(table, records) | CopyStep::Keeps(table, records) => {
                Self::Work(format!("copying {table}, {records}"))
            }
            CopyStep::Blob(hash) => Self::Work(format!("copying the bytes {hash}")),
            CopyStep::Completes => Self::Work("completing".into()),
            CopyStep::Verifies => Self::Work("verifying".into()),
        }
    }

    fn print(self, output: &Output, spinner: Option<&Spinner>) -> io::Result<()> {
        match self {
            Self::Work(text) => {
                if let Some(spinner) = spinner {
                    spinner.update(&text);
                }
                Ok(())
            }
            Self::Attempt(attempt) if output.json => output.print_own_json(&attempt),
            Self::Attempt(Attempt::Continues { records }) => {
                output.print_line(format_args!("continues an interrupted copy after {records} records"))
            }
            Self::Attempt(Attempt::BeginsAgain { reason }) => {
                output.print_line(format_args!("begins an interrupted copy again: {reason}"))
            }
        }
    }
}

impl StoreCommand {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        if context.config().url.is_some() {
            return Err(CliError::bad_request(
                "store works on databases: remove --url, and run it where they can be reached",
            ));
        }
        match self {
            Self::Copy { from, to } => copy(context, from, to).await,
            Self::Discard { target } => discard(context, target).await,
        }
    }
}

async fn copy(context: &Context<'_>, from: CopySide, to: CopySide) -> Result<Exit, CliError> {
    let config = context.config().clone();
    let busy = context.output.start_spinner("copying");
    let (sender, mut received) = mpsc::unbounded_channel();
    let copying = tokio::task::spawn_blocking(move || {
        let mut progress = |step: CopyStep<'_>| drop(sender.send(Progress::of(step)));
        store_copy::copy(&config, &from, &to, Clock::system().now(), &mut progress)
    });
    while let Some(progress) = received.recv().await {
        progress.print(context.output, busy.as_ref())?;
    }
    let report = copying.await.map_err(io::Error::other)??;
    drop(busy);
    let is_sound = report.verified.iter().all(|part| part.findings.is_empty());
    print(context.output, report)?;
    Ok(if is_sound { Exit::Done } else { Exit::Unavailable })
}

fn print(output: &Output, report: CopyReport) -> io::Result<()> {
    let copied = CopyOutput {
        sessions: report.count("sessions"),
        runs: report.count("runs"),
        messages: report.count("messages"),
        events: report.count("events"),
        artifacts: report.count("artifacts"),
        records: report.total(),
        kept: report.kept,
        findings: report.verified.into_iter().flat_map(|part| part.findings).collect(),
    };
    if output.json {
        return output.print_own_json(&copied);
    }
    let CopyOutput { sessions, runs, messages, events, artifacts, records, kept, findings } = copied;
    let earlier = match kept {
        0 => String::new(),
        kept => format!(", {kept} of them by the interrupted copy"),
    };
    output.print_line(format_args!("{GREEN}copied{GREEN:#} and compared {records} records{earlier}"))?;
    output.print_line(format_args!(
        "{DIM}{sessions} sessions, {runs} runs, {messages} messages, {events} events, {artifacts} artifacts{DIM:#}"
    ))?;
    for finding in &findings {
        output.print_line(format_args!("{RED}found{RED:#} in the source and in the copy: {finding}"))?;
    }
    Ok(())
}

async fn discard(context: &Context<'_>, target: CopySide) -> Result<Exit, CliError> {
    let config = context.config().clone();
    let discarding =
        tokio::task::spawn_blocking(move || store_copy::discard(&config, &target, Clock::system().now()));
    let records = discarding.await.map_err(io::Error::other)??;
    match context.output.json {
        true => context.output.print_json(&serde_json::json!({ "discarded": records }))?,
        false => {
            context.output.print_line(format_args!("{GREEN}removed{GREEN:#} a copy of {records} records"))?;
        }
    }
    Ok(Exit::Done)
}
