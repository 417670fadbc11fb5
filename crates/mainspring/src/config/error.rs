//! Configuration errors: each problem names the value, its origin and the remedy.

use std::fmt;
use std::path::PathBuf;

use super::SettingRow;
use super::adapters::ADAPTER_SETTINGS;
use super::settings::{self, SETTINGS};
use super::source::Origin;

/// A configuration was refused. Lists every problem that was found, one per line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError {
    /// The problems, in the order of the layers; never empty.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

/// One problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The setting does not allow this value.
    #[error("{key} = {written} ({origin}): must be {allowed}")]
    Invalid {
        /// The setting.
        key: String,
        /// The value as written.
        written: String,
        /// The origin of the value.
        origin: Origin,
        /// A description of the allowed values.
        allowed: String,
    },
    /// A table of models, tools or goal types is inconsistent.
    #[error("{key} ({origin}): {reason}")]
    Models {
        /// The key.
        key: String,
        /// The origin of the value.
        origin: Origin,
        /// The problem and its remedy.
        reason: String,
    },
    /// The setting does not exist.
    #[error("unknown setting `{key}` ({origin}): {}", remedy(suggestion))]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The origin of the key.
        origin: Origin,
        /// The most similar setting.
        suggestion: Option<String>,
    },
    /// The variable does not exist.
    #[error("unknown variable {name}: {}", remedy(suggestion))]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The most similar variable.
        suggestion: Option<String>,
    },
    /// The value of a variable is not Unicode.
    #[error("{name} is not valid UTF-8: give a value that is")]
    NotUnicode {
        /// The variable.
        name: String,
    },
    /// Two values contradict each other.
    #[error(
        "{} = {} ({}) is more than {} = {} ({}): lower the first or raise the second",
        low.key, low.value, low.origin, high.key, high.value, high.origin
    )]
    Contradiction {
        /// The setting that must not be greater.
        low: Box<SettingRow>,
        /// The other setting.
        high: Box<SettingRow>,
    },
    /// The settings of an adapter are incomplete or inconsistent.
    #[error("{key} {problem}")]
    Adapter {
        /// The setting.
        key: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// The file cannot be read.
    #[error("the configuration file {}{} cannot be read: {reason}; correct its path or make it readable", path.display(), named_suffix(named_by))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The flag or variable that named the file; `None` if it was found in a default location.
        named_by: Option<Origin>,
        /// The error of the operating system.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{} line {line}, column {column}: not TOML: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1.
        column: usize,
        /// The error of the parser.
        message: String,
    },
    /// There is no folder for the state directory.
    #[error("no folder for state_dir: there is no HOME; set MAINSPRING_STATE_DIR")]
    NoStateDir,
    /// There is no current folder.
    #[error("the current folder cannot be determined: {reason}; start in one that exists")]
    NoCurrentDir {
        /// The error of the operating system.
        reason: String,
    },
}

impl Problem {
    pub(super) fn unknown_key(key: String, origin: Origin) -> Self {
        let suggestion = most_similar_key(&key);
        Self::UnknownKey { key, origin, suggestion }
    }

    pub(super) fn unknown_variable(name: &str) -> Self {
        let word = name.strip_prefix("MAINSPRING_").unwrap_or(name);
        let suggestion = most_similar_key(word).map(|key| settings::variable(&key));
        Self::UnknownVariable { name: name.to_owned(), suggestion }
    }
}

fn remedy(suggestion: &Option<String>) -> String {
    match suggestion {
        Some(suggestion) => format!("did you mean {suggestion}?"),
        None => "remove it; `mainspring config show` lists what there is".to_owned(),
    }
}

fn named_suffix(by: &Option<Origin>) -> String {
    by.as_ref().map(|origin| format!(" (named by {origin})")).unwrap_or_default()
}

/// Finds the existing key that is most similar to `word`, if it is similar enough.
fn most_similar_key(word: &str) -> Option<String> {
    const MIN_SIMILARITY: f64 = 0.6;
    let keys = SETTINGS.iter().map(|setting| setting.key).chain(settings::GROUPS.iter().copied());
    let keys = keys.chain(["adapters", "config"]).map(str::to_owned);
    let adapter_keys = ADAPTER_SETTINGS.iter().map(|setting| settings::adapter_key("NAME", setting.key));
    // In an adapter's table, suggest only the keys of adapters.
    let in_adapter_table = word.starts_with("adapters.") && word.matches('.').count() == 2;
    let keys = adapter_keys.chain(keys.filter(|_| !in_adapter_table));
    let scored = keys.map(|key| (similarity(word, &key), key));
    let (score, key) = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (score >= MIN_SIMILARITY).then_some(key)
}

/// Computes the similarity of `word` to `key`, or to its last part: people forget the table that a key is in.
fn similarity(word: &str, key: &str) -> f64 {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['.', '-'], "_");
    let last = |text: &str| plain(text.rsplit('.').next().unwrap_or(text));
    let whole = strsim::normalized_damerau_levenshtein(&plain(word), &plain(key));
    let part = strsim::normalized_damerau_levenshtein(&last(word), &last(key));
    // If the last parts are equally similar, the whole keys decide.
    whole.max(0.95 * part + 0.04 * whole)
}
