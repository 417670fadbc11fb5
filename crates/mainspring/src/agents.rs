//! Agents: the adapters that the configuration names, made from what it says of them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainspring_adapters::process;
use mainspring_adapters::{AcpOptions, AgentOptions, ProcessAdapter, ScriptAdapter};
use mainspring_agent::models::{BadModels, SCRIPTED};
use mainspring_agent::tool::mcp::McpServers;
use mainspring_agent::{Definitions, Models, NativeAdapter, NativeCatalog, NativeOptions, Toolbox};
use mainspring_kernel::adapter::Adapter;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::policy::Permissions;

use crate::config::{self, AdapterConfig, AdapterKind, Config};
use crate::scripted::Scripted;
use crate::server::fits_socket;

/// The variable in which agents find the relay.
const BRIDGE: &str = "OMI_BRIDGE_PIPE";
/// The relay's socket within the state directory.
const RELAY: &str = "relay.sock";

/// The adapters of one node, and what of them must be closed.
pub(crate) struct Agents {
    pub(crate) adapters: Vec<Arc<dyn Adapter>>,
    /// What the native one knows.
    pub(crate) catalog: Arc<NativeCatalog>,
    processes: Vec<Arc<ProcessAdapter>>,
}

impl Agents {
    /// The built-in adapters, and those of `config`, for agents that have `tools`. Nothing is started before it is
    /// needed.
    pub(crate) fn new(
        config: &Config,
        tools: Toolbox,
        definitions: Arc<Definitions>,
        clock: &Clock,
    ) -> Result<Self, BadModels> {
        let processes: Vec<Arc<ProcessAdapter>> = config
            .adapters
            .iter()
            .filter_map(|(name, adapter)| {
                let kind = adapter.kind?;
                let options = options(name, adapter, kind, config);
                Some(Arc::new(match kind {
                    AdapterKind::Acp => ProcessAdapter::acp(options, acp(adapter), clock.clone()),
                    AdapterKind::Pi => ProcessAdapter::pi(options, clock.clone()),
                }))
            })
            .collect();
        let models = Models::new(&config.models)?.with_provider(SCRIPTED, Arc::new(Scripted::default()));
        let catalog = Arc::new(NativeCatalog::new(definitions.clone(), models.clone()));
        let mut adapters: Vec<Arc<dyn Adapter>> =
            vec![Arc::new(ScriptAdapter), Arc::new(native(config, models, tools, definitions))];
        adapters.extend(processes.iter().map(|adapter| adapter.clone() as Arc<dyn Adapter>));
        Ok(Self { adapters, catalog, processes })
    }

    /// Waits until nothing acts any more that an earlier process had started. Before that nobody may say what became
    /// of it.
    pub(crate) async fn wait_for_earlier(&self, config: &Config, clock: &Clock) {
        if !self.processes.is_empty() {
            process::sweep(&scope(config), clock).await;
        }
    }

    /// Ends every process.
    pub(crate) async fn close(&self) {
        for adapter in &self.processes {
            adapter.close().await;
        }
    }
}

fn native(config: &Config, models: Models, tools: Toolbox, definitions: Arc<Definitions>) -> NativeAdapter {
    let native = NativeAdapter::new(models, tools, definitions);
    let options = NativeOptions { result_bytes: config.tool_result_bytes, ..NativeOptions::default() };
    native.with_options(options).with_mcp(McpServers::new(&config.models.mcp))
}

fn options(name: &str, adapter: &AdapterConfig, kind: AdapterKind, config: &Config) -> AgentOptions {
    let millis = |set: Option<u64>, default: u64| Duration::from_millis(set.unwrap_or(default));
    AgentOptions {
        name: name.to_owned(),
        guard: guard(config),
        scope: scope(config),
        command: adapter
            .command
            .clone()
            .unwrap_or_else(|| kind.command().iter().map(ToString::to_string).collect()),
        env: env(adapter, config),
        pass_env: adapter.pass_env.clone().unwrap_or_default(),
        cwd: adapter
            .cwd
            .clone()
            .or_else(|| std::env::current_dir().ok())
            .unwrap_or_else(|| PathBuf::from("/")),
        max_processes: adapter.max_processes.unwrap_or(16),
        idle: millis(adapter.idle_ms, 300_000),
        start_timeout: millis(adapter.start_timeout_ms, 60_000),
        stop_grace: millis(adapter.stop_grace_ms, 2_000),
        permissions: match adapter.permissions {
            None | Some(config::Permissions::Ask) => Permissions::Ask,
            Some(config::Permissions::Legacy) => Permissions::Legacy,
            Some(config::Permissions::Deny) => Permissions::Deny,
        },
        model: adapter.model.clone(),
    }
}

fn acp(adapter: &AdapterConfig) -> AcpOptions {
    AcpOptions {
        auth_method: adapter.auth_method.clone(),
        act_mode: adapter.act_mode.clone(),
        ask_mode: adapter.ask_mode.clone(),
    }
}

/// What an agent finds in its environment besides what every agent does.
fn env(adapter: &AdapterConfig, config: &Config) -> Vec<(String, String)> {
    let relay = relay(config).map(|path| (BRIDGE.to_owned(), path.to_string_lossy().into_owned()));
    // What is set for the adapter comes last, and wins.
    relay.into_iter().chain(adapter.env.clone().unwrap_or_default()).collect()
}

/// Where agents reach the tools of a host, whether one listens there or not; nowhere if the path is too long.
pub(crate) fn relay(config: &Config) -> Option<PathBuf> {
    Some(config.state_dir.join(RELAY)).filter(|path| fits_socket(path))
}

/// What marks the processes of this node: its state directory, which one process owns at a time.
fn scope(config: &Config) -> String {
    config.state_dir.to_string_lossy().into_owned()
}

/// What holds process trees: what is configured, or this very program.
fn guard(config: &Config) -> Vec<OsString> {
    if !config.guard.is_empty() {
        return config.guard.iter().map(OsString::from).collect();
    }
    let itself = std::env::current_exe().map_or_else(|_| "mainspring".into(), PathBuf::into_os_string);
    vec![itself, "guard".into()]
}
