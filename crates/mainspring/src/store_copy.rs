//! Copies the data of one state directory or PostgreSQL database into another, with the bytes of artifacts.
//!
//! The bytes of artifacts are files of a state directory: of the directory that is copied, or, for a PostgreSQL
//! database, of the configured one. They are copied only if the two directories differ and no object store is
//! configured. Other files (configuration, token, provider keys, audit log) stay where they are.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use mainspring_core::Time;
use mainspring_kernel::ids::Ids;
use mainspring_store::{
    CopyEnd, CopyError, CopyOptions, CopyReport, CopyStep, StateDir, StateDirError, copy_discard, store_copy,
};

use crate::backup::{blob_path, copy_hashed, file_write, remove};
use crate::config::Config;

/// One side of a copy: a state directory, or the URL of a PostgreSQL database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopySide {
    /// A state directory, with its database in SQLite.
    Directory(PathBuf),
    /// The URL of a PostgreSQL database.
    Postgres(String),
}

impl std::str::FromStr for CopySide {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.starts_with("postgres://") || text.starts_with("postgresql://") {
            true => Self::Postgres(text.into()),
            false => Self::Directory(text.into()),
        })
    }
}

/// Why a store was not copied. The target is unchanged, or an unfinished copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreCopyError {
    /// A state directory cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// Both sides are the same.
    #[error("{0} is named as the source and as the target: name another target")]
    Same(String),
    /// The copy failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

/// Copies all data of `from` into `to`. Neither may be in use. `to` must be empty, or an unfinished copy of `from`,
/// which is then continued.
pub fn copy(
    config: &Config,
    from: &CopySide,
    to: &CopySide,
    now: Time,
    progress: &mut dyn FnMut(CopyStep<'_>),
) -> Result<CopyReport, StoreCopyError> {
    let (source, target) = (Side::new(config, from), Side::new(config, to));
    if from == to || source.is_same_directory(&target) {
        let name = match from {
            CopySide::Directory(path) => path.display().to_string(),
            CopySide::Postgres(_) => "the PostgreSQL".to_owned(),
        };
        return Err(StoreCopyError::Same(name));
    }
    let _owned = [source.lock(now)?, target.lock(now)?];
    let (here, there) = (&source.state_dir, &target.state_dir);
    // With an object store, both sides use the same bytes.
    let copies_bytes = config.artifact_store.url.is_none() && !is_same(here, there);
    let mut steps = |step: CopyStep<'_>| {
        progress(step);
        match step {
            CopyStep::Blob(hash) if copies_bytes => blob_copy(here, there, hash),
            _ => Ok(()),
        }
    };
    Ok(store_copy(&source.end, &target.end, CopyOptions::default(), now, &mut steps)?)
}

/// Removes an unfinished copy. Returns the number of its records. The bytes of artifacts that were copied stay.
pub fn discard(config: &Config, target: &CopySide, now: Time) -> Result<u64, StoreCopyError> {
    let target = Side::new(config, target);
    let _owned = match target.end {
        CopyEnd::Sqlite(ref path) if !path.exists() => {
            return Err(CopyError::NotACopy(path.display().to_string()).into());
        }
        _ => target.lock(now)?,
    };
    Ok(copy_discard(&target.end, now)?)
}

/// A side with the directory of its artifacts.
struct Side {
    end: CopyEnd,
    state_dir: PathBuf,
    /// True if the database is in the directory, which is locked during the copy then.
    has_database: bool,
}

impl Side {
    fn new(config: &Config, side: &CopySide) -> Self {
        match side {
            CopySide::Directory(path) => {
                let end = CopyEnd::Sqlite(Config::with_state_dir(path).database());
                Self { end, state_dir: path.clone(), has_database: true }
            }
            CopySide::Postgres(url) => Self {
                end: CopyEnd::Postgres(url.clone()),
                state_dir: config.state_dir.clone(),
                has_database: false,
            },
        }
    }

    /// Locks the directory, if the database is in it.
    fn lock(&self, now: Time) -> Result<Option<StateDir>, StateDirError> {
        let open = || StateDir::open(&self.state_dir, now, Ids::system().node());
        self.has_database.then(open).transpose()
    }

    fn is_same_directory(&self, other: &Self) -> bool {
        self.has_database && other.has_database && is_same(&self.state_dir, &other.state_dir)
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

/// Copies the bytes of an artifact, unless the target has them already, such as from an interrupted copy.
pub(crate) fn blob_copy(from: &Path, to: &Path, hash: &str) -> Result<(), CopyError> {
    let (source, target) = (from.join(blob_path(hash)), to.join(blob_path(hash)));
    let failed = |path: &Path, source: io::Error| CopyError::Io { path: path.to_owned(), source };
    let hash_of = |path: &Path| copy_hashed(&mut File::open(path)?, &mut io::sink());
    match hash_of(&target) {
        Ok(found) if found.blake3 == hash => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(&target, error)),
    }
    let mut bytes = match File::open(&source) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CopyError::Blob { hash: hash.into(), problem: "missing" });
        }
        Err(error) => return Err(failed(&source, error)),
    };
    let draft = target.with_extension("copying");
    let mut write = || remove(&draft).and_then(|()| file_write(&draft, &mut bytes));
    let written = write().map_err(|error| failed(&draft, error))?;
    if written.blake3 != hash {
        return Err(CopyError::Blob { hash: hash.into(), problem: "damaged" });
    }
    let folder = target.parent().unwrap_or(to);
    let renamed = fs::rename(&draft, &target).and_then(|()| File::open(folder)?.sync_all());
    renamed.map_err(|error| failed(&target, error))
}
