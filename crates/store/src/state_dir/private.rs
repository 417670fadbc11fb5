//! Keeps a state directory private to the user of the process.
//!
//! | found | what happens |
//! |---|---|
//! | a secret (the token, a key of a provider) that others can read | refused: it may be known to them |
//! | anything that others can write | refused: it may not be what this user stored |
//! | a folder or file of another user, also if the process is root's | refused: that user decides what is in it |
//! | a secret, a database or a folder of ours behind a symbolic link | refused: the link may lead to a place of others |
//! | a folder above in which everybody can rename (no sticky bit) | refused: others could put another one in its place |
//! | anything else that others can read | made private |
//!
//! The folder is checked first. Once it is private, no other user can reach its contents.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::process::geteuid;

use super::{StateDirError, failed};

const OTHERS: u32 = 0o077;
const WRITE_BY_OTHERS: u32 = 0o022;
const WRITE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Why a folder or file is not private enough to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Others can write the file or folder.
    Writable,
    /// The file is a secret, and others can read it.
    Readable,
    /// The file or folder belongs to another user.
    Foreign,
    /// The file is a secret behind a symbolic link.
    Link,
    /// The file or folder is data behind a symbolic link.
    LinkedData,
    /// The folder lies above the state directory, and everybody can rename its entries.
    Replaceable,
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
                    "belongs to another user, who decides what is in it: run `chown \"$(id -u)\" {path}` if it is yours, start \
                     mainspring as that user, or choose another --state-dir"
                )
            }
            Self::Link => format!(
                "is a symbolic link, and a secret must be a file of its own: run `rm {path}`, or put the file in its place"
            ),
            Self::LinkedData => format!(
                "is a symbolic link, which may lead to a place of others: run `rm {path}` and put the folder or file itself in its \
                 place; to use another disk, mount it there or move the whole state directory (--state-dir)"
            ),
            Self::Replaceable => format!(
                "can be written by everybody (mode {mode:04o}), who could put another state directory in the place of yours: run \
                 `chmod o-w {path}`, or choose another --state-dir"
            ),
        }
    }
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Checks the state directory at `path` and its content. Makes files and folders private that others can only read.
pub(super) fn check(path: &Path) -> Result<(), StateDirError> {
    let folder = fs::metadata(path).map_err(|error| failed(path, error))?;
    check_entry(path, &folder, Kind::Data)?;
    check_above(path)?;
    let entries = fs::read_dir(path).map_err(|error| failed(path, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(path, error))?.path();
        let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name {
            "token" | "token.part" => check_path(&entry, Kind::Secret)?,
            "keys" => check_folder(&entry, Kind::Secret)?,
            "audit" => check_folder(&entry, Kind::Data)?,
            // No other user can reach the contents of artifacts in a private folder, and there may be millions of them.
            "artifacts" => check_path(&entry, Kind::Data)?,
            name if name.starts_with("mainspring.") => check_path(&entry, Kind::Data)?,
            // Other files are not ours.
            _ => {}
        }
    }
    Ok(())
}

/// Refuses a folder above `path` in which everybody can rename entries. In a folder with the sticky bit, such as `/tmp`,
/// only the owners of entries can rename them.
fn check_above(path: &Path) -> Result<(), StateDirError> {
    // If `path` leads through a symbolic link, the folders above the link's target count.
    let path = fs::canonicalize(path).map_err(|error| failed(path, error))?;
    for above in path.ancestors().skip(1) {
        // A folder that cannot be read is skipped: the state directory cannot be reached through it either.
        let Ok(found) = fs::metadata(above) else { continue };
        let mode = found.permissions().mode() & 0o7777;
        if mode & WRITE_BY_ALL != 0 && mode & STICKY == 0 {
            return Err(StateDirError::Exposed { path: above.into(), exposure: Exposure::Replaceable, mode });
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
    match fs::symlink_metadata(path) {
        Ok(found) => check_entry(path, &found, kind),
        // The file was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(path, error)),
    }
}

fn check_entry(path: &Path, found: &Metadata, kind: Kind) -> Result<(), StateDirError> {
    let mode = found.permissions().mode() & 0o7777;
    let refused = |exposure| Err(StateDirError::Exposed { path: path.into(), exposure, mode });
    if found.is_symlink() {
        return refused(match kind {
            Kind::Secret => Exposure::Link,
            Kind::Data => Exposure::LinkedData,
        });
    }
    // Also for root: the owner of the folder could give root a token, a database and adapters of their choice.
    if found.uid() != geteuid().as_raw() {
        return refused(Exposure::Foreign);
    }
    if mode & WRITE_BY_OTHERS != 0 {
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
