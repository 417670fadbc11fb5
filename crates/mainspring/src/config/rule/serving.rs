//! Rules of the settings for serving: certificates, an identity provider.

use std::path::{Path, PathBuf};

use super::{Input, Rule, Text, Value, expand_path};

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
