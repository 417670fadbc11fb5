//! The settings of single adapters: the keys of `[adapters.NAME]`.
//!
//! Everything is optional in itself; what a kind of adapter cannot do without is checked when all layers are read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mainspring_adapters::KeepLog;
use mainspring_agent::tool::mcp::McpConfig;
use mainspring_kernel::policy;

use super::error::Problem;
use super::rule::{
    Given, Number, Rule, Value, Word, command, names, number, path, policies, servers, table, text, word,
};
use crate::agents::OWN;

/// What is set for one adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdapterConfig {
    /// What kind of runtime it drives; none for one that is built in.
    pub kind: Option<AdapterKind>,
    /// The command that starts the agent.
    pub command: Option<Vec<String>>,
    /// What the agent finds in its environment besides what every agent does. May hold secrets: never shown.
    pub env: Option<BTreeMap<String, String>>,
    /// Variables of mainspring's own environment that the agent may see besides.
    pub pass_env: Option<Vec<String>>,
    /// Where runs work that name no folder.
    pub cwd: Option<PathBuf>,
    /// Runs of this adapter that may be active at once; without it only the common cap holds.
    pub max_workers: Option<usize>,
    /// Processes there may be at once.
    pub max_processes: Option<usize>,
    /// How long an idle process is kept.
    pub idle_ms: Option<u64>,
    /// How long an agent may take to start, or to open a session.
    pub start_timeout_ms: Option<u64>,
    /// How long a process may take to end by itself.
    pub stop_grace_ms: Option<u64>,
    /// Who decides what the agent may do.
    pub permissions: Option<Permissions>,
    /// How the agent is to authenticate.
    pub auth_method: Option<String>,
    /// The model of runs that name none.
    pub model: Option<String>,
    /// The agent's mode for runs that may act.
    pub act_mode: Option<String>,
    /// The agent's mode for runs that may only answer.
    pub ask_mode: Option<String>,
    /// What is decided otherwise than by `permissions`.
    pub rules: Option<Vec<policy::Rule>>,
    /// When what the agent writes to its standard error is kept.
    pub keep_log: Option<KeepLog>,
    /// The MCP servers it is given: names of tables `mcp.NAME`, in which `*` stands for anything.
    pub mcp: Option<Vec<String>>,
}

/// How many processes of an adapter there are at once, if nothing is said.
pub(crate) const PROCESSES: usize = 16;

impl AdapterConfig {
    /// How many attempts of it execute at once: each of an agent in a process of its own needs a process.
    pub(crate) fn workers(&self) -> Option<usize> {
        let processes = self.kind.map(|_| self.max_processes.unwrap_or(PROCESSES));
        self.max_workers.into_iter().chain(processes).min()
    }
}

/// What kind of runtime an adapter drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterKind {
    /// A process that speaks the Agent Client Protocol.
    Acp,
    /// Pi, in its RPC mode.
    Pi,
}

impl AdapterKind {
    /// The command that starts the agent where none is set.
    pub const fn command(self) -> &'static [&'static str] {
        match self {
            Self::Acp => &[],
            Self::Pi => &["pi", "--mode", "rpc"],
        }
    }

    /// Its word in the file.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }
}

impl Word for AdapterKind {
    const ALL: &'static [(&'static str, Self)] = &[("acp", Self::Acp), ("pi", Self::Pi)];
}

/// Who decides what an agent may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permissions {
    /// A person, each time.
    Ask,
    /// Everything is allowed: high trust.
    Legacy,
    /// Nothing is allowed.
    Deny,
}

impl Word for Permissions {
    const ALL: &'static [(&'static str, Self)] =
        &[("ask", Self::Ask), ("legacy", Self::Legacy), ("deny", Self::Deny)];
}

impl Word for KeepLog {
    const ALL: &'static [(&'static str, Self)] = &[("failed", Self::Failed), ("always", Self::Always)];
}

/// One key of `[adapters.NAME]`.
pub struct AdapterSetting {
    /// Its name.
    pub key: &'static str,
    /// What it is for.
    pub description: &'static str,
    /// What holds where nothing is set.
    pub default: &'static str,
    pub(super) read: fn(&mut AdapterConfig, &Given<'_>) -> Result<(), String>,
    pub(super) show: fn(&AdapterConfig) -> Option<Value>,
    allowed: fn() -> String,
}

impl AdapterSetting {
    /// What its values may be, to be read after "must be".
    pub fn allowed(&self) -> String {
        (self.allowed)()
    }
}

const MINUTE: u64 = 60_000;
pub(super) const WORKERS: Number = number(1, 1024);

macro_rules! adapter_settings {
    ($( #[doc = $doc:literal] $key:ident: $type:ty, $rule:expr, $default:literal; )*) => {
        /// Every key of `[adapters.NAME]`.
        pub const ADAPTER_SETTINGS: &[AdapterSetting] = &[$(
            AdapterSetting {
                key: stringify!($key),
                description: $doc,
                default: $default,
                read: |adapter, given| {
                    adapter.$key = Some(Rule::<$type>::read(&$rule, given)?);
                    Ok(())
                },
                show: |adapter| adapter.$key.as_ref().map(|value| Rule::<$type>::show(&$rule, value)),
                allowed: || Rule::<$type>::allowed(&$rule),
            },
        )*];
    };
}

adapter_settings! {
    #[doc = "Kind of runtime it drives."]
    kind: AdapterKind, word(), "none";
    #[doc = "Command that starts the agent; a relative path is relative to the file."]
    command: Vec<String>, command(), "`pi --mode rpc` for pi, else none";
    #[doc = "Variables the agent gets; only their names are shown."]
    env: BTreeMap<String, String>, table(), "none";
    #[doc = "Variables of mainspring's own environment that the agent may see besides the harmless ones."]
    pass_env: Vec<String>, names(), "none";
    #[doc = "Folder of runs that name none."]
    cwd: PathBuf, path(), "the current one";
    #[doc = "Runs of this adapter that may be active at once."]
    max_workers: usize, WORKERS, "`max_workers` of all";
    #[doc = "Processes there may be at once, those of waiting runs and idle ones among them."]
    max_processes: usize, WORKERS, "16";
    #[doc = "Milliseconds that an idle process is kept."]
    idle_ms: u64, number(0, 24 * 60 * MINUTE), "300000";
    #[doc = "Milliseconds that an agent may take to start, or to open a session."]
    start_timeout_ms: u64, number(1, 60 * MINUTE), "60000";
    #[doc = "Milliseconds that a process may take to end by itself before it is killed."]
    stop_grace_ms: u64, number(0, 60 * MINUTE), "2000";
    #[doc = "Who decides what the agent may do: a person, nobody since all is allowed (high trust), nobody since nothing is."]
    permissions: Permissions, word(), "ask";
    #[doc = "What is decided otherwise than by `permissions`; the first that fits decides. ACP only."]
    rules: Vec<policy::Rule>, policies(), "none";
    #[doc = "When what the agent writes to its standard error is kept as an artifact: if the attempt has failed, or always."]
    keep_log: KeepLog, word(), "failed";
    #[doc = "How the agent is to authenticate: one of the ways it names. ACP only."]
    auth_method: String, text(), "none";
    #[doc = "Model of runs that name none."]
    model: String, text(), "the agent's own";
    #[doc = "Mode of the agent in runs that may act. ACP only."]
    act_mode: String, text(), "the agent's own";
    #[doc = "Mode of the agent in runs that may only answer. ACP only."]
    ask_mode: String, text(), "the agent's own";
    #[doc = "MCP servers that the agent is given: names of `[mcp.NAME]`, in which `*` stands for anything. ACP only."]
    mcp: Vec<String>, servers(), "none";
}

/// What is missing, or makes no sense, in what is set for the adapter `name`.
pub(super) fn problems(
    name: &str,
    adapter: &AdapterConfig,
    servers: &BTreeMap<String, McpConfig>,
) -> Vec<Problem> {
    let wrong = |key: &str, must: &str| Problem::Adapter {
        key: format!("adapters.{name}.{key}"),
        must: must.to_owned(),
    };
    let set = |setting: &AdapterSetting| (setting.show)(adapter).is_some();
    match adapter.kind {
        Some(_) if [mainspring_adapters::script::NAME, mainspring_agent::native::NAME].contains(&name) => {
            vec![wrong("kind", "must not be set: this adapter is built in; choose another name")]
        }
        Some(kind) => {
            let set_to_nothing = adapter.command.as_ref().is_some_and(Vec::is_empty);
            let missing = set_to_nothing || (adapter.command.is_none() && kind.command().is_empty());
            let command = missing
                .then(|| wrong("command", "is missing: write the command that starts the agent, as a list"));
            let of_acp = ["auth_method", "act_mode", "ask_mode", "mcp", "rules"];
            let others = ADAPTER_SETTINGS
                .iter()
                .filter(|setting| kind != AdapterKind::Acp && of_acp.contains(&setting.key) && set(setting));
            let others = others.map(|setting| wrong(setting.key, "is for agents of kind \"acp\": remove it"));
            let given = adapter.mcp.iter().flatten().filter_map(|server| {
                let must = match servers.get(server) {
                    None if server.contains('*') || server == OWN => return None,
                    None => format!("names {server:?}, which is no MCP server: write [mcp.{server}]"),
                    // The protocol has no place for it.
                    Some(config) if config.cwd.is_some() => format!(
                        "names {server:?}, whose cwd such an agent cannot be told: give the server a table without it"
                    ),
                    Some(_) => return None,
                };
                Some(wrong("mcp", &must))
            });
            command.into_iter().chain(others).chain(given).collect()
        }
        None => {
            let others =
                ADAPTER_SETTINGS.iter().filter(|setting| setting.key != "max_workers" && set(setting));
            others
                .map(|setting| {
                    wrong(setting.key, "needs a kind: write kind = \"acp\" or kind = \"pi\" beside it")
                })
                .collect()
        }
    }
}
