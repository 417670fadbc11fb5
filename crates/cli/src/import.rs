//! `mainspring import`

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use mainspring_core::ArtifactId;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::{Blobs, KeptBlob};
use mainspring_store::{OmiArtifact, OmiError, OmiNote, OmiOptions, OmiReport, OmiSource, StateDir};
use mainspring_system::ids::Ids;
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit, chain};
use super::output::{BOLD, DIM, GREEN, YELLOW};
use super::stdio::{parse_alias, resolve_aliases};
use mainspring::NodeError;
use mainspring::config::Config;

/// Number of sessions between two progress messages.
const PROGRESS_INTERVAL_SESSIONS: u64 = 500;

/// Import the data of another program
#[derive(Subcommand)]
pub(super) enum Import {
    /// Import the state directory of the original desktop daemon into an empty state directory
    #[command(
        after_help = "The original daemon must not be running; its files are not changed. Sessions, runs, attempts, bindings, \
events, artifacts, delegations and grants keep their ids, and events their numbers; see docs/import.md. Without \
--alias, adapter names are mapped as by `mainspring stdio`. Records that are not imported are listed with the reason."
    )]
    Omi {
        /// Directory that contains omi-agentd.sqlite3
        dir: PathBuf,
        /// Print what would be imported and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Adapter for one of the original's adapter names; may be repeated
        #[arg(long, value_name = "NAME=ADAPTER", value_parser = parse_alias)]
        alias: Vec<(String, String)>,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ImportOutput<'a> {
    dry_run: bool,
    #[serde(flatten)]
    report: &'a OmiReport,
}

impl Import {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let Self::Omi { dir, dry_run, alias } = self;
        let config = context.config();
        if config.url.is_some() {
            let message = "an import writes to the local state directory: remove --url";
            return Err(CliError::bad_request(message));
        }
        let report = Box::pin(import_omi(context, &dir, dry_run, &resolve_aliases(config, &alias))).await?;
        match context.output.json {
            true => context.output.print_own_json(&ImportOutput { dry_run, report: &report })?,
            false => print_report(context, &report, dry_run)?,
        }
        Ok(Exit::Done)
    }
}

async fn import_omi(
    context: &Context<'_>,
    dir: &Path,
    dry_run: bool,
    adapters: &HashMap<String, String>,
) -> Result<OmiReport, CliError> {
    context.check_sqlite("import")?;
    let (config, clock, ids) = (context.config(), Clock::system(), Ids::system());
    // Holds the state directory until the end, so that no other process sees a partial import. A dry run does not take
    // the directory.
    let state_dir = match dry_run {
        true => None,
        false => Some(StateDir::open(&config.state_dir, clock.now(), ids.node()).map_err(NodeError::from)?),
    };
    let temporary = tempfile::tempdir()?;
    let scratch = state_dir.as_ref().map_or(temporary.path(), StateDir::path);
    let source = OmiSource::open(dir, scratch)?;
    let blobs = mainspring::artifact_store::blobs(config)?;
    let (mut kept, mut bytes) = (vec![], HashMap::new());
    for artifact in source.artifacts()? {
        let Some((file, size)) = open_artifact_file(&artifact, config.limits.artifact_bytes) else {
            continue;
        };
        let hash = match dry_run {
            true => String::from("not kept yet"),
            false => {
                let (blob, hash) =
                    store_blob(&blobs, artifact.id, file, config.limits.artifact_bytes).await?;
                kept.push(blob);
                hash
            }
        };
        bytes.insert(artifact.id, (hash, size));
    }
    let options =
        OmiOptions { adapters, kept: &bytes, limits: &config.limits, ids: &ids, now: clock.now(), dry_run };
    let report = source.import(&config.database(), &options, |done, all| {
        if done > 0 && done.is_multiple_of(PROGRESS_INTERVAL_SESSIONS) {
            // A progress message that cannot be written does not fail the import.
            let _ = context.output.print_note(format_args!("{DIM}{done} of {all} sessions{DIM:#}"));
        }
    })?;
    for blob in kept {
        blobs.done(blob).await;
    }
    Ok(report)
}

/// Stores the bytes of a file. If the import fails, the next start removes them.
async fn store_blob(
    blobs: &Blobs,
    id: ArtifactId,
    file: File,
    limit: usize,
) -> Result<(KeptBlob, String), CliError> {
    let staged = blobs.stage(id, &mut tokio::fs::File::from_std(file), limit).await?;
    let hash = staged.hash.clone();
    Ok((blobs.keep(staged).await?, hash))
}

/// Opens the file of an artifact's URI, if its size is within the limit and is the size that the original recorded.
fn open_artifact_file(artifact: &OmiArtifact, limit: usize) -> Option<(File, u64)> {
    let path = match artifact.uri.strip_prefix("file://") {
        Some(rest) => PathBuf::from(std::ffi::OsString::from_vec(percent_decode(
            rest.strip_prefix("localhost").unwrap_or(rest),
        ))),
        None => PathBuf::from(&artifact.uri),
    };
    let metadata = path.is_absolute().then(|| std::fs::metadata(&path).ok()).flatten()?;
    let fits = metadata.is_file() && metadata.len() <= limit as u64;
    let same_size = artifact.size.is_none_or(|size| size == metadata.len());
    let file = File::open(&path).ok().filter(|_| fits && same_size)?;
    Some((file, metadata.len()))
}

/// Decodes percent-encoded text.
fn percent_decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (vec![], 0);
    while at < bytes.len() {
        let pair = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        let pair = pair.filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

fn print_report(context: &Context<'_>, report: &OmiReport, dry_run: bool) -> io::Result<()> {
    let output = context.output;
    let verb = if dry_run { "would import" } else { "imported" };
    for (what, taken, found) in report.counts().filter(|(.., found)| *found > 0) {
        output.print_line(format_args!("{GREEN}{verb}{GREEN:#} {taken} of {found} {what}"))?;
    }
    output.print_line(format_args!(
        "{GREEN}{verb}{GREEN:#} the runs' inputs and final texts as {} messages",
        report.messages
    ))?;
    let print_note = |mark: &str, OmiNote { what, why, count, examples }: &OmiNote| {
        let more = if *count > examples.len() as u64 { ", …" } else { "" };
        let listed = match examples.is_empty() {
            true => String::new(),
            false => format!(" {DIM}({}{more}){DIM:#}", examples.join(", ")),
        };
        output.print_line(format_args!("{YELLOW}{mark}{YELLOW:#} {count} {what}: {why}{listed}"))
    };
    report.changed.iter().try_for_each(|note| print_note("changed", note))?;
    report.left.iter().try_for_each(|note| print_note("skipped", note))?;
    let config = context.config();
    for (adapter, sessions) in report.adapters.iter().filter(|(adapter, _)| !is_known(config, adapter)) {
        output.print_line(format_args!(
            "{YELLOW}note{YELLOW:#} {sessions} sessions use the adapter {adapter}, which is not configured: configure \
             [adapters.{adapter}] (docs/adapters.md) or import with --alias {adapter}=NAME"
        ))?;
    }
    for (owner, sessions) in &report.owners {
        output.print_line(format_args!(
            "{BOLD}{sessions} sessions{BOLD:#} of {owner}: mainspring session list --owner {owner}"
        ))?;
    }
    if dry_run {
        output.print_line(format_args!("{DIM}nothing was changed{DIM:#}"))?;
    }
    Ok(())
}

/// True for an adapter that is configured or built in.
fn is_known(config: &Config, adapter: &str) -> bool {
    config.adapters.contains_key(adapter)
        || [mainspring_adapters::script::NAME, mainspring_agent::native::NAME].contains(&adapter)
}

impl From<OmiError> for CliError {
    fn from(error: OmiError) -> Self {
        let exit = match &error {
            OmiError::Missing { .. } => Exit::NotFound,
            OmiError::Unfit { .. } => Exit::BadRequest,
            OmiError::NotEmpty { .. } | OmiError::Done { .. } => Exit::Refused,
            OmiError::Running { .. } | OmiError::Changed { .. } | OmiError::Io { .. } => Exit::Unavailable,
            OmiError::Open(_) | OmiError::Store(_) => Exit::Unavailable,
        };
        let retryable = matches!(error, OmiError::Running { .. } | OmiError::Changed { .. });
        Self { exit, code: error.code().into(), message: chain(&error), retryable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoded_bytes_are_decoded() {
        for (text, bytes) in
            [("/a%20b", "/a b"), ("/%C3%A9", "/é"), ("/100%", "/100%"), ("/%zz%+5", "/%zz%+5")]
        {
            assert_eq!(percent_decode(text), bytes.as_bytes(), "{text}");
        }
    }
}
