//! Makes a backup.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use mainspring_core::Time;
use mainspring_store::{CopySummary, SqliteView, StateDir};

use super::tar::TarWriter;
use super::{
    BackupError, ContentProblem, DATABASE, FileEntry, MANIFEST, Manifest, blob_path, copy_hashed, exists,
    file_write, folder_make, folder_sync, or_remove, partial, remove,
};
use crate::config::Config;

/// Maximum copies of the database. A copy is repeated if an artifact that it names was deleted during the backup.
const MAX_COPIES: u32 = 5;
const PAGE: usize = 500;

/// Backs up the state directory and the database of the configuration to `to`: a new folder, or a new tar file if the
/// name ends with `.tar`. Other processes may serve the directory and the database meanwhile.
pub fn create(config: &Config, to: &Path, now: Time) -> Result<Manifest, BackupError> {
    if exists(to) {
        return Err(BackupError::Exists { path: to.into() });
    }
    let source = Database::open(config)?;
    let draft = partial(to);
    // Left by a backup that was killed.
    remove(&draft).map_err(BackupError::io(&draft))?;
    or_remove(&draft, || {
        let manifest = collect_settled(config, source, &draft, now)?;
        let is_tar = to.extension().is_some_and(|extension| extension == "tar");
        match is_tar {
            true => pack(&draft, &manifest, to)?,
            false => fs::rename(&draft, to).map_err(BackupError::io(to))?,
        }
        folder_sync(to).map_err(BackupError::io(to))?;
        Ok(manifest)
    })
}

/// Copies everything into the new folder `draft`. Begins again if a process has begun to serve the state directory
/// meanwhile: it changes files that were read as if nobody changed them.
fn collect_settled(
    config: &Config,
    mut source: Database,
    draft: &Path,
    now: Time,
) -> Result<Manifest, BackupError> {
    loop {
        folder_make(draft).map_err(BackupError::io(draft))?;
        let collected = collect(config, &source, draft, now);
        if source.is_served() || StateDir::peek(&config.state_dir)?.is_none() {
            return collected;
        }
        remove(draft).map_err(BackupError::io(draft))?;
        source = Database::open(config)?;
    }
}

/// Copies everything into the folder `draft`.
fn collect(config: &Config, source: &Database, draft: &Path, now: Time) -> Result<Manifest, BackupError> {
    let mut files = BTreeMap::new();
    copy_blobs(config, source.hashes()?, source.is_served(), draft, &mut files)?;
    let database = draft.join(DATABASE);
    let mut copies = 0;
    let summary = loop {
        copies += 1;
        remove(&database).map_err(BackupError::io(&database))?;
        let summary = source.copy_to(&database, now)?;
        let copied = hashes(&SqliteView::open(&database, false)?)?;
        match copy_blobs(config, copied, false, draft, &mut files) {
            // The artifact was added after the first pass and has been deleted since: the next copy of the database
            // does not name it.
            Err(BackupError::Artifact { problem: ContentProblem::Missing, .. }) if copies < MAX_COPIES => {}
            copied => {
                copied?;
                break summary;
            }
        }
    };
    copy_audit(config, draft, &mut files)?;
    let entry = hash_file(&database).map_err(BackupError::io(&database))?;
    let mut manifest = finish(&database, draft, summary, now, files, entry)?;
    manifest.artifact_store.clone_from(&config.artifact_store.url);
    let path = draft.join(MANIFEST);
    let text = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
    file_write(&path, &mut &text[..]).map_err(BackupError::io(&path))?;
    Ok(manifest)
}

/// Removes copied contents that the copied database does not name, and returns the manifest of the other files.
fn finish(
    database: &Path,
    draft: &Path,
    summary: CopySummary,
    now: Time,
    mut files: BTreeMap<String, FileEntry>,
    entry: FileEntry,
) -> Result<Manifest, BackupError> {
    let named = hashes(&SqliteView::open(database, false)?)?;
    let is_deleted = |path: &&String| path.starts_with("artifacts/") && !named.contains_key(*path);
    let deleted: Vec<String> = files.keys().filter(is_deleted).cloned().collect();
    for path in deleted {
        files.remove(&path);
        remove(&draft.join(&path)).map_err(BackupError::io(draft))?;
    }
    files.insert(DATABASE.into(), entry);
    Ok(Manifest::new(summary, now, files))
}

/// The database that is backed up.
enum Database {
    /// SQLite, whether a process serves it or not.
    Sqlite(SqliteView),
    /// The PostgreSQL database of the configuration.
    #[cfg(feature = "postgres")]
    Postgres {
        /// The URL.
        url: String,
        /// The URL without its password.
        address: String,
    },
}

impl Database {
    fn open(config: &Config) -> Result<Self, BackupError> {
        if let Some(url) = &config.store {
            return Self::open_postgres(config, url);
        }
        if !config.database().exists() {
            return Err(BackupError::Nothing { path: config.state_dir.clone() });
        }
        let is_served = StateDir::peek(&config.state_dir)?.is_some();
        Ok(Self::Sqlite(SqliteView::open(&config.database(), is_served)?))
    }

    #[cfg(feature = "postgres")]
    fn open_postgres(config: &Config, url: &str) -> Result<Self, BackupError> {
        let database = Self::Postgres { url: url.into(), address: config.database_name() };
        database.view().map(|_| database)
    }

    #[cfg(not(feature = "postgres"))]
    fn open_postgres(config: &Config, _url: &str) -> Result<Self, BackupError> {
        let source = mainspring_store::CopyError::NoPostgres;
        Err(BackupError::Database { address: config.database_name(), source })
    }

    /// Opens a snapshot of the PostgreSQL database.
    #[cfg(feature = "postgres")]
    fn view(&self) -> Result<mainspring_store::PostgresView, BackupError> {
        let Self::Postgres { url, address } = self else {
            return Err(BackupError::Nothing { path: Path::new(DATABASE).into() });
        };
        let opened = mainspring_store::PostgresView::open(url);
        let opened = opened
            .map_err(|error| BackupError::Database { address: address.clone(), source: error.into() })?;
        opened.ok_or_else(|| BackupError::Nothing { path: address.into() })
    }

    /// True if contents of artifacts may be deleted while the backup is made.
    fn is_served(&self) -> bool {
        match self {
            Self::Sqlite(view) => view.is_served(),
            #[cfg(feature = "postgres")]
            Self::Postgres { .. } => true,
        }
    }

    fn hashes(&self) -> Result<BTreeMap<String, String>, BackupError> {
        match self {
            Self::Sqlite(view) => hashes(view),
            #[cfg(feature = "postgres")]
            Self::Postgres { .. } => {
                let view = self.view()?;
                paths(|after| Ok(view.blob_page(after, PAGE)?))
            }
        }
    }

    /// Copies the database at one instant into the new SQLite file `to`, without API keys.
    fn copy_to(&self, to: &Path, now: Time) -> Result<CopySummary, BackupError> {
        match self {
            Self::Sqlite(view) => Ok(view.copy_to(to)?),
            #[cfg(feature = "postgres")]
            Self::Postgres { address, .. } => {
                let copied = self.view()?.copy_to(to, now);
                copied.map_err(|source| BackupError::Database { address: address.clone(), source })
            }
        }
    }
}

/// Lists the paths of all contents of artifacts, with their hashes.
fn hashes(view: &SqliteView) -> Result<BTreeMap<String, String>, BackupError> {
    paths(|after| Ok(view.blob_page(after, PAGE)?))
}

/// Lists the paths of all contents of artifacts, with their hashes. `page` returns the contents after a hash.
fn paths(
    page: impl Fn(Option<&str>) -> Result<Vec<(String, u64)>, BackupError>,
) -> Result<BTreeMap<String, String>, BackupError> {
    let (mut all, mut after) = (BTreeMap::new(), None);
    loop {
        let page = page(after.as_deref())?;
        let Some((last, _)) = page.last() else { return Ok(all) };
        after = Some(last.clone());
        all.extend(page.into_iter().map(|(hash, _)| (blob_path(&hash), hash)));
    }
}

/// Copies the contents of artifacts that are not in `files` yet, and compares them with their hashes. Does nothing if
/// the contents are in an object store.
fn copy_blobs(
    config: &Config,
    hashes: BTreeMap<String, String>,
    is_served: bool,
    draft: &Path,
    files: &mut BTreeMap<String, FileEntry>,
) -> Result<(), BackupError> {
    if config.artifact_store.url.is_some() {
        return Ok(());
    }
    for (path, hash) in hashes {
        if files.contains_key(&path) {
            continue;
        }
        let source = config.artifacts_dir().join(path.trim_start_matches("artifacts/"));
        let mut file = match File::open(&source) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // With `is_served`, the artifact was deleted after the list was read.
                if is_served {
                    continue;
                }
                return Err(BackupError::Artifact { hash, problem: ContentProblem::Missing });
            }
            Err(error) => return Err(BackupError::io(&source)(error)),
        };
        let target = draft.join(&path);
        let entry = file_write(&target, &mut file).map_err(BackupError::io(&target))?;
        if entry.blake3 != hash {
            return Err(BackupError::Artifact { hash, problem: ContentProblem::Damaged });
        }
        files.insert(path, entry);
    }
    Ok(())
}

/// Copies the audit log. Its head is read first, so that the copied files hold at least the records up to that head.
fn copy_audit(
    config: &Config,
    draft: &Path,
    files: &mut BTreeMap<String, FileEntry>,
) -> Result<(), BackupError> {
    let folder = config.audit_dir();
    for (name, content) in mainspring_kernel::audit::copies(&folder).map_err(BackupError::io(&folder))? {
        let path = format!("audit/{name}");
        let target = draft.join(&path);
        // A file that was removed meanwhile is not needed: a later file records its removal.
        let Some(mut content) = content.open().map_err(BackupError::io(&folder))? else { continue };
        let entry = file_write(&target, &mut content).map_err(BackupError::io(&target))?;
        files.insert(path, entry);
    }
    Ok(())
}

fn hash_file(path: &Path) -> io::Result<FileEntry> {
    copy_hashed(&mut File::open(path)?, &mut io::sink())
}

/// Packs the files of `draft` into the tar file `to`, and removes `draft`.
fn pack(draft: &Path, manifest: &Manifest, to: &Path) -> Result<(), BackupError> {
    let packed = draft.join("packed.tar");
    let pack = || {
        let mut tar = TarWriter::create(&packed)?;
        // The manifest comes first, so that a reader knows the other files.
        for path in std::iter::once(MANIFEST).chain(manifest.files.keys().map(String::as_str)) {
            tar.add(path, &mut File::open(draft.join(path))?)?;
        }
        tar.finish()?;
        fs::rename(&packed, to)
    };
    pack().map_err(BackupError::io(to))?;
    remove(draft).map_err(BackupError::io(draft))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mainspring_kernel::kernel::{Caller, RunRequest};

    use super::*;
    use crate::Node;

    #[tokio::test]
    async fn a_database_is_copied_again_if_a_server_has_begun_to_use_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::with_state_dir(folder.path().join("state"));
        Node::open(&config).await.unwrap().close().await;
        let source = Database::open(&config).unwrap();
        assert!(!source.is_served());
        let node = Node::open(&config).await.unwrap();
        let (kernel, me) = (node.kernel(), Caller::new("ada"));
        let run = kernel.run_create(&me, RunRequest::text("a", "say hi")).await.unwrap().run;
        kernel.run_wait(&me, run.id, Duration::from_secs(60)).await.unwrap();
        let draft = folder.path().join("draft");
        collect_settled(&config, source, &draft, Time(1)).unwrap();
        let copied = SqliteView::open(&draft.join(DATABASE), false).unwrap().check(true).unwrap();
        assert_eq!((copied.runs, copied.problems), (1, vec![]));
        node.close().await;
    }
}
