//! Reads the bytes of an artifact, and compares them with their hash.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf, Take};

use super::blob_store::BlobBytes;

/// Reader of the bytes of an artifact, or of a range of them.
///
/// A large blob that is read whole is hashed while it is read. If the hash differs, the reader returns an error
/// instead of the last bytes. A range of a large blob is not checked.
pub struct BlobReader {
    content: Content,
    /// The hash so far and the expected one, until they were compared.
    comparison: Option<Box<(blake3::Hasher, String)>>,
}

enum Content {
    Checked(Take<io::Cursor<Vec<u8>>>),
    /// In a mutex only to be `Sync`, which futures that hold a reader must be. The mutex is never locked.
    Streamed(Mutex<Take<BlobBytes>>),
}

impl BlobReader {
    /// Reads `length` of the bytes, which were compared with their hash, from offset `from`.
    pub(super) fn checked(bytes: Vec<u8>, from: u64, length: u64) -> Self {
        let mut bytes = io::Cursor::new(bytes);
        bytes.set_position(from);
        Self { content: Content::Checked(bytes.take(length)), comparison: None }
    }

    /// Reads `length` bytes of a stream, and compares them with a hash.
    pub(super) fn streamed(content: BlobBytes, length: u64, hash: Option<&str>) -> Self {
        let comparison = hash.map(|hash| Box::new((blake3::Hasher::new(), hash.to_owned())));
        Self { content: Content::Streamed(Mutex::new(content.take(length))), comparison }
    }
}

impl std::fmt::Debug for BlobReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobReader").finish_non_exhaustive()
    }
}

impl AsyncRead for BlobReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { content, comparison } = self.get_mut();
        let stream = match content {
            Content::Checked(bytes) => return Pin::new(bytes).poll_read(context, buffer),
            Content::Streamed(stream) => stream.get_mut(),
        };
        let before = buffer.filled().len();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        std::task::ready!(Pin::new(&mut *stream).poll_read(context, buffer))?;
        let read = &buffer.filled()[before..];
        if let Some(hashes) = comparison {
            hashes.0.update(read);
            if stream.limit() == 0 || read.is_empty() {
                if hashes.0.finalize().to_hex().as_str() != hashes.1 {
                    buffer.set_filled(before);
                    return Poll::Ready(Err(hash_changed()));
                }
                *comparison = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The error if bytes differ from those that were stored.
pub(super) fn hash_changed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the content does not match its hash: restore a backup")
}
