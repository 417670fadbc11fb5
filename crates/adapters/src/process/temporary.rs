//! Temporary folders: one for each confined process, removed after its end.

use std::fs::DirBuilder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use mainspring_kernel::ids::Ids;

/// The number of random digits in a folder's name.
const UNIQUE_DIGITS: usize = 16;

/// A folder that only the user can use.
#[derive(Debug)]
pub(super) struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Makes a folder for a process of this scope.
    pub(super) fn create(scope: &str) -> io::Result<Self> {
        // Short, because sockets have short paths. Making a folder that exists fails, so a name cannot be taken twice.
        let name = format!("{}{}", prefix(scope), &Ids::system().secret()[..UNIQUE_DIGITS]);
        // The confiner grants it by its real path.
        let path = std::env::temp_dir().canonicalize()?.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the folder. The processes that used it have ended.
    pub(super) async fn remove(self) {
        remove(&self.0).await;
    }
}

/// Removes the folders of an earlier mainspring with this scope. Its processes have ended.
pub(super) async fn remove_leftovers(scope: &str) {
    let prefix = prefix(scope);
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
        remove(&entry.path()).await;
    }
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
