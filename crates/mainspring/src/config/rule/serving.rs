//! Rules of the settings with which a server serves others: certificates, origins, an identity provider.

use std::path::{Path, PathBuf};

use super::{Input, RawValue, Rule, Text, Value, expand_path};

/// A rule that accepts a path and makes it absolute, or an empty text for none.
pub(in super::super) struct PathOrEmpty;

/// Allows a path or nothing.
pub(in super::super) const fn optional_path() -> PathOrEmpty {
    PathOrEmpty
}

impl Rule<Option<PathBuf>> for PathOrEmpty {
    fn read(&self, input: &Input<'_>) -> Result<Option<PathBuf>, String> {
        match input.text().ok_or_else(|| self.allowed())? {
            "" => Ok(None),
            text => expand_path(Path::new(text), input.folder, input.home).map(Some),
        }
    }

    fn show(&self, value: &Option<PathBuf>) -> Value {
        Value::Text(value.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default())
    }

    fn allowed(&self) -> String {
        "a path, or empty for none".to_owned()
    }
}

/// A rule that accepts origins of web pages: a list in the file, comma-separated elsewhere.
pub(in super::super) struct Origins;

/// Allows a list of origins.
pub(in super::super) const fn origins() -> Origins {
    Origins
}

impl Rule<Vec<String>> for Origins {
    fn read(&self, input: &Input<'_>) -> Result<Vec<String>, String> {
        let origins: Vec<String> = match &input.raw {
            RawValue::List(origins) => origins.clone(),
            RawValue::Untyped(text) if text.trim().is_empty() => vec![],
            RawValue::Untyped(text) => text.split(',').map(|origin| origin.trim().to_owned()).collect(),
            _ => return Err(self.allowed()),
        };
        if origins.iter().all(|origin| is_origin(origin)) { Ok(origins) } else { Err(self.allowed()) }
    }

    fn show(&self, value: &Vec<String>) -> Value {
        Value::List(value.clone())
    }

    fn allowed(&self) -> String {
        "a list of origins without a path, such as [\"https://app.example.com\"]; `*` is not one".to_owned()
    }
}

/// True for a scheme, a host and perhaps a port, as browsers send them.
fn is_origin(origin: &str) -> bool {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    host.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte))
    })
}

/// Allows the name of a claim, or the path to it.
pub(in super::super) const fn claim() -> Text {
    Text {
        allowed: "the name of a claim, or the path to it with dots, of 1 to 256 bytes",
        check: |text| !text.is_empty() && text.len() <= 256,
    }
}

/// A rule that accepts the id of a client of an identity provider, or nothing.
pub(in super::super) struct ClientId;

/// Allows the id of a client.
pub(in super::super) const fn client_id() -> ClientId {
    ClientId
}

impl Rule<Option<String>> for ClientId {
    fn read(&self, input: &Input<'_>) -> Result<Option<String>, String> {
        match input.text().ok_or_else(|| self.allowed())? {
            "" => Ok(None),
            text if text.len() <= 1024 => Ok(Some(text.to_owned())),
            _ => Err(self.allowed()),
        }
    }

    fn show(&self, value: &Option<String>) -> Value {
        Value::Text(value.clone().unwrap_or_default())
    }

    fn allowed(&self) -> String {
        "the id of a client, of at most 1024 bytes, or empty for none".to_owned()
    }
}

/// Allows the audience of tokens.
pub(in super::super) const fn audience() -> Text {
    Text {
        allowed: "the audience of tokens, of 1 to 1024 bytes",
        check: |text| !text.is_empty() && text.len() <= 1024,
    }
}
