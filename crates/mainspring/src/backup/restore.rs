//! Restores a backup into a state directory without data, or into an empty PostgreSQL database.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mainspring_core::Time;
use mainspring_kernel::ids::Ids;
use mainspring_store::{
    CopyEnd, CopyOptions, CopyStep, RestoredCursors, StateDir, database_restore, store_copy,
};

use super::tar::TarReader;
use super::{
    BackupError, DATABASE, FORMAT, MANIFEST, Manifest, blob_path, exists, file_write, folder_make,
    folder_sync, or_remove, remove,
};
use crate::config::Config;
use crate::store_copy::blob_copy;

/// The folder in the state directory in which a backup is unpacked and checked.
const DRAFT: &str = "restoring";
/// The largest manifest that is read.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// A backup that was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The content of the backup.
    pub manifest: Manifest,
    /// The cursors that were skipped.
    pub cursors: RestoredCursors,
}

/// Restores the backup at `from` into the state directory and the database that the configuration names, which must have no
/// data. Checks the hash of every file before it puts the first one in place.
pub fn restore(config: &Config, from: &Path, now: Time) -> Result<Restored, BackupError> {
    // Checked before the state directory is created.
    let manifest = manifest_read(from)?;
    check_artifact_store(config, &manifest)?;
    let state_dir = StateDir::open(&config.state_dir, now, Ids::system().node())?;
    if config.store.is_none() {
        refuse_data(config)?;
    }
    let draft = state_dir.path().join(DRAFT);
    // Left by a restore that was killed.
    remove(&draft).map_err(BackupError::io(&draft))?;
    or_remove(&draft, || {
        folder_make(&draft).map_err(BackupError::io(&draft))?;
        unpack(from, &manifest, &draft)?;
        let cursors = database_restore(&draft.join(DATABASE), Time(manifest.created_at_ms), now)?;
        match &config.store {
            Some(url) => place_in_postgres(config, url, &manifest, &draft, now)?,
            None => place_in_directory(config, &draft).map_err(BackupError::io(&config.state_dir))?,
        }
        remove(&draft).map_err(BackupError::io(&draft))?;
        Ok(Restored { manifest: manifest.clone(), cursors })
    })
}

/// Refuses a backup whose artifacts a server with this configuration would not find.
fn check_artifact_store(config: &Config, manifest: &Manifest) -> Result<(), BackupError> {
    match (&manifest.artifact_store, &config.artifact_store.url) {
        (Some(url), None) => Err(BackupError::ArtifactsElsewhere { url: url.clone() }),
        (None, Some(url)) if manifest.artifacts() > 0 => {
            Err(BackupError::ArtifactsHere { url: url.clone(), contents: manifest.artifacts() })
        }
        _ => Ok(()),
    }
}

/// Moves the files of a backup to their places.
fn place_in_directory(config: &Config, draft: &Path) -> io::Result<()> {
    let artifacts = draft.join("artifacts");
    if exists(&artifacts) {
        remove_empty(&config.artifacts_dir())?;
        fs::rename(&artifacts, config.artifacts_dir())?;
    }
    place_audit(config, draft)?;
    // The database comes last: once it is there, the restore is complete.
    fs::rename(draft.join(DATABASE), config.database())?;
    folder_sync(&config.database())
}

/// Copies the database of a backup into an empty PostgreSQL database, and the bytes of its artifacts into the state
/// directory.
fn place_in_postgres(
    config: &Config,
    url: &str,
    manifest: &Manifest,
    draft: &Path,
    now: Time,
) -> Result<(), BackupError> {
    let mut steps = |step: CopyStep<'_>| match step {
        CopyStep::Blob(hash) if manifest.artifact_store.is_none() => {
            blob_copy(draft, &config.state_dir, hash)
        }
        _ => Ok(()),
    };
    let (source, target) = (CopyEnd::Sqlite(draft.join(DATABASE)), CopyEnd::Postgres(url.into()));
    let copied = store_copy(&source, &target, CopyOptions::default(), now, &mut steps);
    copied.map_err(|error| BackupError::Database {
        address: config.database_name(),
        source: error.without_address(),
    })?;
    place_audit(config, draft).map_err(BackupError::io(&config.state_dir))
}

/// Moves the audit log to its place. If there is a log already, that log stays and is continued.
fn place_audit(config: &Config, draft: &Path) -> io::Result<()> {
    let audit = draft.join("audit");
    if !exists(&audit) {
        return Ok(());
    }
    match remove_empty(&config.audit_dir()) {
        Ok(()) => fs::rename(&audit, config.audit_dir()),
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        Err(error) => Err(error),
    }
}

/// Extracts the contents of artifacts with these hashes from a backup to the folder `into`. Returns the hashes that
/// were found.
pub fn take_contents(from: &Path, hashes: &[String], into: &Path) -> Result<Vec<String>, BackupError> {
    let mut manifest = manifest_read(from)?;
    let found: Vec<String> =
        hashes.iter().filter(|hash| manifest.files.contains_key(&blob_path(hash))).cloned().collect();
    let wanted: Vec<String> = found.iter().map(|hash| blob_path(hash)).collect();
    manifest.files.retain(|path, _| wanted.contains(path));
    unpack(from, &manifest, into)?;
    Ok(found)
}

/// Extracts the database of a backup to the folder `into`. Returns its path.
pub fn take_database(from: &Path, into: &Path) -> Result<PathBuf, BackupError> {
    let mut manifest = manifest_read(from)?;
    manifest.files.retain(|path, _| path == DATABASE);
    unpack(from, &manifest, into)?;
    Ok(into.join(DATABASE))
}

/// Refuses a state directory that has, or had, a database or artifacts.
fn refuse_data(config: &Config) -> Result<(), BackupError> {
    let database = config.database();
    let beside = |suffix: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let found = ["", "-wal", "-journal", "-history"].map(beside).into_iter().find(|path| exists(path));
    let has_artifacts =
        || fs::read_dir(config.artifacts_dir()).is_ok_and(|mut entries| entries.next().is_some());
    match found {
        Some(path) => Err(BackupError::Exists { path }),
        None if has_artifacts() => Err(BackupError::Exists { path: config.artifacts_dir() }),
        None => Ok(()),
    }
}

fn remove_empty(folder: &Path) -> io::Result<()> {
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads the manifest of a folder or tar file.
fn manifest_read(from: &Path) -> Result<Manifest, BackupError> {
    let not_a_backup = |reason: String| BackupError::NotABackup { path: from.into(), reason };
    let mut text = vec![];
    let mut read = |content: &mut dyn Read| content.take(MAX_MANIFEST_BYTES).read_to_end(&mut text).map(drop);
    let found = match from.is_dir() {
        true => File::open(from.join(MANIFEST)).and_then(|mut file| read(&mut file)),
        false => TarReader::open(from).and_then(|mut tar| {
            tar.each(|file| if file.name == MANIFEST { read(&mut file.content) } else { Ok(()) })
        }),
    };
    found.map_err(|error| not_a_backup(format!("its {MANIFEST} cannot be read ({error})")))?;
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|error| not_a_backup(format!("its {MANIFEST} is not valid ({error})")))?;
    if manifest.format > FORMAT {
        let format = manifest.format;
        return Err(not_a_backup(format!("format {format} is newer than this mainspring: upgrade it")));
    }
    // No name may lead to a place outside the state directory.
    let is_safe = |path: &str| {
        let is_in_folder = path.starts_with("artifacts/") || path.starts_with("audit/");
        path == DATABASE || (is_in_folder && !path.contains(".."))
    };
    match manifest.files.keys().find(|path| !is_safe(path)) {
        Some(path) => Err(not_a_backup(format!("it names {path:?}"))),
        None if !manifest.files.contains_key(DATABASE) => Err(not_a_backup("it has no database".into())),
        None => Ok(manifest),
    }
}

/// Copies the files that the manifest names into `draft`, and compares each with its hash.
fn unpack(from: &Path, manifest: &Manifest, draft: &Path) -> Result<(), BackupError> {
    let damaged = |reason: String| BackupError::Damaged { path: from.into(), reason };
    let mut left: BTreeMap<&str, _> =
        manifest.files.iter().map(|(path, entry)| (path.as_str(), entry)).collect();
    let mut take = |name: &str, content: &mut dyn Read| {
        let Some(wanted) = left.remove(name) else { return Ok(()) };
        let target = draft.join(name);
        let found = file_write(&target, &mut { content })
            .map_err(|source| BackupError::Io { path: target, source })?;
        match found == *wanted {
            true => Ok(()),
            false => Err(damaged(format!("{name} does not match its hash"))),
        }
    };
    if from.is_dir() {
        for name in manifest.files.keys() {
            let path = from.join(name);
            let mut file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(BackupError::io(&path))?,
            };
            take(name, &mut file)?;
        }
    } else {
        let mut tar = TarReader::open(from).map_err(BackupError::io(from))?;
        tar.each(|file| take(&file.name, &mut file.content).map_err(Unpack::Refused)).map_err(|error| {
            match error {
                Unpack::Refused(error) => error,
                Unpack::Read(error) => damaged(error.to_string()),
            }
        })?;
    }
    match left.keys().next() {
        Some(name) => Err(damaged(format!("{name} is missing"))),
        None => Ok(()),
    }
}

/// Why a tar file was not unpacked.
enum Unpack {
    Refused(BackupError),
    Read(io::Error),
}

impl From<io::Error> for Unpack {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}
