//! The table of settings. The struct, its defaults, the variables, the flags, `config show` and the reference
//! documentation are generated from it.
//!
//! Each line has a description, the name and type, the rule of its values, the default, and the variable of an older
//! system that is accepted as an alias. The struct and its defaults come from the same lines, so a field without a
//! line, or a line without a field, does not compile.
//!
//! The type of a group is `own` if it is declared in this module: its `Default` and its setters come from the table too.
//! Types of other crates (`foreign`) have a `Default` of their own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mainspring_agent::ModelsConfig;
use mainspring_core::goal::DEFAULT_REMINDERS;
use mainspring_core::lease::MIN_LEASE_MS;
use mainspring_core::{AccessRole, ArtifactRetention, GoalType, Limits, Quotas, Supervision};
use mainspring_http::{HttpLimits, OidcConfig};
use mainspring_kernel::audit::OnAuditFailure;
use mainspring_kernel::policy;

use super::adapters::{ADAPTER_SETTINGS, AdapterConfig, AdapterSetting, WORKER_COUNT_RANGE};
use super::owners::{self, OwnerConfig, OwnerSetting};
use super::rule::artifact_store::{bucket_url, region};
use super::rule::list::{folder_roots, host_names, labels, origins, policy_rules};
use super::rule::serving::{audience, claim, client_id, optional_path};
use super::rule::store::{listen_url, server_name, store_url};
use super::rule::{
    self, Input, Keywords, Rule, Value, adapter_name, address, command, keyword, log_filter, number,
    owner_name, path, switch, url,
};

const SECOND_MS: u64 = 1000;
const HOUR_MS: u64 = 3600 * SECOND_MS;
/// SQLite holds at most 1,000,000,000 bytes in one value; this leaves room for the data around a text.
const MAX_TEXT_BYTES: u64 = 512 << 20;

macro_rules! settings {
    (
        {$(
            #[doc = $doc:literal]
            $key:ident: $type:ty, $rule:expr, $default:expr $(, alias $alias:literal)?;
        )*}
        $( $(#[$group_doc:meta])* $group:ident: $origin:ident $group_type:ident {$(
            #[doc = $group_key_doc:literal]
            $group_key:ident $(: $group_key_type:ty)?, $group_rule:expr, $group_default:expr;
        )*} )*
    ) => {
        /// The settings of one process, complete and checked.
        ///
        /// Programs that embed mainspring start from [`Config::with_state_dir`] and change what they need, by the
        /// setters or field by field. The groups and the tables begin with their defaults. Further settings may be added
        /// later.
        ///
        /// ```
        /// use mainspring::Config;
        /// use mainspring::config::{Audit, OwnerConfig, Retry};
        ///
        /// let config = Config::with_state_dir("/var/lib/agents")
        ///     .max_workers(4)
        ///     .audit(Audit::default().keep_days(30))
        ///     .retry(Retry::default().base_ms(100).max_ms(5_000))
        ///     .owners([("ada".to_owned(), OwnerConfig::default().active_runs(2))].into());
        /// assert_eq!((config.audit.keep_days, config.audit.file_bytes), (30, 16 << 20));
        /// assert_eq!((config.retry.base_ms, config.retry.max_ms), (100, 5_000));
        /// assert_eq!(config.owners["ada"].quotas.active_runs, Some(2));
        /// ```
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub struct Config {
            $( #[doc = $doc] pub $key: $type, )*
            $( $(#[$group_doc])* pub $group: $group_type, )*
            /// The settings of adapters, by adapter name.
            pub adapters: BTreeMap<String, AdapterConfig>,
            /// The settings of owners, by name.
            pub owners: BTreeMap<String, OwnerConfig>,
            /// Model providers, profiles and prices, and MCP servers.
            pub models: ModelsConfig,
            /// The goal types of every owner, besides those that are built in.
            pub goal_types: Vec<GoalType>,
            /// The file that the settings came from; `None` for the file of a folder, whose changes have no effect
            /// until they are trusted. No confined agent may write the file.
            pub config_file: Option<PathBuf>,
        }

        impl Config {
            /// Returns the defaults. The caller replaces `state_dir`, whose default depends on the machine.
            pub(super) fn defaults() -> Self {
                Self {
                    $( $key: $default, )*
                    $( $group: $group_type { $( $group_key: $group_default, )* }, )*
                    adapters: BTreeMap::new(),
                    owners: BTreeMap::new(),
                    models: ModelsConfig::default(),
                    goal_types: vec![],
                    config_file: None,
                }
            }
        }

        /// Setters, each named as its setting.
        impl Config {
            $( settings!(@setter $doc, $key, $type); )*
            $( settings!(@setter concat!("Sets the group `", stringify!($group), "`."), $group, $group_type); )*
            settings!(@setter "The settings of adapters, by adapter name.", adapters, BTreeMap<String, AdapterConfig>);
            settings!(@setter "The settings of owners, by name.", owners, BTreeMap<String, OwnerConfig>);
            settings!(@setter "Model providers, profiles and prices.", models, ModelsConfig);
            settings!(@setter "The goal types of every owner.", goal_types, Vec<GoalType>);
        }

        $( settings!(@group $origin $group_type {
            $( $group_key_doc, $group_key, [$($group_key_type)?], $group_default; )*
        }); )*

        /// Every setting, in the order of display, without the settings of adapters and owners.
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
    (@group foreign $($group:tt)*) => {};
    (@group own $group:ident { $( $doc:literal, $key:ident, [$type:ty], $default:expr; )* }) => {
        impl Default for $group {
            fn default() -> Self {
                Self { $( $key: $default, )* }
            }
        }

        /// Setters, each named as its setting.
        impl $group {
            $( settings!(@setter $doc, $key, $type); )*
        }
    };
    (@setter $doc:expr, $key:ident, $type:ty) => {
        #[doc = $doc]
        #[must_use]
        pub fn $key(mut self, $key: $type) -> Self {
            self.$key = $key;
            self
        }
    };
    (@row $doc:expr, $key:expr, [$($field:tt)+], $rule:expr, [$($alias:literal)?]) => {
        Setting {
            key: $key,
            alias: [$(Some($alias),)? None][0],
            doc: $doc,
            read: |config, input| {
                config.$($field)+ = $rule.read(input)?;
                Ok(())
            },
            show: |config| $rule.show(&config.$($field)+),
            allowed: || rule::allowed_of(&$rule, |config: &Config| &config.$($field)+),
        }
    };
}

settings! {
    {
        /// Folder of all data of mainspring; by default `mainspring` in `$XDG_STATE_HOME` or `~/.local/state`.
        state_dir: PathBuf, path(), "~/.local/state/mainspring".into(), alias "OMI_AGENT_STATE_DIR";
        /// Folder of agent definitions, one `.toml` file each; by default `agents` in the state directory.
        agents_dir: PathBuf, path(), "~/.local/state/mainspring/agents".into();
        /// Database of everything but artifacts, keys and the audit log: the URL of a PostgreSQL; empty for SQLite in the state directory.
        store: Option<String>, store_url(), None;
        /// Default owner of new sessions.
        owner: String, owner_name(), "local".into();
        /// Default adapter of runs.
        adapter: String, adapter_name(), "script".into();
        /// Maximum number of active runs whose agent is a process.
        max_workers: usize, WORKER_COUNT_RANGE, 8, alias "OMI_AGENT_MAX_WORKERS";
        /// Maximum number of active runs of agents without a process: `native` and `script`.
        max_in_process_runs: usize, number(1, 1_000_000), 256;
        /// Whether an acknowledgement survives a power loss (full) or only a crash of the process (normal).
        durability: Durability, keyword(), Durability::Full;
        /// Milliseconds between asking an agent to stop and killing it.
        cancel_grace_ms: u64, number(0, HOUR_MS), 5 * SECOND_MS;
        /// Hours after which a wait for an answer expires and its run times out.
        wait_expiry_hours: u64, number(1, 24 * 366), 24;
        /// Milliseconds that an idle session stays in memory.
        idle_unload_ms: u64, number(0, 24 * HOUR_MS), 30 * SECOND_MS;
        /// Number of database connections for reading.
        readers: usize, number(1, 64), 4;
        /// Whether a run that a crash interrupted stays orphaned (leave) or is retried (retry).
        on_orphan: OnOrphan, keyword(), OnOrphan::Leave;
        /// How sessions without a title get one: from the first words of the first completed turn, then from the model `titler`, else `summarizer`, if there is one (heuristic), or not at all (off).
        titles: Titles, keyword(), Titles::Heuristic;
        /// Maximum bytes of a tool result that models of the native adapter see; longer results are stored as artifacts.
        tool_result_bytes: usize, number(1_000, 16 << 20), 64 << 10;
        /// Number of times that an agent of the native adapter is reminded of goals that it has not achieved, before its run fails.
        goal_reminders: u32, number(0, 100), DEFAULT_REMINDERS;
        /// Address that `serve` listens on; one that other machines reach needs `tls_cert` or `insecure_http`.
        listen: String, address(), "127.0.0.1:7433".into();
        /// Server that the command line uses instead of the state directory, such as `http://127.0.0.1:7433`.
        url: Option<String>, url(), None;
        /// Additional host names that `serve` accepts, such as that of a proxy in front of it.
        allowed_hosts: Vec<String>, host_names(), Vec::new();
        /// File with the certificate of `serve` and those that signed it, as PEM; read again when it changes. With `tls_key`, `serve` speaks HTTPS.
        tls_cert: Option<PathBuf>, optional_path(), None;
        /// File with the private key of `tls_cert`, as PEM.
        tls_key: Option<PathBuf>, optional_path(), None;
        /// Whether `serve` may listen without TLS on an address that other machines reach, such as behind a proxy.
        insecure_http: bool, switch(), false;
        /// File with the certificates that the command line trusts for `url` instead of those of the system, as PEM.
        tls_ca: Option<PathBuf>, optional_path(), None;
        /// Origins whose web pages may call `serve`, such as `https://app.example.com`.
        cors_origins: Vec<String>, origins(), Vec::new();
        /// Whether webhooks may lead to this machine and to private networks.
        webhooks_private: bool, switch(), false;
        /// Whether `serve` also serves the threads API under `/v1/ai`, for the `roboto` Python package.
        threads: bool, switch(), false;
        /// Command that is run when a run waits or has failed, and when a wait is resolved; it gets a title and a text as arguments.
        on_attention: Vec<String>, command(), Vec::new();
        /// Milliseconds that `serve` waits for active runs before it stops them.
        drain_ms: u64, number(0, HOUR_MS), 10 * SECOND_MS;
        /// Rules for the agents of every adapter; they come before those of an adapter or an agent definition.
        rules: Vec<policy::Rule>, policy_rules(), Vec::new();
        /// Log filter, in the syntax of tracing.
        log: String, log_filter(), "warn".into();
        /// Command that supervises the processes of agents, for programs that embed mainspring; `mainspring guard` if empty.
        guard: Vec<String>, command(), Vec::new();
        /// Command that decides about facts that agents propose to remember; none if empty.
        memory_command: Vec<String>, command(), Vec::new();
        /// Which processes of an agent are certain to end with it: all (tree), or those in its process group (group), as on systems other than Linux.
        supervision: Supervision, keyword(), Supervision::default();
    }
    /// Size and count limits.
    limits: foreign Limits {
        /// Maximum bytes of a prompt.
        prompt_bytes, number(1, MAX_TEXT_BYTES), Limits::default().prompt_bytes;
        /// Maximum bytes of one message, streamed or recorded.
        message_bytes, number(1, MAX_TEXT_BYTES), Limits::default().message_bytes;
        /// Maximum characters of a title.
        title_chars, number(1, 10_000), Limits::default().title_chars;
        /// Maximum bytes of a session's metadata and of its model options, as JSON.
        metadata_bytes, number(2, 16 << 20), Limits::default().metadata_bytes;
        /// Maximum bytes of one state value, as JSON.
        state_value_bytes, number(1, 16 << 20), Limits::default().state_value_bytes;
        /// Maximum number of state keys per run, session or owner.
        state_keys, number(1, 1_000_000), Limits::default().state_keys;
        /// Maximum number of client tools per prompt.
        client_tools, number(0, 1_000), Limits::default().client_tools;
        /// Maximum bytes of the client tools of one prompt, as JSON.
        client_tools_bytes, number(1, 16 << 20), Limits::default().client_tools_bytes;
        /// Maximum bytes of one artifact.
        artifact_bytes, number(1, 1 << 40), Limits::default().artifact_bytes;
        /// Maximum bytes of an imported file.
        import_bytes, number(1, 1 << 40), Limits::default().import_bytes;
        /// Maximum number of items on one page.
        page, number(1, 10_000), Limits::default().page;
        /// Maximum number of queued prompts per session.
        queue_per_session, number(1, 1_000_000), Limits::default().queue_per_session;
        /// Maximum number of queued prompts in all sessions.
        queue_total, number(1, 10_000_000), Limits::default().queue_total;
        /// Maximum number of automatic attempts per run.
        attempts, number(1, 100), Limits::default().attempts;
        /// Maximum number of delegated runs of one run that have not ended.
        children_per_run, number(1, 10_000), Limits::default().children_per_run;
    }
    /// Limits of the HTTP API.
    http: foreign HttpLimits {
        /// Maximum number of concurrent requests, without streams.
        requests, number(1, 1_000_000), HttpLimits::default().requests;
        /// Maximum number of open streams.
        streams, number(1, 1_000_000), HttpLimits::default().streams;
        /// Maximum number of open streams per session.
        session_streams, number(1, 1_000_000), HttpLimits::default().session_streams;
        /// Maximum bytes of a request's line and headers.
        header_bytes, number(1 << 10, 16 << 20), HttpLimits::default().header_bytes;
        /// Maximum number of headers of a request.
        headers, number(1, 10_000), HttpLimits::default().headers;
        /// Milliseconds in which the headers of a connection's next request must arrive.
        header_ms, number(1, HOUR_MS), HttpLimits::default().header_ms;
        /// Milliseconds in which the body of a request must arrive; uploaded files may take longer.
        body_ms, number(1, HOUR_MS), HttpLimits::default().body_ms;
        /// Minimum bytes per second at which an uploaded file arrives, after `http.body_ms`.
        body_rate, number(1, 1 << 30), HttpLimits::default().body_rate;
        /// Maximum number of open connections; at the limit the longest idle one makes room.
        connections, number(1, 1_000_000), HttpLimits::default().connections;
        /// Maximum number of open connections of one address; those of this machine do not count.
        connections_per_address, number(1, 1_000_000), HttpLimits::default().connections_per_address;
    }
    /// Limits of every owner; 0 means no limit.
    quotas: foreign Quotas {
        /// Maximum number of queued prompts of one owner; 0 for no limit besides its share.
        queued_prompts, number(0, 10_000_000), Quotas::default().queued_prompts;
        /// Maximum number of active runs of one owner; 0 for no limit besides its share.
        active_runs, number(0, 1_000_000), Quotas::default().active_runs;
        /// Maximum number of concurrent requests of one owner; 0 for no limit besides its share.
        requests, number(0, 1_000_000), Quotas::default().requests;
        /// Maximum number of open streams and waiting requests of one owner; 0 for no limit besides its share.
        streams, number(0, 1_000_000), Quotas::default().streams;
        /// Maximum bytes of messages and artifacts of one owner; 0 for no limit.
        stored_bytes, number(0, 1 << 50), Quotas::default().stored_bytes;
        /// Maximum number of artifacts of one owner; 0 for no limit.
        artifacts, number(0, 1 << 40), Quotas::default().artifacts;
        /// Maximum number of versions of agent definitions that one owner makes; 0 for the built-in limit of 10,000.
        agents, number(0, 10_000), Quotas::default().agents;
    }
    /// Tokens of an identity provider, beside API keys.
    oidc: foreign OidcConfig {
        /// Address of the issuer whose tokens `serve` accepts, as in its tokens; none if empty.
        issuer, url(), OidcConfig::default().issuer;
        /// Audience that a token must be for.
        audience, audience(), OidcConfig::default().audience;
        /// Claim that names the owner.
        owner_claim, claim(), OidcConfig::default().owner_claim;
        /// Claim that names the org.
        org_claim, claim(), OidcConfig::default().org_claim;
        /// Claim that names the role, as a text or a list of texts.
        role_claim, claim(), OidcConfig::default().role_claim;
        /// Role of a token without that claim.
        default_role, keyword(), OidcConfig::default().default_role;
        /// Milliseconds by which the clocks of issuer and server may differ.
        skew_ms, number(0, HOUR_MS), OidcConfig::default().skew_ms;
        /// File with the certificates that are trusted for the issuer instead of those of the system, as PEM.
        ca, optional_path(), OidcConfig::default().ca;
        /// Id of this server at the issuer, with which browsers sign in on the page; they do not if empty.
        client_id, client_id(), OidcConfig::default().client_id;
        /// File with the secret of that client, for issuers that demand one.
        client_secret_file, optional_path(), OidcConfig::default().client_secret_file;
    }
    /// Limits of a host that communicates over standard input and output.
    stdio: own Stdio {
        /// Milliseconds that an agent waits for a tool of the host of `stdio`.
        tool_timeout_ms: u64, number(1, HOUR_MS), 120 * SECOND_MS;
        /// Maximum bytes of one line of the host of `stdio`.
        line_bytes: usize, number(1 << 10, MAX_TEXT_BYTES), 32 << 20;
    }
    /// The audit log.
    audit: own Audit {
        /// Bytes at which a file of the audit log is followed by the next one.
        file_bytes: u64, number(64 << 10, 1 << 30), 16 << 20;
        /// Bytes of the audit log above which its oldest files are removed.
        keep_bytes: u64, number(1 << 20, 1 << 40), 1 << 30;
        /// Days after which a file of the audit log is removed.
        keep_days: u64, number(1, 36_500), 365;
        /// What happens to changes while the audit log cannot be written: they are refused (refuse), or made while the server reports that it is not ready (report).
        on_failure: OnAuditFailure, keyword(), OnAuditFailure::Refuse;
    }
    /// How long artifacts are kept, and how many bytes of them. Artifacts that messages still name are always kept.
    artifacts: foreign ArtifactRetention {
        /// Days after which an artifact is removed; 0 for never.
        keep_days, number(0, 36_500), 0;
        /// Bytes of the artifacts of one owner above which its oldest ones are removed; 0 for no limit.
        keep_bytes, number(0, 1 << 50), 0;
    }
    /// An object store for the bytes of artifacts.
    artifact_store: own ArtifactStore {
        /// Bucket of an object store for the bytes of artifacts, such as `s3://bucket/prefix`; empty for the state directory.
        url: Option<String>, bucket_url(), None;
        /// Address of a server with the API of S3, such as `https://minio.example.com`; that of AWS if empty.
        endpoint: Option<String>, url(), None;
        /// Region of the bucket; that of the environment (`AWS_REGION`) if empty.
        region: Option<String>, region(), None;
        /// File with credentials, as `aws configure` writes it; its section `[default]` is used. The environment (`AWS_ACCESS_KEY_ID`, …) if empty.
        credentials_file: Option<PathBuf>, optional_path(), None;
        /// Whether `artifact_store.endpoint` may be one of another machine without TLS.
        allow_http: bool, switch(), false;
    }
    /// Several servers on one PostgreSQL.
    cluster: own Cluster {
        /// Address at which the other servers of a cluster reach this one, such as `https://a.example.com:7433`; empty for a server on its own.
        address: Option<String>, url(), None;
        /// Name of this server in its cluster; its address if empty.
        name: Option<String>, server_name(), None;
        /// File with the secret that the servers of a cluster share, from which their token is made.
        secret_file: Option<PathBuf>, optional_path(), None;
        /// Milliseconds for which the active server of a cluster has the database after each renewal. Another one takes over after this time and a fifth of it.
        lease_ms: u64, number(MIN_LEASE_MS, HOUR_MS), 10 * SECOND_MS;
        /// True to execute sessions on all servers of a cluster, instead of on the active one only; the same on each server.
        spread: bool, switch(), false;
        /// Folders beneath which the agents of this server can work, for new sessions of a cluster with `cluster.spread`; empty for every folder.
        folders: Vec<String>, folder_roots(), vec![];
        /// Labels of this server, such as `["gpu", "eu"]`: a new session that needs labels is executed by a server that has all of them.
        labels: Vec<String>, labels(), vec![];
        /// Maximum number of active runs whose agent is a process on all servers of a cluster together, in addition to the `max_workers` of each; 0 for no limit. The same on each server.
        max_workers: usize, number(0, 1_000_000), 0;
        /// Maximum number of active runs of agents without a process on all servers of a cluster together, in addition to the `max_in_process_runs` of each; 0 for no limit. The same on each server.
        max_in_process_runs: usize, number(0, 1_000_000), 0;
        /// URL at which the PostgreSQL of `store` sends notices between servers with `cluster.spread`, if `store` is that of a transaction pooler; `store` if empty.
        listen_url: Option<String>, listen_url(), None;
    }
    /// Delays between attempts.
    retry: own Retry {
        /// Milliseconds before the second attempt; the delay grows with each further attempt.
        base_ms: u64, number(1, HOUR_MS), 500;
        /// Maximum milliseconds between two attempts.
        max_ms: u64, number(1, 24 * HOUR_MS), 30 * SECOND_MS;
    }
}

/// Limits of a host that communicates over standard input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stdio {
    /// Milliseconds that an agent waits for a tool of the host.
    pub tool_timeout_ms: u64,
    /// Maximum bytes of one line.
    pub line_bytes: usize,
}

/// The audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// Bytes at which a file is followed by the next one.
    pub file_bytes: u64,
    /// Bytes of all files above which the oldest ones are removed.
    pub keep_bytes: u64,
    /// Days after which a file is removed.
    pub keep_days: u64,
    /// What happens to changes while the log cannot be written.
    pub on_failure: OnAuditFailure,
}

impl Keywords for OnAuditFailure {
    const ALL: &'static [(&'static str, Self)] = &[("refuse", Self::Refuse), ("report", Self::Report)];
}

/// An object store for the bytes of artifacts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArtifactStore {
    /// The bucket and the prefix of object names: `s3://bucket/prefix`; `None` for the state directory.
    pub url: Option<String>,
    /// The address of a server with the API of S3; that of AWS if `None`.
    pub endpoint: Option<String>,
    /// The region of the bucket; that of the environment if `None`.
    pub region: Option<String>,
    /// The file with credentials; those of the environment if `None`.
    pub credentials_file: Option<PathBuf>,
    /// Allows an endpoint of another machine without TLS.
    pub allow_http: bool,
}

/// Several servers on one PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cluster {
    /// The address at which the other servers reach this one; `None` for a server on its own.
    pub address: Option<String>,
    /// The name of this server; its address if `None`.
    pub name: Option<String>,
    /// The file with the secret that the servers share.
    pub secret_file: Option<PathBuf>,
    /// Milliseconds for which the active server has the database after each renewal.
    pub lease_ms: u64,
    /// True to execute sessions on all servers.
    pub spread: bool,
    /// The folders beneath which the agents of this server can work; none for every folder.
    pub folders: Vec<String>,
    /// The labels of this server, which sessions may need.
    pub labels: Vec<String>,
    /// The active runs with a process on all servers together; 0 for no limit.
    pub max_workers: usize,
    /// The active runs without a process on all servers together; 0 for no limit.
    pub max_in_process_runs: usize,
    /// The URL at which the database sends notices to this server, if not that of the store.
    pub listen_url: Option<String>,
}

impl Cluster {
    /// Returns the number of permits that all servers share, indexed by `PermitPool`; `None` for a pool that is not
    /// shared.
    pub fn permit_limits(&self) -> [Option<usize>; 2] {
        [self.max_workers, self.max_in_process_runs].map(|limit| (self.spread && limit > 0).then_some(limit))
    }

    /// True if this server is part of a cluster.
    pub fn is_enabled(&self) -> bool {
        self.address.is_some()
    }

    /// Returns the name of this server.
    pub fn display_name(&self) -> &str {
        self.name.as_deref().or(self.address.as_deref()).unwrap_or_default()
    }
}

/// Delays between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Milliseconds before the second attempt.
    pub base_ms: u64,
    /// Maximum milliseconds between two attempts.
    pub max_ms: u64,
}

/// The failures that an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A power loss.
    Full,
    /// Only a crash of the process.
    Normal,
}

impl Keywords for Durability {
    const ALL: &'static [(&'static str, Self)] = &[("full", Self::Full), ("normal", Self::Normal)];
}

/// How a run that a crash interrupted is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOrphan {
    /// The run stays orphaned until a caller retries it.
    Leave,
    /// The run is retried from its last committed message.
    Retry,
}

impl Keywords for Supervision {
    const ALL: &'static [(&'static str, Self)] = &[("tree", Self::Tree), ("group", Self::Group)];
}

impl Keywords for AccessRole {
    const ALL: &'static [(&'static str, Self)] =
        &[("admin", Self::Admin), ("member", Self::Member), ("viewer", Self::Viewer)];
}

impl Keywords for OnOrphan {
    const ALL: &'static [(&'static str, Self)] = &[("leave", Self::Leave), ("retry", Self::Retry)];
}

/// How sessions without a title get one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Titles {
    /// From the first words of the first completed turn, then from the model `titler`, else `summarizer`.
    Heuristic,
    /// Not at all.
    Off,
}

impl Keywords for Titles {
    const ALL: &'static [(&'static str, Self)] = &[("heuristic", Self::Heuristic), ("off", Self::Off)];
}

/// One line of the table.
pub struct Setting {
    /// The dotted name of the setting, as in the file.
    pub key: &'static str,
    alias: Option<&'static str>,
    doc: &'static str,
    read: fn(&mut Config, &Input<'_>) -> Result<(), String>,
    show: fn(&Config) -> Value,
    allowed: fn() -> String,
}

impl Setting {
    /// Returns the variable of the setting.
    pub fn variable(&self) -> String {
        variable(self.key)
    }

    /// Returns the variable of an older system that also sets it. [`Setting::variable`] takes precedence.
    pub fn alias(&self) -> Option<&'static str> {
        self.alias
    }

    /// Returns the flag of the setting.
    pub fn flag(&self) -> String {
        flag(self.key)
    }

    /// Returns the description of the setting.
    pub fn description(&self) -> &'static str {
        self.doc.trim()
    }

    /// Returns a description of the allowed values that continues "must be".
    pub fn allowed(&self) -> String {
        (self.allowed)()
    }

    /// Returns the default, before `~` is expanded.
    pub fn default(&self) -> Value {
        self.value(&Config::defaults())
    }

    /// Returns the value of the setting in `config`.
    pub fn value(&self, config: &Config) -> Value {
        (self.show)(config)
    }

    pub(super) fn read(&self, config: &mut Config, input: &Input<'_>) -> Result<(), String> {
        (self.read)(config, input)
    }
}

/// The setting that a key names.
pub(super) enum Target<'a> {
    Setting(&'static Setting),
    Adapter(&'a str, &'static AdapterSetting),
    Owner(&'a str, &'static OwnerSetting),
}

/// True for settings whose values may hold a secret. Errors do not repeat such values: a mistyped one may hold its secret
/// anywhere.
pub(super) fn is_secret(key: &str) -> bool {
    key.ends_with(".env") || ["store", "cluster.listen_url", "artifact_store.url"].contains(&key)
}

/// Finds the setting that `key` names, if there is one.
pub(super) fn find_target(key: &str) -> Option<Target<'_>> {
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) {
        return Some(Target::Setting(setting));
    }
    if let Some((name, setting)) = owners::find(key) {
        return Some(Target::Owner(name, setting));
    }
    let (name, key) = key.strip_prefix("adapters.")?.split_once('.')?;
    let setting = ADAPTER_SETTINGS.iter().find(|setting| setting.key == key)?;
    rule::is_adapter_name(name).then_some(Target::Adapter(name, setting))
}

pub(super) fn adapter_key(name: &str, key: &str) -> String {
    format!("adapters.{name}.{key}")
}

/// Returns the adapter whose worker limit `variable` sets. Names have hyphens and no underscores, so this is unambiguous.
pub(super) fn adapter_of_variable(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("MAINSPRING_ADAPTERS_")?.strip_suffix("_MAX_WORKERS")?;
    let is_upper = !name.bytes().any(|b| b.is_ascii_lowercase() || b == b'-');
    let name = name.to_ascii_lowercase().replace('_', "-");
    (is_upper && rule::is_adapter_name(&name)).then_some(name)
}

/// Returns the variable of the setting `key`.
pub(super) fn variable(key: &str) -> String {
    format!("MAINSPRING_{}", key.to_ascii_uppercase().replace(['.', '-'], "_"))
}

/// Returns the flag of the setting `key`.
pub(super) fn flag(key: &str) -> String {
    format!("--{}", key.replace(['.', '_'], "-"))
}
