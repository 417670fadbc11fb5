//! Backups of a state directory and its database. A backup is made while processes serve them, and restored into an
//! empty state directory and an empty database. The database may be SQLite or PostgreSQL on either side; in a backup it
//! is SQLite.
//!
//! A backup is a folder, or the same files in a tar file:
//!
//! ```text
//! manifest.json            the size and hash of every other file
//! mainspring.sqlite3       the database at one instant, without API keys
//! artifacts/ab/abcdef…     the bytes of artifacts, unless an object store keeps them
//! audit/…                  the audit log, as far as it was synced to the disk
//! ```
//!
//! The token, the lock, the socket and provider keys are not in a backup. The bytes of artifacts are copied before the
//! database, so that an artifact that is deleted meanwhile is complete in the backup, and once more after it, for
//! artifacts that were added meanwhile.
//!
//! Invariant: a backup that has its final name is complete, and so is a restored state directory that has a database.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use mainspring_core::Time;
use mainspring_store::{CopyError, CopySummary, OpenError, StateDirError};
use serde::{Deserialize, Serialize};

mod create;
mod restore;
mod tar;

pub use create::create;
pub use restore::{Restored, restore, take_contents, take_database};

/// The name of the manifest in a backup.
const MANIFEST: &str = "manifest.json";
/// The name of the database in a backup.
const DATABASE: &str = "mainspring.sqlite3";
/// The version of the layout of backups.
const FORMAT: u32 = 1;
const BUFFER_BYTES: usize = 256 << 10;

/// The content of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The version of the layout.
    pub format: u32,
    /// The version of mainspring that made the backup.
    pub version: String,
    /// When the database was copied, in milliseconds since 1970.
    pub created_at_ms: i64,
    /// The schema of the database.
    pub schema: u32,
    /// The number of sessions.
    pub sessions: u64,
    /// The number of runs.
    pub runs: u64,
    /// The number of events.
    pub events: u64,
    /// The cursor of the last event.
    pub last_cursor: u64,
    /// The object store that keeps the bytes of artifacts, which are not in the backup then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_store: Option<String>,
    /// Every other file, by its path in the backup.
    pub files: BTreeMap<String, FileEntry>,
}

/// The size and the hash of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The size in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash, in hexadecimal.
    pub blake3: String,
}

impl Manifest {
    fn new(summary: CopySummary, now: Time, files: BTreeMap<String, FileEntry>) -> Self {
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            created_at_ms: now.0,
            schema: summary.schema_version,
            sessions: summary.sessions,
            runs: summary.runs,
            events: summary.events,
            last_cursor: summary.last_cursor.0,
            artifact_store: None,
            files,
        }
    }

    /// Returns the size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Returns the number of contents of artifacts.
    pub fn artifacts(&self) -> usize {
        self.files.keys().filter(|path| path.starts_with("artifacts/")).count()
    }
}

/// Why a backup was not made or not restored. A restore that fails while it places the checked files may leave some of
/// them, or an unfinished copy in PostgreSQL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The target exists.
    #[error("{} exists already and is not overwritten: choose another place, or move it away", path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// There is no database to back up.
    #[error("{} has no data: there is nothing to back up", path.display())]
    Nothing {
        /// The state directory, or the address of the PostgreSQL database.
        path: PathBuf,
    },
    /// The path is not a backup.
    #[error("{} is not a backup: {reason}", path.display())]
    NotABackup {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A file of the backup is damaged. Nothing was restored.
    #[error("{} is damaged: {reason}; nothing was restored", path.display())]
    Damaged {
        /// The backup.
        path: PathBuf,
        /// The file and its problem.
        reason: String,
    },
    /// The bytes of an artifact are missing or damaged. No backup was made.
    #[error(
        "the artifact content {hash} is {problem}: find the artifact with `mainspring verify`; no backup was made"
    )]
    Artifact {
        /// The hash of the bytes.
        hash: String,
        /// The problem.
        problem: ContentProblem,
    },
    /// The artifacts of a backup are in an object store that is not configured. Nothing was restored.
    #[error(
        "the artifacts of this backup are in {url}, and no object store is configured: set `artifact_store.url` to it, or to a \
         copy of it; nothing was restored"
    )]
    ArtifactsElsewhere {
        /// The object store.
        url: String,
    },
    /// A backup has the bytes of its artifacts, but the server would look for them in an object store. Nothing was restored.
    #[error(
        "this backup has the bytes of its artifacts ({contents}), and the server would look for them in {url}: restore it without \
         `artifact_store.url`, then move the files of `artifacts` there (docs/cluster.md); nothing was restored"
    )]
    ArtifactsHere {
        /// The object store that is configured.
        url: String,
        /// The number of contents.
        contents: usize,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The database cannot be read or written.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The PostgreSQL database cannot be read or written.
    #[error("{address}: {source}")]
    Database {
        /// The address, without its password.
        address: String,
        /// The error of the copy.
        #[source]
        source: CopyError,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Read(#[from] mainspring_kernel::store::StoreError),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Why the content of an artifact cannot be backed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContentProblem {
    /// Its file does not exist.
    #[error("missing")]
    Missing,
    /// Its bytes do not have its hash.
    #[error("damaged")]
    Damaged,
}

impl BackupError {
    /// Returns the stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Exists { .. } | Self::Database { source: CopyError::NotEmpty(_), .. } => "already_exists",
            Self::Nothing { .. } => "not_found",
            Self::NotABackup { .. } => "not_a_backup",
            Self::ArtifactsElsewhere { .. } | Self::ArtifactsHere { .. } => "artifacts_elsewhere",
            Self::Damaged { .. } | Self::Artifact { .. } => "corrupt",
            Self::StateDir(StateDirError::Busy { .. }) => "state_dir_owned",
            Self::StateDir(StateDirError::Exposed { .. }) => "state_dir_exposed",
            Self::StateDir(_) => "state_dir_unusable",
            Self::Store(_) | Self::Database { .. } | Self::Read(_) => "store_unusable",
            Self::Io { .. } => "io",
        }
    }

    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.into(), source }
    }
}

/// Returns the path in a backup of the content with this hash.
pub(crate) fn blob_path(hash: &str) -> String {
    format!("artifacts/{}/{hash}", hash.get(..2).unwrap_or("__"))
}

/// Returns the path of a backup or a restore that is not complete.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Creates a folder, with its parents, that only its owner can read.
fn folder_make(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Creates a file that only its owner can read.
fn file_make(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create_new(true).open(path)
}

/// Copies bytes to the end of `from`, and returns their size and hash.
pub(crate) fn copy_hashed(from: &mut impl Read, to: &mut impl Write) -> io::Result<FileEntry> {
    let (mut hasher, mut buffer, mut bytes) = (blake3::Hasher::new(), vec![0; BUFFER_BYTES], 0);
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(FileEntry { bytes, blake3: hasher.finalize().to_hex().to_string() });
        }
        hasher.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        bytes += read as u64;
    }
}

/// Writes a new file durably, and returns its size and hash.
pub(crate) fn file_write(path: &Path, from: &mut impl Read) -> io::Result<FileEntry> {
    if let Some(folder) = path.parent() {
        folder_make(folder)?;
    }
    let mut file = file_make(path)?;
    let entry = copy_hashed(from, &mut file)?;
    file.sync_all()?;
    Ok(entry)
}

/// Removes a file or folder, if it is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes new names in the folder of `path` durable.
fn folder_sync(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Runs `work`, and removes `draft` if it fails.
fn or_remove<T>(draft: &Path, work: impl FnOnce() -> Result<T, BackupError>) -> Result<T, BackupError> {
    let done = work();
    if done.is_err() {
        // The error of the work is the one to report.
        let _ = remove(draft);
    }
    done
}
