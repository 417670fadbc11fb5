//! The settings that have to be the same on all servers of a cluster. Each server announces its values.
//!
//! A few numbers and switches are announced as values, which other servers and people see. The others may hold secrets
//! and are announced as keyed digests, which cannot be computed without the secret of the cluster.

use std::fmt::Debug;
use std::path::Path;

use mainspring_store::AnnouncedSettings;

use crate::config::{Config, SETTINGS};

/// The settings that must have the same value on every server: a server whose value differs is refused.
const FIXED: &[&str] = &["cluster.spread", "cluster.max_workers", "cluster.max_in_process_runs"];

/// The name of the digest of the secret, which has to be the same too.
const SECRET: &str = "cluster.secret_file (a digest of its content)";

/// The groups of settings that decide how any server treats runs and requests. A difference between servers is
/// reported. A name that ends with a dot stands for a table.
const GROUPS: &[(&str, &[&str])] = &[
    ("limits", &["limits."]),
    ("quotas", &["quotas."]),
    ("rules", &["rules"]),
    (
        "runs",
        &[
            "adapter",
            "owner",
            "cancel_grace_ms",
            "wait_expiry_hours",
            "on_orphan",
            "titles",
            "tool_result_bytes",
            "goal_reminders",
            "retry.",
        ],
    ),
    (
        "access",
        &[
            "oidc.issuer",
            "oidc.audience",
            "oidc.owner_claim",
            "oidc.org_claim",
            "oidc.role_claim",
            "oidc.default_role",
            "oidc.skew_ms",
            "oidc.client_id",
            "cors_origins",
            "webhooks_private",
            "threads",
        ],
    ),
    ("connections", &["http.header_ms"]),
    ("artifacts", &["artifacts.", "artifact_store.url", "artifact_store.endpoint", "artifact_store.region"]),
];

/// The settings that may differ between servers: their machine, their place in the network and their own load.
#[cfg(test)]
const OWN: &[&str] = &[
    "state_dir",
    "agents_dir",
    "store",
    "max_workers",
    "max_in_process_runs",
    "durability",
    "idle_unload_ms",
    "readers",
    "listen",
    "url",
    "allowed_hosts",
    "tls_cert",
    "tls_key",
    "insecure_http",
    "tls_ca",
    "on_attention",
    "drain_ms",
    "log",
    "guard",
    "memory_command",
    "supervision",
    "http.requests",
    "http.streams",
    "http.session_streams",
    "http.header_bytes",
    "http.headers",
    "http.body_ms",
    "http.body_rate",
    "http.connections",
    "http.connections_per_address",
    "oidc.ca",
    "oidc.client_secret_file",
    "stdio.",
    "audit.",
    "artifact_store.credentials_file",
    "artifact_store.allow_http",
    "cluster.address",
    "cluster.name",
    "cluster.secret_file",
    // Each lease says how long it lasts, and other servers wait for that time.
    "cluster.lease_ms",
    "cluster.folders",
    "cluster.labels",
    "cluster.listen_url",
];

fn is_named(key: &str, names: &[&str]) -> bool {
    names.iter().any(|name| key == *name || (name.ends_with('.') && key.starts_with(name)))
}

/// Makes the announcement of a server. `key` is derived from the secret of the cluster.
pub(super) fn announced(config: &Config, key: &[u8; 32]) -> AnnouncedSettings {
    let mut digests = Digests { key, settings: AnnouncedSettings::default() };
    for setting in SETTINGS {
        if is_named(setting.key, FIXED) {
            digests.settings.fixed.insert(setting.key.into(), setting.value(config).to_string());
        }
    }
    // Servers with different secrets refuse each other's requests. A part of a digest reveals nothing about the secret.
    digests.settings.fixed.insert(SECRET.into(), digests.of("secret")[..8].to_owned());
    for (group, names) in GROUPS {
        let of_group = SETTINGS.iter().filter(|setting| is_named(setting.key, names));
        let values: Vec<_> =
            of_group.map(|setting| (setting.key, setting.value(config).to_string())).collect();
        match *group {
            "rules" => {
                let owners = config.owners.iter().map(|(name, owner)| (name, &owner.rules));
                digests.add(group, &(values, owners.collect::<Vec<_>>()));
            }
            "quotas" => {
                let owners = config.owners.iter().map(|(name, owner)| (name, &owner.quotas));
                digests.add(group, &(values, owners.collect::<Vec<_>>()));
            }
            _ => digests.add(group, &values),
        }
    }
    digests.add("models", &config.models);
    digests.add("goal types", &config.goal_types);
    digests.add("agents", &agent_files(&config.agents_dir));
    if !config.cluster.spread {
        // Servers that share the work may have adapters of their own.
        digests.add("adapters", &config.adapters);
    }
    digests.settings
}

struct Digests<'a> {
    key: &'a [u8; 32],
    settings: AnnouncedSettings,
}

impl Digests<'_> {
    fn add(&mut self, group: &str, values: &impl Debug) {
        let digest = self.of(&format!("{group}: {values:?}"));
        self.settings.digests.insert(group.into(), digest[..32].to_owned());
    }

    fn of(&self, text: &str) -> String {
        blake3::keyed_hash(self.key, text.as_bytes()).to_hex().to_string()
    }
}

/// Reads the files of agent definitions, by name. A file that cannot be read is reported when it is needed.
fn agent_files(folder: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files =
        entries.map(|entry| entry.path()).filter(|file| file.extension().is_some_and(|it| it == "toml"));
    let read = |file: std::path::PathBuf| {
        let name = file.file_name()?.to_string_lossy().into_owned();
        Some((name, std::fs::read_to_string(file).ok()?))
    };
    let mut files: Vec<_> = files.filter_map(read).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differing(change: impl FnOnce(Config) -> Config) -> Vec<String> {
        let key = [7; 32];
        let (one, two) = (
            announced(&Config::with_state_dir("/x"), &key),
            announced(&change(Config::with_state_dir("/x")), &key),
        );
        assert_eq!(one.digests.len(), two.digests.len());
        let differs =
            |(name, digest): (&String, &String)| (two.digests[name] != *digest).then(|| name.clone());
        one.digests.iter().filter_map(differs).collect()
    }

    #[test]
    fn every_setting_is_either_shared_or_local_to_a_server() {
        for setting in SETTINGS {
            let groups = GROUPS.iter().filter(|(_, names)| is_named(setting.key, names)).count();
            let others = [FIXED, OWN].iter().filter(|names| is_named(setting.key, names)).count();
            assert_eq!(groups + others, 1, "{}: put it into one group", setting.key);
        }
    }

    #[test]
    fn a_change_affects_only_the_digest_of_its_group() {
        assert_eq!(differing(|config| config), Vec::<String>::new());
        assert_eq!(differing(|config| config.cancel_grace_ms(1)), ["runs"]);
        assert_eq!(differing(|config| config.max_workers(1)), Vec::<String>::new());
        let limits = |mut config: Config| {
            config.limits.page += 1;
            config
        };
        assert_eq!(differing(limits), ["limits"]);
        let connections = |mut config: Config| {
            config.http.header_ms = 1_000;
            config
        };
        assert_eq!(differing(connections), ["connections"]);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.toml"), "secret words").unwrap();
        let agents = |mut config: Config| {
            config.agents_dir = folder.path().into();
            config
        };
        assert_eq!(differing(agents), ["agents"]);
        let mut config = Config::with_state_dir("/x");
        config.cluster.max_workers = 4;
        let settings = announced(&config, &[7; 32]);
        assert_eq!(settings.fixed["cluster.max_workers"], "4");
        assert_eq!(settings.fixed["cluster.spread"], "false");
        let with_another_secret = announced(&config, &[8; 32]);
        assert_ne!(settings.digests, with_another_secret.digests, "the digests need the secret");
        assert_ne!(settings.fixed[SECRET], with_another_secret.fixed[SECRET]);
    }
}
