//! The state directory, which one process owns at a time.
//!
//! Ownership is an OS lock on `mainspring.lock` in the directory, so that it ends with the process, even after a crash.
//! The content of the file (pid, version, time) is informational only.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use mainspring_core::{NodeId, Time};
use serde_json::{Value, json};

#[cfg(unix)]
mod private;
#[cfg(unix)]
pub use private::Exposure;

const LOCK_FILE: &str = "mainspring.lock";

/// A state directory that this process owns until the value is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    lock: File,
}

/// The process that owns a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The process id.
    pub pid: u32,
    /// The version of mainspring that the process runs.
    pub version: String,
    /// The time at which the process took ownership.
    pub since: Time,
    /// The node id of the process.
    pub node: Option<NodeId>,
    /// The database that the process uses instead of the one in the directory.
    pub store: Option<String>,
}

/// A state directory that cannot be opened. Nothing was changed, but a missing folder may have been created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateDirError {
    /// Another process owns the directory.
    #[error(
        "{} is in use by {}: talk to that process, stop it, or choose another folder with --state-dir",
        path.display(), owner.as_ref().map_or_else(|| "another process".into(), |owner| format!("process {}", owner.pid))
    )]
    Busy {
        /// The folder.
        path: PathBuf,
        /// The owner, if the lock file names it.
        owner: Option<Owner>,
    },
    /// The path is not a folder.
    #[error("{} is not a folder: move it away, or choose another folder with --state-dir", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The process lacks the permission to write.
    #[error("no permission to write {}: make it yours (chown, chmod u+rwx), or choose another folder with --state-dir", path.display())]
    Permission {
        /// The folder or file.
        path: PathBuf,
    },
    /// Other users can read or write something that must be private.
    #[cfg(unix)]
    #[error("{} {}", path.display(), exposure.describe(path, *mode))]
    Exposed {
        /// The folder or file.
        path: PathBuf,
        /// The problem.
        exposure: Exposure,
        /// The permissions of the folder or file.
        mode: u32,
    },
    /// The file system is read-only.
    #[error("{} is on a read-only file system: choose another folder with --state-dir", path.display())]
    ReadOnly {
        /// The folder or file.
        path: PathBuf,
    },
    /// The disk is full.
    #[error("no space left for {}: free some, or choose another folder with --state-dir", path.display())]
    Full {
        /// The folder or file.
        path: PathBuf,
    },
    /// Any other error.
    #[error("{} cannot be used: check the folder and its disk, or choose another with --state-dir", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

impl StateDir {
    /// Takes ownership of `path`. Creates the folder if it is missing.
    pub fn open(path: &Path, since: Time, node: NodeId) -> Result<Self, StateDirError> {
        Self::open_for(path, since, node, None)
    }

    /// Takes ownership of `path` for a process whose database is `store`, not one in the directory. `store` is shown to
    /// users, so it must not contain a password.
    pub fn open_for(
        path: &Path,
        since: Time,
        node: NodeId,
        store: Option<&str>,
    ) -> Result<Self, StateDirError> {
        folder_create(path)?;
        #[cfg(unix)]
        private::check(path)?;
        let file = path.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut lock = options.open(&file).map_err(|error| failed(&file, error))?;
        if !lock_take(&lock).map_err(|error| failed(&file, error))? {
            return Err(StateDirError::Busy { path: path.into(), owner: owner_read(&mut lock) });
        }
        let text = json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "sinceMs": since,
            "node": node,
            "store": store,
        });
        owner_write(&mut lock, &format!("{text}\n")).map_err(|error| failed(&file, error))?;
        Ok(Self { path: path.into(), lock })
    }

    /// Returns the owner of `path` without taking ownership, `None` if it has no owner or does not exist.
    pub fn peek(path: &Path) -> Result<Option<Owner>, StateDirError> {
        let file = path.join(LOCK_FILE);
        let mut lock = match File::open(&file) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&file, error)),
        };
        match lock.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => match owner_read(&mut lock) {
                Some(owner) => Ok(Some(owner)),
                None => Err(StateDirError::Busy { path: path.into(), owner: None }),
            },
            Err(TryLockError::Error(error)) => Err(failed(&file, error)),
        }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // An empty file means that the owner exited normally. If this fails, the lock is released anyway.
        let _ = self.lock.set_len(0);
        // Closing the file is not enough: a process that another thread is starting has a copy of it until it executes
        // its program.
        let _ = self.lock.unlock();
    }
}

fn folder_create(path: &Path) -> Result<(), StateDirError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => return Err(StateDirError::NotAFolder { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(path, error)),
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|error| failed(path, error))
}

fn lock_take(lock: &File) -> io::Result<bool> {
    // `peek` holds the lock briefly, so that one refusal does not prove an owner.
    for _ in 0..100 {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

fn owner_write(lock: &mut File, text: &str) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    lock.write_all(text.as_bytes())
}

fn owner_read(lock: &mut File) -> Option<Owner> {
    let mut text = String::new();
    lock.rewind().ok()?;
    lock.take(4096).read_to_string(&mut text).ok()?;
    let owner: Value = serde_json::from_str(&text).ok()?;
    Some(Owner {
        pid: owner["pid"].as_u64()?.try_into().ok()?,
        version: owner["version"].as_str()?.into(),
        since: Time(owner["sinceMs"].as_i64()?),
        node: owner["node"].as_str().and_then(|node| node.parse().ok()),
        store: owner["store"].as_str().map(str::to_owned),
    })
}

fn failed(path: &Path, error: io::Error) -> StateDirError {
    let path = path.to_path_buf();
    match error.kind() {
        io::ErrorKind::NotADirectory => StateDirError::NotAFolder { path },
        io::ErrorKind::PermissionDenied => StateDirError::Permission { path },
        io::ErrorKind::ReadOnlyFilesystem => StateDirError::ReadOnly { path },
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StateDirError::Full { path },
        _ => StateDirError::Io { path, source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_does_not_keep_the_ownership() {
        let folder = tempfile::tempdir().unwrap();
        let open = || StateDir::open(folder.path(), Time(1), NodeId::from_random([1; 16]));
        let owned = open().unwrap();
        // The copy stands for a process that was forked and has not executed its program yet.
        let copy = owned.lock.try_clone().unwrap();
        drop(owned);
        open().unwrap();
        drop(copy);
    }
}
