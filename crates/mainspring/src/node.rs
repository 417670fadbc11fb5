//! The node: one running mainspring. The only place that joins store, adapters and kernel.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_agent::hooks::Hooks;
use mainspring_agent::models::ModelsConfigError;
use mainspring_agent::network::NetworkRouter;
use mainspring_agent::{Definitions, Toolbox};
use mainspring_core::goal::built_in_goal_types;
use mainspring_core::permits::PermitPool;
use mainspring_kernel::adapter::{Adapter, Capabilities};
use mainspring_kernel::agents::NoCatalog;
use mainspring_kernel::audit::{Audit, AuditError, AuditOptions};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::kernel::{Kernel, OnOrphan, Options, Retry};
use mainspring_kernel::policy::{Permissions, ServerRules};
use mainspring_kernel::store::{Store, StoreError};
use mainspring_store::{
    Durability, OmiOffer, OpenError, SqliteCheck, SqliteOptions, SqliteStore, StateDir, StateDirError,
};

use crate::agents::{Agents, EmbedderParts, owner_rules};
use crate::artifact_store;
use crate::cluster::Member;
use crate::config::{self, Config};
use crate::memory;

/// One running mainspring: owns its state directory until closed.
pub struct Node {
    kernel: Kernel,
    agents: Agents,
    /// The SQLite store; `None` if the node has another.
    sqlite: Option<Arc<SqliteStore>>,
    /// This process as a server of its cluster. If set, it owns the state directory instead of the node.
    member: Option<Arc<Member>>,
    // Released last: while the store is open, no other process may own the folder.
    state_dir: Option<StateDir>,
}

/// Why a node could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The database cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The PostgreSQL database of the setting `store` cannot be opened.
    #[error("{address}: {reason}")]
    Postgres {
        /// The address, without its password.
        address: String,
        /// The reason and the remedy.
        reason: String,
    },
    /// The settings of a cluster are not usable.
    #[error("{0}")]
    Cluster(String),
    /// The object store of the configuration cannot be used.
    #[error("{0}")]
    ArtifactStore(String),
    /// The configuration of models is inconsistent.
    #[error(transparent)]
    Models(#[from] ModelsConfigError),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The unfinished work of an earlier process cannot be recovered.
    #[error("{} cannot be taken up: {source}", path.display())]
    Kernel {
        /// The database, or its address.
        path: PathBuf,
        /// The error of the kernel.
        source: mainspring_kernel::Error,
    },
}

impl NodeError {
    /// Returns the stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::StateDir(StateDirError::Busy { .. }) => "state_dir_owned",
            Self::StateDir(StateDirError::Exposed { .. }) => "state_dir_exposed",
            Self::StateDir(_) => "state_dir_unusable",
            Self::Models(_) | Self::Cluster(_) | Self::ArtifactStore(_) => "invalid_config",
            Self::Store(_) | Self::Postgres { .. } => "store_unusable",
            Self::Audit(_) => "audit_unusable",
            Self::Kernel { source, .. } => source.code(),
        }
    }
}

#[cfg(feature = "postgres")]
impl NodeError {
    /// The error of the PostgreSQL database of a configuration.
    pub(crate) fn postgres(config: &Config, error: &mainspring_store::PostgresError) -> Self {
        Self::Postgres { address: config.database_name(), reason: error.to_string() }
    }
}

/// Builds a node from a configuration and the parts of an embedder. See [`Node::builder`].
#[must_use]
pub struct NodeBuilder {
    config: Config,
    store: Option<Arc<dyn Store>>,
    member: Option<Arc<Member>>,
    parts: EmbedderParts,
    clock: Clock,
    execute: bool,
}

impl NodeBuilder {
    /// Adds tools for the native agent.
    pub fn tools(mut self, tools: Toolbox) -> Self {
        self.parts.tools = tools;
        self
    }

    /// Sets the hooks of the native agent.
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.parts.hooks = Arc::new(hooks);
        self
    }

    /// Adds a router in code, which networks name as `router.code`.
    pub fn router(mut self, name: &str, router: impl NetworkRouter) -> Self {
        self.parts.routers = self.parts.routers.with(name, Arc::new(router));
        self
    }

    /// Adds an adapter. It replaces a built-in or configured adapter of the same name.
    pub fn adapter(mut self, adapter: impl Adapter) -> Self {
        self.parts.adapters.push(Arc::new(adapter));
        self
    }

    /// Sets how permission requests are decided for agents without a configured policy; by default a person decides.
    pub fn permissions(mut self, permissions: Permissions) -> Self {
        self.parts.permissions = permissions;
        self
    }

    /// Replaces the SQLite store. Artifacts and the token stay in the state directory.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Makes the node part of a cluster: `member` is this process as a server that may execute sessions, and
    /// `store` is the store that the server has opened.
    #[cfg(feature = "postgres")]
    pub fn member(mut self, member: Arc<Member>, store: mainspring_store::PostgresStore) -> Self {
        self.member = Some(member);
        self.store(Arc::new(store))
    }

    /// Replaces the system's clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Executes nothing: queued runs stay queued. For reading and changing records.
    pub fn records_only(mut self) -> Self {
        self.execute = false;
        self
    }

    /// Opens the state directory, recovers the unfinished work of an earlier process, and accepts work.
    pub async fn open(self) -> Result<Node, NodeError> {
        let Self { mut config, store, member, parts, clock, execute } = self;
        if member.is_none() {
            // Only a server of a cluster renews the time limit of its agents, and is granted shared permits.
            (config.cluster.address, config.cluster.spread) = (None, false);
        }
        let blob_store = artifact_store::blob_store(&config, &clock)?;
        let ids = Ids::system();
        let definitions = Arc::new(Definitions::new(Some(config.agents_dir.clone())));
        let agents = Agents::new(&config, parts, definitions, &clock)?;
        let (node, state_dir) = match &member {
            Some(member) => (member.node(), None),
            None => {
                let node = ids.node();
                let elsewhere = config.store.as_ref().map(|_| config.database_name());
                let taken = StateDir::open_for(&config.state_dir, clock.now(), node, elsewhere.as_deref())?;
                (node, Some(taken))
            }
        };
        let (store, sqlite) = match store {
            Some(store) => (store, None),
            None if config.store.is_some() => (open_postgres(&config).await?, None),
            None => {
                let sqlite = open_sqlite(&config, &clock)?;
                (sqlite.clone() as Arc<dyn Store>, Some(sqlite))
            }
        };
        let options = Options {
            node: Some(node),
            artifacts: Some(config.artifacts_dir()),
            blob_store,
            audit: Some(Arc::new(open_audit(&config, &clock)?)),
            execute,
            agents: agents.catalog.clone(),
            homes: match &member {
                Some(member) => member.homes(&config)?,
                None => None,
            },
            ..kernel_options(&config)
        };
        agents.wait_for_earlier_processes(&config, &clock).await;
        if let Some(member) = &member {
            member.replace_earlier(&config).await?;
        }
        let kernel = Kernel::start(store, agents.adapters.clone(), options, clock, ids).await;
        let kernel =
            kernel.map_err(|source| NodeError::Kernel { path: config.database_name().into(), source })?;
        if let Some(member) = &member {
            member.follow(&kernel);
        }
        if execute && !config.memory_command.is_empty() {
            kernel.tasks().spawn(memory::run(kernel.clone(), config.memory_command.clone()));
        }
        tracing::debug!(state_dir = %config.state_dir.display(), "the state directory is open");
        Ok(Node { kernel, agents, sqlite, member, state_dir })
    }
}

fn open_audit(config: &Config, clock: &Clock) -> Result<Audit, AuditError> {
    let config::Audit { file_bytes, keep_bytes, keep_days, on_failure } = config.audit;
    let folder = config.audit_dir();
    Audit::open(AuditOptions { folder, file_bytes, keep_bytes, keep_days, on_failure }, clock.clone())
}

fn open_sqlite(config: &Config, clock: &Clock) -> Result<Arc<SqliteStore>, OpenError> {
    let durability = match config.durability {
        config::Durability::Full => Durability::Full,
        config::Durability::Normal => Durability::Normal,
    };
    let options = SqliteOptions { durability, readers: config.readers, ..SqliteOptions::default() };
    SqliteStore::open(&config.database(), options, clock.now()).map(Arc::new)
}

/// Opens the PostgreSQL database of the configuration. Waits some seconds for a server that is stopping.
#[cfg(feature = "postgres")]
async fn open_postgres(config: &Config) -> Result<Arc<dyn Store>, NodeError> {
    let url = config.store.clone().unwrap_or_default();
    let opened = tokio::task::spawn_blocking(move || {
        mainspring_store::PostgresStore::open(&url, mainspring_store::PostgresOptions::default())
    });
    let reason = match opened.await {
        Ok(Ok(store)) => return Ok(Arc::new(store)),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    Err(NodeError::Postgres { address: config.database_name(), reason })
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(config: &Config) -> Result<Arc<dyn Store>, NodeError> {
    let reason = "this program was built without the feature `postgres`".to_owned();
    Err(NodeError::Postgres { address: config.database_name(), reason })
}

impl Node {
    /// Starts building a node with this configuration.
    pub fn builder(config: Config) -> NodeBuilder {
        let clock = Clock::system();
        NodeBuilder {
            config,
            store: None,
            member: None,
            parts: EmbedderParts::default(),
            clock,
            execute: true,
        }
    }

    /// Opens a node with the built-in parts: `Node::builder(config).open()`.
    pub async fn open(config: &Config) -> Result<Self, NodeError> {
        Self::builder(config.clone()).open().await
    }

    /// Returns the capabilities of the adapters that a node with this configuration has. Opens and starts nothing.
    pub fn adapters(config: &Config) -> Result<Vec<Capabilities>, NodeError> {
        let definitions = Arc::new(Definitions::new(Some(config.agents_dir.clone())));
        let agents = Agents::new(config, EmbedderParts::default(), definitions, &Clock::system())?;
        Ok(agents.adapters.iter().map(|adapter| adapter.capabilities()).collect())
    }

    /// Returns this process as a server of its cluster, if it is one.
    pub fn member(&self) -> Option<&Arc<Member>> {
        self.member.as_ref()
    }

    /// Returns the kernel, which has the verbs.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Checks the SQLite database; a thorough check reads all of it. `None` if the node has another store.
    pub async fn check(&self, thorough: bool) -> Option<Result<SqliteCheck, StoreError>> {
        match &self.sqlite {
            Some(sqlite) => Some(sqlite.check(thorough).await),
            None => None,
        }
    }

    /// Finds a database of the original daemon in the state directory that was not imported.
    pub async fn omi_offer(&self) -> Option<OmiOffer> {
        self.sqlite.as_ref()?.omi_offer().await
    }

    /// Returns the number of agent processes that work for a run, even if the run waits for a person.
    pub fn busy_agents(&self) -> usize {
        self.agents.busy_processes()
    }

    /// Stops all runs, records their ends, and releases the state directory.
    pub async fn close(self) {
        self.kernel.shutdown().await;
        self.agents.close().await;
        if let Some(member) = &self.member {
            // Called after the agents have ended, so that no agent of this server works beside the agents of the next one.
            member.leave().await;
        }
        let Self { kernel, agents: _, sqlite, member: _, state_dir } = self;
        // Dropping the last reference joins the writer thread, which has little left to do.
        drop(kernel);
        drop(sqlite);
        drop(state_dir);
    }
}

fn kernel_options(config: &Config) -> Options {
    Options {
        limits: config.limits.clone(),
        owner: Some(config.owner.clone()),
        quotas: config.quotas,
        owner_quotas: config.owners.iter().map(|(name, owner)| (name.clone(), owner.quotas)).collect(),
        adapter: config.adapter.clone(),
        max_workers: config.max_workers,
        max_in_process_runs: Some(config.max_in_process_runs),
        adapter_workers: config
            .adapters
            .iter()
            .filter_map(|(name, adapter)| Some((name.clone(), adapter.max_attempts()?)))
            .collect(),
        cancel_grace_ms: config.cancel_grace_ms,
        wait_expiry_ms: config.wait_expiry_hours * 60 * 60 * 1_000,
        idle_unload_ms: config.idle_unload_ms,
        retry: Retry { base_ms: config.retry.base_ms, max_ms: config.retry.max_ms },
        fallbacks: config
            .adapters
            .iter()
            .filter_map(|(name, adapter)| Some((name.clone(), adapter.fallbacks.clone()?)))
            .collect(),
        on_orphan: match config.on_orphan {
            config::OnOrphan::Leave => OnOrphan::Leave,
            config::OnOrphan::Retry => OnOrphan::Retry,
        },
        node: None,
        artifacts: None,
        blob_store: None,
        artifact_retention: config.artifacts,
        audit: None,
        agents: Arc::new(NoCatalog),
        goal_types: built_in_goal_types().into_iter().chain(config.goal_types.clone()).collect(),
        state_dir: Some(config.state_dir.clone()),
        adapter_folders: config
            .adapters
            .iter()
            .filter_map(|(name, adapter)| Some((name.clone(), adapter.folders.clone()?)))
            .collect(),
        default_folders: default_folders(config),
        rules: ServerRules { all: config.rules.clone(), owners: owner_rules(config) },
        auto_title: config.titles == config::Titles::Heuristic,
        execute: true,
        homes: None,
        labels: config.cluster.labels.clone(),
        shared_permits: shared_permits(config),
    }
}

/// The pools whose permits the servers of a cluster share.
fn shared_permits(config: &Config) -> Vec<PermitPool> {
    let is_shared = |pool: &PermitPool| config.cluster.permit_limits()[*pool as usize].is_some();
    PermitPool::ALL.into_iter().filter(is_shared).collect()
}

/// The folders of the adapters whose agents work in the current folder because no `cwd` is configured.
fn default_folders(config: &Config) -> HashMap<String, PathBuf> {
    let Ok(current) = std::env::current_dir() else { return HashMap::new() };
    // An adapter with a kind runs processes; the built-in ones do not.
    let unset = config.adapters.iter().filter(|(_, adapter)| adapter.cwd.is_none() && adapter.kind.is_some());
    unset.map(|(name, _)| (name.clone(), current.clone())).collect()
}

#[cfg(test)]
mod tests;
