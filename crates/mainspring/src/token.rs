//! The token of a state directory: a process that can read it may act for the owner.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use mainspring_client::TOKEN_FILE;
use mainspring_kernel::ids::Ids;

/// Reads the token, and creates it first if there is none. The caller must own the state directory.
pub fn read_or_create(state_dir: &Path) -> io::Result<String> {
    match read(state_dir)? {
        Some(token) => Ok(token),
        None => {
            let token = Ids::system().secret();
            // Written whole under another name first, so that a crash leaves no partial token.
            let part = state_dir.join(format!("{TOKEN_FILE}.part"));
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&part)?;
            writeln!(file, "{token}")?;
            file.sync_all()?;
            std::fs::rename(&part, state_dir.join(TOKEN_FILE))?;
            Ok(token)
        }
    }
}

/// Reads the token, if there is one.
pub fn read(state_dir: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(state_dir.join(TOKEN_FILE)) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
