//! The settings of single owners: the keys of `[owners.NAME]`.

use mainspring_core::{OwnerQuotas, Quotas};
use mainspring_kernel::policy;

use super::rule::list::policy_rules;
use super::rule::{Input, Rule, Value, is_owner_name, number};
use super::settings::SETTINGS;

/// The settings of one owner: `OwnerConfig::default()`, changed by setters or field by field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerConfig {
    /// Rules about the owner's agents, tried after those of the server and before those of the adapter.
    pub rules: Option<Vec<policy::Rule>>,
    /// The limits that differ from `[quotas]`.
    pub quotas: OwnerQuotas,
}

/// A key of `[owners.NAME]`.
pub struct OwnerSetting {
    /// The key.
    pub key: &'static str,
    /// The description; `None` for a quota, which has the description of the same key in `[quotas]`.
    doc: Option<&'static str>,
    pub(super) read: fn(&mut OwnerConfig, &Input<'_>) -> Result<(), String>,
    pub(super) show: fn(&OwnerConfig) -> Option<Value>,
}

impl OwnerSetting {
    /// Returns the description of the setting.
    pub fn description(&self) -> &'static str {
        let of_all = || SETTINGS.iter().find(|setting| setting.key.strip_prefix("quotas.") == Some(self.key));
        self.doc.unwrap_or_else(|| of_all().map_or("", |setting| setting.description()))
    }
}

macro_rules! owner_settings {
    ($($quota:ident: $type:ty, $max:expr;)*) => {
        /// Every key of `[owners.NAME]`.
        pub const OWNER_SETTINGS: &[OwnerSetting] = &[
            OwnerSetting {
                key: "rules",
                doc: Some("Rules about what the agents of this owner may do, tried after the global `rules` and before those of the adapter."),
                read: |owner, input| {
                    owner.rules = Some(policy_rules().read(input)?);
                    Ok(())
                },
                show: |owner| owner.rules.as_ref().map(|rules| policy_rules().show(rules)),
            },
            $(OwnerSetting {
                key: stringify!($quota),
                doc: None,
                read: |owner, input| {
                    owner.quotas.$quota = Some(number(0, $max).read(input)?);
                    Ok(())
                },
                show: |owner| owner.quotas.$quota.map(|value| number(0, $max).show(&value)),
            },)*
        ];

        /// Setters, each named as its setting.
        impl OwnerConfig {
            /// Rules about what the agents of this owner may do, tried after the global `rules` and before those of the
            /// adapter.
            #[must_use]
            pub fn rules(mut self, rules: Vec<policy::Rule>) -> Self {
                self.rules = Some(rules);
                self
            }

            $(
                #[doc = concat!("The limit `", stringify!($quota), "` of this owner instead of that of `[quotas]`; 0 for none.")]
                #[must_use]
                pub fn $quota(mut self, $quota: $type) -> Self {
                    self.quotas.$quota = Some($quota);
                    self
                }
            )*
        }

        // The code does not compile if a quota has no line here.
        const _: fn(Quotas) = |Quotas { $($quota: _),* }| {};
    };
}

owner_settings! {
    queued_prompts: usize, 10_000_000;
    active_runs: usize, 1_000_000;
    requests: usize, 1_000_000;
    streams: usize, 1_000_000;
    stored_bytes: u64, 1 << 50;
    artifacts: usize, 1 << 40;
    agents: usize, 10_000;
}

/// The key of a setting of the owner `name`.
pub(super) fn owner_key(name: &str, key: &str) -> String {
    format!("owners.{name}.{key}")
}

/// Finds the owner and the setting that `key` names. The name of an owner may hold dots.
pub(super) fn find(key: &str) -> Option<(&str, &'static OwnerSetting)> {
    let (name, key) = key.strip_prefix("owners.")?.rsplit_once('.')?;
    let setting = OWNER_SETTINGS.iter().find(|setting| setting.key == key)?;
    is_owner_name(name).then_some((name, setting))
}
