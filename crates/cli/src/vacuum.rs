//! `mainspring vacuum`

use clap::Args;
use mainspring_store::database_vacuum;
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit};
use super::output::GREEN;

/// Return unused space of the database to the file system
#[derive(Args)]
#[command(
    after_help = "No process may serve the state directory, and its disk needs as much free space as the database takes. \
mainspring reuses the space of deleted sessions and pruned events, so that this is needed only to make the file smaller."
)]
pub(super) struct Vacuum {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VacuumOutput {
    bytes_before: u64,
    bytes_after: u64,
}

impl Vacuum {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let (owned, database) = context.own_database("vacuum")?;
        let busy = context.output.start_spinner("rewriting the database");
        let work = tokio::task::spawn_blocking(move || database_vacuum(&database));
        let (bytes_before, bytes_after) = work.await.map_err(std::io::Error::other)??;
        drop(busy);
        drop(owned);
        match context.output.json {
            true => context.output.print_own_json(&VacuumOutput { bytes_before, bytes_after })?,
            false => context.output.print_line(format_args!(
                "{GREEN}done{GREEN:#}: {bytes_before} bytes before, {bytes_after} after"
            ))?,
        }
        Ok(Exit::Done)
    }
}
