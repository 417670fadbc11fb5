//! The layers whose values are text: environment variables and flags.

use super::Entry;
use super::error::Problem;
use super::rule::RawValue;
use super::settings::{self, SETTINGS};
use super::source::{Origin, Sources, VARIABLES};

/// Reads the values of environment variables.
pub(super) fn variables(sources: &Sources, problems: &mut Vec<Problem>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (name, value) in &sources.env {
        let Some(key) = key_of_variable(name) else {
            if name.starts_with("MAINSPRING_") && !VARIABLES.iter().any(|variable| variable.name == name) {
                problems.push(Problem::unknown_variable(name));
            }
            continue;
        };
        // An alias is used, and checked, only if the proper variable is not set.
        let proper = settings::variable(&key);
        if *name == proper || sources.variable(&proper).is_none() {
            entries.push(entry(sources, key, value, Origin::Environment { name: name.clone() }));
        }
    }
    entries
}

/// Reads the values of flags.
pub(super) fn flags(sources: &Sources, problems: &mut Vec<Problem>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (key, value) in &sources.flags {
        let origin = Origin::Flag { name: settings::flag(key) };
        if settings::find_target(key).is_some() {
            entries.push(entry(sources, key.clone(), value, origin));
        } else {
            problems.push(Problem::unknown_key(key.clone(), origin));
        }
    }
    entries
}

/// Returns the key of the setting that the variable `name` sets.
fn key_of_variable(name: &str) -> Option<String> {
    let named = SETTINGS.iter().find(|setting| setting.variable() == name || setting.alias() == Some(name));
    match named {
        Some(setting) => Some(setting.key.to_owned()),
        None => {
            settings::adapter_of_variable(name).map(|adapter| settings::adapter_key(&adapter, "max_workers"))
        }
    }
}

fn entry(sources: &Sources, key: String, value: &str, origin: Origin) -> Entry {
    let written = if settings::is_secret(&key) { "…".to_owned() } else { format!("{value:?}") };
    Entry { key, raw: RawValue::Untyped(value.to_owned()), written, folder: sources.cwd.clone(), origin }
}
