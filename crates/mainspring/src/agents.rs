//! Agents: builds the adapters that the configuration names.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainspring_adapters::process;
use mainspring_adapters::sandbox::{SandboxOptions, landlock_abi};
use mainspring_adapters::{AcpOptions, AgentOptions, McpServer, ProcessAdapter, RelayOptions, ScriptAdapter};
use mainspring_agent::hooks::{Hooks, NoHooks};
use mainspring_agent::models::{ModelsConfigError, SCRIPTED};
use mainspring_agent::network::Routers;
use mainspring_agent::tool::matches_pattern;
use mainspring_agent::tool::mcp::{McpConfig, McpServers, ServerProcesses};
use mainspring_agent::{Definitions, Models, NativeAdapter, NativeCatalog, NativeOptions, Toolbox};
use mainspring_core::Supervision;
use mainspring_kernel::adapter::Adapter;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::folders::Folders;
use mainspring_kernel::policy::{Permissions, Rule};

use crate::config::{self, AdapterConfig, AdapterKind, Config};
use crate::scripted::ScriptedProvider;

/// The name of mainspring's own MCP server.
pub(crate) const CONTROL_SERVER: &str = "mainspring";

/// The parts that an embedder supplies.
pub(crate) struct EmbedderParts {
    pub(crate) tools: Toolbox,
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) routers: Routers,
    pub(crate) adapters: Vec<Arc<dyn Adapter>>,
    pub(crate) permissions: Permissions,
}

impl Default for EmbedderParts {
    fn default() -> Self {
        Self {
            tools: Toolbox::new(),
            hooks: Arc::new(NoHooks),
            routers: Routers::default(),
            adapters: vec![],
            permissions: Permissions::default(),
        }
    }
}

/// The adapters of one node, and the process adapters to close.
pub(crate) struct Agents {
    pub(crate) adapters: Vec<Arc<dyn Adapter>>,
    /// The agent definitions and models of the native adapter.
    pub(crate) catalog: Arc<NativeCatalog>,
    processes: Vec<Arc<ProcessAdapter>>,
}

impl Agents {
    /// Creates the built-in adapters, those of `config` and those of the embedder. Starts no process.
    pub(crate) fn new(
        config: &Config,
        parts: EmbedderParts,
        definitions: Arc<Definitions>,
        clock: &Clock,
    ) -> Result<Self, ModelsConfigError> {
        let processes: Vec<Arc<ProcessAdapter>> = config
            .adapters
            .iter()
            .filter_map(|(name, adapter)| {
                let kind = adapter.kind?;
                let options = agent_options(name, adapter, kind, config, parts.permissions);
                Some(Arc::new(match kind {
                    AdapterKind::Acp => {
                        ProcessAdapter::acp(options, acp_options(adapter, config), clock.clone())
                    }
                    AdapterKind::Pi => ProcessAdapter::pi(options, clock.clone()),
                }))
            })
            .collect();
        let models = Models::with_stored_keys(&config.models, Some(&config.keys_dir()))?
            .with_provider(SCRIPTED, Arc::new(ScriptedProvider::default()));
        let native = native_adapter(config, models.clone(), parts.tools, definitions.clone())
            .with_hooks(parts.hooks)
            .with_routers(parts.routers);
        let catalog = Arc::new(NativeCatalog::new(definitions, models).describing(native.clone()));
        let mut adapters: Vec<Arc<dyn Adapter>> = vec![Arc::new(ScriptAdapter), Arc::new(native)];
        adapters.extend(processes.iter().map(|adapter| adapter.clone() as Arc<dyn Adapter>));
        // The embedder's adapters come last, so that they replace others of the same name.
        adapters.extend(parts.adapters);
        Ok(Self { adapters, catalog, processes })
    }

    /// Waits until every agent process that an earlier node started has ended. Until then the outcome of its work is
    /// unknown.
    pub(crate) async fn wait_for_earlier_processes(&self, config: &Config, clock: &Clock) {
        let has_servers = config.models.mcp.values().any(|server| server.command.is_some());
        if !self.processes.is_empty() || has_servers {
            process::sweep(&process_scope(config), clock).await;
        }
    }

    /// Returns the number of agent processes that work for a run, also for one that waits for a person.
    pub(crate) fn busy_processes(&self) -> usize {
        let busy = |adapter: &Arc<ProcessAdapter>| {
            let (all, idle) = adapter.processes();
            all.saturating_sub(idle)
        };
        self.processes.iter().map(busy).sum()
    }

    /// Stops every agent process.
    pub(crate) async fn close(&self) {
        for adapter in &self.processes {
            adapter.close().await;
        }
    }
}

fn native_adapter(
    config: &Config,
    models: Models,
    tools: Toolbox,
    definitions: Arc<Definitions>,
) -> NativeAdapter {
    let native = NativeAdapter::new(models, tools.merge(&Toolbox::built_in()), definitions);
    let options = NativeOptions {
        result_bytes: config.tool_result_bytes,
        goal_reminders: config.goal_reminders,
        ..NativeOptions::default()
    };
    native
        .with_options(options)
        .with_mcp(McpServers::with_processes(&config.models.mcp, server_processes(config)))
}

/// MCP servers of the native agent are started like agents: under a guard and with the same variables, so that the next
/// start finds those that a crash has left.
fn server_processes(config: &Config) -> ServerProcesses {
    let mut guard = guard_command(config);
    guard.extend(["--grace-ms", "2000"].map(OsString::from));
    if config.supervision == Supervision::Group {
        guard.push("--group".into());
    }
    guard.push("--".into());
    let prefix = format!("{}#mcp-", process_scope(config));
    ServerProcesses {
        guard,
        env: process::inherited_environment(&[]).collect(),
        mark: Some((process::MARK_VARIABLE.to_owned(), prefix)),
    }
}

pub(crate) fn agent_options(
    name: &str,
    adapter: &AdapterConfig,
    kind: AdapterKind,
    config: &Config,
    permissions: Permissions,
) -> AgentOptions {
    let millis = |configured: Option<u64>, default: u64| Duration::from_millis(configured.unwrap_or(default));
    AgentOptions {
        name: name.to_owned(),
        guard: guard_command(config),
        scope: process_scope(config),
        command: adapter
            .command
            .clone()
            .unwrap_or_else(|| kind.command().iter().map(ToString::to_string).collect()),
        env: adapter.env.clone().unwrap_or_default().into_iter().collect(),
        pass_env: adapter.pass_env.clone().unwrap_or_default(),
        cwd: adapter
            .cwd
            .clone()
            .or_else(|| std::env::current_dir().ok())
            .unwrap_or_else(|| PathBuf::from("/")),
        is_cwd_configured: adapter.cwd.is_some(),
        folders: Folders { state_dir: Some(config.state_dir.clone()), allowed: adapter.folders.clone() },
        max_processes: adapter.max_processes.unwrap_or(config::DEFAULT_MAX_PROCESSES),
        idle: millis(adapter.idle_ms, 300_000),
        start_timeout: millis(adapter.start_timeout_ms, 60_000),
        stop_grace: millis(adapter.stop_grace_ms, 2_000),
        permissions: match adapter.permissions {
            None => permissions,
            Some(config::Permissions::Ask) => Permissions::Ask,
            Some(config::Permissions::Legacy) => Permissions::Legacy,
            Some(config::Permissions::Deny) => Permissions::Deny,
        },
        rules: adapter.rules.clone().unwrap_or_default(),
        keep_log: adapter.keep_log.unwrap_or_default(),
        model: adapter.model.clone(),
        profiles: adapter.profiles.clone().unwrap_or_default(),
        sandbox: SandboxOptions {
            profile: adapter.sandbox,
            writable: adapter.writable.clone().unwrap_or_default(),
            ports: adapter.ports.clone(),
            hidden: vec![config.state_dir.clone()],
            protected: protected_paths(config),
            landlock: landlock_abi(),
        },
        supervision: config.supervision,
        relay: RelayOptions {
            line_bytes: config.stdio.line_bytes,
            timeout_ms: config.stdio.tool_timeout_ms,
            aliases: Arc::new(config.adapter_aliases()),
        },
    }
}

/// Returns the paths that no confined agent may write: an agent that writes them could change its own configuration for
/// the next start.
fn protected_paths(config: &Config) -> Vec<PathBuf> {
    let folders = [config.agents_dir.clone()].into_iter().chain(user_config_dir());
    // A device such as /dev/null is not a file that an agent could change.
    folders.chain(config.config_file.clone().filter(|path| path.is_file())).collect()
}

/// Returns the folder of the user's own configuration of mainspring.
fn user_config_dir() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = named.or_else(|| Some(std::env::home_dir()?.join(".config")))?;
    Some(folder.join("mainspring"))
}

/// Returns the rules of each owner that has any.
pub(crate) fn owner_rules(config: &Config) -> BTreeMap<String, Vec<Rule>> {
    let rules = config.owners.iter().map(|(name, owner)| (name.clone(), owner.rules.clone()));
    rules.filter_map(|(name, rules)| Some((name, rules?))).collect()
}

fn acp_options(adapter: &AdapterConfig, config: &Config) -> AcpOptions {
    AcpOptions {
        auth_method: adapter.auth_method.clone(),
        act_mode: adapter.act_mode.clone(),
        ask_mode: adapter.ask_mode.clone(),
        mcp: mcp_servers(adapter, config),
        other_rules: config.rules.iter().chain(owner_rules(config).values().flatten()).cloned().collect(),
    }
}

/// Returns the MCP servers of an agent, or the reason why one cannot be used.
fn mcp_servers(adapter: &AdapterConfig, config: &Config) -> Vec<(String, Result<McpServer, String>)> {
    let wanted = adapter.mcp.as_deref().unwrap_or_default();
    let servers = config.models.mcp.iter();
    let configured = servers.filter(|(name, _)| wanted.iter().any(|pattern| matches_pattern(pattern, name)));
    let convert = |server: &McpConfig| match (&server.command, &server.url) {
        (Some(command), _) => Ok(McpServer::Stdio {
            command: find_program(command, adapter)?,
            args: server.args.clone(),
            env: server.environment(),
        }),
        (None, url) => {
            Ok(McpServer::Http { url: url.clone().unwrap_or_default(), headers: server.request_headers()? })
        }
    };
    // Earlier configurations ask for the control tools by naming their server in `mcp`.
    let is_named = wanted.iter().any(|name| name == CONTROL_SERVER);
    let wants_control = adapter.control_tools.unwrap_or(is_named);
    let is_taken = config.models.mcp.contains_key(CONTROL_SERVER);
    let control =
        (wants_control && !is_taken).then(|| (CONTROL_SERVER.to_owned(), Ok(control_server(config))));
    configured.map(|(name, config)| (name.clone(), convert(config))).chain(control).collect()
}

/// Describes mainspring's own MCP server, which is a client of this node. The server reads no configuration file: a
/// file in the agent's folder must not configure it.
fn control_server(config: &Config) -> McpServer {
    let command = guard_command(config).into_iter().next().map(PathBuf::from).unwrap_or_default();
    let state_dir = config.state_dir.to_string_lossy().into_owned();
    let args = ["mcp".to_owned(), "--config".into(), "/dev/null".into(), "--state-dir".into(), state_dir];
    McpServer::Control { command, args: args.into() }
}

/// Finds the absolute path of a program, which the protocol requires: by the agent's PATH, or for a command
/// with `/` from the current folder.
fn find_program(command: &str, adapter: &AdapterConfig) -> Result<PathBuf, String> {
    let path = adapter.env.as_ref().and_then(|env| env.get("PATH").map(OsString::from));
    let path = path.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    let folders: Vec<PathBuf> = match command.contains('/') {
        true => std::env::current_dir().into_iter().collect(),
        false => std::env::split_paths(&path).collect(),
    };
    let mut found = folders.into_iter().map(|folder| folder.join(command)).filter(|file| file.is_file());
    found.next().ok_or_else(|| format!("there is no program {command:?}"))
}

/// Returns the marker of this node's processes: the state directory, which one process owns at a time.
fn process_scope(config: &Config) -> String {
    config.state_dir.to_string_lossy().into_owned()
}

/// Returns the command that supervises process trees: the configured one, or this program. In a cluster it also gets the
/// file that limits the life of agents.
fn guard_command(config: &Config) -> Vec<OsString> {
    let mut guard: Vec<OsString> = config.guard.iter().map(OsString::from).collect();
    if guard.is_empty() {
        let this_program =
            std::env::current_exe().map_or_else(|_| "mainspring".into(), PathBuf::into_os_string);
        guard = vec![this_program, "guard".into()];
    }
    if config.cluster.is_enabled() {
        guard.extend(["--limit".into(), config.limit_file().into_os_string()]);
    }
    guard
}
