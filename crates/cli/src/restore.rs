//! `mainspring restore`

use std::path::PathBuf;

use clap::Args;
use mainspring_kernel::clock::Clock;
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{DIM, GREEN};
use mainspring::backup;

/// Restore a backup into an empty state directory, or into the empty PostgreSQL of `--store`
#[derive(Args)]
#[command(
    after_help = "Nothing is overwritten: the state directory must have no database and no artifacts, or the PostgreSQL no data. All hashes are \
checked first. New events get cursors beyond all that the lost state directory may have given, so that its readers are told to \
start anew. API keys must be created again."
)]
pub(super) struct Restore {
    /// Folder or tar file made by `mainspring backup`
    path: PathBuf,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RestoreOutput {
    state_dir: String,
    /// The URL of the PostgreSQL database, without its password.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    bytes: u64,
    artifacts: usize,
    sessions: u64,
    runs: u64,
    events: u64,
    created_at_ms: i64,
    last_cursor: u64,
    continues_after_cursor: u64,
}

impl Restore {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        context.check_store("restore")?;
        let config = context.config().clone();
        let state_dir = config.state_dir.display().to_string();
        let store = config.store.as_ref().map(|_| config.database_name());
        let busy = context.output.start_spinner("checking and copying");
        let work =
            tokio::task::spawn_blocking(move || backup::restore(&config, &self.path, Clock::system().now()));
        let restored = work.await.map_err(std::io::Error::other)??;
        drop(busy);
        let (manifest, output) = (&restored.manifest, context.output);
        if output.json {
            output.print_own_json(&RestoreOutput {
                state_dir,
                store,
                bytes: manifest.bytes(),
                artifacts: manifest.artifacts(),
                sessions: manifest.sessions,
                runs: manifest.runs,
                events: manifest.events,
                created_at_ms: manifest.created_at_ms,
                last_cursor: restored.cursors.last.0,
                continues_after_cursor: restored.cursors.continues_after.0,
            })?;
            return Ok(Exit::Done);
        }
        output.print_line(format_args!("{GREEN}restored{GREEN:#} into {}", store.unwrap_or(state_dir)))?;
        output.print_line(format_args!(
            "{DIM}{} sessions, {} runs, {} events, {} artifact contents; new events begin after cursor {}{DIM:#}",
            manifest.sessions,
            manifest.runs,
            manifest.events,
            manifest.artifacts(),
            restored.cursors.continues_after.0
        ))?;
        Ok(Exit::Done)
    }
}
