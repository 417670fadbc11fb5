//! Keys: where they come from. They are read for each request, kept nowhere and shown to nobody.

use std::path::PathBuf;

use mainspring_core::KeyPresence;
use secrecy::{ExposeSecret, SecretString};

use super::{ErrorKind, ModelError};

/// Where a provider's key comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// This environment variable.
    Variable(String),
    /// This file.
    File(PathBuf),
    /// It needs none.
    None,
}

/// A key. It does not show itself.
#[derive(Debug, Clone)]
pub struct Key(SecretString);

impl Key {
    /// A key.
    pub fn new(key: &str) -> Self {
        Self(key.trim().into())
    }

    /// The key itself, for whom it is meant.
    pub(crate) fn reveal(&self) -> &str {
        self.0.expose_secret()
    }

    /// `text` without the key in it: a provider may repeat what it was sent.
    pub fn redact(&self, text: &str) -> String {
        match self.reveal() {
            "" => text.to_owned(),
            key => text.replace(key, "[key]"),
        }
    }
}

impl KeySource {
    /// Whether the key is there now.
    pub fn presence(&self) -> KeyPresence {
        match self {
            Self::None => KeyPresence::NotNeeded,
            _ if self.read("").is_ok() => KeyPresence::Present,
            _ => KeyPresence::Missing,
        }
    }

    /// Reads the key as it is now.
    pub fn read(&self, provider: &str) -> Result<Key, ModelError> {
        let missing =
            |what: String| ModelError::new(ErrorKind::KeyMissing, format!("{provider} needs a key: {what}"));
        let key = match self {
            // A server without keys still gets a header, since clients must send one.
            Self::None => return Ok(Key::new("none")),
            Self::Variable(name) => std::env::var(name).map_err(|_| {
                missing(format!("set the environment variable {name} and start mainspring again"))
            })?,
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|error| missing(format!("its file {} cannot be read: {error}", path.display())))?,
        };
        match key.trim() {
            "" => Err(missing(match self {
                Self::File(path) => format!("its file {} is empty", path.display()),
                Self::Variable(name) => format!("the environment variable {name} is empty"),
                Self::None => String::new(),
            })),
            key => Ok(Key::new(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_anew_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let source = KeySource::File(path.clone());
        assert_eq!(source.presence(), KeyPresence::Missing);
        assert_eq!(KeySource::None.presence(), KeyPresence::NotNeeded);
        let missing = source.read("acme").unwrap_err();
        assert!(missing.message.contains("acme needs a key"), "{missing}");
        std::fs::write(&path, "sk-one\n").unwrap();
        assert_eq!(source.presence(), KeyPresence::Present);
        assert_eq!(source.read("acme").unwrap().reveal(), "sk-one");
        std::fs::write(&path, "sk-two\n").unwrap();
        let key = source.read("acme").unwrap();
        assert_eq!(key.reveal(), "sk-two");
        assert!(!format!("{key:?}").contains("sk-two"));
        assert_eq!(key.redact("bad key sk-two!"), "bad key [key]!");
        std::fs::write(&path, " \n").unwrap();
        assert!(source.read("acme").unwrap_err().message.ends_with("is empty"));
    }
}
