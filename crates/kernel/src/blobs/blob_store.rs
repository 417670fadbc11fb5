//! The place of complete blobs: a folder, or an object store.

use std::io;
use std::path::Path;

use async_trait::async_trait;
use tokio::io::AsyncRead;

use crate::error::Error;

/// Bytes that are being read.
pub type BlobBytes = Box<dyn AsyncRead + Send + Unpin>;

/// Stores complete blobs by their hash, in hexadecimal.
#[async_trait]
pub trait BlobStore: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the place of the bytes of `hash`, for people.
    fn place(&self, hash: &str) -> String;

    /// Stores the `size` bytes of the file `part` durably under `hash`. Replaces stored bytes, because they may be
    /// damaged. May move the file away.
    async fn put(&self, hash: &str, size: u64, part: &Path) -> Result<(), BlobError>;

    /// Opens the bytes of `hash`: all of them, or a range given by offset and length.
    async fn open(&self, hash: &str, range: Option<(u64, u64)>) -> Result<BlobBytes, BlobError>;

    /// Returns the number of bytes that are stored for `hash`.
    async fn size(&self, hash: &str) -> Result<u64, BlobError>;

    /// Milliseconds for which bytes stay after they were written, because another server may be about to refer to them.
    /// 0 if bytes are removed at once.
    fn removal_delay_ms(&self) -> u64;

    /// Removes the bytes of `hash`, if there are any. Returns false if they must stay for now.
    async fn remove(&self, hash: &str) -> Result<bool, BlobError>;
}

/// Why bytes could not be stored, read or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// The bytes do not exist.
    #[error("{0}")]
    Missing(String),
    /// The bytes cannot be read, or are not those that were stored.
    #[error("{0}")]
    Damaged(String),
    /// The store has no space.
    #[error("{0}")]
    Full(String),
    /// The store cannot be reached, or refuses. Retry later.
    #[error("{0}")]
    Unavailable(String),
}

impl BlobError {
    /// Converts the error of a reader: returns the [`BlobError`] that it carries, else `Damaged`.
    pub(super) fn of_read(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => error,
            Err(error) => Self::Damaged(error.to_string()),
        }
    }
}

impl From<BlobError> for io::Error {
    fn from(error: BlobError) -> Self {
        Self::other(error)
    }
}

impl From<BlobError> for Error {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::Missing(text) | BlobError::Damaged(text) => Self::Corrupt(text),
            BlobError::Full(text) => Self::StoreFull(text),
            BlobError::Unavailable(text) => Self::Unavailable(text),
        }
    }
}
