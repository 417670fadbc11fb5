//! What is wrong with a configuration: each problem names the value, its place and the remedy.

use std::fmt;
use std::path::PathBuf;

use super::Row;
use super::adapters::ADAPTER_SETTINGS;
use super::settings::{self, SETTINGS};
use super::source::Origin;

/// Why a configuration was refused: every problem that was found, one per line.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A value is not one that the setting takes.
    #[error("{key} = {shown} ({origin}): must be {must}")]
    Invalid {
        /// The setting.
        key: String,
        /// The value as it was written.
        shown: String,
        /// Where it was written.
        origin: Origin,
        /// What it must be.
        must: String,
    },
    /// What is said of models makes no sense.
    #[error("{key} ({origin}): {reason}")]
    Models {
        /// The place.
        key: String,
        /// Where it was written.
        origin: Origin,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// There is no such setting.
    #[error("unknown setting `{key}` ({origin}): {}", remedy(near))]
    UnknownKey {
        /// What was written.
        key: String,
        /// Where it was written.
        origin: Origin,
        /// What was probably meant.
        near: Option<String>,
    },
    /// There is no such variable.
    #[error("unknown variable {name}: {}", remedy(near))]
    UnknownVariable {
        /// The variable.
        name: String,
        /// What was probably meant.
        near: Option<String>,
    },
    /// A variable is not Unicode.
    #[error("{name} is not valid UTF-8: give a value that is")]
    NotUnicode {
        /// The variable.
        name: String,
    },
    /// Two values make no sense together.
    #[error(
        "{} = {} ({}) is more than {} = {} ({}): lower the first or raise the second",
        low.key, low.value, low.origin, high.key, high.value, high.origin
    )]
    Contradiction {
        /// The one that must not be the greater.
        low: Box<Row>,
        /// The other.
        high: Box<Row>,
    },
    /// What is set for an adapter is not complete, or makes no sense together.
    #[error("{key} {must}")]
    Adapter {
        /// The setting.
        key: String,
        /// What is wrong, and what to do.
        must: String,
    },
    /// The file cannot be read.
    #[error("the configuration file {}{} cannot be read: {reason}; correct its path or make it readable", path.display(), named(named_by))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What named it; nothing, if it was found where such files lie.
        named_by: Option<Origin>,
        /// What the operating system says.
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
        /// What the parser says.
        message: String,
    },
    /// There is no folder for the state.
    #[error("no folder for state_dir: there is no HOME; set MAINSPRING_STATE_DIR")]
    NoStateDir,
    /// There is no current folder.
    #[error("the current folder cannot be determined: {reason}; start in one that exists")]
    NoFolder {
        /// What the operating system says.
        reason: String,
    },
}

impl Problem {
    pub(super) fn unknown_key(key: String, origin: Origin) -> Self {
        let near = near(&key);
        Self::UnknownKey { key, origin, near }
    }

    pub(super) fn unknown_variable(name: &str) -> Self {
        let word = name.strip_prefix("MAINSPRING_").unwrap_or(name);
        let near = near(word).map(|key| settings::variable(&key));
        Self::UnknownVariable { name: name.to_owned(), near }
    }
}

fn remedy(near: &Option<String>) -> String {
    match near {
        Some(near) => format!("did you mean {near}?"),
        None => "remove it; `mainspring config show` lists what there is".to_owned(),
    }
}

fn named(by: &Option<Origin>) -> String {
    by.as_ref().map(|origin| format!(" (named by {origin})")).unwrap_or_default()
}

/// The key that `word` was probably meant to be.
fn near(word: &str) -> Option<String> {
    const ENOUGH: f64 = 0.6;
    let keys = SETTINGS.iter().map(|setting| setting.key).chain(settings::GROUPS.iter().copied());
    let keys = keys.chain(["adapters", "config"]).map(str::to_owned);
    let of_adapters = ADAPTER_SETTINGS.iter().map(|setting| settings::adapter_key("NAME", setting.key));
    // Within an adapter's table only its keys can be meant.
    let in_table = word.starts_with("adapters.") && word.matches('.').count() == 2;
    let keys = of_adapters.chain(keys.filter(|_| !in_table));
    let scored = keys.map(|key| (likeness(word, &key), key));
    let (score, key) = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (score >= ENOUGH).then_some(key)
}

/// How much `word` looks like `key`, or like its last part: people forget the table that a key is in.
fn likeness(word: &str, key: &str) -> f64 {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['.', '-'], "_");
    let last = |text: &str| plain(text.rsplit('.').next().unwrap_or(text));
    let whole = strsim::normalized_damerau_levenshtein(&plain(word), &plain(key));
    let part = strsim::normalized_damerau_levenshtein(&last(word), &last(key));
    // Where the last parts are equally alike, the whole decides.
    whole.max(0.95 * part + 0.04 * whole)
}
