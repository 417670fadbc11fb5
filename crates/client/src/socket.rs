//! Where the server of a state directory listens, and the token that it lets in.

use std::fs::File;
use std::path::{Path, PathBuf};

/// The socket within the state directory.
const SOCKET: &str = "mainspring.sock";
/// What the address of a socket can hold, on the system that allows least.
const SOCKET_PATH: usize = 100;

/// The file within the state directory that holds its token; readable by its owner only.
pub const TOKEN: &str = "token";

/// The socket of a state directory.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// How to reach it where its path is too long for an address: through the folder that is kept open here.
    short: Option<(PathBuf, File)>,
}

/// Whether `path` can be the address of a socket.
pub fn fits_socket(path: &Path) -> bool {
    path.as_os_str().len() <= SOCKET_PATH
}

impl Socket {
    /// The socket of `state_dir`, whether somebody listens there or not.
    pub fn of(state_dir: &Path) -> Self {
        let path = state_dir.join(SOCKET);
        let short = if fits_socket(&path) { None } else { shortened(state_dir) };
        Self { path, short }
    }

    /// What to connect to, for as long as this lives.
    pub fn address(&self) -> &Path {
        self.short.as_ref().map_or(&self.path, |(short, _)| short)
    }

    /// Where it is, for people.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(target_os = "linux")]
fn shortened(state_dir: &Path) -> Option<(PathBuf, File)> {
    use std::os::fd::AsRawFd;
    let folder = File::open(state_dir).ok()?;
    Some((format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()).into(), folder))
}

#[cfg(not(target_os = "linux"))]
fn shortened(_state_dir: &Path) -> Option<(PathBuf, File)> {
    None
}
