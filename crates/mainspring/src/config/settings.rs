//! The settings: one table, from which the struct, its defaults, the variables, the flags, `config show` and the
//! reference are made.
//!
//! A line reads: what it is for, name and type, the rule its values obey, the default, and the variable of an older
//! system that means the same. The struct and its defaults are made of the same lines, so that a field without a
//! line, or a line without a field, does not compile.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mainspring_agent::ModelsConfig;
use mainspring_core::Limits;
use mainspring_http::HttpLimits;

use super::adapters::{ADAPTER_SETTINGS, AdapterConfig, AdapterSetting, WORKERS};
use super::rule::{
    self, Given, Rule, Value, Word, adapter_name, address, command, filter, hosts, number, owner_name, path,
    url, word,
};

const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
/// SQLite holds at most 1,000,000,000 bytes in one value; this leaves room for what surrounds a text.
const TEXT: u64 = 512 << 20;

macro_rules! settings {
    (
        {$(
            #[doc = $doc:literal]
            $key:ident: $type:ty, $rule:expr, $default:expr $(, alias $alias:literal)?;
        )*}
        $( $(#[$group_doc:meta])* $group:ident: $group_type:ident {$(
            #[doc = $group_key_doc:literal]
            $group_key:ident, $group_rule:expr, $group_default:expr;
        )*} )*
    ) => {
        /// The settings of one process, complete and checked.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Config {
            $( #[doc = $doc] pub $key: $type, )*
            $( $(#[$group_doc])* pub $group: $group_type, )*
            /// What is set for single adapters, by the adapter's name.
            pub adapters: BTreeMap<String, AdapterConfig>,
            /// Model providers, profiles and prices.
            pub models: ModelsConfig,
        }

        impl Config {
            /// The defaults; the caller replaces `state_dir`, whose default depends on the machine.
            pub(super) fn defaults() -> Self {
                Self {
                    $( $key: $default, )*
                    $( $group: $group_type { $( $group_key: $group_default, )* }, )*
                    adapters: BTreeMap::new(),
                    models: ModelsConfig::default(),
                }
            }
        }

        /// Every setting, in the order in which it is shown; those of single adapters are not among them.
        pub const SETTINGS: &[Setting] = &[
            $( settings!(@row $doc, stringify!($key), [$key], $rule, [$($alias)?]), )*
            $( $( settings!(
                @row $group_key_doc, concat!(stringify!($group), ".", stringify!($group_key)),
                [$group.$group_key], $group_rule, []
            ), )* )*
        ];

        /// The tables of the file whose keys are settings.
        pub(super) const GROUPS: &[&str] = &[$( stringify!($group), )*];
    };
    (@row $doc:expr, $key:expr, [$($field:tt)+], $rule:expr, [$($alias:literal)?]) => {
        Setting {
            key: $key,
            alias: [$(Some($alias),)? None][0],
            doc: $doc,
            read: |config, given| {
                config.$($field)+ = $rule.read(given)?;
                Ok(())
            },
            show: |config| $rule.show(&config.$($field)+),
            allowed: || rule::allowed_of(&$rule, |config: &Config| &config.$($field)+),
        }
    };
}

settings! {
    {
        /// Folder of everything mainspring keeps; by default `mainspring` in `$XDG_STATE_HOME` or `~/.local/state`.
        state_dir: PathBuf, path(), "~/.local/state/mainspring".into(), alias "OMI_AGENT_STATE_DIR";
        /// Folder of agent definitions, a `.toml` file each; by default `agents` in the state directory.
        agents_dir: PathBuf, path(), "~/.local/state/mainspring/agents".into();
        /// Owner of the sessions that are made without naming one.
        owner: String, owner_name(), "local".into();
        /// Adapter of the runs that do not name one.
        adapter: String, adapter_name(), "script".into();
        /// Runs that may be active at once.
        max_workers: usize, WORKERS, 8, alias "OMI_AGENT_MAX_WORKERS";
        /// Whether an acknowledgement survives a power loss (full) or only a crash of the process (normal).
        durability: Durability, word(), Durability::Full;
        /// Milliseconds between asking an agent to stop and killing it.
        cancel_grace_ms: u64, number(0, HOUR), 5 * SECOND;
        /// Hours after which a run that waits for an answer has timed out.
        wait_expiry_hours: u64, number(1, 24 * 366), 24;
        /// Milliseconds that an idle session stays in memory.
        idle_unload_ms: u64, number(0, 24 * HOUR), 30 * SECOND;
        /// Connections that read the database.
        readers: usize, number(1, 64), 4;
        /// What happens to a run that a crash interrupted: leave it to somebody, or retry it.
        on_orphan: OnOrphan, word(), OnOrphan::Leave;
        /// Who names a session that nobody has named: the first words of its first completed turn, then the model `titler` if there is one; or nobody (off).
        titles: Titles, word(), Titles::Heuristic;
        /// Bytes of a tool's answer that the native adapter's models are shown; a longer one is kept as an artifact.
        tool_result_bytes: usize, number(1_000, 16 << 20), 64 << 10;
        /// Address that `serve` listens on; on any but a loopback address, TLS belongs in front of it.
        listen: String, address(), "127.0.0.1:7433".into();
        /// Server that the command line talks to instead of the state directory's, such as `http://127.0.0.1:7433`.
        url: Option<String>, url(), None;
        /// Host names besides this machine's own that `serve` answers to, such as that of a proxy in front of it.
        allowed_hosts: Vec<String>, hosts(), Vec::new();
        /// Milliseconds that `serve` lets active runs finish before it stops them.
        drain_ms: u64, number(0, HOUR), 10 * SECOND;
        /// What is logged: a tracing filter.
        log: String, filter(), "warn".into();
        /// Command that holds the processes of agents; `mainspring guard` itself if empty. For programs that embed it.
        guard: Vec<String>, command(), Vec::new();
    }
    /// What is too much.
    limits: Limits {
        /// Bytes of a prompt.
        prompt_bytes, number(1, TEXT), Limits::default().prompt_bytes;
        /// Bytes of one message, streamed or recorded.
        message_bytes, number(1, TEXT), Limits::default().message_bytes;
        /// Characters of a title.
        title_chars, number(1, 10_000), Limits::default().title_chars;
        /// Bytes of a session's metadata, and of its model options, as JSON.
        metadata_bytes, number(2, 16 << 20), Limits::default().metadata_bytes;
        /// Bytes of one value of state, as JSON.
        state_value_bytes, number(1, 16 << 20), Limits::default().state_value_bytes;
        /// Keys of state of one run, session or owner.
        state_keys, number(1, 1_000_000), Limits::default().state_keys;
        /// Client tools of one prompt.
        client_tools, number(0, 1_000), Limits::default().client_tools;
        /// Bytes of the client tools of one prompt, as JSON.
        client_tools_bytes, number(1, 16 << 20), Limits::default().client_tools_bytes;
        /// Bytes of one artifact.
        artifact_bytes, number(1, 1 << 40), Limits::default().artifact_bytes;
        /// Bytes of a file that is imported.
        import_bytes, number(1, 1 << 40), Limits::default().import_bytes;
        /// Items of one page.
        page, number(1, 10_000), Limits::default().page;
        /// Prompts that wait in one session.
        queue_per_session, number(1, 1_000_000), Limits::default().queue_per_session;
        /// Prompts that wait in all sessions.
        queue_total, number(1, 10_000_000), Limits::default().queue_total;
        /// Attempts of one run without somebody asking for another.
        attempts, number(1, 100), Limits::default().attempts;
    }
    /// What is too much for the HTTP API.
    http: HttpLimits {
        /// Requests that `serve` works on at once; streams are not among them.
        requests, number(1, 1_000_000), HttpLimits::default().requests;
        /// Streams that are open at once.
        streams, number(1, 1_000_000), HttpLimits::default().streams;
        /// Streams of one session that are open at once.
        session_streams, number(1, 1_000_000), HttpLimits::default().session_streams;
        /// Bytes of a request's line and headers.
        header_bytes, number(1 << 10, 16 << 20), HttpLimits::default().header_bytes;
        /// Headers of a request.
        headers, number(1, 10_000), HttpLimits::default().headers;
        /// Milliseconds in which the headers of a connection's next request must have come.
        header_ms, number(1, HOUR), HttpLimits::default().header_ms;
        /// Milliseconds in which a request's body must have come.
        body_ms, number(1, HOUR), HttpLimits::default().body_ms;
    }
    /// A host that asks over standard input and output.
    stdio: Stdio {
        /// Milliseconds that an agent waits for a tool of the host of `stdio`.
        tool_timeout_ms, number(1, HOUR), 120 * SECOND;
        /// Bytes of one line of the host of `stdio`.
        line_bytes, number(1 << 10, TEXT), 32 << 20;
    }
    /// How long to wait before a failed attempt is repeated.
    retry: Retry {
        /// Milliseconds before the second attempt; each further one waits longer.
        base_ms, number(1, HOUR), 500;
        /// Milliseconds that no wait between attempts exceeds.
        max_ms, number(1, 24 * HOUR), 30 * SECOND;
    }
}

/// What holds for a host that asks over standard input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stdio {
    /// Milliseconds that an agent waits for a tool of the host.
    pub tool_timeout_ms: u64,
    /// Bytes of one line.
    pub line_bytes: usize,
}

/// How long to wait before a failed attempt is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Milliseconds before the second attempt.
    pub base_ms: u64,
    /// Milliseconds that no wait exceeds.
    pub max_ms: u64,
}

/// What an acknowledgement survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A power loss.
    Full,
    /// A crash of the process.
    Normal,
}

impl Word for Durability {
    const ALL: &'static [(&'static str, Self)] = &[("full", Self::Full), ("normal", Self::Normal)];
}

/// What happens to a run that a crash interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOrphan {
    /// It stays orphaned until somebody retries it.
    Leave,
    /// It is retried from its last committed message.
    Retry,
}

impl Word for OnOrphan {
    const ALL: &'static [(&'static str, Self)] = &[("leave", Self::Leave), ("retry", Self::Retry)];
}

/// Who names a session that nobody has named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Titles {
    /// The first words of its first completed turn.
    Heuristic,
    /// Nobody.
    Off,
}

impl Word for Titles {
    const ALL: &'static [(&'static str, Self)] = &[("heuristic", Self::Heuristic), ("off", Self::Off)];
}

/// One line of the table.
pub struct Setting {
    /// Its name, dotted, as in the file.
    pub key: &'static str,
    alias: Option<&'static str>,
    doc: &'static str,
    read: fn(&mut Config, &Given<'_>) -> Result<(), String>,
    show: fn(&Config) -> Value,
    allowed: fn() -> String,
}

impl Setting {
    /// The variable that sets it.
    pub fn variable(&self) -> String {
        variable(self.key)
    }

    /// The variable of an older system that sets it too; [`Setting::variable`] wins over it.
    pub fn alias(&self) -> Option<&'static str> {
        self.alias
    }

    /// The flag that sets it.
    pub fn flag(&self) -> String {
        flag(self.key)
    }

    /// What it is for.
    pub fn description(&self) -> &'static str {
        self.doc.trim()
    }

    /// What its values may be, to be read after "must be".
    pub fn allowed(&self) -> String {
        (self.allowed)()
    }

    /// Its default, before `~` is expanded.
    pub fn default(&self) -> Value {
        self.value(&Config::defaults())
    }

    /// Its value in `config`.
    pub fn value(&self, config: &Config) -> Value {
        (self.show)(config)
    }

    pub(super) fn read(&self, config: &mut Config, given: &Given<'_>) -> Result<(), String> {
        (self.read)(config, given)
    }
}

/// What a key names.
pub(super) enum Target<'a> {
    Setting(&'static Setting),
    Adapter(&'a str, &'static AdapterSetting),
}

/// What `key` names, if anything.
pub(super) fn target(key: &str) -> Option<Target<'_>> {
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) {
        return Some(Target::Setting(setting));
    }
    let (name, key) = key.strip_prefix("adapters.")?.split_once('.')?;
    let setting = ADAPTER_SETTINGS.iter().find(|setting| setting.key == key)?;
    rule::is_adapter_name(name).then_some(Target::Adapter(name, setting))
}

pub(super) fn adapter_key(name: &str, key: &str) -> String {
    format!("adapters.{name}.{key}")
}

/// The adapter whose cap `variable` sets. Names have hyphens and no underscores, so that this is unambiguous.
pub(super) fn adapter_of_variable(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("MAINSPRING_ADAPTERS_")?.strip_suffix("_MAX_WORKERS")?;
    let upper = !name.bytes().any(|b| b.is_ascii_lowercase() || b == b'-');
    let name = name.to_ascii_lowercase().replace('_', "-");
    (upper && rule::is_adapter_name(&name)).then_some(name)
}

/// The variable that sets `key`.
pub(super) fn variable(key: &str) -> String {
    format!("MAINSPRING_{}", key.to_ascii_uppercase().replace(['.', '-'], "_"))
}

/// The flag that sets `key`.
pub(super) fn flag(key: &str) -> String {
    format!("--{}", key.replace(['.', '_'], "-"))
}
