//! Detects that the files of an open database were deleted, moved or replaced. SQLite would go on writing the old ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mainspring_kernel::store::StoreError;

use super::open::sibling;

/// The database and its WAL, as they were when the store was opened.
#[derive(Debug)]
pub(super) struct Files([(PathBuf, FileId); 2]);

/// The device and the inode of a file.
type FileId = (u64, u64);

impl Files {
    /// Identifies the files of the database at `path`, which is open.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let wal = sibling(path, "-wal");
        let (path_id, wal_id) = (file_id(path)?, file_id(&wal)?);
        Ok(Self([(path.into(), path_id), (wal, wal_id)]))
    }

    /// Fails if a path leads to another file than before, or to none.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        for (path, id) in &self.0 {
            if !file_id(path).is_ok_and(|found| found == *id) {
                return Err(StoreError::Lost(format!(
                    "{} was deleted, moved or replaced while mainspring was running, and nothing is stored any more: \
                     put the state directory back, or restart mainspring to use what is there now",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
fn file_id(path: &Path) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Without inodes, only the existence of a file is checked.
#[cfg(not(unix))]
fn file_id(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|_| (0, 0))
}
