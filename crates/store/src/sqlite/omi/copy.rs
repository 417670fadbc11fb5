//! Copies the original's files and detects whether the original is running.
//!
//! The original keeps its database in WAL mode. Every process that has such a database open holds a lock on its -shm
//! file. `F_GETLK` queries the holder: it takes no lock, changes no byte, and works on every platform the original runs
//! on, unlike /proc. The lock is queried before and after the copy, to detect an original that starts meanwhile.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::OmiError;

/// The file name of the original's database.
pub const DATABASE: &str = "omi-agentd.sqlite3";
/// The folder within the scratch folder that holds the copy.
const COPY_FOLDER: &str = "omi-import";

/// A copy of the database and its WAL. Dropping it removes the copy.
#[derive(Debug)]
pub(super) struct DatabaseCopy(PathBuf);

impl Drop for DatabaseCopy {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "cannot remove the copy of the original's database: remove it by hand");
        }
    }
}

impl DatabaseCopy {
    /// Copies the database at `path`, and its WAL if there is one, to a private folder within `scratch`.
    pub(super) fn create(path: &Path, scratch: &Path) -> Result<Self, OmiError> {
        let files = [path.to_owned(), sibling(path, "-wal")];
        let before = fingerprints(&files)?;
        if before[0].is_none() {
            return Err(OmiError::Missing { path: path.into() });
        }
        check_idle(path)?;
        let folder = scratch.join(COPY_FOLDER);
        // A crash may have left the copy of an earlier import.
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&folder, error)),
            _ => {}
        }
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder).map_err(|error| failed(&folder, error))?;
        let copy = Self(folder);
        for (from, to) in files.iter().zip([copy.database(), sibling(&copy.database(), "-wal")]) {
            if from.exists() {
                fs::copy(from, to).map_err(|error| failed(from, error))?;
            }
        }
        check_idle(path)?;
        if fingerprints(&files)? != before {
            return Err(OmiError::Changed { path: path.into() });
        }
        Ok(copy)
    }

    /// Returns the path of the copied database.
    pub(super) fn database(&self) -> PathBuf {
        self.0.join(DATABASE)
    }
}

/// The length and modification time of each file, `None` for a missing file.
fn fingerprints(files: &[PathBuf; 2]) -> Result<[Option<(u64, SystemTime)>; 2], OmiError> {
    let fingerprint =
        |file: &PathBuf| match fs::metadata(file).and_then(|found| Ok((found.len(), found.modified()?))) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(file, error)),
        };
    Ok([fingerprint(&files[0])?, fingerprint(&files[1])?])
}

/// Fails if another process has the database open.
fn check_idle(path: &Path) -> Result<(), OmiError> {
    for file in [path.to_owned(), sibling(path, "-shm")] {
        let opened = match File::open(&file) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&file, error)),
        };
        let lock = fcntl_getlk(&opened, &Flock::from(FlockType::WriteLock));
        if let Some(lock) = lock.map_err(|error| failed(&file, error.into()))? {
            let pid = lock.pid.map_or(0, |pid| pid.as_raw_nonzero().get());
            return Err(OmiError::Running { path: path.into(), pid });
        }
    }
    Ok(())
}

fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn failed(path: &Path, source: io::Error) -> OmiError {
    OmiError::Io { path: path.into(), source }
}
