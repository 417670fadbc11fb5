//! `mainspring store`

use clap::Subcommand;
use mainspring_kernel::clock::Clock;
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{DIM, GREEN};
use mainspring::store_copy::{self, CopySide};

/// Move data between SQLite and PostgreSQL
#[derive(Subcommand)]
pub(super) enum StoreCommand {
    /// Copy all data into an empty database, and compare them
    #[command(
        after_help = "A side is a state directory, with its data in SQLite, or the URL of a PostgreSQL. Ids, cursors and the order \
of events are kept. Neither side may be in use. A copy that ends early leaves the target empty: run it again."
    )]
    Copy {
        /// State directory or PostgreSQL to copy from
        #[arg(long, value_name = "DIR|URL")]
        from: CopySide,
        /// Empty state directory or PostgreSQL to copy into
        #[arg(long, value_name = "DIR|URL")]
        to: CopySide,
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
}

impl StoreCommand {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let Self::Copy { from, to } = self;
        if context.config().url.is_some() {
            return Err(CliError::bad_request(
                "store copy works on databases: remove --url, and run it where they can be reached",
            ));
        }
        let config = context.config().clone();
        let busy = context.output.start_spinner("copying");
        let copying =
            tokio::task::spawn_blocking(move || store_copy::copy(&config, &from, &to, Clock::system().now()));
        let report = copying.await.map_err(std::io::Error::other)??;
        drop(busy);
        let output = CopyOutput {
            sessions: report.count("sessions"),
            runs: report.count("runs"),
            messages: report.count("messages"),
            events: report.count("events"),
            artifacts: report.count("artifacts"),
            records: report.records.iter().map(|(_, count)| count).sum(),
        };
        if context.output.json {
            context.output.print_json(&output)?;
            return Ok(Exit::Done);
        }
        let CopyOutput { sessions, runs, messages, events, artifacts, records } = output;
        context.output.print_line(format_args!("{GREEN}copied{GREEN:#} and compared {records} records"))?;
        context.output.print_line(format_args!(
            "{DIM}{sessions} sessions, {runs} runs, {messages} messages, {events} events, {artifacts} artifacts{DIM:#}"
        ))?;
        Ok(Exit::Done)
    }
}
