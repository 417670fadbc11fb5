//! Blobs: the bytes of artifacts, named by their hash.
//!
//! ```text
//! staging/NODE/ID.part    being written              ─┐ left behind by a crash or a failed removal,
//! staging/NODE/HASH.ID    empty; row may be missing   │ handled by a later start or the hourly cleaning
//! ab/abcdef…              complete and durable       ◀┘ in the same folder, or in an object store
//! ```
//!
//! Bytes are durable before a row that refers to them is committed, and removed after the last such row is
//! gone, so there is never a row without bytes. A writer claims the hash before it places the bytes, and
//! keeps the claim until the row is committed: meanwhile neither this process (`claims.rs`) nor another one
//! that shares the store (`Store::blob_claim`) removes the bytes. Equal contents are stored once.
//!
//! Processes may share the folder, so each has a staging folder of its own, named by the id of the process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainspring_core::media::HEAD_BYTES;
use mainspring_core::{ArtifactId, NodeId};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_blocking;

pub use self::blob_store::{BlobBytes, BlobError, BlobStore};
use self::claims::{ClaimedHash, Claims};
use self::folder::{Folder, folder_make, sync};
pub use self::reader::BlobReader;
use crate::error::Error;

mod blob_store;
mod claims;
mod folder;
mod reader;

/// Bytes read at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// The size up to which a blob is compared with its hash before its first byte is returned.
const CHECKED_AT_ONCE_BYTES: u64 = 256 << 10;

/// The blobs of a kernel.
#[derive(Debug, Clone)]
pub struct Blobs {
    /// The folder that contains `staging`.
    root: PathBuf,
    /// The process that stages in a folder of its own; none to stage in `staging` itself.
    node: Option<NodeId>,
    store: Arc<dyn BlobStore>,
    claims: Arc<Claims>,
}

/// Complete and durable bytes in the staging folder. Dropping this removes them.
#[derive(Debug)]
pub struct StagedBlob {
    part: PathBuf,
    pub(crate) id: ArtifactId,
    /// Hash of the content, in hexadecimal.
    pub hash: String,
    /// Size in bytes.
    pub size: u64,
    /// The first bytes, by which the media type is recognized.
    pub(crate) head: Vec<u8>,
}

impl Drop for StagedBlob {
    fn drop(&mut self) {
        // Keeping the bytes may have moved the file. The next start removes a leftover.
        let _ = fs::remove_file(&self.part);
    }
}

/// Bytes being written to the staging folder. Dropping this removes them.
pub(crate) struct StagingBlob {
    staged: StagedBlob,
    file: tokio::fs::File,
    hasher: Box<blake3::Hasher>,
    limit: usize,
}

impl StagingBlob {
    /// Bytes written so far.
    pub(crate) fn size(&self) -> u64 {
        self.staged.size
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.staged.size += bytes.len() as u64;
        if self.staged.size > self.limit as u64 {
            return Err(Error::TooLarge {
                what: "the artifact",
                size: usize::try_from(self.staged.size).unwrap_or(usize::MAX),
                limit: self.limit,
            });
        }
        let missing = HEAD_BYTES.saturating_sub(self.staged.head.len());
        self.staged.head.extend(bytes.iter().take(missing));
        self.hasher.update(bytes);
        self.file.write_all(bytes).await.map_err(|error| write_error(&error))
    }

    /// Completes the content and makes it durable.
    pub(crate) async fn end(self) -> Result<StagedBlob, Error> {
        let Self { mut staged, mut file, hasher, .. } = self;
        file.flush().await.map_err(|error| write_error(&error))?;
        file.sync_all().await.map_err(|error| write_error(&error))?;
        staged.hash = hasher.finalize().to_hex().to_string();
        Ok(staged)
    }
}

/// Bytes in their final place. The row that refers to them may be committed while this is held.
#[derive(Debug)]
pub struct KeptBlob {
    marker: PathBuf,
    _claim: ClaimedHash,
}

/// A file that names bytes whose row may be missing.
#[derive(Debug)]
pub(crate) struct Marker {
    pub(crate) hash: String,
    pub(crate) file: PathBuf,
}

impl Blobs {
    /// Blobs in the folder `root`, which need not exist yet.
    pub fn new(root: &Path) -> Self {
        Self::with_store(root, Arc::new(Folder::new(root)))
    }

    /// Blobs in `store`, staged in the folder `root`, which need not exist yet.
    pub fn with_store(root: &Path, store: Arc<dyn BlobStore>) -> Self {
        Self { root: root.into(), node: None, store, claims: Arc::default() }
    }

    /// Stages in a folder of the process `node`, so that several processes can share the root.
    pub(crate) fn staged_by(self, node: NodeId) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Stages all of `content`, at most `limit` bytes.
    pub async fn stage(
        &self,
        id: ArtifactId,
        content: &mut (impl AsyncRead + Unpin + Send + ?Sized),
        limit: usize,
    ) -> Result<StagedBlob, Error> {
        let mut staging = self.stage_begin(id, limit).await?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = content.read(&mut buffer).await;
            let read = read.map_err(|error| Error::Invalid(format!("the content broke off: {error}")))?;
            if read == 0 {
                return staging.end().await;
            }
            staging.write(&buffer[..read]).await?;
        }
    }

    /// Begins to stage at most `limit` bytes, written chunk by chunk.
    pub(crate) async fn stage_begin(&self, id: ArtifactId, limit: usize) -> Result<StagingBlob, Error> {
        let part = self.staging().join(format!("{id}.part"));
        let file = self.blocking(move |blobs| blobs.part_make(&part).map(|file| (part, file))).await;
        let (part, file) = file.map_err(|error| write_error(&error))?;
        // From here on, dropping this removes the file.
        let staged = StagedBlob { part, id, hash: String::new(), size: 0, head: vec![] };
        Ok(StagingBlob { staged, file: tokio::fs::File::from_std(file), hasher: Box::default(), limit })
    }

    /// Moves staged bytes to their final place. A marker file records the hash, in case the process ends before the row is
    /// committed.
    pub async fn keep(&self, staged: StagedBlob) -> Result<KeptBlob, Error> {
        let claim = self.claims.claim_storing(&staged.hash).await;
        let marker = self.staging().join(format!("{}.{}", staged.hash, staged.id));
        let kept = KeptBlob { marker: marker.clone(), _claim: claim };
        let marked = self.blocking(move |blobs| blobs.mark(&marker)).await;
        marked.map_err(|error| write_error(&error))?;
        self.store.put(&staged.hash, staged.size, &staged.part).await?;
        Ok(kept)
    }

    /// Removes the marker of kept bytes, after their row was committed.
    pub async fn done(&self, kept: KeptBlob) {
        // If the marker cannot be removed, a later cleaning finds the row and removes the marker.
        let _ = tokio::fs::remove_file(&kept.marker).await;
    }

    /// Releases the claim on bytes whose row was not committed. Returns their marker; the caller removes unused bytes.
    pub(crate) fn give_up(kept: KeptBlob) -> PathBuf {
        kept.marker
    }

    /// Claims the bytes of `hash` in order to remove them, unless this process stores or removes them.
    pub(crate) fn claim_removal(&self, hash: &str) -> Option<ClaimedHash> {
        self.claims.claim_removal(hash)
    }

    /// Milliseconds for which unused bytes stay after they were written.
    pub(crate) fn removal_delay_ms(&self) -> u64 {
        self.store.removal_delay_ms()
    }

    /// Removes the bytes of `hash`, which no row refers to. Returns false if they must stay for now.
    pub(crate) async fn remove(&self, hash: &str) -> Result<bool, Error> {
        Ok(self.store.remove(hash).await?)
    }

    /// Lists the processes that have a staging folder.
    pub(crate) async fn stagers(&self) -> Result<Vec<NodeId>, Error> {
        let found = self.blocking(Self::stagers_read).await;
        found.map_err(|error| write_error(&error))
    }

    /// Removes the incomplete files of the processes `gone`, which have ended. Returns the markers that they have left, and
    /// those of this process.
    pub(crate) async fn leftovers(&self, gone: Vec<NodeId>) -> Result<Vec<Marker>, Error> {
        let found = self.blocking(move |blobs| blobs.leftovers_read(&gone)).await;
        found.map_err(|error| write_error(&error))
    }

    /// Removes the empty staging folders of processes that have ended.
    pub(crate) async fn stagers_remove(&self, gone: &[NodeId]) {
        for node in gone {
            // A folder with a marker stays for a later time.
            let _ = tokio::fs::remove_dir(self.staging_of(Some(*node))).await;
        }
    }

    /// Removes a marker.
    pub(crate) async fn marker_remove(&self, marker: &Path) {
        let _ = tokio::fs::remove_file(marker).await;
    }

    /// Opens `length` bytes of `hash`, which has `size` bytes, from offset `from`.
    pub(crate) async fn read(
        &self,
        hash: &str,
        size: u64,
        from: u64,
        length: u64,
    ) -> Result<BlobReader, BlobError> {
        if size <= CHECKED_AT_ONCE_BYTES {
            let mut bytes = vec![];
            let content = self.store.open(hash, None).await?;
            let read = content.take(CHECKED_AT_ONCE_BYTES + 1).read_to_end(&mut bytes).await;
            read.map_err(BlobError::of_read)?;
            if blake3::hash(&bytes).to_hex().as_str() != hash {
                return Err(BlobError::of_read(reader::hash_changed()));
            }
            return Ok(BlobReader::checked(bytes, from, length));
        }
        let is_whole = from == 0 && length >= size;
        let range = (!is_whole).then_some((from, length));
        let content = self.store.open(hash, range).await?;
        Ok(BlobReader::streamed(content, length, is_whole.then_some(hash)))
    }

    /// Checks the bytes of `hash` and returns the problem, if any; `thorough` reads them and compares the hash.
    pub async fn check(&self, hash: &str, size: u64, thorough: bool) -> Option<String> {
        let place = self.store.place(hash);
        match self.store.size(hash).await {
            Err(error) => return Some(format!("{place}: {error}")),
            Ok(found) if found != size => {
                return Some(format!("{place} has {found} bytes instead of {size}"));
            }
            Ok(_) if !thorough => return None,
            Ok(_) => {}
        }
        match self.hash_of(hash).await {
            Err(error) => Some(format!("{place}: {error}")),
            Ok(found) if found != hash => Some(format!("{place} is corrupt: its hash has changed")),
            Ok(_) => None,
        }
    }

    async fn hash_of(&self, hash: &str) -> Result<String, BlobError> {
        let mut content = self.store.open(hash, None).await?;
        let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; BUFFER_BYTES]);
        loop {
            match content.read(&mut buffer).await.map_err(BlobError::of_read)? {
                0 => return Ok(hasher.finalize().to_hex().to_string()),
                read => hasher.update(&buffer[..read]),
            };
        }
    }

    fn part_make(&self, part: &Path) -> io::Result<File> {
        folder_make(&self.staging())?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(part)
    }

    /// Makes a marker durable, before the bytes are in place.
    fn mark(&self, marker: &Path) -> io::Result<()> {
        File::create(marker)?;
        sync(&self.staging())
    }

    fn stagers_read(&self) -> io::Result<Vec<NodeId>> {
        let names = read_dir(&self.staging_of(None))?.into_iter();
        Ok(names.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect())
    }

    fn leftovers_read(&self, gone: &[NodeId]) -> io::Result<Vec<Marker>> {
        let mut left = vec![];
        for node in gone {
            staging_read(&self.staging_of(Some(*node)), Parts::Remove, &mut left)?;
        }
        // Earlier versions staged in the folder of all processes.
        staging_read(&self.staging_of(None), Parts::Remove, &mut left)?;
        // A marker of this process stays if the bytes could not be removed.
        staging_read(&self.staging(), Parts::Leave, &mut left)?;
        Ok(left)
    }

    fn staging(&self) -> PathBuf {
        self.staging_of(self.node)
    }

    fn staging_of(&self, node: Option<NodeId>) -> PathBuf {
        let all = self.root.join("staging");
        match node {
            Some(node) => all.join(node.to_string()),
            None => all,
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let blobs = self.clone();
        spawn_blocking(move || work(&blobs)).await.unwrap_or_else(|gone| Err(io::Error::other(gone)))
    }
}

/// Whether incomplete files are removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    Remove,
    /// Their process may be writing them.
    Leave,
}

/// Adds the markers of a staging folder to `left`.
fn staging_read(folder: &Path, parts: Parts, left: &mut Vec<Marker>) -> io::Result<()> {
    for file in read_dir(folder)? {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.split_once('.') {
            Some((hash, id)) if is_hash(hash) && id.parse::<ArtifactId>().is_ok() => {
                left.push(Marker { hash: hash.to_owned(), file });
            }
            Some((id, "part")) if parts == Parts::Remove && id.parse::<ArtifactId>().is_ok() => {
                part_remove(&file)?;
            }
            // Files of unknown origin are left alone.
            _ => {}
        }
    }
    Ok(())
}

/// Removes an incomplete file, unless another process has removed it.
fn part_remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Lists the entries of a folder; none if it does not exist.
fn read_dir(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        entries => entries?.map(|entry| entry.map(|entry| entry.path())).collect(),
    }
}

/// True if `text` has the form of a hash made by [`Blobs::stage`].
pub(crate) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn write_error(error: &io::Error) -> Error {
    folder::write_error(error).into()
}
