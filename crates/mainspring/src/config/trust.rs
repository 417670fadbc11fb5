//! Trust in the `mainspring.toml` of a folder.
//!
//! A folder may have an unknown author, and its file names commands to run and servers that get keys. So the file of
//! the current folder is read only if a person has trusted it. Trust is recorded in the user's configuration folder: a
//! file per trusted path, named by the hash of the path, with the hash of the trusted content.
//!
//! Invariant: the content that is used or shown is the content that is hashed; it is read once.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fmt, process};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::error::Problem;
use super::settings;
use super::source::{FILE_NAME, Origin, Sources, serialize_lossy, user_folder};

/// The settings that the file of a folder cannot set, even if it is trusted: they name the data and the server that the
/// user works with, the program that supervises processes, and the program that decides about memories.
pub const NOT_SET_BY_FOLDERS: [&str; 11] = [
    "state_dir",
    "store",
    "guard",
    "memory_command",
    "url",
    "tls_ca",
    "artifact_store.url",
    "artifact_store.endpoint",
    "artifact_store.region",
    "artifact_store.credentials_file",
    "artifact_store.allow_http",
];

/// The largest file of a folder that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The folder of the records in the user's configuration folder.
const RECORDS: &str = "trusted";

/// The `mainspring.toml` of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderFile {
    /// The path, with the links of its folder resolved.
    pub path: PathBuf,
    pub(super) text: String,
}

impl FolderFile {
    /// Reads the file of `folder`; `None` if there is none.
    pub fn read(folder: &Path) -> Result<Option<Self>, Problem> {
        let path = path_in(folder);
        match read_text(&path) {
            Ok(text) => Ok(Some(Self { path, text })),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(Problem::Unreadable { path, named_by: None, reason: error.to_string() }),
        }
    }

    /// Returns the hash of the content.
    pub fn hash(&self) -> String {
        blake3::hash(self.text.as_bytes()).to_hex().to_string()
    }
}

/// Returns the path of the file of `folder`. The links of the folder are resolved; the file itself may be a link.
pub(super) fn path_in(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).join(FILE_NAME)
}

pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reads a text without trusting the file: it may be a pipe or a device without an end.
fn read_text(path: &Path) -> io::Result<String> {
    let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidData, reason.to_owned());
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(invalid("it is not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_FILE_BYTES {
        true => Err(invalid("it is larger than 1 MiB")),
        false => Ok(text),
    }
}

/// The records of trusted files, in the user's configuration folder.
#[derive(Debug, Clone)]
pub struct TrustStore {
    folder: PathBuf,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TrustRecord {
    /// The path of the trusted file, for people. The name of the record, a hash of the path, identifies the file.
    path: String,
    /// The hash of the trusted content.
    hash: String,
}

/// A trusted file as listed by `mainspring trust list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TrustedFile {
    /// The file.
    pub path: String,
    /// Whether the file still has the trusted content.
    pub status: TrustStatus,
}

/// Whether a trusted file still has the content that was trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrustStatus {
    /// The content is the trusted one.
    Trusted,
    /// The content is another one: the file is ignored.
    Changed,
    /// There is no such file any more.
    Missing,
}

impl fmt::Display for TrustStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trusted => "trusted",
            Self::Changed => "changed",
            Self::Missing => "missing",
        })
    }
}

impl TrustStore {
    /// Returns the records of the user; `None` if there is no folder for them, because there is no home directory.
    pub fn of_user(sources: &Sources) -> Option<Self> {
        Some(Self { folder: user_folder(sources)?.join(RECORDS) })
    }

    /// Records that `file` is trusted with its present content.
    pub fn trust(&self, file: &FolderFile) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let record = TrustRecord { path: file.path.to_string_lossy().into_owned(), hash: file.hash() };
        let text = toml::to_string(&record).map_err(io::Error::other)?;
        // Written whole under another name first, so that a crash leaves no partial record.
        let part = self.folder.join(format!(".{}.part", process::id()));
        let mut written =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        written.write_all(text.as_bytes())?;
        written.sync_all()?;
        fs::rename(&part, self.record_path(&file.path))
    }

    /// Removes the record of the file of `folder`. Returns the file's path, and false if it was not trusted.
    pub fn remove(&self, folder: &Path) -> io::Result<(PathBuf, bool)> {
        let path = path_in(folder);
        match fs::remove_file(self.record_path(&path)) {
            Ok(()) => Ok((path, true)),
            Err(error) if is_absent(&error) => Ok((path, false)),
            Err(error) => Err(error),
        }
    }

    /// Lists the trusted files by path.
    pub fn list(&self) -> io::Result<Vec<TrustedFile>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if is_absent(&error) => return Ok(vec![]),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            // Skips files that are not records: partial records, or files of other programs.
            let Some(record) = read_record(&entry?.path()) else { continue };
            let status = match read_text(Path::new(&record.path)) {
                Ok(text) if blake3::hash(text.as_bytes()).to_hex().as_str() == record.hash => {
                    TrustStatus::Trusted
                }
                Err(error) if is_absent(&error) => TrustStatus::Missing,
                Ok(_) | Err(_) => TrustStatus::Changed,
            };
            files.push(TrustedFile { path: record.path, status });
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    /// Returns the hash of the trusted content of `path`, if the path is trusted.
    fn trusted_hash(&self, path: &Path) -> Option<String> {
        read_record(&self.record_path(path)).map(|record| record.hash)
    }

    fn record_path(&self, path: &Path) -> PathBuf {
        self.folder.join(blake3::hash(path.as_os_str().as_bytes()).to_hex().as_str())
    }
}

fn read_record(path: &Path) -> Option<TrustRecord> {
    toml::from_str(&read_text(path).ok()?).ok()
}

/// Reads the file of the current folder if it is trusted. Without a record it is not even opened.
pub(super) fn read_if_trusted(sources: &Sources) -> Result<Option<FolderFile>, Ignored> {
    let path = path_in(&sources.cwd);
    if fs::symlink_metadata(&path).is_err() {
        return Ok(None);
    }
    let ignored = |reason| Ignored::File { path: path.clone(), reason };
    let store = TrustStore::of_user(sources).ok_or_else(|| ignored(IgnoredReason::NoHome))?;
    let hash = store.trusted_hash(&path).ok_or_else(|| ignored(IgnoredReason::NotTrusted))?;
    match read_text(&path) {
        Ok(text) => {
            let file = FolderFile { path: path.clone(), text };
            if file.hash() == hash { Ok(Some(file)) } else { Err(ignored(IgnoredReason::Changed)) }
        }
        Err(_) => Err(ignored(IgnoredReason::Changed)),
    }
}

/// A file or a setting that was found and is not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Ignored {
    /// The file of the current folder.
    File {
        /// The file.
        #[serde(serialize_with = "serialize_lossy")]
        path: PathBuf,
        /// The reason.
        reason: IgnoredReason,
    },
    /// A setting in the trusted file of the current folder.
    Setting {
        /// The dotted name of the setting.
        key: String,
        /// The place of the value.
        origin: Origin,
    },
}

/// The reason why the file of a folder is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IgnoredReason {
    /// The file was never trusted.
    NotTrusted,
    /// The file has another content than the trusted one.
    Changed,
    /// There is no home directory, and so no record of trusted files.
    NoHome,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, reason } => {
                let path = path.display();
                match reason {
                    IgnoredReason::NotTrusted => write!(
                        f,
                        "{path} is ignored because it is not trusted: `mainspring trust` shows what it would run and trusts it"
                    ),
                    IgnoredReason::Changed => write!(
                        f,
                        "{path} is ignored because it has changed since it was trusted: `mainspring trust` shows what it would run now and trusts it again"
                    ),
                    IgnoredReason::NoHome => write!(
                        f,
                        "{path} is ignored because it is not trusted, and without HOME there is no record of trusted files: name it with --config"
                    ),
                }
            }
            Self::Setting { key, origin } => write!(
                f,
                "{key} ({origin}) is ignored because the file of a folder cannot set it: use {}, or the user's own file",
                settings::variable(key)
            ),
        }
    }
}
