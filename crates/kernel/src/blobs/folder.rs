//! Blobs as files of a folder: `ab/abcdef…`.

use std::fs::{self, DirBuilder, File};
use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tokio::io::AsyncSeekExt;
use tokio::task::spawn_blocking;

use super::blob_store::{BlobBytes, BlobError, BlobStore};

/// A folder of blobs, which the servers of a cluster may share.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    root: PathBuf,
}

impl Folder {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.into() }
    }

    fn path(&self, hash: &str) -> PathBuf {
        self.root.join(hash.get(..2).unwrap_or("__")).join(hash)
    }

    fn move_here(&self, part: &Path, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(&self.root);
        if folder_make(folder)? {
            sync(&self.root)?;
        }
        fs::rename(part, path)?;
        sync(folder)
    }
}

#[async_trait]
impl BlobStore for Folder {
    fn place(&self, hash: &str) -> String {
        self.path(hash).display().to_string()
    }

    async fn put(&self, hash: &str, _size: u64, part: &Path) -> Result<(), BlobError> {
        let (folder, part, path) = (self.clone(), part.to_owned(), self.path(hash));
        let moved = spawn_blocking(move || folder.move_here(&part, &path)).await;
        moved.unwrap_or_else(|gone| Err(io::Error::other(gone))).map_err(|error| write_error(&error))
    }

    async fn open(&self, hash: &str, range: Option<(u64, u64)>) -> Result<BlobBytes, BlobError> {
        let mut file = tokio::fs::File::open(self.path(hash)).await.map_err(|error| read_error(&error))?;
        if let Some((from @ 1.., _)) = range {
            file.seek(SeekFrom::Start(from)).await.map_err(|error| read_error(&error))?;
        }
        Ok(Box::new(file))
    }

    async fn size(&self, hash: &str) -> Result<u64, BlobError> {
        let found = tokio::fs::metadata(self.path(hash)).await;
        found.map(|found| found.len()).map_err(|error| read_error(&error))
    }

    fn removal_delay_ms(&self) -> u64 {
        0
    }

    async fn remove(&self, hash: &str) -> Result<bool, BlobError> {
        match tokio::fs::remove_file(self.path(hash)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(write_error(&error)),
            _ => Ok(true),
        }
    }
}

/// Makes a folder that only its owner may access; true if it did not exist.
pub(super) fn folder_make(folder: &Path) -> io::Result<bool> {
    if folder.is_dir() {
        return Ok(false);
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map(|()| true)
}

/// Makes the entries of a folder durable.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn read_error(error: &io::Error) -> BlobError {
    match error.kind() {
        io::ErrorKind::NotFound => BlobError::Missing(error.to_string()),
        _ => BlobError::Damaged(error.to_string()),
    }
}

/// The error of a file that could not be written.
pub(super) fn write_error(error: &io::Error) -> BlobError {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let text = format!("the folder of artifacts: {error}");
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => BlobError::Full(text),
        _ => BlobError::Unavailable(text),
    }
}
