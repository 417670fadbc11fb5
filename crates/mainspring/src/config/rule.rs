//! Rules: the allowed values of a setting, and how they are parsed and displayed.
//!
//! Variables and flags are untyped text. Values in the file have a type, and a wrong type is refused: no value of the
//! file is converted to another type.

pub(in super::super) mod artifact_store;
pub(super) mod list;
pub(super) mod serving;
pub(super) mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use mainspring_core::limits::check_text;
use serde::Serialize;
use tracing_subscriber::EnvFilter;

/// A value for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A text, a keyword or a path.
    Text(String),
    /// A list of texts.
    List(Vec<String>),
    /// Yes or no.
    Switch(bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::List(texts) => f.write_str(&texts.join(",")),
            Self::Switch(is_on) => write!(f, "{is_on}"),
        }
    }
}

/// An unchecked value of a layer.
pub(super) enum RawValue {
    /// The text of a variable or flag, of any type.
    Untyped(String),
    /// A string of the file.
    Text(String),
    /// An integer of the file; `None` if it is negative or beyond 64 bits.
    Integer(Option<u64>),
    /// A boolean of the file.
    Switch(bool),
    /// A list of strings of the file.
    List(Vec<String>),
    /// A list of integers of the file, none of them negative or beyond 64 bits.
    Integers(Vec<u64>),
    /// A table of strings of the file.
    Table(BTreeMap<String, String>),
    /// Any other value of the file.
    Other,
}

/// An unchecked value with the folders that its paths are relative to.
pub(super) struct Input<'a> {
    pub(super) raw: RawValue,
    pub(super) folder: &'a Path,
    pub(super) home: Option<&'a Path>,
}

impl Input<'_> {
    fn text(&self) -> Option<&str> {
        match &self.raw {
            RawValue::Untyped(text) | RawValue::Text(text) => Some(text),
            RawValue::Integer(_)
            | RawValue::Switch(_)
            | RawValue::List(_)
            | RawValue::Integers(_)
            | RawValue::Table(_)
            | RawValue::Other => None,
        }
    }
}

/// The allowed values of a setting of type `T`.
pub(super) trait Rule<T> {
    /// Parses the value, or returns a description of the allowed values.
    fn read(&self, input: &Input<'_>) -> Result<T, String>;
    /// Converts `value` for display.
    fn show(&self, value: &T) -> Value;
    /// Returns a description of the allowed values that continues "must be".
    fn allowed(&self) -> String;
}

/// Calls `rule.allowed()`; `_of` only selects the type of the rule.
pub(super) fn allowed_of<C, T>(rule: &impl Rule<T>, _of: fn(&C) -> &T) -> String {
    rule.allowed()
}

/// A whole number within bounds.
pub(super) struct Number {
    min: u64,
    max: u64,
}

/// Allows a whole number from `min` to `max`.
pub(super) const fn number(min: u64, max: u64) -> Number {
    Number { min, max }
}

impl<T> Rule<T> for Number
where
    T: Copy + TryFrom<u64> + TryInto<u64>,
{
    fn read(&self, input: &Input<'_>) -> Result<T, String> {
        let allowed = || Rule::<T>::allowed(self);
        let number = match &input.raw {
            RawValue::Untyped(text) => parse_number(text),
            RawValue::Integer(number) => *number,
            RawValue::Text(_) => return Err(format!("{}, without quotes", allowed())),
            RawValue::Switch(_)
            | RawValue::List(_)
            | RawValue::Integers(_)
            | RawValue::Table(_)
            | RawValue::Other => None,
        };
        number
            .filter(|number| (self.min..=self.max).contains(number))
            .and_then(|number| number.try_into().ok())
            .ok_or_else(allowed)
    }

    fn show(&self, value: &T) -> Value {
        Value::Number((*value).try_into().unwrap_or(u64::MAX))
    }

    fn allowed(&self) -> String {
        format!("a whole number from {} to {}", self.min, self.max)
    }
}

/// Parses a decimal number. Single underscores are allowed between digits, as in TOML.
fn parse_number(text: &str) -> Option<u64> {
    let grouped = text.split('_').all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
    if grouped { text.replace('_', "").parse().ok() } else { None }
}

/// A rule that accepts true and false.
pub(super) struct Switch;

/// Allows true and false.
pub(super) const fn switch() -> Switch {
    Switch
}

impl Rule<bool> for Switch {
    fn read(&self, input: &Input<'_>) -> Result<bool, String> {
        match &input.raw {
            RawValue::Switch(is_on) => Ok(*is_on),
            RawValue::Untyped(text) => text.parse().map_err(|_| self.allowed()),
            RawValue::Text(_) => Err(format!("{}, without quotes", self.allowed())),
            _ => Err(self.allowed()),
        }
    }

    fn show(&self, value: &bool) -> Value {
        Value::Switch(*value)
    }

    fn allowed(&self) -> String {
        "true or false".into()
    }
}

/// An enum whose values have keywords.
pub(super) trait Keywords: Copy + PartialEq + 'static {
    /// Every value and its keyword.
    const ALL: &'static [(&'static str, Self)];
}

/// A rule that accepts the keywords of an enum.
pub(super) struct OneOfKeywords;

/// Allows one of the keywords of the setting's type.
pub(super) const fn keyword() -> OneOfKeywords {
    OneOfKeywords
}

impl<T: Keywords> Rule<T> for OneOfKeywords {
    fn read(&self, input: &Input<'_>) -> Result<T, String> {
        let found = input.text().and_then(|text| T::ALL.iter().find(|(word, _)| *word == text));
        found.map(|(_, value)| *value).ok_or_else(|| Rule::<T>::allowed(self))
    }

    fn show(&self, value: &T) -> Value {
        let word = T::ALL.iter().find(|(_, candidate)| candidate == value).map_or("", |(word, _)| word);
        Value::Text(word.to_owned())
    }

    fn allowed(&self) -> String {
        let words: Vec<_> = T::ALL.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        words.join(" or ")
    }
}

/// A rule that accepts texts that pass a check.
pub(super) struct Text {
    allowed: &'static str,
    check: fn(&str) -> bool,
}

/// Allows the name of an owner.
pub(super) const fn owner_name() -> Text {
    Text { allowed: "a text of 1 to 512 bytes without control characters", check: is_owner_name }
}

/// True when `name` can be the name of an owner.
pub(super) fn is_owner_name(name: &str) -> bool {
    check_text("owner", name).is_ok()
}

/// Allows the name of an adapter.
pub(super) const fn adapter_name() -> Text {
    Text { allowed: ADAPTER_NAME, check: is_adapter_name }
}

/// The allowed names of adapters.
pub(super) const ADAPTER_NAME: &str =
    "1 to 64 lower-case letters, digits and single hyphens between them, starting with a letter";

/// True when `name` is a well-formed adapter name.
///
/// The alphabet is restricted so that every name can be converted to a variable name and back.
pub(super) fn is_adapter_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.split('-').all(|part| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        })
}

/// Allows an address with a port.
pub(super) const fn address() -> Text {
    Text {
        allowed: "an address and a port, such as 127.0.0.1:7433; port 0 takes a free one",
        check: |text| text.parse::<std::net::SocketAddr>().is_ok(),
    }
}

/// Allows a tracing filter.
pub(super) const fn log_filter() -> Text {
    Text {
        allowed: "a tracing filter such as \"warn\" or \"info,mainspring=debug\", with the levels off, error, warn, info, debug, trace",
        check: |text| {
            !text.trim().is_empty()
                && !text.split(',').any(|directive| is_misspelt_level(directive.trim()))
                && EnvFilter::builder().parse(text).is_ok()
        },
    }
}

/// True when a single word of a filter looks like a misspelt level. Tracing would take it for a module name and log
/// that module at every level.
fn is_misspelt_level(directive: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let word = directive.to_ascii_lowercase();
    !LEVELS.contains(&word.as_str()) && LEVELS.iter().any(|level| strsim::jaro_winkler(level, &word) > 0.85)
}

impl Rule<String> for Text {
    fn read(&self, input: &Input<'_>) -> Result<String, String> {
        let text = input.text().filter(|text| (self.check)(text));
        text.map(str::to_owned).ok_or_else(|| self.allowed())
    }

    fn show(&self, value: &String) -> Value {
        Value::Text(value.clone())
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }
}

/// Allows a text on one line.
pub(super) const fn text() -> Text {
    Text {
        allowed: "a text of 1 to 512 bytes without control characters",
        check: |text| check_text("text", text).is_ok(),
    }
}

/// A rule that accepts a command: a list in the file, words separated by whitespace elsewhere.
pub(super) struct Command;

/// Allows a command and its arguments.
pub(super) const fn command() -> Command {
    Command
}

impl Rule<Vec<String>> for Command {
    fn read(&self, input: &Input<'_>) -> Result<Vec<String>, String> {
        let mut words: Vec<String> = match &input.raw {
            RawValue::List(words) => words.clone(),
            RawValue::Untyped(text) => text.split_whitespace().map(str::to_owned).collect(),
            _ => return Err(self.allowed()),
        };
        let program = words.first_mut();
        if program.as_ref().is_some_and(|program| program.is_empty()) {
            return Err(self.allowed());
        }
        // A bare name is looked up in PATH when the command is started.
        if let Some(program) = program.filter(|program| program.contains('/')) {
            *program =
                expand_path(Path::new(program), input.folder, input.home)?.to_string_lossy().into_owned();
        }
        if words.iter().any(|word| word.contains('\0')) { Err(self.allowed()) } else { Ok(words) }
    }

    fn show(&self, value: &Vec<String>) -> Value {
        Value::List(value.clone())
    }

    fn allowed(&self) -> String {
        "a command and its arguments as a list, such as [\"opencode\", \"acp\"]".to_owned()
    }
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !name.contains(char::is_whitespace)
}

/// A rule that accepts a table of environment variables. Only their names are displayed.
pub(super) struct Variables;

/// Allows environment variables with their values.
pub(super) const fn variables() -> Variables {
    Variables
}

impl Rule<BTreeMap<String, String>> for Variables {
    fn read(&self, input: &Input<'_>) -> Result<BTreeMap<String, String>, String> {
        let RawValue::Table(table) = &input.raw else { return Err(self.allowed()) };
        let is_valid = |(name, value): (&String, &String)| is_variable_name(name) && !value.contains('\0');
        if table.iter().all(is_valid) { Ok(table.clone()) } else { Err(self.allowed()) }
    }

    fn show(&self, value: &BTreeMap<String, String>) -> Value {
        Value::List(value.keys().cloned().collect())
    }

    fn allowed(&self) -> String {
        "a table of texts in the file, such as { LOG = \"warn\" }".to_owned()
    }
}

/// A rule that accepts a table of model profiles.
pub(super) struct Profiles;

/// Allows logical profiles with the models they stand for.
pub(super) const fn profiles() -> Profiles {
    Profiles
}

impl Rule<BTreeMap<String, String>> for Profiles {
    fn read(&self, input: &Input<'_>) -> Result<BTreeMap<String, String>, String> {
        let RawValue::Table(table) = &input.raw else { return Err(self.allowed()) };
        let is_valid = |(name, model): (&String, &String)| {
            check_text("a model profile", name).is_ok() && check_text("a model", model).is_ok()
        };
        if table.iter().all(is_valid) { Ok(table.clone()) } else { Err(self.allowed()) }
    }

    fn show(&self, value: &BTreeMap<String, String>) -> Value {
        Value::List(value.iter().map(|(name, model)| format!("{name}={model}")).collect())
    }

    fn allowed(&self) -> String {
        "a table of models in the file, such as { worker = \"haiku\" }".to_owned()
    }
}

/// A rule that accepts a URL or an empty text.
pub(super) struct UrlOrEmpty;

/// Allows the URL of a server; empty for none.
pub(super) const fn url() -> UrlOrEmpty {
    UrlOrEmpty
}

impl Rule<Option<String>> for UrlOrEmpty {
    fn read(&self, input: &Input<'_>) -> Result<Option<String>, String> {
        let text = input.text().ok_or_else(|| self.allowed())?;
        let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        match host {
            None if text.is_empty() => Ok(None),
            Some(host) if !host.is_empty() && !host.starts_with('/') => Ok(Some(text.to_owned())),
            _ => Err(self.allowed()),
        }
    }

    fn show(&self, value: &Option<String>) -> Value {
        Value::Text(value.clone().unwrap_or_default())
    }

    fn allowed(&self) -> String {
        "an address such as http://127.0.0.1:7433, or empty for none".to_owned()
    }
}

/// A rule that accepts a path and makes it absolute.
pub(super) struct AbsolutePath;

/// Allows a path.
pub(super) const fn path() -> AbsolutePath {
    AbsolutePath
}

impl Rule<PathBuf> for AbsolutePath {
    fn read(&self, input: &Input<'_>) -> Result<PathBuf, String> {
        let text = input.text().ok_or_else(|| self.allowed())?;
        expand_path(Path::new(text), input.folder, input.home)
    }

    fn show(&self, value: &PathBuf) -> Value {
        Value::Text(value.to_string_lossy().into_owned())
    }

    fn allowed(&self) -> String {
        "a path".to_owned()
    }
}

/// Makes `path` absolute: relative to `folder`, or to `home` after `~`. Returns a description of the allowed values
/// if that is impossible.
pub(super) fn expand_path(path: &Path, folder: &Path, home: Option<&Path>) -> Result<PathBuf, String> {
    let start = match path.components().next() {
        None => return Err("a path that is not empty".to_owned()),
        Some(Component::Normal(start)) => start.to_string_lossy(),
        Some(_) => "".into(),
    };
    let absolute = match path.strip_prefix("~") {
        _ if path.to_string_lossy().contains('\0') => return Err("a path without NUL characters".to_owned()),
        Ok(rest) => home.ok_or("a path without ~, since there is no HOME")?.join(rest),
        Err(_) if start.starts_with('~') => {
            return Err(format!(
                "a path without {start}: only ~ alone is expanded; write the folder in full"
            ));
        }
        Err(_) => folder.join(path),
    };
    // Collecting the components removes `.` and repeated or trailing slashes.
    Ok(absolute.components().collect())
}
