//! A fresh store in a temporary folder, optionally with a kernel.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use mainspring_kernel::adapter::Adapter;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Caller, Kernel, Options};
use mainspring_store::{SqliteOptions, SqliteStore};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::adapter;

pub(crate) const OWNER: &str = "ada";

static SCALE: OnceLock<f64> = OnceLock::new();

/// Sets the scale of large benchmarks: the fraction of their full size.
pub(crate) fn set_scale(part: f64) {
    SCALE.set(part).unwrap();
}

/// The size of a large benchmark, at least 1.
pub(crate) fn scaled(size: usize) -> usize {
    ((size as f64 * SCALE.get().copied().unwrap_or(1.0)) as usize).max(1)
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

/// A temporary folder. `TMPDIR` selects the disk.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::Builder::new().prefix("mainspring-bench").tempdir().unwrap())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Opens a store with the program's defaults: durability full.
pub(crate) fn store(path: &Path) -> Arc<SqliteStore> {
    let now = Clock::system().now();
    Arc::new(SqliteStore::open(path, SqliteOptions::default(), now).unwrap())
}

pub(crate) async fn kernel(store: Arc<SqliteStore>) -> Kernel {
    start(store, Options::default()).await
}

/// Starts a kernel that acts for an owner of its own, so that every other owner gets only a share of its
/// pools.
pub(crate) async fn shared_kernel(store: Arc<SqliteStore>) -> Kernel {
    start(store, Options { owner: Some("server".into()), ..Options::default() }).await
}

/// A kernel with these options and the adapters of the benchmarks.
pub(crate) async fn start(store: Arc<SqliteStore>, options: Options) -> Kernel {
    let options = Options { adapter: adapter::ANSWER.into(), idle_unload_ms: 60 * 60 * 1_000, ..options };
    let adapters: Vec<Arc<dyn Adapter>> = adapter::all();
    Kernel::start(store, adapters, options, Clock::system(), Ids::system()).await.unwrap()
}

pub(crate) fn caller() -> Caller {
    Caller::new(OWNER)
}

/// A text of `chars` characters that looks like words.
pub(crate) fn text(chars: usize) -> String {
    "the quick brown fox jumps over the lazy dog ".chars().cycle().take(chars).collect()
}
