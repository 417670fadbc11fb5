//! `mainspring verify`

use std::fs;
use std::path::Path;

use clap::Args;
use mainspring_kernel::audit::AuditVerified;
use mainspring_kernel::store::StoreError;
use mainspring_store::{PostgresView, SCHEMA_VERSION, SqliteView, StateDir, Verification};
use serde::Serialize;

use super::Context;
use super::error::{CliError, Exit, chain};
use super::output::{DIM, GREEN, RED};
use mainspring::config::Config;

/// Recompute all stored data that can be derived from other data, and name each finding
#[derive(Args)]
#[command(
    after_help = "Reads everything and changes nothing: the structure of the database and the checksums of rows, or the form of the records of \
a PostgreSQL; runs and messages \
against their events, the trees of messages, the bytes of artifacts against their hashes, and the chain of hashes of the audit log. Exit code 5 if something is wrong."
)]
pub(super) struct Verify {}

/// The result of verifying one part.
#[derive(Serialize)]
pub(super) struct VerifiedPart {
    part: &'static str,
    /// Pages, rows or contents that were compared.
    checked: u64,
    /// Rows without a checksum: an earlier version wrote them.
    unknown: u64,
    pub(super) findings: Vec<String>,
}

impl Verify {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        context.check_store("verify")?;
        let busy = context.output.start_spinner("reading");
        let parts = verify(context.config()).await?;
        drop(busy);
        let is_bad = parts.iter().any(|part| !part.findings.is_empty());
        match context.output.json {
            true => parts.iter().try_for_each(|part| context.output.print_own_json(part))?,
            false => print(context, &parts)?,
        }
        Ok(if is_bad { Exit::Unavailable } else { Exit::Done })
    }
}

/// Verifies the database, the artifacts and the audit log.
pub(super) async fn verify(config: &Config) -> Result<Vec<VerifiedPart>, CliError> {
    let owned = config.clone();
    let work = tokio::task::spawn_blocking(move || match &owned.store {
        Some(url) => verify_postgres(&owned, url),
        None => verify_sqlite(&owned),
    });
    let (parts, contents) = work.await.map_err(std::io::Error::other)??;
    let verified = parts.into_iter().map(|part| VerifiedPart {
        part: part.part.name(),
        checked: part.checked,
        unknown: part.unknown,
        findings: part.findings,
    });
    let mut verified: Vec<VerifiedPart> = verified.collect();
    let checked = contents.len() as u64;
    let damaged = contents_verify(config, contents).await?;
    let findings = damaged.into_iter().map(|(_, problem)| problem).collect();
    verified.push(VerifiedPart { part: "artifacts", checked, unknown: 0, findings });
    let folder = config.audit_dir();
    let audit = tokio::task::spawn_blocking(move || mainspring_kernel::audit::verify(&folder));
    let AuditVerified { checked, findings, .. } = audit.await.map_err(std::io::Error::other)??;
    verified.push(VerifiedPart { part: "audit", checked, unknown: 0, findings });
    Ok(verified)
}

/// The hashes and sizes of contents of artifacts.
type Contents = Vec<(String, u64)>;

fn verify_sqlite(config: &Config) -> Result<(Vec<Verification>, Contents), CliError> {
    let database = config.database();
    if !database.exists() {
        return Err(CliError::not_found(format!("{} does not exist: nothing is stored", database.display())));
    }
    read_unchanged(config, |is_served| read_sqlite(&database, is_served))
}

/// Reads the database. Reads it again if another process has changed its file meanwhile: the file of a database that
/// nobody uses is read without locks.
fn read_unchanged<T>(config: &Config, read: impl Fn(bool) -> Result<T, CliError>) -> Result<T, CliError> {
    loop {
        let changed_at = fs::metadata(config.database())?.modified()?;
        let is_served = StateDir::peek(&config.state_dir)?.is_some();
        let outcome = read(is_served);
        if is_served || fs::metadata(config.database())?.modified()? == changed_at {
            return outcome;
        }
    }
}

fn read_sqlite(database: &Path, is_served: bool) -> Result<(Vec<Verification>, Contents), CliError> {
    let view = SqliteView::open(database, is_served)?;
    let schema = view.schema_version()?;
    if schema != SCHEMA_VERSION {
        return Err(CliError::unusable(format!(
            "{} has schema {schema}, this version verifies {SCHEMA_VERSION}: start this version once, \
             which migrates it, or use the version that wrote it",
            database.display()
        )));
    }
    let parts = view.verify().map_err(mainspring_kernel::Error::from)?;
    Ok((parts, contents(&view)?))
}

fn verify_postgres(config: &Config, url: &str) -> Result<(Vec<Verification>, Contents), CliError> {
    let address = config.database_name();
    let unusable = |error: &dyn std::error::Error| CliError::unusable(format!("{address}: {}", chain(error)));
    let view = PostgresView::open(url).map_err(|error| unusable(&error))?;
    let Some(view) = view else {
        return Err(CliError::not_found(format!("{address} has no tables: nothing is stored")));
    };
    let parts = view.verify().map_err(|error| unusable(&error))?;
    Ok((parts, all_pages(|after| view.blob_page(after, PAGE))?))
}

/// Lists the contents of artifacts of a SQLite database.
pub(super) fn contents(view: &SqliteView) -> Result<Contents, CliError> {
    all_pages(|after| view.blob_page(after, PAGE))
}

/// The number of contents that are read at once.
const PAGE: usize = 500;

fn all_pages(page: impl Fn(Option<&str>) -> Result<Contents, StoreError>) -> Result<Contents, CliError> {
    let mut all = Contents::new();
    loop {
        let next = page(all.last().map(|(hash, _)| hash.as_str())).map_err(mainspring_kernel::Error::from)?;
        if next.is_empty() {
            return Ok(all);
        }
        all.extend(next);
    }
}

/// Compares the contents of artifacts with their hashes. Returns the hash and the problem of each damaged one.
pub(super) async fn contents_verify(
    config: &Config,
    contents: Contents,
) -> Result<Vec<(String, String)>, CliError> {
    let blobs = mainspring::artifact_store::blobs(config)?;
    let mut damaged = vec![];
    for (hash, size) in contents {
        damaged.extend(blobs.check(&hash, size, true).await.map(|problem| (hash, problem)));
    }
    Ok(damaged)
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use mainspring_core::{NodeId, Time};

    use super::*;

    #[test]
    fn a_database_that_changes_while_it_is_read_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::with_state_dir(dir.path());
        let database = File::create(config.database()).unwrap();
        database.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let (readings, owner) = (RefCell::new(vec![]), RefCell::new(None));
        let read = |is_served| {
            readings.borrow_mut().push(is_served);
            // A process starts during the first reading, and goes on changing the file.
            owner.borrow_mut().get_or_insert_with(|| {
                StateDir::open(dir.path(), Time(1), NodeId::from_random([1; 16])).unwrap()
            });
            Ok(database.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1))?)
        };
        read_unchanged(&config, read).unwrap();
        assert_eq!(*readings.borrow(), [false, true]);
    }
}
