//! Configuration: one table of settings, filled layer by layer. Later layers override earlier ones.
//!
//! ```text
//! default  <  mainspring.toml  <  MAINSPRING_* variables  <  flags
//! ```
//!
//! The file is the one named by `--config` or `MAINSPRING_CONFIG`, which must exist; otherwise `./mainspring.toml` if the
//! user has trusted it; otherwise the user's own, `mainspring/mainspring.toml` in `$XDG_CONFIG_HOME` or `~/.config`.
//!
//! Invariants: all inputs come from [`Sources`] and the files that it names; every value of every layer is checked,
//! even if a later layer overrides it; unknown input is an error; input that is not used is named in
//! [`Resolved::ignored`]; all problems are reported at once.

mod adapters;
mod error;
mod file;
mod goal_types;
mod models;
mod owners;
mod preview;
mod rule;
mod settings;
mod source;
mod text;
mod trust;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use mainspring_agent::ModelsConfig;
use serde::Serialize;

pub(crate) use adapters::DEFAULT_MAX_PROCESSES;
pub use adapters::{ADAPTER_SETTINGS, AdapterConfig, AdapterKind, AdapterSetting, Permissions};
pub use error::{ConfigError, Problem};
pub use owners::{OWNER_SETTINGS, OwnerConfig, OwnerSetting};
pub use preview::{Effect, EffectKind};
pub use rule::Value;
pub use settings::{
    ArtifactStore, Audit, Cluster, Config, Durability, OnOrphan, Retry, SETTINGS, Setting, Stdio, Titles,
};
pub use source::{Origin, Sources, VARIABLES, Variable};
pub use trust::{
    FolderFile, Ignored, IgnoredReason, NOT_SET_BY_FOLDERS, TrustStatus, TrustStore, TrustedFile,
};

#[cfg(feature = "s3")]
pub(crate) use rule::artifact_store::split_bucket;
use rule::{Input, RawValue};
use source::{ConfigFile, Files};

/// Hosts' names for agent runtimes, and the kind of adapter that drives each.
const HOST_ADAPTER_KINDS: [(&str, &str); 3] = [("acp", "acp"), ("acp-claude", "acp"), ("pi-mono", "pi")];

/// A configuration with the origin of each value.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The values.
    pub config: Config,
    /// The origin of each value that is not the default, by key.
    pub origins: BTreeMap<String, Origin>,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    /// Files and settings that were found and are not used.
    pub ignored: Vec<Ignored>,
}

/// One setting as listed by `mainspring config show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingRow {
    /// The dotted name of the setting.
    pub key: String,
    /// The value.
    pub value: Value,
    /// The origin of the value.
    pub origin: Origin,
    /// The description of the setting.
    pub description: &'static str,
}

impl Config {
    /// Returns the defaults with all data in `state_dir`, for programs that embed mainspring.
    pub fn with_state_dir(state_dir: impl Into<PathBuf>) -> Self {
        let state_dir = state_dir.into();
        Self { agents_dir: state_dir.join("agents"), state_dir, ..Self::defaults() }
    }

    /// Returns the database file within the state directory.
    pub fn database(&self) -> PathBuf {
        self.state_dir.join("mainspring.sqlite3")
    }

    /// Returns the name of the database for people: a file, or an address without its password.
    pub fn database_name(&self) -> String {
        match &self.store {
            Some(url) => rule::store::without_password(url),
            None => self.database().display().to_string(),
        }
    }

    /// Returns the folder of the artifacts' bytes within the state directory. With an object store, bytes are
    /// only staged there until they are uploaded.
    pub fn artifacts_dir(&self) -> PathBuf {
        self.state_dir.join("artifacts")
    }

    /// Returns the file from which the guards of agents read how long agents may live, in a cluster.
    pub fn limit_file(&self) -> PathBuf {
        self.state_dir.join("cluster.limit")
    }

    /// Returns the folder of the audit log within the state directory.
    pub fn audit_dir(&self) -> PathBuf {
        self.state_dir.join("audit")
    }

    /// Returns the folder of the stored keys of model providers within the state directory.
    pub fn keys_dir(&self) -> PathBuf {
        self.state_dir.join("keys")
    }

    /// Maps the runtime names that hosts and their agents use to configured adapters of the same kind. A name under
    /// which an adapter is configured is not mapped.
    pub fn adapter_aliases(&self) -> HashMap<String, String> {
        let of_kind = |kind: &str| {
            let matches = |name: &&String| {
                self.adapters[*name].kind.is_some_and(|adapter_kind| adapter_kind.keyword() == kind)
            };
            // Of several adapters of the kind, prefer the default one.
            Some(&self.adapter)
                .filter(|name| self.adapters.contains_key(*name) && matches(name))
                .or_else(|| self.adapters.keys().find(matches))
        };
        let known = HOST_ADAPTER_KINDS.iter().filter(|(alias, _)| !self.adapters.contains_key(*alias));
        known.filter_map(|(alias, kind)| Some(((*alias).to_owned(), of_kind(kind)?.clone()))).collect()
    }

    /// Reads every layer of `sources`, or reports all their problems.
    pub fn load(sources: &Sources) -> Result<Resolved, ConfigError> {
        let mut problems = Vec::new();
        let files = source::find_files(sources).unwrap_or_else(|problem| {
            problems.push(problem);
            Files::default()
        });
        Self::resolve(sources, files, problems)
    }

    /// Reads every layer of `sources` with `file` as the configuration file, as if the file were trusted.
    pub fn load_trusting(sources: &Sources, file: FolderFile) -> Result<Resolved, ConfigError> {
        Self::resolve(sources, Files::of_folder(sources, file)?, Vec::new())
    }

    fn resolve(sources: &Sources, files: Files, mut problems: Vec<Problem>) -> Result<Resolved, ConfigError> {
        let Files { file, is_of_folder, beneath, mut ignored } = files;
        let cannot_be_of_folder = |entry: &Entry| NOT_SET_BY_FOLDERS.contains(&entry.key.as_str());
        let mut entries = Vec::new();
        let mut models = ModelsConfig::default();
        let mut goal_types = Vec::new();
        let mut table_origins = Vec::new();
        if let Some(ConfigFile { path, text }) = &beneath {
            entries.extend(file::entries(path, text, &mut problems).into_iter().filter(cannot_be_of_folder));
        }
        if let Some(ConfigFile { path, text }) = &file {
            for entry in file::entries(path, text, &mut problems) {
                match is_of_folder && cannot_be_of_folder(&entry) {
                    true => ignored.push(Ignored::Setting { key: entry.key, origin: entry.origin }),
                    false => entries.push(entry),
                }
            }
            models = models::read(path, text, sources.home.as_deref(), &mut problems);
            table_origins = models::origins(path, text);
            goal_types = goal_types::read(path, text, &mut problems);
        }
        entries.extend(text::variables(sources, &mut problems));
        entries.extend(text::flags(sources, &mut problems));

        let mut config = Config::defaults();
        match source::default_state_dir(sources) {
            Some(path) => config.state_dir = path,
            None if entries.iter().any(|entry| entry.key == "state_dir") => {}
            None => problems.push(Problem::NoStateDir),
        }
        config.models = models;
        config.goal_types = goal_types;
        let file = file.map(|file| file.path);
        // Agents must not write this file. A folder's file needs no protection: a changed one must be trusted again.
        config.config_file = file.clone().filter(|_| !is_of_folder);
        let mut resolved = Resolved { config, origins: table_origins.into_iter().collect(), file, ignored };
        for entry in entries {
            if let Err(problem) = resolved.apply(entry, sources.home.as_deref()) {
                problems.push(problem);
            }
        }
        if !resolved.origins.contains_key("agents_dir") {
            resolved.config.agents_dir = resolved.config.state_dir.join("agents");
        }
        if problems.is_empty() {
            problems.extend(resolved.contradictions());
            let Config { adapters, models, .. } = &resolved.config;
            problems.extend(
                adapters
                    .iter()
                    .flat_map(|(name, adapter)| adapters::problems(name, adapter, adapters, &models.mcp)),
            );
        }
        if problems.is_empty() { Ok(resolved) } else { Err(ConfigError { problems }) }
    }
}

impl Resolved {
    /// Lists every setting in the order of the table, then the settings of adapters and owners, then providers, models,
    /// prices, MCP servers and goal types.
    pub fn rows(&self) -> Vec<SettingRow> {
        let origin = |key: &str| self.origins.get(key).cloned().unwrap_or(Origin::Default);
        let mut rows = Vec::new();
        for setting in SETTINGS {
            rows.push(SettingRow {
                key: setting.key.to_owned(),
                value: setting.value(&self.config),
                origin: origin(setting.key),
                description: setting.description(),
            });
        }
        for (name, adapter) in &self.config.adapters {
            for setting in ADAPTER_SETTINGS {
                let key = settings::adapter_key(name, setting.key);
                rows.extend((setting.show)(adapter).map(|value| SettingRow {
                    value,
                    origin: origin(&key),
                    key,
                    description: setting.description,
                }));
            }
        }
        for (name, owner) in &self.config.owners {
            for setting in OWNER_SETTINGS {
                let key = owners::owner_key(name, setting.key);
                rows.extend((setting.show)(owner).map(|value| SettingRow {
                    value,
                    origin: origin(&key),
                    key,
                    description: setting.description(),
                }));
            }
        }
        rows.extend(self.tables().into_iter().map(|(key, value, description)| SettingRow {
            value: Value::Text(value),
            origin: origin(&key),
            key,
            description,
        }));
        rows
    }

    /// Lists the tables that describe models, tools and goal types: key, value and description. Shows no secrets.
    fn tables(&self) -> Vec<(String, String, &'static str)> {
        let ModelsConfig { providers, models, mcp, prices, .. } = &self.config.models;
        let providers = providers.iter().map(|(name, provider)| {
            let value = format!("{} {}", provider.kind, provider.base_url.as_deref().unwrap_or_default());
            (format!("providers.{name}"), value.trim().to_owned(), "Provider of models.")
        });
        let models = models.iter().map(|(name, profile)| {
            let value = format!("{}/{}", profile.provider, profile.model);
            (format!("models.{name}"), value, "Model for a purpose.")
        });
        let prices = prices.iter().map(|(name, price)| {
            let value = format!("{}/{}", price.input, price.output);
            (format!("prices.{name}"), value, "Price per million tokens, input and output.")
        });
        let mcp = mcp.iter().map(|(name, server)| {
            let value = server.command.as_ref().or(server.url.as_ref()).cloned().unwrap_or_default();
            (format!("mcp.{name}"), value, "MCP server.")
        });
        let goal_types = self.config.goal_types.iter().map(|goal_type| {
            (format!("goal_types.{}", goal_type.name), goal_type.description.clone(), "Goal type.")
        });
        providers.chain(models).chain(prices).chain(mcp).chain(goal_types).collect()
    }

    fn apply(&mut self, entry: Entry, home: Option<&Path>) -> Result<(), Problem> {
        let Entry { key, raw, written, folder, origin } = entry;
        let input = Input { raw, folder: &folder, home };
        let result = match settings::find_target(&key) {
            Some(settings::Target::Setting(setting)) => setting.read(&mut self.config, &input),
            Some(settings::Target::Adapter(name, setting)) => {
                (setting.read)(self.config.adapters.entry(name.to_owned()).or_default(), &input)
            }
            Some(settings::Target::Owner(name, setting)) => {
                (setting.read)(self.config.owners.entry(name.to_owned()).or_default(), &input)
            }
            None => return Err(Problem::unknown_key(key, origin)),
        };
        match result {
            Ok(()) => {
                self.origins.insert(key, origin);
                Ok(())
            }
            Err(allowed) => Err(Problem::Invalid { key, written, origin, allowed }),
        }
    }

    /// Checks pairs of values that are valid by themselves but contradict each other.
    fn contradictions(&self) -> Vec<Problem> {
        let Config { limits, retry, .. } = &self.config;
        let mut problems = Vec::new();
        let mut check_order = |low: &'static str, high: &'static str, in_order: bool| {
            if !in_order {
                let row = |key: &str| self.rows().into_iter().find(|row| row.key == key).map(Box::new);
                problems
                    .extend(row(low).zip(row(high)).map(|(low, high)| Problem::Contradiction { low, high }));
            }
        };
        check_order("retry.base_ms", "retry.max_ms", retry.base_ms <= retry.max_ms);
        // A prompt becomes a message: a longer prompt would be accepted and then refused.
        check_order(
            "limits.prompt_bytes",
            "limits.message_bytes",
            limits.prompt_bytes <= limits.message_bytes,
        );
        problems
    }
}

/// One unchecked value of one layer.
struct Entry {
    key: String,
    raw: RawValue,
    /// The value as written.
    written: String,
    /// The folder that relative paths refer to.
    folder: PathBuf,
    origin: Origin,
}

#[cfg(test)]
mod tests;
