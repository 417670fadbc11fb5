//! The socket and the token of a state directory.

use std::fs::File;
use std::path::{Path, PathBuf};

/// The socket's name within the state directory.
const SOCKET_FILE: &str = "mainspring.sock";
/// Maximum bytes of a socket path on the strictest supported system.
const MAX_SOCKET_PATH_BYTES: usize = 100;

/// The name of the token file within the state directory; only its owner can read the file.
pub const TOKEN_FILE: &str = "token";

/// The socket of a state directory.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// A short alias of a path that is too long for a socket address: it goes through the open folder kept here.
    alias: Option<(PathBuf, File)>,
}

/// True when `path` is short enough for a socket address.
pub fn fits_socket(path: &Path) -> bool {
    path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES
}

impl Socket {
    /// Returns the socket of `state_dir`, even if no server listens there.
    pub fn in_state_dir(state_dir: &Path) -> Self {
        let path = state_dir.join(SOCKET_FILE);
        let alias = if fits_socket(&path) { None } else { open_short_alias(state_dir) };
        Self { path, alias }
    }

    /// Returns the path to connect to; valid as long as `self` lives.
    pub fn address(&self) -> &Path {
        self.alias.as_ref().map_or(&self.path, |(alias, _)| alias)
    }

    /// Returns the real path, for display.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(target_os = "linux")]
fn open_short_alias(state_dir: &Path) -> Option<(PathBuf, File)> {
    use std::os::fd::AsRawFd;

    use rustix::fs::{Mode, OFlags, open};
    // Opened without reading it: a confined agent may not read the folder.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = File::from(open(state_dir, flags, Mode::empty()).ok()?);
    Some((format!("/proc/self/fd/{}/{SOCKET_FILE}", folder.as_raw_fd()).into(), folder))
}

#[cfg(not(target_os = "linux"))]
fn open_short_alias(_state_dir: &Path) -> Option<(PathBuf, File)> {
    None
}
