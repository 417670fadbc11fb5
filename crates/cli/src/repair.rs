//! `mainspring repair`

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_store::{Repaired, SqliteView, database_repair};
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{DIM, GREEN, RED};
use super::verify::{VerifiedPart, contents, contents_verify, verify};
use mainspring::backup;
use mainspring::config::Config;

/// Rebuild all stored data that can be derived from other data, and list the damage that remains
#[derive(Args)]
#[command(
    after_help = "No process may serve the state directory. The database is first copied to mainspring.sqlite3.before-repair, \
which the next repair replaces. Rebuilt are indexes, the search index and the outcomes of runs from their events; with --from, \
damaged rows that have not changed since and contents of artifacts are taken from a backup. Other rows whose content is damaged are \
named, and stay. Exit code 5 if something remains."
)]
pub(super) struct Repair {
    /// Backup from which damaged rows and contents of artifacts are taken
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Delete the sessions whose own data remains damaged, with their messages and runs
    #[arg(long)]
    delete_damaged: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RepairOutput {
    copy: String,
    repaired: Vec<Repaired>,
    not_repaired: Vec<String>,
}

impl Repair {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let (owned, database) = context.own_database("repair")?;
        let config = context.config();
        let busy = context.output.start_spinner("repairing");
        let copy = keep_copy(&database)?;
        let temporary = tempfile::tempdir()?;
        let from = self.from.as_deref().map(|from| backup::take_database(from, temporary.path()));
        let (from, now) = (from.transpose()?, Clock::system().now());
        let delete = self.delete_damaged;
        let work =
            tokio::task::spawn_blocking(move || database_repair(&database, from.as_deref(), delete, now));
        let mut repaired = work.await.map_err(io::Error::other)??;
        if let Some(from) = &self.from {
            let contents = restore_contents(config, from).await?;
            repaired.extend((contents > 0).then_some(Repaired { what: "artifact contents", rows: contents }));
        }
        drop(owned);
        let remaining = verify(config).await?;
        drop(busy);
        let not_repaired: Vec<String> =
            remaining.into_iter().flat_map(|VerifiedPart { findings, .. }| findings).collect();
        let output = RepairOutput { copy: copy.display().to_string(), repaired, not_repaired };
        match context.output.json {
            true => context.output.print_own_json(&output)?,
            false => print(context, &output)?,
        }
        Ok(if output.not_repaired.is_empty() { Exit::Done } else { Exit::Unavailable })
    }
}

/// Copies the database, with the commits of its WAL.
fn keep_copy(database: &Path) -> io::Result<PathBuf> {
    let beside = |suffix: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    for suffix in ["-wal", ""] {
        let copy = beside(&format!(".before-repair{suffix}"));
        match fs::copy(beside(suffix), &copy) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::remove_file(&copy) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
            copied => drop(copied?),
        }
    }
    Ok(beside(".before-repair"))
}

/// Takes missing and damaged contents of artifacts from a backup. Returns their number.
async fn restore_contents(config: &Config, from: &Path) -> Result<u64, CliError> {
    let view = SqliteView::open(&config.database(), false)?;
    let damaged = contents_verify(config, contents(&view)?).await?;
    let hashes: Vec<String> = damaged.into_iter().map(|(hash, _)| hash).collect();
    if hashes.is_empty() {
        return Ok(0);
    }
    let draft = tempfile::tempdir_in(&config.state_dir)?;
    let found = backup::take_contents(from, &hashes, draft.path())?;
    let (blobs, ids) = (mainspring::artifact_store::blobs(config)?, Ids::system());
    for hash in &found {
        let file = draft.path().join("artifacts").join(&hash[..2]).join(hash);
        let staged = blobs.stage(ids.artifact(), &mut tokio::fs::File::open(file).await?, usize::MAX).await?;
        let kept = blobs.keep(staged).await?;
        blobs.done(kept).await;
    }
    Ok(found.len() as u64)
}

fn print(context: &Context<'_>, repaired: &RepairOutput) -> io::Result<()> {
    let output = context.output;
    output.print_line(format_args!("{DIM}the database was copied to {}{DIM:#}", repaired.copy))?;
    for Repaired { what, rows } in &repaired.repaired {
        output.print_line(format_args!("{GREEN}rebuilt{GREEN:#} {what} ({rows})"))?;
    }
    for finding in &repaired.not_repaired {
        output.print_line(format_args!("{RED}not repaired{RED:#} {finding}"))?;
    }
    match repaired.not_repaired.is_empty() {
        true => output.print_line(format_args!("{DIM}no problems remain{DIM:#}")),
        false => output.print_line(format_args!("restore a backup to get these back")),
    }
}
