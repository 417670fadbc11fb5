//! The node: one running mainspring. Store, adapters and kernel meet here and nowhere else.

use std::path::PathBuf;
use std::sync::Arc;

use mainspring_agent::models::ModelsConfigError;
use mainspring_agent::{Definitions, Toolbox};
use mainspring_kernel::agents::NoCatalog;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Kernel, OnOrphan, Options, Retry};
use mainspring_kernel::store::StoreError;
use mainspring_store::{
    Durability, OpenError, SqliteCheck, SqliteOptions, SqliteStore, StateDir, StateDirError,
};

use crate::agents::Agents;
use crate::config::{self, Config};

/// One running mainspring: it owns its state directory until it is closed.
pub struct Node {
    kernel: Kernel,
    agents: Agents,
    store: Arc<SqliteStore>,
    // Given up last: while the store is open, the folder is ours.
    dir: StateDir,
}

/// Why a node could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The state directory cannot be had.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The database cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// What is said of models makes no sense.
    #[error(transparent)]
    Models(#[from] ModelsConfigError),
    /// What an earlier process left could not be taken up.
    #[error("{} cannot be taken up: {source}", path.display())]
    Kernel {
        /// The database.
        path: PathBuf,
        /// Why.
        source: mainspring_kernel::Error,
    },
}

impl Node {
    /// Opens the state directory, takes up what an earlier process left, and accepts work.
    pub async fn open(config: &Config) -> Result<Self, NodeError> {
        Self::open_with(config, Toolbox::new()).await
    }

    /// Like [`Node::open`], for agents that have these tools too.
    pub async fn open_with(config: &Config, tools: Toolbox) -> Result<Self, NodeError> {
        Self::start(config, tools, true).await
    }

    /// Like [`Node::open`], but executes nothing: queued runs stay queued. For reading and changing records.
    pub async fn open_records(config: &Config) -> Result<Self, NodeError> {
        Self::start(config, Toolbox::new(), false).await
    }

    async fn start(config: &Config, tools: Toolbox, execute: bool) -> Result<Self, NodeError> {
        let (clock, ids) = (Clock::system(), Ids::system());
        let definitions = Arc::new(Definitions::new(Some(config.agents_dir.clone())));
        let agents = Agents::new(config, tools, definitions, &clock)?;
        let node = ids.node();
        let dir = StateDir::open(&config.state_dir, clock.now(), node)?;
        let path = config.database();
        let durability = match config.durability {
            config::Durability::Full => Durability::Full,
            config::Durability::Normal => Durability::Normal,
        };
        let options = SqliteOptions { durability, readers: config.readers };
        let store = Arc::new(SqliteStore::open(&path, options, clock.now())?);
        let artifacts = Some(config.artifacts_dir());
        let options = Options {
            node: Some(node),
            artifacts,
            execute,
            agents: agents.catalog.clone(),
            ..options_of(config)
        };
        agents.wait_for_earlier(config, &clock).await;
        let kernel = Kernel::start(store.clone(), agents.adapters.clone(), options, clock, ids).await;
        let kernel = kernel.map_err(|source| NodeError::Kernel { path, source })?;
        Ok(Self { kernel, agents, store, dir })
    }

    /// What does the work.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Checks the database; a thorough check reads all of it.
    pub async fn check(&self, thorough: bool) -> Result<SqliteCheck, StoreError> {
        self.store.check(thorough).await
    }

    /// Stops what executes, records it, and gives the state directory back.
    pub async fn close(self) {
        self.kernel.shutdown().await;
        self.agents.close().await;
        let Self { kernel, agents: _, store, dir } = self;
        // The last of these joins the writer thread; it has little left to do.
        drop(kernel);
        drop(store);
        drop(dir);
    }
}

fn options_of(config: &Config) -> Options {
    Options {
        limits: config.limits.clone(),
        owner: Some(config.owner.clone()),
        adapter: config.adapter.clone(),
        max_workers: config.max_workers,
        adapter_workers: config
            .adapters
            .iter()
            .filter_map(|(name, adapter)| Some((name.clone(), adapter.workers()?)))
            .collect(),
        cancel_grace_ms: config.cancel_grace_ms,
        wait_expiry_ms: config.wait_expiry_hours * 60 * 60 * 1_000,
        idle_unload_ms: config.idle_unload_ms,
        retry: Retry { base_ms: config.retry.base_ms, max_ms: config.retry.max_ms },
        on_orphan: match config.on_orphan {
            config::OnOrphan::Leave => OnOrphan::Leave,
            config::OnOrphan::Retry => OnOrphan::Retry,
        },
        node: None,
        artifacts: None,
        agents: Arc::new(NoCatalog),
        auto_title: config.titles == config::Titles::Heuristic,
        execute: true,
    }
}
