//! Keeps a state directory private to the user of the process.
//!
//! | found | what happens |
//! |---|---|
//! | a secret (the token, a key of a provider) that others can read | refused: it may be known to them |
//! | anything that others can write | refused: it may not be what this user stored |
//! | a folder or file of another user, unless the process is root's | refused |
//! | a secret behind a symbolic link | refused: the link may lead to a file of others |
//! | anything else that others can read | made private |
//!
//! The folder is checked first. Once it is private, nobody else can reach what is in it.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::process::geteuid;

use super::{StateDirError, failed};

const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// Why a folder or file is not private enough to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Others can write it.
    Writable,
    /// It is a secret, and others can read it.
    Readable,
    /// It belongs to another user.
    Foreign,
    /// It is a secret behind a symbolic link.
    Link,
}

impl Exposure {
    /// Describes the problem and the remedy, after the path.
    pub(super) fn describe(self, path: &Path, mode: u32) -> String {
        let path = quoted(path);
        match self {
            Self::Writable => format!(
                "can be written by other users (mode {mode:04o}), so its content cannot be trusted: look at it, then run \
                 `chmod go-rwx {path}`"
            ),
            Self::Readable => format!(
                "is a secret that other users can read (mode {mode:04o}): replace the secret, or run `chmod 600 {path}` if \
                 nobody has read it"
            ),
            Self::Foreign => {
                format!(
                    "belongs to another user: run `chown \"$(id -u)\" {path}`, or choose another --state-dir"
                )
            }
            Self::Link => format!(
                "is a symbolic link, and a secret must be a file of its own: run `rm {path}`, or put the file in its place"
            ),
        }
    }
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Checks the state directory at `path` and what is in it, and makes private what others can only read.
pub(super) fn check(path: &Path) -> Result<(), StateDirError> {
    let folder = fs::metadata(path).map_err(|error| failed(path, error))?;
    check_entry(path, &folder, Kind::Data)?;
    let entries = fs::read_dir(path).map_err(|error| failed(path, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(path, error))?.path();
        let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name {
            "token" | "token.part" => check_path(&entry, Kind::Secret)?,
            "keys" => check_folder(&entry, Kind::Secret)?,
            "audit" => check_folder(&entry, Kind::Data)?,
            // Nobody else reaches the contents in a private folder, and there may be millions.
            "artifacts" => check_path(&entry, Kind::Data)?,
            name if name.starts_with("mainspring.") => check_path(&entry, Kind::Data)?,
            // Other files are not ours.
            _ => {}
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Secret,
    Data,
}

/// Checks a folder and the files in it.
fn check_folder(folder: &Path, kind: Kind) -> Result<(), StateDirError> {
    check_path(folder, Kind::Data)?;
    for entry in fs::read_dir(folder).map_err(|error| failed(folder, error))? {
        check_path(&entry.map_err(|error| failed(folder, error))?.path(), kind)?;
    }
    Ok(())
}

fn check_path(path: &Path, kind: Kind) -> Result<(), StateDirError> {
    let found = match kind {
        Kind::Secret => fs::symlink_metadata(path),
        Kind::Data => fs::metadata(path),
    };
    match found {
        Ok(found) => check_entry(path, &found, kind),
        // Removed meanwhile, or a link that leads nowhere: opening it reports that.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(path, error)),
    }
}

fn check_entry(path: &Path, found: &Metadata, kind: Kind) -> Result<(), StateDirError> {
    let mode = found.permissions().mode() & 0o7777;
    let refused = |exposure| Err(StateDirError::Exposed { path: path.into(), exposure, mode });
    let user = geteuid();
    if found.is_symlink() {
        return refused(Exposure::Link);
    }
    // In a container, root often serves the folder of another user.
    if found.uid() != user.as_raw() && !user.is_root() {
        return refused(Exposure::Foreign);
    }
    if mode & OTHERS_WRITE != 0 {
        return refused(Exposure::Writable);
    }
    match (mode & OTHERS, kind) {
        (0, _) => Ok(()),
        (_, Kind::Secret) => refused(Exposure::Readable),
        (_, Kind::Data) => make_private(path, mode),
    }
}

fn make_private(path: &Path, mode: u32) -> Result<(), StateDirError> {
    fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS)).map_err(|error| failed(path, error))
}
