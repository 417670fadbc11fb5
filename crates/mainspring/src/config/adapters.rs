//! The settings of single adapters: the keys of `[adapters.NAME]`.
//!
//! Every key is optional by itself. The requirements of each kind of adapter are checked after all layers were read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mainspring_adapters::KeepLog;
use mainspring_agent::tool::mcp::McpConfig;
use mainspring_core::{Fallback, SandboxProfile};
use mainspring_kernel::policy;

use super::error::Problem;
use super::rule::list::{fallbacks, paths, policy_rules, ports, server_names, variable_names};
use super::rule::{
    Input, Keywords, Number, Rule, Value, command, keyword, number, path, profiles, switch, text, variables,
};
use crate::agents::CONTROL_SERVER;

/// The settings of one adapter. [`AdapterConfig::acp`] and [`AdapterConfig::pi`] create them; setters and fields change
/// them.
///
/// ```
/// use mainspring::Config;
/// use mainspring::config::{AdapterConfig, AdapterKind, Permissions};
///
/// let gemini = AdapterConfig::acp(["gemini", "--experimental-acp"]).permissions(Permissions::Deny).max_processes(2);
/// let pi = AdapterConfig::pi().model("claude-sonnet-4-5".to_owned());
/// let config = Config::with_state_dir("/var/lib/agents")
///     .adapter("gemini".to_owned())
///     .adapters([("gemini".to_owned(), gemini), ("pi".to_owned(), pi)].into());
/// let gemini = &config.adapters["gemini"];
/// assert_eq!((gemini.kind, gemini.max_processes), (Some(AdapterKind::Acp), Some(2)));
/// assert_eq!(gemini.command.as_deref(), Some(&["gemini".to_owned(), "--experimental-acp".to_owned()][..]));
/// assert_eq!(config.adapters["pi"].kind, Some(AdapterKind::Pi));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterConfig {
    /// The kind of runtime; `None` for a built-in adapter.
    pub kind: Option<AdapterKind>,
    /// The command that starts the agent.
    pub command: Option<Vec<String>>,
    /// Additional environment variables of the agent. May hold secrets: never displayed.
    pub env: Option<BTreeMap<String, String>>,
    /// Variables of mainspring's own environment that are passed on to the agent.
    pub pass_env: Option<Vec<String>>,
    /// The working folder of runs that name none.
    pub cwd: Option<PathBuf>,
    /// The folders in which runs may work; `None` for every folder but the state directory.
    pub folders: Option<Vec<PathBuf>>,
    /// Maximum number of active runs of this adapter, besides the global maximum and `max_processes`.
    pub max_workers: Option<usize>,
    /// Maximum number of processes.
    pub max_processes: Option<usize>,
    /// Milliseconds that an idle process is kept.
    pub idle_ms: Option<u64>,
    /// Milliseconds that an agent may take to start or to open a session.
    pub start_timeout_ms: Option<u64>,
    /// Milliseconds that a process may take to exit by itself.
    pub stop_grace_ms: Option<u64>,
    /// How permission requests of the agent are decided.
    pub permissions: Option<Permissions>,
    /// The authentication method of the agent.
    pub auth_method: Option<String>,
    /// The model of runs that name none.
    pub model: Option<String>,
    /// The agent's models by the names of logical profiles.
    pub profiles: Option<BTreeMap<String, String>>,
    /// The agent's mode in runs that may act.
    pub act_mode: Option<String>,
    /// The agent's mode in runs that may only answer.
    pub ask_mode: Option<String>,
    /// Exceptions from `permissions`.
    pub rules: Option<Vec<policy::Rule>>,
    /// When the agent's standard error is kept.
    pub keep_log: Option<KeepLog>,
    /// The adapters that take over, in order, when an attempt fails before any output.
    pub fallbacks: Option<Vec<Fallback>>,
    /// The MCP servers that the agent gets: names of tables `mcp.NAME`; `*` matches any text.
    pub mcp: Option<Vec<String>>,
    /// Whether the agent gets the control tools.
    pub control_tools: Option<bool>,
    /// The sandbox of runs that may act.
    pub sandbox: Option<SandboxProfile>,
    /// Further folders that a confined agent may write.
    pub writable: Option<Vec<PathBuf>>,
    /// The TCP ports that a confined agent may connect to.
    pub ports: Option<Vec<u16>>,
}

/// Default maximum number of processes of an adapter.
pub(crate) const DEFAULT_MAX_PROCESSES: usize = 16;

impl AdapterConfig {
    /// Returns the settings of an agent that speaks the Agent Client Protocol, with the command that starts it.
    pub fn acp<T: Into<String>>(command: impl IntoIterator<Item = T>) -> Self {
        let command = command.into_iter().map(Into::into).collect();
        Self { kind: Some(AdapterKind::Acp), command: Some(command), ..Self::default() }
    }

    /// Returns the settings of pi, which the command `pi` starts.
    pub fn pi() -> Self {
        Self { kind: Some(AdapterKind::Pi), ..Self::default() }
    }

    /// Returns the maximum number of concurrent attempts: every attempt of an external agent needs a process.
    pub(crate) fn max_attempts(&self) -> Option<usize> {
        let processes = self.kind.map(|_| self.max_processes.unwrap_or(DEFAULT_MAX_PROCESSES));
        self.max_workers.into_iter().chain(processes).min()
    }
}

/// The kind of runtime an adapter drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterKind {
    /// A process that speaks the Agent Client Protocol.
    Acp,
    /// Pi, in its RPC mode.
    Pi,
}

impl AdapterKind {
    /// Returns the default command that starts the agent.
    pub const fn command(self) -> &'static [&'static str] {
        match self {
            Self::Acp => &[],
            Self::Pi => &["pi", "--mode", "rpc"],
        }
    }

    /// Returns the keyword of the kind in the file.
    pub fn keyword(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }
}

impl Keywords for AdapterKind {
    const ALL: &'static [(&'static str, Self)] = &[("acp", Self::Acp), ("pi", Self::Pi)];
}

/// How permission requests of an agent are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permissions {
    /// A person decides each time.
    Ask,
    /// Everything is allowed: high trust.
    Legacy,
    /// Everything is denied.
    Deny,
}

impl Keywords for Permissions {
    const ALL: &'static [(&'static str, Self)] =
        &[("ask", Self::Ask), ("legacy", Self::Legacy), ("deny", Self::Deny)];
}

impl Keywords for SandboxProfile {
    const ALL: &'static [(&'static str, Self)] =
        &[("read_only", Self::ReadOnly), ("workspace", Self::Workspace), ("off", Self::Off)];
}

impl Keywords for KeepLog {
    const ALL: &'static [(&'static str, Self)] = &[("failed", Self::Failed), ("always", Self::Always)];
}

/// A key of `[adapters.NAME]`.
pub struct AdapterSetting {
    /// The key's name.
    pub key: &'static str,
    /// The key's description.
    pub description: &'static str,
    /// The default.
    pub default: &'static str,
    pub(super) read: fn(&mut AdapterConfig, &Input<'_>) -> Result<(), String>,
    pub(super) show: fn(&AdapterConfig) -> Option<Value>,
    allowed: fn() -> String,
}

impl AdapterSetting {
    /// Returns a description of the allowed values that continues "must be".
    pub fn allowed(&self) -> String {
        (self.allowed)()
    }
}

const MINUTE_MS: u64 = 60_000;
pub(super) const WORKER_COUNT_RANGE: Number = number(1, 1024);

macro_rules! adapter_settings {
    ($( #[doc = $doc:literal] $key:ident: $type:ty, $rule:expr, $default:literal; )*) => {
        /// Every key of `[adapters.NAME]`.
        pub const ADAPTER_SETTINGS: &[AdapterSetting] = &[$(
            AdapterSetting {
                key: stringify!($key),
                description: $doc,
                default: $default,
                read: |adapter, input| {
                    adapter.$key = Some(Rule::<$type>::read(&$rule, input)?);
                    Ok(())
                },
                show: |adapter| adapter.$key.as_ref().map(|value| Rule::<$type>::show(&$rule, value)),
                allowed: || Rule::<$type>::allowed(&$rule),
            },
        )*];

        /// Setters, each named as its setting.
        impl AdapterConfig {
            $(
                #[doc = $doc]
                #[must_use]
                pub fn $key(mut self, $key: $type) -> Self {
                    self.$key = Some($key);
                    self
                }
            )*
        }
    };
}

adapter_settings! {
    #[doc = "Kind of runtime the adapter drives."]
    kind: AdapterKind, keyword(), "none";
    #[doc = "Command that starts the agent; a relative path is relative to the file."]
    command: Vec<String>, command(), "`pi --mode rpc` for pi, else none";
    #[doc = "Environment variables of the agent; only their names are displayed."]
    env: BTreeMap<String, String>, variables(), "none";
    #[doc = "Variables of mainspring's own environment that are passed to the agent besides the harmless ones."]
    pass_env: Vec<String>, variable_names(), "none";
    #[doc = "Working folder of runs that name none."]
    cwd: PathBuf, path(), "the current folder";
    #[doc = "Folders in which runs may work; the folder of a run or session must lie in one of them, with all links resolved."]
    folders: Vec<PathBuf>, paths(), "every folder but the state directory; for keys of other owners those of the key";
    #[doc = "Maximum number of active runs of this adapter."]
    max_workers: usize, WORKER_COUNT_RANGE, "the global `max_workers`";
    #[doc = "Maximum number of processes, including those of waiting runs and idle ones."]
    max_processes: usize, WORKER_COUNT_RANGE, "16";
    #[doc = "Milliseconds that an idle process is kept."]
    idle_ms: u64, number(0, 24 * 60 * MINUTE_MS), "300000";
    #[doc = "Milliseconds that an agent may take to start or to open a session."]
    start_timeout_ms: u64, number(1, 60 * MINUTE_MS), "60000";
    #[doc = "Milliseconds that a process may take to exit by itself before it is killed."]
    stop_grace_ms: u64, number(0, 60 * MINUTE_MS), "2000";
    #[doc = "How permission requests are decided: by a person (ask), all allowed with high trust (legacy), or all denied (deny)."]
    permissions: Permissions, keyword(), "ask";
    #[doc = "Exceptions from `permissions`; the first matching rule decides. ACP only."]
    rules: Vec<policy::Rule>, policy_rules(), "none";
    #[doc = "When the agent's standard error is kept as an artifact: if the attempt failed, or always."]
    keep_log: KeepLog, keyword(), "failed";
    #[doc = "Authentication method, one of those the agent offers. ACP only."]
    auth_method: String, text(), "none";
    #[doc = "Model of runs that name none."]
    model: String, text(), "the agent's own";
    #[doc = "Models of the agent by the names of logical profiles, such as `worker`; a run or a session names the profile."]
    profiles: BTreeMap<String, String>, profiles(), "none";
    #[doc = "Mode of the agent in runs that may act. ACP only."]
    act_mode: String, text(), "the agent's own";
    #[doc = "Mode of the agent in runs that may only answer. ACP only."]
    ask_mode: String, text(), "the agent's own";
    #[doc = "Adapters that take over, in order, if this one fails before any output for a reason where another helps: `ADAPTER` or `ADAPTER:MODEL`."]
    fallbacks: Vec<Fallback>, fallbacks(), "none";
    #[doc = "MCP servers that the agent gets: names of `[mcp.NAME]`; `*` matches any text. ACP only."]
    mcp: Vec<String>, server_names(), "none";
    #[doc = "Whether the agent gets mainspring's control tools as an MCP server, with a token that acts for the session of the run only. ACP only."]
    control_tools: bool, switch(), "false";
    #[doc = "Sandbox of runs that may act: all but the agent's own folders is read-only (read_only), the working folder is writable too (workspace), or none (off). Other runs are always read_only."]
    sandbox: SandboxProfile, keyword(), "`workspace`; `off` with `permissions = \"legacy\"`";
    #[doc = "Further folders and files that a confined agent may write; they must exist."]
    writable: Vec<PathBuf>, paths(), "none";
    #[doc = "TCP ports that a confined agent may connect to. Other protocols are not restricted."]
    ports: Vec<u16>, ports(), "all";
}

/// Checks the settings of the adapter `name` for missing and inconsistent values.
pub(super) fn problems(
    name: &str,
    adapter: &AdapterConfig,
    adapters: &BTreeMap<String, AdapterConfig>,
    servers: &BTreeMap<String, McpConfig>,
) -> Vec<Problem> {
    let mut problems = kind_problems(name, adapter, servers);
    let built_in = [mainspring_adapters::script::NAME, mainspring_agent::native::NAME];
    for Fallback { adapter: fallback, .. } in adapter.fallbacks.iter().flatten() {
        let problem = match () {
            () if fallback == name => format!("names {name:?} itself: remove it"),
            () if adapters.contains_key(fallback) || built_in.contains(&fallback.as_str()) => continue,
            () => format!("names {fallback:?}, which is no adapter: write [adapters.{fallback}]"),
        };
        problems.push(Problem::Adapter { key: format!("adapters.{name}.fallbacks"), problem });
    }
    problems
}

/// Checks the settings that depend on the kind of the adapter `name`.
fn kind_problems(name: &str, adapter: &AdapterConfig, servers: &BTreeMap<String, McpConfig>) -> Vec<Problem> {
    let problem_of = |key: &str, problem: &str| Problem::Adapter {
        key: format!("adapters.{name}.{key}"),
        problem: problem.to_owned(),
    };
    let is_set = |setting: &AdapterSetting| (setting.show)(adapter).is_some();
    match adapter.kind {
        Some(_) if [mainspring_adapters::script::NAME, mainspring_agent::native::NAME].contains(&name) => {
            vec![problem_of("kind", "must not be set: this adapter is built in; choose another name")]
        }
        Some(kind) => {
            let set_to_empty = adapter.command.as_ref().is_some_and(Vec::is_empty);
            let missing = set_to_empty || (adapter.command.is_none() && kind.command().is_empty());
            let command = missing.then(|| {
                problem_of("command", "is missing: write the command that starts the agent, as a list")
            });
            let acp_only = ["auth_method", "act_mode", "ask_mode", "mcp", "control_tools", "rules"];
            let others = ADAPTER_SETTINGS.iter().filter(|setting| {
                kind != AdapterKind::Acp && acp_only.contains(&setting.key) && is_set(setting)
            });
            let others =
                others.map(|setting| problem_of(setting.key, "is for agents of kind \"acp\": remove it"));
            let unknown = adapter.mcp.iter().flatten().filter_map(|server| {
                let text = match servers.get(server) {
                    None if server.contains('*') || server == CONTROL_SERVER => return None,
                    None => format!("names {server:?}, which is no MCP server: write [mcp.{server}]"),
                    // The protocol cannot express the working folder of a server.
                    Some(config) if config.cwd.is_some() => format!(
                        "names {server:?}, which has a cwd, but such an agent cannot receive it: write a table for the server without cwd"
                    ),
                    Some(_) => return None,
                };
                Some(problem_of("mcp", &text))
            });
            let is_taken = adapter.control_tools == Some(true) && servers.contains_key(CONTROL_SERVER);
            let taken = is_taken.then(|| {
                let text = format!("needs the name {CONTROL_SERVER:?}: rename [mcp.{CONTROL_SERVER}]");
                problem_of("control_tools", &text)
            });
            command.into_iter().chain(others).chain(unknown).chain(taken).collect()
        }
        None => {
            let any_kind = ["max_workers", "fallbacks", "folders"];
            let others =
                ADAPTER_SETTINGS.iter().filter(|setting| !any_kind.contains(&setting.key) && is_set(setting));
            others
                .map(|setting| {
                    problem_of(setting.key, "needs a kind: write kind = \"acp\" or kind = \"pi\" beside it")
                })
                .collect()
        }
    }
}
