//! `mainspring backup`

use std::path::PathBuf;

use clap::Args;
use mainspring_kernel::clock::Clock;
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{DIM, GREEN};
use mainspring::backup::{self, Manifest};

/// Back up the state directory or the PostgreSQL of `--store`, also while it is served
#[derive(Args)]
#[command(
    after_help = "The backup holds the database at one instant, as SQLite, and the bytes of all artifacts, with a manifest of sizes and \
hashes. It does not hold the token, API keys and keys of providers, nor the bytes of artifacts that an object store keeps. `mainspring restore` checks and restores it."
)]
pub(super) struct Backup {
    /// New folder, or new tar file if the name ends with .tar
    path: PathBuf,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BackupOutput<'a> {
    path: &'a str,
    bytes: u64,
    artifacts: usize,
    sessions: u64,
    runs: u64,
    events: u64,
    schema: u32,
    last_cursor: u64,
    created_at_ms: i64,
    /// The object store that keeps the bytes of artifacts.
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_store: Option<&'a str>,
}

impl Backup {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        context.check_store("backup")?;
        let (config, path) = (context.config().clone(), self.path.clone());
        let busy = context.output.start_spinner("copying");
        let made = tokio::task::spawn_blocking(move || backup::create(&config, &path, Clock::system().now()));
        let manifest = made.await.map_err(std::io::Error::other)??;
        drop(busy);
        self.print(context, &manifest)?;
        Ok(Exit::Done)
    }

    fn print(&self, context: &Context<'_>, manifest: &Manifest) -> std::io::Result<()> {
        let path = self.path.display().to_string();
        let Manifest { sessions, runs, events, .. } = *manifest;
        if context.output.json {
            return context.output.print_own_json(&BackupOutput {
                path: &path,
                bytes: manifest.bytes(),
                artifacts: manifest.artifacts(),
                sessions,
                runs,
                events,
                schema: manifest.schema,
                last_cursor: manifest.last_cursor,
                created_at_ms: manifest.created_at_ms,
                artifact_store: manifest.artifact_store.as_deref(),
            });
        }
        context.output.print_line(format_args!("{GREEN}backed up{GREEN:#} to {path}"))?;
        context.output.print_line(format_args!(
            "{DIM}{sessions} sessions, {runs} runs, {events} events, {} artifact contents, {} bytes{DIM:#}",
            manifest.artifacts(),
            manifest.bytes()
        ))?;
        if let Some(store) = &manifest.artifact_store {
            context.output.print_line(format_args!(
                "{DIM}the bytes of artifacts are not in the backup: they are in {store}{DIM:#}"
            ))?;
        }
        Ok(())
    }
}
