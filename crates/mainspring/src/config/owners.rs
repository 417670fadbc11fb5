//! The settings of single owners: the keys of `[owners.NAME]`.

use mainspring_core::{OwnerQuotas, Quotas};

use super::rule::{Input, Rule, Value, number};
use super::settings::SETTINGS;

/// The settings of one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerConfig {
    /// The limits that differ from `[quotas]`.
    pub quotas: OwnerQuotas,
}

/// A key of `[owners.NAME]`.
pub struct OwnerSetting {
    /// The key.
    pub key: &'static str,
    pub(super) read: fn(&mut OwnerConfig, &Input<'_>) -> Result<(), String>,
    pub(super) show: fn(&OwnerConfig) -> Option<Value>,
}

impl OwnerSetting {
    /// Returns the description of the setting: that of the quota of all owners.
    pub fn description(&self) -> &'static str {
        let of_all = SETTINGS.iter().find(|setting| setting.key.strip_prefix("quotas.") == Some(self.key));
        of_all.map_or("", |setting| setting.description())
    }
}

macro_rules! quotas {
    ($($key:ident: $max:expr;)*) => {
        /// Every key of `[owners.NAME]`.
        pub const OWNER_SETTINGS: &[OwnerSetting] = &[$(
            OwnerSetting {
                key: stringify!($key),
                read: |config, input| {
                    config.quotas.$key = Some(number(0, $max).read(input)?);
                    Ok(())
                },
                show: |config| config.quotas.$key.map(|value| number(0, $max).show(&value)),
            },
        )*];

        // A quota without a line does not compile.
        const _: fn(Quotas) = |Quotas { $($key: _),* }| {};
    };
}

quotas! {
    queued_prompts: 10_000_000;
    active_runs: 1_000_000;
    requests: 1_000_000;
    streams: 1_000_000;
    stored_bytes: 1 << 50;
    artifacts: 1 << 40;
    agents: 10_000;
}
