//! `mainspring verify`

use clap::Args;
use mainspring_kernel::audit::AuditVerified;
use mainspring_store::{SCHEMA_VERSION, SqliteView, StateDir};
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit};
use super::output::{DIM, GREEN, RED};
use mainspring::config::Config;

/// Recompute all stored data that can be derived from other data, and name each finding
#[derive(Args)]
#[command(
    after_help = "Reads everything and changes nothing: the structure of the database, the checksums of rows, runs and messages \
against their events, the trees of messages, the bytes of artifacts against their hashes, and the chain of hashes of the audit log. Exit code 5 if something is wrong."
)]
pub(super) struct Verify {}

/// The result of verifying one part.
#[derive(Serialize)]
pub(super) struct VerifiedPart {
    part: &'static str,
    /// Pages, rows or contents that were compared.
    checked: u64,
    /// Rows of versions without checksums.
    unknown: u64,
    pub(super) findings: Vec<String>,
}

impl Verify {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        context.check_local("verify")?;
        let busy = context.output.start_spinner("reading");
        let parts = verify(context.config()).await?;
        drop(busy);
        let is_bad = parts.iter().any(|part| !part.findings.is_empty());
        match context.output.json {
            true => parts.iter().try_for_each(|part| context.output.print_json(part))?,
            false => print(context, &parts)?,
        }
        Ok(if is_bad { Exit::Unavailable } else { Exit::Done })
    }
}

/// Verifies the database and the artifacts.
pub(super) async fn verify(config: &Config) -> Result<Vec<VerifiedPart>, CliError> {
    let database = config.database();
    if !database.exists() {
        return Err(CliError::not_found(format!("{} does not exist: nothing is stored", database.display())));
    }
    let is_served = StateDir::peek(&config.state_dir)?.is_some();
    let work = tokio::task::spawn_blocking(move || {
        let view = SqliteView::open(&database, is_served)?;
        let schema = view.schema_version()?;
        if schema != SCHEMA_VERSION {
            return Err(CliError::unusable(format!(
                "{} has schema {schema}, this version verifies {SCHEMA_VERSION}: start this version once, \
                 which migrates it, or use the version that wrote it",
                database.display()
            )));
        }
        let parts = view.verify().map_err(mainspring_kernel::Error::from)?;
        Ok((view, parts))
    });
    let (view, parts) = work.await.map_err(std::io::Error::other)??;
    let name = |part: mainspring_store::Verified| match part {
        mainspring_store::Verified::Structure => "structure",
        mainspring_store::Verified::Checksums => "checksums",
        mainspring_store::Verified::Events => "events",
        mainspring_store::Verified::Trees => "trees",
    };
    let mut verified: Vec<VerifiedPart> = parts
        .into_iter()
        .map(|part| VerifiedPart {
            part: name(part.part),
            checked: part.checked,
            unknown: part.unknown,
            findings: part.findings,
        })
        .collect();
    let (checked, damaged) = blobs_verify(config, &view).await?;
    let findings = damaged.into_iter().map(|(_, problem)| problem).collect();
    verified.push(VerifiedPart { part: "artifacts", checked, unknown: 0, findings });
    let folder = config.audit_dir();
    let audit = tokio::task::spawn_blocking(move || mainspring_kernel::audit::verify(&folder));
    let AuditVerified { checked, findings, .. } = audit.await.map_err(std::io::Error::other)??;
    verified.push(VerifiedPart { part: "audit", checked, unknown: 0, findings });
    Ok(verified)
}

/// Compares the contents of artifacts with their hashes. Returns their number, and hash and problem of each damaged one.
pub(super) async fn blobs_verify(
    config: &Config,
    view: &SqliteView,
) -> Result<(u64, Vec<(String, String)>), CliError> {
    let blobs = mainspring::artifact_store::blobs(config)?;
    let (mut checked, mut damaged, mut after) = (0, vec![], None);
    loop {
        let page = view.blob_page(after.as_deref(), 500).map_err(mainspring_kernel::Error::from)?;
        let Some((last, _)) = page.last() else { return Ok((checked, damaged)) };
        after = Some(last.clone());
        for (hash, size) in page {
            checked += 1;
            damaged.extend(blobs.check(&hash, size, true).await.map(|problem| (hash, problem)));
        }
    }
}

fn print(context: &Context<'_>, parts: &[VerifiedPart]) -> std::io::Result<()> {
    let output = context.output;
    for part in parts {
        let label = match part.findings.is_empty() {
            true => format!("{GREEN}ok {GREEN:#}"),
            false => format!("{RED}bad{RED:#}"),
        };
        let unknown = match part.unknown {
            0 => String::new(),
            unknown => {
                format!(", {unknown} of earlier versions have no checksum: `mainspring repair` adds them")
            }
        };
        output.print_line(format_args!("{label} {:<12} {} checked{unknown}", part.part, part.checked))?;
        for finding in &part.findings {
            output.print_line(format_args!("    {finding}"))?;
        }
    }
    match parts.iter().all(|part| part.findings.is_empty()) {
        true => output.print_line(format_args!("{DIM}no problems found{DIM:#}")),
        false => output.print_line(format_args!(
            "{RED}problems found{RED:#}: try `mainspring repair`, or restore a backup"
        )),
    }
}
