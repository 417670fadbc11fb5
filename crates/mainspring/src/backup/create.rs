//! Makes a backup.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use mainspring_core::Time;
use mainspring_store::{SqliteView, StateDir};

use super::tar::TarWriter;
use super::{
    BackupError, DATABASE, FileEntry, MANIFEST, Manifest, blob_path, copy_hashed, exists, file_write,
    folder_make, folder_sync, or_remove, partial, remove,
};
use crate::config::Config;

/// The number of times that the database is copied, if artifacts are added and deleted while it is.
const MAX_COPIES: u32 = 5;
const PAGE: usize = 500;

/// Backs the state directory up to `to`: a new folder, or a new tar file if its name ends with `.tar`. Another process
/// may be serving the directory.
pub fn create(config: &Config, to: &Path, now: Time) -> Result<Manifest, BackupError> {
    if exists(to) {
        return Err(BackupError::Exists { path: to.into() });
    }
    if !config.database().exists() {
        return Err(BackupError::Nothing { path: config.state_dir.clone() });
    }
    let draft = partial(to);
    // Left by a backup that was killed.
    remove(&draft).map_err(BackupError::io(&draft))?;
    or_remove(&draft, || {
        folder_make(&draft).map_err(BackupError::io(&draft))?;
        let manifest = collect(config, &draft, now)?;
        let is_tar = to.extension().is_some_and(|extension| extension == "tar");
        match is_tar {
            true => pack(&draft, &manifest, to)?,
            false => fs::rename(&draft, to).map_err(BackupError::io(to))?,
        }
        folder_sync(to).map_err(BackupError::io(to))?;
        Ok(manifest)
    })
}

/// Copies everything into the folder `draft`.
fn collect(config: &Config, draft: &Path, now: Time) -> Result<Manifest, BackupError> {
    let mut files = BTreeMap::new();
    let view = open(config)?;
    copy_blobs(config, &view, draft, &mut files)?;
    let database = draft.join(DATABASE);
    let mut copies = 0;
    let summary = loop {
        copies += 1;
        remove(&database).map_err(BackupError::io(&database))?;
        let summary = view.copy_to(&database)?;
        match copy_blobs(config, &SqliteView::open(&database, false)?, draft, &mut files) {
            // Added and deleted again since the first pass: the next copy of the database does not have it.
            Err(BackupError::Artifact { .. }) if copies < MAX_COPIES => {}
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

/// Removes copied contents that the copied database does not name, and describes the rest.
fn finish(
    database: &Path,
    draft: &Path,
    summary: mainspring_store::CopySummary,
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

/// Opens the database, whether a process serves it or not.
fn open(config: &Config) -> Result<SqliteView, BackupError> {
    let is_served = StateDir::peek(&config.state_dir)?.is_some();
    Ok(SqliteView::open(&config.database(), is_served)?)
}

/// Lists the paths of all contents of artifacts, with their hashes.
fn hashes(view: &SqliteView) -> Result<BTreeMap<String, String>, BackupError> {
    let (mut all, mut after) = (BTreeMap::new(), None);
    loop {
        let page = view.blob_page(after.as_deref(), PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(all) };
        after = Some(last.clone());
        all.extend(page.into_iter().map(|(hash, _)| (blob_path(&hash), hash)));
    }
}

/// Copies the contents of artifacts that are not in `files` yet, and compares them with their hashes. Those in an object
/// store stay there.
fn copy_blobs(
    config: &Config,
    view: &SqliteView,
    draft: &Path,
    files: &mut BTreeMap<String, FileEntry>,
) -> Result<(), BackupError> {
    if config.artifact_store.url.is_some() {
        return Ok(());
    }
    for (path, hash) in hashes(view)? {
        if files.contains_key(&path) {
            continue;
        }
        let source = config.artifacts_dir().join(path.trim_start_matches("artifacts/"));
        let mut file = match File::open(&source) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Deleted since the list was read, unless the copied database still names it.
                if view.is_served() {
                    continue;
                }
                return Err(BackupError::Artifact { hash, problem: "missing" });
            }
            Err(error) => return Err(BackupError::io(&source)(error)),
        };
        let target = draft.join(&path);
        let entry = file_write(&target, &mut file).map_err(BackupError::io(&target))?;
        if entry.blake3 != hash {
            return Err(BackupError::Artifact { hash, problem: "damaged" });
        }
        files.insert(path, entry);
    }
    Ok(())
}

/// Copies the audit log. Its head is read first, so that the copied files hold at least the records up to it.
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
        // The manifest comes first, so that a reader knows what to expect.
        for path in std::iter::once(MANIFEST).chain(manifest.files.keys().map(String::as_str)) {
            tar.add(path, &mut File::open(draft.join(path))?)?;
        }
        tar.finish()?;
        fs::rename(&packed, to)
    };
    pack().map_err(BackupError::io(to))?;
    remove(draft).map_err(BackupError::io(draft))
}
