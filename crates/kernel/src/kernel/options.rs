//! Settings of a kernel.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use mainspring_core::goal::built_in_goal_types;
use mainspring_core::permits::PermitPool;
use mainspring_core::{ArtifactRetention, Fallback, GoalType, Limits, NodeId, OwnerQuotas, Quotas};

use super::homes::Homes;
use crate::agents::{Catalog, NoCatalog};
use crate::audit::Audit;
use crate::blobs::BlobStore;
use crate::policy::ServerRules;

/// Settings of a kernel.
#[derive(Debug, Clone)]
pub struct Options {
    /// Limits on sizes and counts.
    pub limits: Limits,
    /// The owner that this process itself acts for. Admins of an org cannot make keys for that owner. All other owners
    /// leave room for others in the queue, among the workers and in the pools of the HTTP API.
    pub owner: Option<String>,
    /// The limits of every owner.
    pub quotas: Quotas,
    /// The limits that differ for single owners.
    pub owner_quotas: BTreeMap<String, OwnerQuotas>,
    /// The adapter of sessions that name none.
    pub adapter: String,
    /// Attempts that may execute at once, without those that `max_in_process_runs` counts.
    pub max_workers: usize,
    /// Attempts of agents without a process that may execute at once, see [`mainspring_api::Capabilities::in_process`];
    /// `None` to count them among `max_workers`.
    pub max_in_process_runs: Option<usize>,
    /// Attempts that may execute at once, by adapter.
    pub adapter_workers: HashMap<String, usize>,
    /// Time a cancelled attempt has to stop before it is killed.
    pub cancel_grace_ms: u64,
    /// Time a run waits for an answer.
    pub wait_expiry_ms: u64,
    /// Time an idle session stays in memory.
    pub idle_unload_ms: u64,
    /// Backoff between the attempts of a run.
    pub retry: Retry,
    /// Adapters that take over, in order, when an attempt of another adapter fails before any output; by the adapter that
    /// the run was requested for.
    pub fallbacks: HashMap<String, Vec<Fallback>>,
    /// Handling of runs that were executing when an earlier process ended.
    pub on_orphan: OnOrphan,
    /// Id of this process; a new one if not given.
    pub node: Option<NodeId>,
    /// Folder for the bytes of artifacts. Kernels that share a store may share the folder. Without a folder,
    /// artifacts are refused.
    pub artifacts: Option<PathBuf>,
    /// The store of artifact bytes, if it is not the folder `artifacts`. Bytes are then prepared in that folder.
    pub blob_store: Option<Arc<dyn BlobStore>>,
    /// How long artifacts are kept, and how much of them.
    pub artifact_retention: ArtifactRetention,
    /// The audit log; `None` to keep none.
    pub audit: Option<Arc<Audit>>,
    /// Shared agent definitions and models of the runtime.
    pub agents: Arc<dyn Catalog>,
    /// The goal types that every owner may use: those that are built in, and those of the configuration.
    pub goal_types: Vec<GoalType>,
    /// The state directory, in which no agent may work.
    pub state_dir: Option<PathBuf>,
    /// The folders in which the agents of an adapter may work, by adapter; an adapter without any may work anywhere.
    pub adapter_folders: HashMap<String, Vec<PathBuf>>,
    /// The default folders of runs, by adapter, where no operator has chosen one. A caller that is limited to folders
    /// may use a default folder only if it is allowed.
    pub default_folders: HashMap<String, PathBuf>,
    /// The rules about what agents may do, besides those of adapters, agent definitions and sessions.
    pub rules: ServerRules,
    /// True to give untitled sessions a title after their first completed turn.
    pub auto_title: bool,
    /// False for a kernel that executes nothing: queued runs stay queued.
    pub execute: bool,
    /// Set for a kernel that shares its store with others, each of which is the home of some sessions.
    pub homes: Option<Homes>,
    /// The pools whose permits are this server's block of the permits of a cluster: none until [`Kernel::permits_resize`] is
    /// called.
    ///
    /// [`Kernel::permits_resize`]: super::Kernel::permits_resize
    pub shared_permits: Vec<PermitPool>,
    /// The labels of this server, which sessions may demand.
    pub labels: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            owner: None,
            quotas: Quotas::default(),
            owner_quotas: BTreeMap::new(),
            adapter: "script".into(),
            max_workers: 8,
            max_in_process_runs: None,
            adapter_workers: HashMap::new(),
            cancel_grace_ms: 5_000,
            wait_expiry_ms: 24 * 60 * 60 * 1_000,
            idle_unload_ms: 30_000,
            retry: Retry { base_ms: 500, max_ms: 30_000 },
            fallbacks: HashMap::new(),
            on_orphan: OnOrphan::Leave,
            node: None,
            artifacts: None,
            blob_store: None,
            artifact_retention: ArtifactRetention::default(),
            audit: None,
            agents: Arc::new(NoCatalog),
            goal_types: built_in_goal_types(),
            state_dir: None,
            rules: ServerRules::default(),
            adapter_folders: HashMap::new(),
            default_folders: HashMap::new(),
            auto_title: true,
            execute: true,
            homes: None,
            shared_permits: vec![],
            labels: vec![],
        }
    }
}

/// Exponential backoff: a failed attempt is retried after `base_ms`, then twice that, up to `max_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// First delay.
    pub base_ms: u64,
    /// Longest delay.
    pub max_ms: u64,
}

impl Retry {
    /// Delay in milliseconds after attempt number `attempts` has failed.
    pub fn delay(&self, attempts: u32) -> u64 {
        let doubled = self.base_ms.saturating_mul(1 << attempts.saturating_sub(1).min(32));
        doubled.min(self.max_ms)
    }
}

/// Handling of a run that was executing when its process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOrphan {
    /// The run becomes orphaned. A person may retry it.
    Leave,
    /// The run is retried from its last message.
    Retry,
}

/// Counts of runs with work to do. Runs that wait for a person are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Queued runs.
    pub queued: usize,
    /// Runs queued behind a run that waits for a person.
    pub blocked: usize,
    /// Executing runs.
    pub active: usize,
}
