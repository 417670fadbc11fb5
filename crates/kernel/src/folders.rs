//! Folders: where agents may work.
//!
//! A folder is allowed if all of these hold:
//! - It is not the state directory of mainspring or in it.
//! - It lies in the folders of the adapter, if the operator has configured some.
//! - It lies in the folders of the caller, if the caller is limited to some. A caller with an empty list of
//!   folders, the default for the key of an owner other than the server's own, may use only the folders of
//!   the adapter.
//!
//! A run that names no folder works in the default folder of its adapter. A default that the operator has chosen is
//! allowed; any other is checked like a folder that the run names.
//!
//! Paths are compared part by part after all links were resolved. Since a folder can be replaced by a link at any time, it
//! is checked when a request is accepted and again when its agent starts.

use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use crate::error::Error;

/// The folders in which agents of one adapter may work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Folders {
    /// The state directory of mainspring.
    pub state_dir: Option<PathBuf>,
    /// The folders that the operator has configured for the adapter; `None` if it may work anywhere.
    pub allowed: Option<Vec<PathBuf>>,
}

/// A folder in which an agent may not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the folder {folder:?} is not allowed: {reason}")]
pub struct FolderRefusal {
    /// The folder as it was named.
    pub folder: String,
    /// The reason.
    pub reason: FolderReason,
}

/// The reason why a folder is not allowed, with the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FolderReason {
    /// The folder is the state directory, or in it.
    #[error("it belongs to the state directory of mainspring, where no agent works; choose another folder")]
    StateDir,
    /// The folder is outside of the adapter's folders.
    #[error(
        "it is outside of the folders of the adapter; choose one inside, or add it to `folders` of the adapter"
    )]
    Adapter,
    /// The folder is outside of the caller's folders.
    #[error("it is outside of the folders of the key; choose one inside, or use a key with that folder")]
    Caller,
    /// The caller may use configured folders only, and none is configured.
    #[error(
        "no folder is configured for this owner; an operator makes a key with `--folder`, or sets `folders` of the adapter"
    )]
    NoneConfigured,
    /// The links of the folder cannot be resolved.
    #[error("its links cannot be resolved; name a folder that exists")]
    Unresolvable,
}

impl Folders {
    /// Checks a folder that a caller with these `folders` names; `None` stands for a caller without limits. Returns the
    /// folder with its links resolved.
    pub fn check(&self, folder: &Path, folders: Option<&[String]>) -> Result<PathBuf, FolderRefusal> {
        let named = || folder.to_string_lossy().chars().take(512).collect();
        let refusal = |reason| FolderRefusal { folder: named(), reason };
        let resolved = resolve(folder).map_err(|_| refusal(FolderReason::Unresolvable))?;
        if self.is_in_state_dir(&resolved) {
            return Err(refusal(FolderReason::StateDir));
        }
        if let Some(allowed) = &self.allowed
            && !lies_in(&resolved, allowed.iter().map(PathBuf::as_path))
        {
            return Err(refusal(FolderReason::Adapter));
        }
        match folders {
            None => Ok(resolved),
            Some([]) if self.allowed.is_some() => Ok(resolved),
            Some([]) => Err(refusal(FolderReason::NoneConfigured)),
            Some(folders) if lies_in(&resolved, folders.iter().map(Path::new)) => Ok(resolved),
            Some(_) => Err(refusal(FolderReason::Caller)),
        }
    }

    /// True if a path whose links were resolved is the state directory or in it.
    pub fn is_in_state_dir(&self, resolved: &Path) -> bool {
        // If the state directory cannot be resolved, it is compared as it is written.
        let state_dir = self.state_dir.as_ref().map(|path| resolve(path).unwrap_or_else(|_| path.clone()));
        state_dir.is_some_and(|state_dir| resolved.starts_with(state_dir))
    }
}

/// A path that cannot be the working folder of an agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the folder {} {reason}; name an absolute path of a folder that exists", path.display())]
pub struct UnusableFolder {
    /// The path as it was named.
    pub path: PathBuf,
    /// The reason, as a predicate of "the folder".
    pub reason: &'static str,
}

/// Checks that a process can be started in the folder `path`.
pub fn check_usable(path: &Path) -> Result<(), UnusableFolder> {
    let unusable = |reason| Err(UnusableFolder { path: path.to_owned(), reason });
    match std::fs::metadata(path) {
        _ if !path.is_absolute() => unusable("is not absolute"),
        Err(error) if error.kind() == ErrorKind::NotFound => unusable("does not exist"),
        Err(_) => unusable("cannot be read"),
        Ok(found) if !found.is_dir() => unusable("is not a folder"),
        Ok(_) => Ok(()),
    }
}

/// Refuses a folder in which no process can be started.
pub(crate) fn check_folder_usable(folder: Option<&str>) -> Result<(), Error> {
    let checked = folder.map_or(Ok(()), |folder| check_usable(Path::new(folder)));
    checked.map_err(|unusable| Error::Invalid(unusable.to_string()))
}

/// True if each of `folders` lies in a folder of `limits`.
pub(crate) fn are_within(folders: &[String], limits: &[String]) -> bool {
    folders.iter().all(|folder| {
        let resolved = resolve(Path::new(folder));
        resolved.is_ok_and(|resolved| lies_in(&resolved, limits.iter().map(Path::new)))
    })
}

fn lies_in<'a>(resolved: &Path, mut folders: impl Iterator<Item = &'a Path>) -> bool {
    folders.any(|folder| resolve(folder).is_ok_and(|folder| resolved.starts_with(folder)))
}

/// Resolves the links of a path. Parts at its end that do not exist are kept.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut existing = std::path::absolute(path)?;
    let mut missing = Vec::new();
    loop {
        match existing.canonicalize() {
            Ok(real) => return Ok(missing.into_iter().rev().fold(real, |path, part| path.join(part))),
            // A dangling link exists: its target may appear anywhere.
            Err(error) if error.kind() == ErrorKind::NotFound && existing.symlink_metadata().is_err() => {
                match existing.components().next_back() {
                    Some(Component::Normal(part)) => missing.push(part.to_owned()),
                    _ => return Err(error),
                }
                existing.pop();
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine with a state directory, and links to it.
    fn machine() -> (tempfile::TempDir, PathBuf, Folders) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        for folder in ["state/artifacts", "statement", "work/deep", "other"] {
            std::fs::create_dir_all(path.join(folder)).unwrap();
        }
        symlink(path.join("state"), path.join("work/link")).unwrap();
        symlink(path.join("state/none"), path.join("work/dangling")).unwrap();
        symlink(path.join("state"), path.join("alias")).unwrap();
        let folders = Folders { state_dir: Some(path.join("alias")), allowed: None };
        (root, path, folders)
    }

    #[test]
    fn the_state_directory_is_refused_under_every_name() {
        let (_root, path, folders) = machine();
        let check = |folder: &str| folders.check(&path.join(folder), None);
        for folder in [
            "state",
            "state/",
            "state/artifacts",
            "state/missing",
            "alias",
            "work/link",
            "work/link/artifacts",
            "work/../state",
            "work/deep/../../state",
            "work/deep/../link",
            "./state/.",
        ] {
            assert_eq!(check(folder).unwrap_err().reason, FolderReason::StateDir, "{folder}");
        }
        for folder in ["", "work", "work/missing/deeper", "statement", "other"] {
            assert!(check(folder).is_ok(), "{folder}");
        }
        for folder in ["work/dangling", "work/missing/../../state"] {
            assert!(check(folder).is_err(), "{folder}");
        }
    }

    #[test]
    fn a_folder_must_lie_in_the_folders_of_the_adapter_and_of_the_caller() {
        let (_root, path, folders) = machine();
        let at = |folder: &str| path.join(folder).to_str().unwrap().to_owned();
        let limited = Folders { allowed: Some(vec![path.join("work")]), ..folders.clone() };
        let of_caller = |folders: &[&str]| folders.iter().map(|folder| at(folder)).collect::<Vec<_>>();
        let reason = |folders: &Folders, folder: &str, caller: Option<&[&str]>| {
            let caller = caller.map(of_caller);
            folders.check(&path.join(folder), caller.as_deref()).err().map(|refusal| refusal.reason)
        };
        assert_eq!(reason(&folders, "other", None), None);
        assert_eq!(reason(&folders, "other", Some(&[])), Some(FolderReason::NoneConfigured));
        assert_eq!(reason(&folders, "other", Some(&["other"])), None);
        assert_eq!(reason(&folders, "statement", Some(&["state"])), Some(FolderReason::Caller));
        assert_eq!(reason(&limited, "other", None), Some(FolderReason::Adapter));
        assert_eq!(reason(&limited, "work/deep", None), None);
        assert_eq!(reason(&limited, "work/deep", Some(&[])), None);
        assert_eq!(reason(&limited, "work", Some(&["work/deep"])), Some(FolderReason::Caller));
        assert_eq!(reason(&limited, "other", Some(&["other"])), Some(FolderReason::Adapter));
        // A link in an allowed folder leads out of it.
        symlink(path.join("other"), path.join("work/out")).unwrap();
        assert_eq!(reason(&limited, "work/out", None), Some(FolderReason::Adapter));
        assert_eq!(reason(&folders, "work/out", Some(&["work"])), Some(FolderReason::Caller));
    }

    #[test]
    fn an_unusable_folder_is_refused_with_the_reason() {
        let reason = |path: &str| check_usable(Path::new(path)).map_err(|error| error.to_string());
        assert!(reason("/").is_ok());
        assert!(reason("tmp").unwrap_err().contains("is not absolute"));
        assert!(reason("/no/such/folder").unwrap_err().contains("does not exist"));
        assert!(reason("/proc/self/status").unwrap_err().contains("is not a folder"));
    }

    #[test]
    fn a_folder_is_within_another_only_by_whole_path_components() {
        assert!(are_within(&["/a/b".into()], &["/a".into()]) && !are_within(&["/ab".into()], &["/a".into()]));
    }
}
