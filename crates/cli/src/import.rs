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
use super::fail::{Exit, Fail, chain};
use super::output::{BOLD, DIM, GREEN, YELLOW};
use super::stdio::{alias, aliases};
use mainspring::NodeError;
use mainspring::config::Config;

/// Number of sessions between two progress messages.
const STEP: u64 = 500;

/// Take in what another program has kept
#[derive(Subcommand)]
pub(super) enum Import {
    /// Take in the state directory of the original desktop daemon: once, whole, into an empty state directory
    #[command(
        after_help = "The original must not run; its files are copied and stay as they are. Sessions, runs, attempts, \
bindings, events, artifacts, delegations and grants keep their ids, and events their numbers; docs/import.md says what \
becomes of each. What is not taken is said, with the reason."
    )]
    Omi {
        /// The folder with omi-agentd.sqlite3 in it
        dir: PathBuf,
        /// Say what would be taken and left, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// What the original called an agent runtime, and its name here; may be repeated [default: as `stdio` does]
        #[arg(long, value_name = "NAME=ADAPTER", value_parser = alias)]
        alias: Vec<(String, String)>,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a> {
    dry_run: bool,
    #[serde(flatten)]
    report: &'a OmiReport,
}

impl Import {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, Fail> {
        let Self::Omi { dir, dry_run, alias } = self;
        let config = context.config();
        if config.url.is_some() {
            let message = "an import is made where the state directory is: leave --url out";
            return Err(Fail::bad_request(message));
        }
        let report = Box::pin(omi(context, &dir, dry_run, &aliases(config, &alias))).await?;
        match context.output.json {
            true => context.output.object(&Told { dry_run, report: &report })?,
            false => shown(context, &report, dry_run)?,
        }
        Ok(Exit::Done)
    }
}

async fn omi(
    context: &Context<'_>,
    dir: &Path,
    dry_run: bool,
    adapters: &HashMap<String, String>,
) -> Result<OmiReport, Fail> {
    let (config, clock, ids) = (context.config(), Clock::system(), Ids::system());
    // Holds the state directory until the end, so that no other process sees a partial import. A dry run does not take
    // it.
    let own = match dry_run {
        true => None,
        false => Some(StateDir::open(&config.state_dir, clock.now(), ids.node()).map_err(NodeError::from)?),
    };
    let elsewhere = tempfile::tempdir()?;
    let scratch = own.as_ref().map_or(elsewhere.path(), StateDir::path);
    let source = OmiSource::open(dir, scratch)?;
    let blobs = Blobs::new(&config.artifacts_dir());
    let (mut kept, mut bytes) = (vec![], HashMap::new());
    for artifact in source.artifacts()? {
        let Some((file, size)) = reachable(&artifact, config.limits.artifact_bytes) else { continue };
        let hash = match dry_run {
            true => String::from("not kept yet"),
            false => {
                let (one, hash) = keep(&blobs, artifact.id, file, config.limits.artifact_bytes).await?;
                kept.push(one);
                hash
            }
        };
        bytes.insert(artifact.id, (hash, size));
    }
    let options =
        OmiOptions { adapters, kept: &bytes, limits: &config.limits, ids: &ids, now: clock.now(), dry_run };
    let report = source.import(&config.database(), &options, |done, all| {
        if done > 0 && done.is_multiple_of(STEP) {
            // A progress message that cannot be written does not fail the import.
            let _ = context.output.note(format_args!("{DIM}{done} of {all} sessions{DIM:#}"));
        }
    })?;
    for one in kept {
        blobs.done(one).await;
    }
    Ok(report)
}

/// Stores the bytes of a file. If the import fails, the next start removes them.
async fn keep(blobs: &Blobs, id: ArtifactId, file: File, limit: usize) -> Result<(KeptBlob, String), Fail> {
    let staged = blobs.stage(id, &mut tokio::fs::File::from_std(file), limit).await?;
    let hash = staged.hash.clone();
    Ok((blobs.keep(staged).await?, hash))
}

/// Opens the file behind an artifact's URI, if its size is within the limit and matches the original's record.
fn reachable(artifact: &OmiArtifact, limit: usize) -> Option<(File, u64)> {
    let path = match artifact.uri.strip_prefix("file://") {
        Some(rest) => PathBuf::from(std::ffi::OsString::from_vec(unescaped(
            rest.strip_prefix("localhost").unwrap_or(rest),
        ))),
        None => PathBuf::from(&artifact.uri),
    };
    let known = path.is_absolute().then(|| std::fs::metadata(&path).ok()).flatten()?;
    let fits = known.is_file() && known.len() <= limit as u64;
    let same = artifact.size.is_none_or(|size| size == known.len());
    let file = File::open(&path).ok().filter(|_| fits && same)?;
    Some((file, known.len()))
}

/// Decodes percent-encoded text.
fn unescaped(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (vec![], 0);
    while at < bytes.len() {
        let pair = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
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

fn shown(context: &Context<'_>, report: &OmiReport, dry_run: bool) -> io::Result<()> {
    let output = context.output;
    let verb = if dry_run { "would take" } else { "took" };
    for (what, taken, found) in report.counts().filter(|(.., found)| *found > 0) {
        output.line(format_args!("{GREEN}{verb}{GREEN:#} {taken} of {found} {what}"))?;
    }
    output.line(format_args!(
        "{GREEN}{verb}{GREEN:#} the runs' inputs and final texts as {} messages",
        report.messages
    ))?;
    let said = |mark: &str, OmiNote { what, why, count, examples }: &OmiNote| {
        let more = if *count > examples.len() as u64 { ", …" } else { "" };
        let named = match examples.is_empty() {
            true => String::new(),
            false => format!(" {DIM}({}{more}){DIM:#}", examples.join(", ")),
        };
        output.line(format_args!("{YELLOW}{mark}{YELLOW:#} {count} {what}: {why}{named}"))
    };
    report.changed.iter().try_for_each(|one| said("changed", one))?;
    report.left.iter().try_for_each(|one| said("left", one))?;
    let config = context.config();
    for (adapter, sessions) in report.adapters.iter().filter(|(adapter, _)| !is_known(config, adapter)) {
        output.line(format_args!(
            "{YELLOW}note{YELLOW:#} {sessions} sessions use the adapter {adapter}, which is not configured: name one \
             [adapters.{adapter}] (docs/adapters.md), or import with --alias {adapter}=NAME"
        ))?;
    }
    for (owner, sessions) in &report.owners {
        output.line(format_args!(
            "{BOLD}{sessions} sessions{BOLD:#} of {owner}: mainspring session list --owner {owner}"
        ))?;
    }
    if dry_run {
        output.line(format_args!("{DIM}nothing was changed{DIM:#}"))?;
    }
    Ok(())
}

/// True for an adapter that is configured or built in.
fn is_known(config: &Config, adapter: &str) -> bool {
    config.adapters.contains_key(adapter)
        || [mainspring_adapters::script::NAME, mainspring_agent::native::NAME].contains(&adapter)
}

impl From<OmiError> for Fail {
    fn from(error: OmiError) -> Self {
        let exit = match &error {
            OmiError::Missing { .. } => Exit::NotFound,
            OmiError::Unfit { .. } => Exit::BadRequest,
            OmiError::NotEmpty { .. } | OmiError::Done { .. } => Exit::Refused,
            OmiError::Running { .. } | OmiError::Changed { .. } | OmiError::Io { .. } => Exit::NotNow,
            OmiError::Open(_) | OmiError::Store(_) => Exit::NotNow,
        };
        let retryable = matches!(error, OmiError::Running { .. } | OmiError::Changed { .. });
        Self { exit, code: error.code().into(), message: chain(&error), retryable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_the_bytes_it_stands_for() {
        for (text, bytes) in [("/a%20b", "/a b"), ("/%C3%A9", "/é"), ("/100%", "/100%"), ("/%zz", "/%zz")] {
            assert_eq!(unescaped(text), bytes.as_bytes(), "{text}");
        }
    }
}
