//! API keys. They are read for each request and never stored, logged or returned.

use std::path::PathBuf;

use mainspring_core::KeyPresence;
use mainspring_kernel::files::read_small_text;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};

use super::{ErrorKind, ModelError};

/// The source of a provider's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// An environment variable.
    Variable(String),
    /// A file.
    File(PathBuf),
    /// An environment variable; if it is not set, the file that `mainspring auth add` writes.
    Stored {
        /// The variable.
        variable: String,
        /// The file.
        file: PathBuf,
    },
    /// The provider needs no key.
    None,
}

/// Sent to a provider that needs no key: the client always sends a header with a key.
const NO_KEY: &str = "none";

/// A key. `Debug` does not reveal it.
#[derive(Debug, Clone)]
pub struct Key(SecretString);

impl Key {
    /// Creates a key.
    pub fn new(key: &str) -> Self {
        Self(key.trim().into())
    }

    /// Returns the key itself.
    pub(crate) fn reveal(&self) -> &str {
        self.0.expose_secret()
    }

    /// Removes the key from `text`: a provider may repeat it in an error.
    pub fn redact(&self, text: &str) -> String {
        match self.reveal() {
            "" | NO_KEY => text.to_owned(),
            key => text.replace(key, "[key]"),
        }
    }
}

impl KeySource {
    /// Returns whether the key is present now.
    pub fn presence(&self) -> KeyPresence {
        match self {
            Self::None => KeyPresence::NotNeeded,
            _ if self.read("").is_ok() => KeyPresence::Present,
            _ => KeyPresence::Missing,
        }
    }

    /// Reads the key.
    pub fn read(&self, provider: &str) -> Result<Key, ModelError> {
        let missing =
            |why: String| ModelError::new(ErrorKind::KeyMissing, format!("{provider} needs a key: {why}"));
        let key = match self {
            Self::None => return Ok(Key::new(NO_KEY)),
            Self::Variable(name) => std::env::var(name).map_err(|_| {
                missing(format!("set the environment variable {name} and start mainspring again"))
            })?,
            Self::File(path) => read_small_text(path)
                .map_err(|error| missing(format!("its file {} cannot be read: {error}", path.display())))?,
            Self::Stored { variable, file } => {
                let set = std::env::var(variable).ok().filter(|key| !key.trim().is_empty());
                match set.map_or_else(|| read_small_text(file), Ok) {
                    Ok(key) => key,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                        return Err(missing(format!(
                            "run `mainspring auth add {provider}`, or set {variable} where mainspring is started"
                        )));
                    }
                    Err(error) => {
                        return Err(missing(format!("its file {} cannot be read: {error}", file.display())));
                    }
                }
            }
        };
        // Erases this copy of the key from memory too: `Key` erases only its own.
        let key = Zeroizing::new(key);
        match key.trim() {
            "" => Err(missing(match self {
                Self::File(path) | Self::Stored { file: path, .. } => {
                    format!("its file {} is empty", path.display())
                }
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
    fn a_stored_key_is_used_as_soon_as_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("acme.key");
        let source = KeySource::Stored { variable: "MAINSPRING_TEST_NO_SUCH_KEY".into(), file: file.clone() };
        assert_eq!(source.presence(), KeyPresence::Missing);
        let missing = source.read("acme").unwrap_err().message;
        assert!(missing.contains("mainspring auth add acme"), "{missing}");
        std::fs::write(&file, "sk-one\n").unwrap();
        assert_eq!(source.read("acme").unwrap().reveal(), "sk-one");
        // A variable that is set takes precedence; every process has a PATH.
        let set = KeySource::Stored { variable: "PATH".into(), file };
        assert_ne!(set.read("acme").unwrap().reveal(), "sk-one");
    }

    #[test]
    fn a_key_is_read_each_time_and_never_revealed() {
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
        assert_eq!(KeySource::None.read("acme").unwrap().redact("none of them"), "none of them");
        std::fs::write(&path, " \n").unwrap();
        assert!(source.read("acme").unwrap_err().message.ends_with("is empty"));
    }
}
