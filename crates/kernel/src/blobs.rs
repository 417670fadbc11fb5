//! Blobs: the bytes of artifacts, as files by their hash.
//!
//! ```text
//! staging/ID.part    being written            ─┐
//! staging/HASH.ID    its row is not known yet  │ left behind only by a crash, looked at by the next start
//! ab/abcdef…         whole and durable        ◀┘
//! ```
//!
//! Bytes are durable before the row that names them is committed, and removed after the last such row is gone, so
//! there is never a row without bytes. While a row is being committed nothing is removed (`gate`). The same bytes are
//! kept once.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainspring_core::ArtifactId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, Take};
use tokio::sync::{OwnedRwLockReadGuard, RwLock, RwLockWriteGuard};
use tokio::task::spawn_blocking;

use crate::error::Error;

/// How much is read at a time.
const BUFFER: usize = 64 << 10;

/// The bytes of an artifact, or a part of them.
pub type BlobReader = Take<tokio::fs::File>;

/// A folder of blobs. One process uses it at a time.
#[derive(Debug, Clone)]
pub(crate) struct Blobs {
    root: PathBuf,
    gate: Arc<RwLock<()>>,
}

/// Bytes that are written and durable, and not kept yet. Dropping this removes them.
#[derive(Debug)]
pub(crate) struct Staged {
    part: PathBuf,
    id: ArtifactId,
    pub(crate) hash: String,
    pub(crate) size: u64,
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Gone already when they were kept; a leftover is removed by the next start.
        let _ = fs::remove_file(&self.part);
    }
}

/// Bytes that are being written. Dropping this removes them.
pub(crate) struct Staging {
    staged: Staged,
    file: tokio::fs::File,
    hasher: Box<blake3::Hasher>,
    limit: usize,
}

impl Staging {
    /// How many there are so far.
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
        self.hasher.update(bytes);
        self.file.write_all(bytes).await.map_err(|error| unwritable(&error))
    }

    /// All are there; they are durable now.
    pub(crate) async fn end(self) -> Result<Staged, Error> {
        let Self { mut staged, mut file, hasher, .. } = self;
        file.flush().await.map_err(|error| unwritable(&error))?;
        file.sync_all().await.map_err(|error| unwritable(&error))?;
        staged.hash = hasher.finalize().to_hex().to_string();
        Ok(staged)
    }
}

/// Bytes that are kept, and whose row may be committed now.
#[derive(Debug)]
pub(crate) struct Kept {
    marker: PathBuf,
    hash: String,
    _gate: OwnedRwLockReadGuard<()>,
}

impl Blobs {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.into(), gate: Arc::default() }
    }

    /// Writes all of `content`, at most `limit` bytes.
    pub(crate) async fn stage(
        &self,
        id: ArtifactId,
        content: &mut (impl AsyncRead + Unpin + Send + ?Sized),
        limit: usize,
    ) -> Result<Staged, Error> {
        let mut staging = self.begin(id, limit).await?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = content.read(&mut buffer).await;
            let read = read.map_err(|error| Error::Invalid(format!("the content broke off: {error}")))?;
            if read == 0 {
                return staging.end().await;
            }
            staging.write(&buffer[..read]).await?;
        }
    }

    /// Begins to write at most `limit` bytes, which come piece by piece.
    pub(crate) async fn begin(&self, id: ArtifactId, limit: usize) -> Result<Staging, Error> {
        let part = self.staging().join(format!("{id}.part"));
        let file = self.blocking(move |blobs| blobs.part_make(&part).map(|file| (part, file))).await;
        let (part, file) = file.map_err(|error| unwritable(&error))?;
        // From here on the file goes with this, whatever happens.
        let staged = Staged { part, id, hash: String::new(), size: 0 };
        Ok(Staging { staged, file: tokio::fs::File::from_std(file), hasher: Box::default(), limit })
    }

    /// Gives staged bytes their place. The marker says what to look at if the process dies before their row is there.
    pub(crate) async fn keep(&self, staged: Staged) -> Result<Kept, Error> {
        let gate = self.gate.clone().read_owned().await;
        let marker = self.staging().join(format!("{}.{}", staged.hash, staged.id));
        let kept = Kept { marker: marker.clone(), hash: staged.hash.clone(), _gate: gate };
        let placed = self.blocking(move |blobs| blobs.place(&staged, &marker)).await;
        placed.map(|()| kept).map_err(|error| unwritable(&error))
    }

    /// The row of what was kept is there.
    pub(crate) async fn done(&self, kept: Kept) {
        // A marker that stays is looked at by the next start, and found to be in order.
        let _ = tokio::fs::remove_file(&kept.marker).await;
    }

    /// Lets go of what was kept, since its row is not there; gives what is to be looked at.
    pub(crate) fn give_up(kept: Kept) -> (String, PathBuf) {
        (kept.hash, kept.marker)
    }

    /// While this is held, no row is being committed.
    pub(crate) async fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }

    /// Removes the bytes of `hash`, which nothing names.
    pub(crate) async fn remove(&self, hash: &str) -> Result<(), Error> {
        match tokio::fs::remove_file(self.path(hash)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(&error)),
            _ => Ok(()),
        }
    }

    /// What an earlier process left: removes what it had not finished writing, and gives the hashes whose rows may be
    /// missing, each with its marker.
    pub(crate) async fn leftovers(&self) -> Result<Vec<(String, PathBuf)>, Error> {
        let found = self.blocking(|blobs| blobs.staging_read()).await;
        found.map_err(|error| unwritable(&error))
    }

    /// Removes a marker that was looked at.
    pub(crate) async fn marker_remove(&self, marker: &Path) {
        let _ = tokio::fs::remove_file(marker).await;
    }

    /// The bytes of `hash`, `length` of them from `from` on.
    pub(crate) async fn read(&self, hash: &str, from: u64, length: u64) -> io::Result<BlobReader> {
        let mut file = tokio::fs::File::open(self.path(hash)).await?;
        if from > 0 {
            file.seek(SeekFrom::Start(from)).await?;
        }
        Ok(file.take(length))
    }

    /// What is wrong with the bytes of `hash`; `thorough` reads them.
    pub(crate) async fn check(&self, hash: &str, size: u64, thorough: bool) -> Option<String> {
        let hash = hash.to_owned();
        self.blocking(move |blobs| Ok(blobs.examine(&hash, size, thorough)))
            .await
            .unwrap_or_else(|error| Some(error.to_string()))
    }

    fn examine(&self, hash: &str, size: u64, thorough: bool) -> Option<String> {
        let path = self.path(hash);
        let found = match fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(error) => return Some(format!("{}: {error}", path.display())),
        };
        if found != size {
            return Some(format!("{} has {found} bytes instead of {size}", path.display()));
        }
        if !thorough {
            return None;
        }
        match hash_of(&path) {
            Err(error) => Some(format!("{}: {error}", path.display())),
            Ok(found) if found != hash => Some(format!("{} does not hold what it did", path.display())),
            Ok(_) => None,
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

    fn place(&self, staged: &Staged, marker: &Path) -> io::Result<()> {
        let path = self.path(&staged.hash);
        let folder = path.parent().unwrap_or(&self.root);
        // The marker is durable before what it speaks of.
        File::create(marker)?;
        sync(&self.staging())?;
        if folder_make(folder)? {
            sync(&self.root)?;
        }
        let known = fs::metadata(&path).is_ok_and(|known| known.len() == staged.size);
        if !known {
            fs::rename(&staged.part, &path)?;
        }
        sync(folder)
    }

    fn staging_read(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let entries = match fs::read_dir(self.staging()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries?,
        };
        let mut left = vec![];
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            match name.split_once('.') {
                Some((hash, id)) if is_hash(hash) && id.parse::<ArtifactId>().is_ok() => {
                    left.push((hash.to_owned(), path));
                }
                Some((id, "part")) if id.parse::<ArtifactId>().is_ok() => fs::remove_file(path)?,
                // Not ours to judge.
                _ => {}
            }
        }
        Ok(left)
    }

    fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    fn path(&self, hash: &str) -> PathBuf {
        self.root.join(hash.get(..2).unwrap_or("__")).join(hash)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let blobs = self.clone();
        spawn_blocking(move || work(&blobs)).await.unwrap_or_else(|gone| Err(io::Error::other(gone)))
    }
}

/// True for what [`Blobs::stage`] makes.
pub(crate) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Makes a folder that only its owner may look into; true if there was none.
fn folder_make(folder: &Path) -> io::Result<bool> {
    if folder.is_dir() {
        return Ok(false);
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map(|()| true)
}

fn hash_of(path: &Path) -> io::Result<String> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; BUFFER]);
    let mut hasher = blake3::Hasher::new();
    loop {
        match io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            read => hasher.update(&buffer[..read]),
        };
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn unwritable(error: &io::Error) -> Error {
    Error::Unavailable(format!("the folder of artifacts: {error}"))
}
