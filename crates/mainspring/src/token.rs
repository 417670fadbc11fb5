//! The token of a state directory: a process that can read it may act for the owner.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use mainspring_client::TOKEN_FILE;
use mainspring_kernel::ids::Ids;
use secrecy::zeroize::Zeroizing;

/// Flags that refuse to open a symbolic link, and do not wait for the writer of a pipe.
const OPEN_FLAGS: i32 = rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::NONBLOCK).bits().cast_signed();

/// The most bytes that are read of a token.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Reads the token, and creates it first if there is none. The caller must own the state directory. The memory of the
/// token is erased when it is dropped.
pub fn read_or_create(state_dir: &Path) -> io::Result<Zeroizing<String>> {
    match read(state_dir)? {
        Some(token) => Ok(token),
        None => {
            let token = Zeroizing::new(Ids::system().secret());
            write(state_dir, &token)?;
            Ok(token)
        }
    }
}

/// Makes `token` the token of the state directory. The caller must own the directory.
#[cfg(feature = "postgres")]
pub(crate) fn replace(state_dir: &Path, token: &str) -> io::Result<()> {
    match read(state_dir)? {
        Some(known) if *known == token => Ok(()),
        _ => write(state_dir, token),
    }
}

/// Writes the token completely under another name first, so that a crash leaves no partial token.
fn write(state_dir: &Path, token: &str) -> io::Result<()> {
    let part = state_dir.join(format!("{TOKEN_FILE}.part"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    std::fs::rename(&part, state_dir.join(TOKEN_FILE))
}

/// Reads the token, if there is one.
pub fn read(state_dir: &Path) -> io::Result<Option<Zeroizing<String>>> {
    // A link could lead to a file of another user.
    let opened = OpenOptions::new().read(true).custom_flags(OPEN_FLAGS).open(state_dir.join(TOKEN_FILE));
    let text = opened.and_then(|file| {
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the token is not a regular file"));
        }
        let mut text = Zeroizing::new(String::new());
        file.take(MAX_TOKEN_BYTES).read_to_string(&mut text).map(|_| text)
    });
    match text {
        Ok(text) => Ok(Some(Zeroizing::new(text.trim().to_owned())).filter(|token| !token.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
