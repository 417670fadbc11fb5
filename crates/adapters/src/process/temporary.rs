//! Temporary folders: one for each confined process, removed after its end.

use std::fs::DirBuilder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use mainspring_kernel::ids::Ids;

/// The number of random digits in a folder's name.
const UNIQUE_DIGITS: usize = 16;
/// The longest path of a runtime folder: a socket's path can have only about 100 bytes.
const RUNTIME_DIR_MAX_BYTES: usize = 48;

/// A folder that only the user can use.
#[derive(Debug)]
pub(crate) struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Makes a folder for a process of this scope.
    pub(super) fn create(scope: &str) -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir(), scope)
    }

    /// Makes a folder for sockets of this scope: in the user's runtime folder, which no confined agent may write, else
    /// in the folder of temporary files.
    pub(crate) fn create_for_sockets(scope: &str) -> io::Result<Self> {
        Self::create_in(&runtime_dir().unwrap_or_else(std::env::temp_dir), scope)
    }

    fn create_in(parent: &Path, scope: &str) -> io::Result<Self> {
        // Short, because sockets have short paths. Making a folder that exists fails, so a name cannot be taken twice.
        let name = format!("{}{}", prefix(scope), &Ids::system().secret()[..UNIQUE_DIGITS]);
        // Resolves links: the confiner grants no access to a path that has a link.
        let path = parent.canonicalize()?.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the folder and blocks the thread meanwhile: only for folders with few files.
    pub(crate) fn remove_now(&self) {
        match std::fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.0.display(), %error, "the folder of an agent's sockets could not be removed");
            }
            _ => {}
        }
    }

    /// Removes the folder. The processes that used it have ended.
    pub(super) async fn remove(self) {
        remove(&self.0).await;
    }
}

/// Removes the folders of an earlier mainspring with this scope. Its processes have ended.
pub(super) async fn remove_leftovers(scope: &str) {
    let prefix = prefix(scope);
    let parents = [std::env::temp_dir()].into_iter().chain(runtime_dir());
    let entries = parents.flat_map(|parent| std::fs::read_dir(parent).into_iter().flatten().flatten());
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
        remove(&entry.path()).await;
    }
}

/// The user's folder for sockets, if there is one with a short path.
fn runtime_dir() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    let is_usable =
        folder.is_absolute() && folder.is_dir() && folder.as_os_str().len() <= RUNTIME_DIR_MAX_BYTES;
    is_usable.then_some(folder)
}

async fn remove(path: &Path) {
    if let Err(error) = tokio::fs::remove_dir_all(path).await {
        tracing::warn!(path = %path.display(), %error, "the temporary folder of an agent could not be removed");
    }
}

/// The beginning of the names of all folders of a scope.
fn prefix(scope: &str) -> String {
    let mut hasher = DefaultHasher::new();
    scope.hash(&mut hasher);
    format!("mainspring-{:08x}-", hasher.finish() >> 32)
}
