//! The tables `[owners.NAME]`: settings that concern the agents of one owner.

use mainspring_kernel::policy;

use super::rule::{Input, Rule, Value, policy_rules};

/// The settings of one owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnerConfig {
    /// Rules about what the owner's agents may do, tried after those of the server and before those of the adapter.
    pub rules: Option<Vec<policy::Rule>>,
}

/// A key of `[owners.NAME]`.
pub struct OwnerSetting {
    /// The key's name.
    pub key: &'static str,
    /// The key's description.
    pub description: &'static str,
    pub(super) read: fn(&mut OwnerConfig, &Input<'_>) -> Result<(), String>,
    pub(super) show: fn(&OwnerConfig) -> Option<Value>,
}

/// Every key of `[owners.NAME]`.
pub const OWNER_SETTINGS: &[OwnerSetting] = &[OwnerSetting {
    key: "rules",
    description: "Rules about what the agents of this owner may do, tried after the global `rules` and before those of the adapter.",
    read: |owner, input| {
        owner.rules = Some(policy_rules().read(input)?);
        Ok(())
    },
    show: |owner| owner.rules.as_ref().map(|rules| policy_rules().show(rules)),
}];

/// The key of a setting of the owner `name`.
pub(super) fn owner_key(name: &str, key: &str) -> String {
    format!("owners.{name}.{key}")
}

/// Finds the owner and the setting that `key` names. The name of an owner may hold dots.
pub(super) fn find(key: &str) -> Option<(&str, &'static OwnerSetting)> {
    let (name, key) = key.strip_prefix("owners.")?.rsplit_once('.')?;
    let setting = OWNER_SETTINGS.iter().find(|setting| setting.key == key)?;
    super::rule::is_owner_name(name).then_some((name, setting))
}
