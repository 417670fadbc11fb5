//! The state directory: one process owns it, and everybody can see which.
//!
//! Ownership is an OS lock on `mainspring.lock` inside it, so it ends with the process, however that ends. The
//! file's content (who, since when) is for people and never decides anything.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use mainspring_core::{NodeId, Time};
use serde_json::{Value, json};

const LOCK_FILE: &str = "mainspring.lock";

/// A state directory that this process owns until it drops this.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    lock: File,
}

/// Who owns a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The process.
    pub pid: u32,
    /// The version it runs.
    pub version: String,
    /// Since when.
    pub since: Time,
    /// Its name as a node.
    pub node: Option<NodeId>,
}

/// Why a state directory cannot be had. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another process owns it.
    #[error(
        "{} is in use by {}: talk to that process, stop it, or choose another folder with --state-dir",
        path.display(), owner.as_ref().map_or_else(|| "another process".into(), |owner| format!("process {}", owner.pid))
    )]
    Busy {
        /// The folder.
        path: PathBuf,
        /// Who owns it, if it has said so.
        owner: Option<Owner>,
    },
    /// Something else stands there.
    #[error("{} is not a folder: move it away, or choose another folder with --state-dir", path.display())]
    NotAFolder {
        /// What stands there.
        path: PathBuf,
    },
    /// The folder may not be written.
    #[error("no permission to write {}: make it yours (chown, chmod u+rwx), or choose another folder with --state-dir", path.display())]
    Permission {
        /// The folder or file.
        path: PathBuf,
    },
    /// The file system may not be written.
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
    /// Anything else.
    #[error("{} cannot be used: check the folder and its disk, or choose another with --state-dir", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl StateDir {
    /// Makes `path` this process's own, creating the folder if it is missing.
    pub fn open(path: &Path, since: Time, node: NodeId) -> Result<Self, StateDirError> {
        folder_ensure(path)?;
        let file = path.join(LOCK_FILE);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&file)
            .map_err(|error| failed(&file, error))?;
        if !lock_take(&lock).map_err(|error| failed(&file, error))? {
            return Err(StateDirError::Busy { path: path.into(), owner: owner_read(&mut lock) });
        }
        let text = json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "sinceMs": since,
            "node": node,
        });
        owner_write(&mut lock, &format!("{text}\n")).map_err(|error| failed(&file, error))?;
        Ok(Self { path: path.into(), lock })
    }

    /// Who owns `path`, without taking it; none if nobody does, or if it does not exist.
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

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // An empty file says that the owner left in good order. If this fails, the lock is gone all the same.
        let _ = self.lock.set_len(0);
    }
}

fn folder_ensure(path: &Path) -> Result<(), StateDirError> {
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
    // Somebody who peeks holds the lock for a moment, so one refusal does not prove an owner.
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
