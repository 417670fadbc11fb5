//! Credentials in the format of the file `~/.aws/credentials`.

use std::path::{Path, PathBuf};

use mainspring_kernel::files::read_small;

/// The section of the file that is used.
const PROFILE: &str = "default";

/// The credentials of a user of an object store.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Credentials {
    /// The name of the key.
    pub access_key_id: String,
    /// The secret of the key.
    pub secret_access_key: String,
    /// The token of temporary credentials.
    pub session_token: Option<String>,
}

impl std::fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Credentials").finish_non_exhaustive()
    }
}

/// Why a file has no usable credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {reason}", file.display())]
pub struct CredentialsError {
    file: PathBuf,
    reason: String,
}

impl S3Credentials {
    /// Reads the section `[default]` of a file.
    pub fn read(file: &Path) -> Result<Self, CredentialsError> {
        let refuse = |reason: String| CredentialsError { file: file.into(), reason };
        let bytes = read_small(file).map_err(|error| refuse(format!("cannot be read: {error}")))?;
        let text = String::from_utf8_lossy(&bytes);
        Self::parse(&text).map_err(|missing| {
            refuse(format!("has no `{missing}` in its section [{PROFILE}]: write it as `aws configure` does"))
        })
    }

    /// Parses the text of a file. Returns the name of a value that is missing.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let (mut id, mut secret, mut session_token, mut is_used) = (None, None, None, false);
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                is_used = section.trim() == PROFILE;
                continue;
            }
            let Some((name, value)) = line.split_once('=').filter(|_| is_used) else { continue };
            let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
            match name.trim() {
                "aws_access_key_id" => id = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => session_token = value,
                _ => {}
            }
        }
        Ok(Self {
            access_key_id: id.ok_or("aws_access_key_id")?,
            secret_access_key: secret.ok_or("aws_secret_access_key")?,
            session_token,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_section_of_a_credentials_file_is_used() {
        let text = "[other]\naws_access_key_id = no\n\n# mine\n[default]\naws_access_key_id = AKIA\n\
                    aws_secret_access_key=se=cret \n[last]\naws_secret_access_key = no\n";
        let found = S3Credentials::parse(text).unwrap();
        assert_eq!((found.access_key_id.as_str(), found.secret_access_key.as_str()), ("AKIA", "se=cret"));
        assert_eq!(found.session_token, None);
        assert!(!format!("{found:?}").contains("cret"), "a secret is never printed");
        assert_eq!(
            S3Credentials::parse("[default]\naws_access_key_id = a").unwrap_err(),
            "aws_secret_access_key"
        );
        assert_eq!(S3Credentials::parse("aws_access_key_id = a").unwrap_err(), "aws_access_key_id");
    }
}
