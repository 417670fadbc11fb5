//! Rules of settings that are lists: a list in the file, comma-separated elsewhere.

use std::path::{Path, PathBuf};

use mainspring_core::Fallback;
use mainspring_core::limits::check_text;
use mainspring_core::placement::check_labels;
use mainspring_kernel::policy;

use super::{Input, RawValue, Rule, Value, expand_path, is_adapter_name, is_variable_name, parse_number};

impl Input<'_> {
    /// Returns the entries of a list of texts; `None` if the value is something else. An empty text is an empty list.
    fn entries(&self) -> Option<Vec<String>> {
        match &self.raw {
            RawValue::List(entries) => Some(entries.clone()),
            RawValue::Untyped(text) => Some(split(text).map(str::to_owned).collect()),
            _ => None,
        }
    }
}

/// Splits the text of a variable or flag at its commas. A blank text is an empty list; otherwise empty entries are
/// returned too, so that the check of the entries refuses them.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let entries = (!text.trim().is_empty()).then(|| text.split(',').map(str::trim));
    entries.into_iter().flatten()
}

/// A rule that accepts a list of texts.
pub(in super::super) struct Texts {
    allowed: &'static str,
    check: fn(&[String]) -> bool,
}

/// Allows a list of host names.
pub(in super::super) const fn host_names() -> Texts {
    Texts {
        allowed: "a list of host names or addresses without ports, such as [\"agents.example.com\"]",
        check: |hosts| hosts.iter().all(|host| is_host(host)),
    }
}

/// Allows a list of origins of web pages.
pub(in super::super) const fn origins() -> Texts {
    Texts {
        allowed: "a list of origins without a path, such as [\"https://app.example.com\"]; `*` is not one",
        check: |origins| origins.iter().all(|origin| is_origin(origin)),
    }
}

/// Allows names of environment variables.
pub(in super::super) const fn variable_names() -> Texts {
    Texts {
        allowed: "a list of names of variables, such as [\"ANTHROPIC_API_KEY\"]",
        check: |names| names.iter().all(|name| is_variable_name(name)),
    }
}

/// Allows names of MCP servers, or patterns.
pub(in super::super) const fn server_names() -> Texts {
    Texts {
        allowed: "a list of names of MCP servers, such as [\"fs\"]",
        check: |names| names.iter().all(|name| check_text("name", name).is_ok()),
    }
}

/// Allows absolute paths of folders, or none. They are not expanded: the folders may be on another server.
pub(in super::super) const fn folder_roots() -> Texts {
    Texts {
        allowed: "a list of absolute paths of folders, such as [\"/srv/projects\"]",
        check: |paths| paths.iter().all(|path| path.starts_with('/') && !path.chars().any(char::is_control)),
    }
}

/// Allows labels of a server, or none.
pub(in super::super) const fn labels() -> Texts {
    Texts {
        allowed: "a list of at most 16 labels of letters, digits, `_`, `.` and `-`, such as [\"gpu\", \"eu\"]",
        check: |labels| check_labels(labels).is_ok(),
    }
}

impl Rule<Vec<String>> for Texts {
    fn read(&self, input: &Input<'_>) -> Result<Vec<String>, String> {
        input.entries().filter(|entries| (self.check)(entries)).ok_or_else(|| self.allowed())
    }

    fn show(&self, value: &Vec<String>) -> Value {
        Value::List(value.clone())
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }
}

fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    host.parse::<std::net::IpAddr>().is_ok() || (host.len() <= 253 && host.split('.').all(is_label))
}

/// True for a scheme, a host and perhaps a port, as browsers send them.
fn is_origin(origin: &str) -> bool {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    host.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte))
    })
}

/// A rule that accepts fallbacks: `ADAPTER` or `ADAPTER:MODEL`.
pub(in super::super) struct Fallbacks;

/// Allows adapters with or without a model.
pub(in super::super) const fn fallbacks() -> Fallbacks {
    Fallbacks
}

impl Rule<Vec<Fallback>> for Fallbacks {
    fn read(&self, input: &Input<'_>) -> Result<Vec<Fallback>, String> {
        let entries = input.entries().ok_or_else(|| self.allowed())?;
        let parse = |entry: &String| {
            let (adapter, model) = match entry.split_once(':') {
                Some((adapter, model)) => (adapter, Some(model.to_owned())),
                None => (entry.as_str(), None),
            };
            let has_model = model.as_deref().is_none_or(|model| check_text("a model", model).is_ok());
            (is_adapter_name(adapter) && has_model).then(|| Fallback { adapter: adapter.into(), model })
        };
        entries.iter().map(parse).collect::<Option<_>>().ok_or_else(|| self.allowed())
    }

    fn show(&self, value: &Vec<Fallback>) -> Value {
        let entry = |Fallback { adapter, model }: &Fallback| match model {
            Some(model) => format!("{adapter}:{model}"),
            None => adapter.clone(),
        };
        Value::List(value.iter().map(entry).collect())
    }

    fn allowed(&self) -> String {
        "a list of adapters, each with a model if needed, such as [\"codex\", \"native:openai/gpt-5\"]".into()
    }
}

/// A rule that accepts policy rules.
pub(in super::super) struct PolicyRules;

/// Allows policy rules.
pub(in super::super) const fn policy_rules() -> PolicyRules {
    PolicyRules
}

impl Rule<Vec<policy::Rule>> for PolicyRules {
    fn read(&self, input: &Input<'_>) -> Result<Vec<policy::Rule>, String> {
        let rules = input.entries().ok_or_else(|| self.allowed())?;
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

/// A rule that accepts paths and makes them absolute.
pub(in super::super) struct Paths;

/// Allows a list of paths.
pub(in super::super) const fn paths() -> Paths {
    Paths
}

impl Rule<Vec<PathBuf>> for Paths {
    fn read(&self, input: &Input<'_>) -> Result<Vec<PathBuf>, String> {
        let paths = input.entries().ok_or_else(|| self.allowed())?;
        paths.iter().map(|path| expand_path(Path::new(path), input.folder, input.home)).collect()
    }

    fn show(&self, value: &Vec<PathBuf>) -> Value {
        Value::List(value.iter().map(|path| path.to_string_lossy().into_owned()).collect())
    }

    fn allowed(&self) -> String {
        "a list of paths, such as [\"~/.local/share/tool\"]".to_owned()
    }
}

/// A rule that accepts ports: a list of numbers in the file.
pub(in super::super) struct Ports;

/// Allows a list of ports.
pub(in super::super) const fn ports() -> Ports {
    Ports
}

impl Rule<Vec<u16>> for Ports {
    fn read(&self, input: &Input<'_>) -> Result<Vec<u16>, String> {
        let numbers: Option<Vec<u64>> = match &input.raw {
            RawValue::Integers(numbers) => Some(numbers.clone()),
            // An empty list has no type.
            RawValue::List(texts) if texts.is_empty() => Some(vec![]),
            RawValue::Untyped(text) => split(text).map(parse_number).collect(),
            _ => None,
        };
        let to_port = |number: u64| u16::try_from(number).ok().filter(|port| *port > 0);
        let ports = numbers.and_then(|numbers| numbers.into_iter().map(to_port).collect());
        ports.ok_or_else(|| self.allowed())
    }

    fn show(&self, value: &Vec<u16>) -> Value {
        Value::List(value.iter().map(ToString::to_string).collect())
    }

    fn allowed(&self) -> String {
        "a list of ports from 1 to 65535, such as [443]".to_owned()
    }
}
