//! A copy of the original's files, and whether the original runs.
//!
//! The original keeps its database in WAL mode, and whoever has such a database open holds a lock on its -shm file as
//! long as it does. `F_GETLK` asks who holds one: it takes no lock, changes no byte, and works where the original
//! runs, which a look at /proc would not. An original that runs is found before the copy is made, and one that has
//! started meanwhile after it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::OmiError;

/// What the original calls its database.
pub const DATABASE: &str = "omi-agentd.sqlite3";
/// What the copy lies in.
const FOLDER: &str = "omi-import";

/// A copy of the database and its WAL, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Copied(PathBuf);

impl Drop for Copied {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "the copy of the original's database is left: remove it");
        }
    }
}

impl Copied {
    /// Copies the database at `path`, and its WAL if there is one, to a folder within `scratch` that nobody else reads.
    pub(super) fn make(path: &Path, scratch: &Path) -> Result<Self, OmiError> {
        let files = [path.to_owned(), sibling(path, "-wal")];
        let before = look(&files)?;
        if before[0].is_none() {
            return Err(OmiError::Missing { path: path.into() });
        }
        check_idle(path)?;
        let folder = scratch.join(FOLDER);
        // What a crash left of an earlier try.
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&folder, error)),
            _ => {}
        }
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder).map_err(|error| failed(&folder, error))?;
        let copied = Self(folder);
        for (from, to) in files.iter().zip([copied.database(), sibling(&copied.database(), "-wal")]) {
            if from.exists() {
                fs::copy(from, to).map_err(|error| failed(from, error))?;
            }
        }
        check_idle(path)?;
        if look(&files)? != before {
            return Err(OmiError::Changed { path: path.into() });
        }
        Ok(copied)
    }

    /// The copy of the database.
    pub(super) fn database(&self) -> PathBuf {
        self.0.join(DATABASE)
    }
}

/// How long each file is and when it was written; none for one that is not there.
fn look(files: &[PathBuf; 2]) -> Result<[Option<(u64, SystemTime)>; 2], OmiError> {
    let one = |file: &PathBuf| match fs::metadata(file).and_then(|found| Ok((found.len(), found.modified()?)))
    {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(file, error)),
    };
    Ok([one(&files[0])?, one(&files[1])?])
}

/// Refuses a database that another process has open.
fn check_idle(path: &Path) -> Result<(), OmiError> {
    for file in [path.to_owned(), sibling(path, "-shm")] {
        let opened = match File::open(&file) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&file, error)),
        };
        let held = fcntl_getlk(&opened, &Flock::from(FlockType::WriteLock));
        if let Some(held) = held.map_err(|error| failed(&file, error.into()))? {
            let pid = held.pid.map_or(0, |pid| pid.as_raw_nonzero().get());
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
