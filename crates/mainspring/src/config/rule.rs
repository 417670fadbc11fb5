//! Rules: what values a setting takes, how they are read and how they are shown.
//!
//! A variable or a flag is untyped text; a value in the file has a type, and the wrong one is refused, so that a file
//! means what it looks like.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use mainspring_core::limits::check_text;
use mainspring_kernel::policy;
use serde::Serialize;
use tracing_subscriber::EnvFilter;

/// A value as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A text, a word or a path.
    Text(String),
    /// Several texts.
    List(Vec<String>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::List(texts) => f.write_str(&texts.join(",")),
        }
    }
}

/// What a layer gave for a setting.
pub(super) enum Raw {
    /// The text of a variable or flag, which may mean anything.
    Untyped(String),
    /// A text of the file.
    Text(String),
    /// An integer of the file; `None` if it is negative or beyond 64 bits.
    Integer(Option<u64>),
    /// A list of texts of the file.
    List(Vec<String>),
    /// A table of texts of the file.
    Table(BTreeMap<String, String>),
    /// Anything else of the file.
    Other,
}

/// What a layer gave, and what a path in it is relative to.
pub(super) struct Given<'a> {
    pub(super) raw: Raw,
    pub(super) folder: &'a Path,
    pub(super) home: Option<&'a Path>,
}

impl Given<'_> {
    fn text(&self) -> Option<&str> {
        match &self.raw {
            Raw::Untyped(text) | Raw::Text(text) => Some(text),
            Raw::Integer(_) | Raw::List(_) | Raw::Table(_) | Raw::Other => None,
        }
    }
}

/// What values a setting of type `T` takes.
pub(super) trait Rule<T> {
    /// The value, or what it must be instead.
    fn read(&self, given: &Given<'_>) -> Result<T, String>;
    /// How `value` is shown.
    fn show(&self, value: &T) -> Value;
    /// What values are allowed, to be read after "must be".
    fn allowed(&self) -> String;
}

/// `rule.allowed()`, where the field that `_of` reads says which type the rule is for.
pub(super) fn allowed_of<C, T>(rule: &impl Rule<T>, _of: fn(&C) -> &T) -> String {
    rule.allowed()
}

/// A whole number within bounds.
pub(super) struct Number {
    min: u64,
    max: u64,
}

/// A whole number from `min` to `max`.
pub(super) const fn number(min: u64, max: u64) -> Number {
    Number { min, max }
}

impl<T> Rule<T> for Number
where
    T: Copy + TryFrom<u64> + TryInto<u64>,
{
    fn read(&self, given: &Given<'_>) -> Result<T, String> {
        let allowed = || Rule::<T>::allowed(self);
        let number = match &given.raw {
            Raw::Untyped(text) => digits(text),
            Raw::Integer(number) => *number,
            Raw::Text(_) => return Err(format!("{}, without quotes", allowed())),
            Raw::List(_) | Raw::Table(_) | Raw::Other => None,
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

/// A decimal number, where single underscores may stand between digits, as in the file.
fn digits(text: &str) -> Option<u64> {
    let grouped = text.split('_').all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
    if grouped { text.replace('_', "").parse().ok() } else { None }
}

/// A type that has few values, each with a word.
pub(super) trait Word: Copy + PartialEq + 'static {
    /// Every value and its word.
    const ALL: &'static [(&'static str, Self)];
}

/// One of the words of a type.
pub(super) struct Words;

/// One of the words of the setting's type.
pub(super) const fn word() -> Words {
    Words
}

impl<T: Word> Rule<T> for Words {
    fn read(&self, given: &Given<'_>) -> Result<T, String> {
        let found = given.text().and_then(|text| T::ALL.iter().find(|(word, _)| *word == text));
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

/// A text that passes a check.
pub(super) struct Text {
    allowed: &'static str,
    check: fn(&str) -> bool,
}

/// The name of an owner.
pub(super) const fn owner_name() -> Text {
    Text {
        allowed: "a text of 1 to 512 bytes without control characters",
        check: |text| check_text("owner", text).is_ok(),
    }
}

/// The name of an adapter.
pub(super) const fn adapter_name() -> Text {
    Text { allowed: ADAPTER_NAME, check: is_adapter_name }
}

/// What the name of an adapter may be.
pub(super) const ADAPTER_NAME: &str =
    "1 to 64 lower-case letters, digits and single hyphens between them, starting with a letter";

/// Whether `name` can name an adapter.
///
/// The alphabet is this small so that every name can be written in a variable and found back.
pub(super) fn is_adapter_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.split('-').all(|part| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        })
}

/// An address with a port.
pub(super) const fn address() -> Text {
    Text {
        allowed: "an address and a port, such as 127.0.0.1:7433; port 0 takes a free one",
        check: |text| text.parse::<std::net::SocketAddr>().is_ok(),
    }
}

/// A list of host names: in the file a list, elsewhere with commas between them.
pub(super) struct Hosts;

/// A list of host names.
pub(super) const fn hosts() -> Hosts {
    Hosts
}

impl Rule<Vec<String>> for Hosts {
    fn read(&self, given: &Given<'_>) -> Result<Vec<String>, String> {
        let hosts: Vec<String> = match &given.raw {
            Raw::List(hosts) => hosts.clone(),
            Raw::Untyped(text) if text.trim().is_empty() => vec![],
            Raw::Untyped(text) => text.split(',').map(|host| host.trim().to_owned()).collect(),
            Raw::Text(_) | Raw::Integer(_) | Raw::Table(_) | Raw::Other => return Err(self.allowed()),
        };
        if hosts.iter().all(|host| is_host(host)) { Ok(hosts) } else { Err(self.allowed()) }
    }

    fn show(&self, value: &Vec<String>) -> Value {
        Value::List(value.clone())
    }

    fn allowed(&self) -> String {
        "a list of host names or addresses without ports, such as [\"agents.example.com\"]".to_owned()
    }
}

fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    host.parse::<std::net::IpAddr>().is_ok() || (host.len() <= 253 && host.split('.').all(is_label))
}

/// A filter of tracing.
pub(super) const fn filter() -> Text {
    Text {
        allowed: "a tracing filter such as \"warn\" or \"info,mainspring=debug\", with the levels off, error, warn, info, debug, trace",
        check: |text| {
            !text.trim().is_empty()
                && !text.split(',').any(|directive| is_misspelt_level(directive.trim()))
                && EnvFilter::builder().parse(text).is_ok()
        },
    }
}

/// Whether a lone word of a filter is meant as a level: tracing takes it for a module and logs that at every level.
fn is_misspelt_level(directive: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let word = directive.to_ascii_lowercase();
    !LEVELS.contains(&word.as_str()) && LEVELS.iter().any(|level| strsim::jaro_winkler(level, &word) > 0.85)
}

impl Rule<String> for Text {
    fn read(&self, given: &Given<'_>) -> Result<String, String> {
        let text = given.text().filter(|text| (self.check)(text));
        text.map(str::to_owned).ok_or_else(|| self.allowed())
    }

    fn show(&self, value: &String) -> Value {
        Value::Text(value.clone())
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }
}

/// A text of one line.
pub(super) const fn text() -> Text {
    Text {
        allowed: "a text of 1 to 512 bytes without control characters",
        check: |text| check_text("text", text).is_ok(),
    }
}

/// A command: in the file a list, elsewhere words with blanks between them.
pub(super) struct Command;

/// A command and its arguments.
pub(super) const fn command() -> Command {
    Command
}

impl Rule<Vec<String>> for Command {
    fn read(&self, given: &Given<'_>) -> Result<Vec<String>, String> {
        let mut words: Vec<String> = match &given.raw {
            Raw::List(words) => words.clone(),
            Raw::Untyped(text) => text.split_whitespace().map(str::to_owned).collect(),
            _ => return Err(self.allowed()),
        };
        let program = words.first_mut();
        if program.as_ref().is_some_and(|program| program.is_empty()) {
            return Err(self.allowed());
        }
        // A bare name is looked up in PATH when it is started.
        if let Some(program) = program.filter(|program| program.contains('/')) {
            *program = expand(Path::new(program), given.folder, given.home)?.to_string_lossy().into_owned();
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

/// Names of one kind: in the file a list, elsewhere with commas between them.
pub(super) struct Names {
    allowed: &'static str,
    check: fn(&str) -> bool,
}

/// Names of variables.
pub(super) const fn names() -> Names {
    Names { allowed: "a list of names of variables, such as [\"ANTHROPIC_API_KEY\"]", check: is_variable }
}

/// Names of MCP servers, or patterns for them.
pub(super) const fn servers() -> Names {
    Names {
        allowed: "a list of names of MCP servers, such as [\"fs\"]",
        check: |name| check_text("name", name).is_ok(),
    }
}

impl Rule<Vec<String>> for Names {
    fn read(&self, given: &Given<'_>) -> Result<Vec<String>, String> {
        let names: Vec<String> = match &given.raw {
            Raw::List(names) => names.clone(),
            Raw::Untyped(text) => text.split(',').map(|name| name.trim().to_owned()).collect(),
            _ => return Err(self.allowed()),
        };
        if names.iter().all(|name| (self.check)(name)) { Ok(names) } else { Err(self.allowed()) }
    }

    fn show(&self, value: &Vec<String>) -> Value {
        Value::List(value.clone())
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }
}

/// Rules of a policy: in the file a list, elsewhere with commas between them.
pub(super) struct Policies;

/// Rules of a policy.
pub(super) const fn policies() -> Policies {
    Policies
}

impl Rule<Vec<policy::Rule>> for Policies {
    fn read(&self, given: &Given<'_>) -> Result<Vec<policy::Rule>, String> {
        let rules: Vec<String> = match &given.raw {
            Raw::List(rules) => rules.clone(),
            Raw::Untyped(text) => text.split(',').map(|rule| rule.trim().to_owned()).collect(),
            _ => return Err(self.allowed()),
        };
        rules.iter().map(|rule| rule.parse()).collect::<Result<_, _>>().map_err(|_| self.allowed())
    }

    fn show(&self, value: &Vec<policy::Rule>) -> Value {
        Value::List(value.iter().map(ToString::to_string).collect())
    }

    fn allowed(&self) -> String {
        "a list of rules: allow, deny or ask, then capability, operation and resource, such as [\"allow fs read *\"]"
            .to_owned()
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !name.contains(char::is_whitespace)
}

/// Variables and their values, of which only the names are shown.
pub(super) struct Variables;

/// Variables and their values.
pub(super) const fn table() -> Variables {
    Variables
}

impl Rule<BTreeMap<String, String>> for Variables {
    fn read(&self, given: &Given<'_>) -> Result<BTreeMap<String, String>, String> {
        let Raw::Table(table) = &given.raw else { return Err(self.allowed()) };
        let fits = |(name, value): (&String, &String)| is_variable(name) && !value.contains('\0');
        if table.iter().all(fits) { Ok(table.clone()) } else { Err(self.allowed()) }
    }

    fn show(&self, value: &BTreeMap<String, String>) -> Value {
        Value::List(value.keys().cloned().collect())
    }

    fn allowed(&self) -> String {
        "a table of texts in the file, such as { LOG = \"warn\" }".to_owned()
    }
}

/// The address of a server, or none.
pub(super) struct Urls;

/// The address of a server; empty for none.
pub(super) const fn url() -> Urls {
    Urls
}

impl Rule<Option<String>> for Urls {
    fn read(&self, given: &Given<'_>) -> Result<Option<String>, String> {
        let text = given.text().ok_or_else(|| self.allowed())?;
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

/// A path, made absolute.
pub(super) struct Paths;

/// A path.
pub(super) const fn path() -> Paths {
    Paths
}

impl Rule<PathBuf> for Paths {
    fn read(&self, given: &Given<'_>) -> Result<PathBuf, String> {
        let text = given.text().ok_or_else(|| self.allowed())?;
        expand(Path::new(text), given.folder, given.home)
    }

    fn show(&self, value: &PathBuf) -> Value {
        Value::Text(value.to_string_lossy().into_owned())
    }

    fn allowed(&self) -> String {
        "a path".to_owned()
    }
}

/// `path` as an absolute one: relative to `folder`, or to `home` after `~`; or what it must be instead.
pub(super) fn expand(path: &Path, folder: &Path, home: Option<&Path>) -> Result<PathBuf, String> {
    let start = match path.components().next() {
        None => return Err("a path that is not empty".to_owned()),
        Some(Component::Normal(start)) => start.to_string_lossy(),
        Some(_) => "".into(),
    };
    let whole = match path.strip_prefix("~") {
        _ if path.to_string_lossy().contains('\0') => return Err("a path without NUL characters".to_owned()),
        Ok(rest) => home.ok_or("a path without ~, since there is no HOME")?.join(rest),
        Err(_) if start.starts_with('~') => {
            return Err(format!(
                "a path without {start}: only ~ alone is expanded; write the folder in full"
            ));
        }
        Err(_) => folder.join(path),
    };
    // Collecting the components drops `.` and doubled or trailing slashes.
    Ok(whole.components().collect())
}
