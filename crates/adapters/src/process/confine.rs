//! The confiner: restricts its own process and then becomes the agent.
//!
//! ```text
//! guard ──starts──▶ confiner: drops capabilities, restricts itself with Landlock ──exec──▶ agent
//! ```
//!
//! The guard stays outside, so that the agent can neither signal nor trace it. A restriction is inherited by every
//! descendant and cannot be lifted. If it cannot be applied, the agent is not started.
//!
//! Landlock grants access to a folder with everything below it and cannot take a part away again. A folder that
//! contains a hidden folder is therefore granted entry by entry: entries that are made in it later are not granted.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// The exit code of a confiner that could not restrict itself. A shell uses the same code for a command that it may not
/// run.
const EXIT_NOT_CONFINED: u8 = 126;

/// The files and ports that a process may use. Everything that is not hidden may be read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Confinement {
    /// Folders with a read grant of their own, without links in their paths. The grant of a parent can miss
    /// them: if the parent is granted entry by entry and cannot be listed, its entries may get no grant.
    pub readable: Vec<PathBuf>,
    /// Folders and files that may be written, without links in their paths. A path that does not exist, or that
    /// contains a link by now, is left out.
    pub writable: Vec<PathBuf>,
    /// Folders that may be neither read nor written, without links in their paths.
    pub hidden: Vec<PathBuf>,
    /// Folders that may not be written, without links in their paths.
    pub protected: Vec<PathBuf>,
    /// The TCP ports that may be connected to; all if `None`.
    pub ports: Option<Vec<u16>>,
}

/// Confines this process and becomes `command`. `confinement` is a [`Confinement`] as JSON. Returns only on error.
pub fn main(confinement: &OsStr, command: &[OsString]) -> ExitCode {
    let name = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    let confinement: Result<Confinement, String> = match confinement.to_str().map(serde_json::from_str) {
        Some(Ok(confinement)) => Ok(confinement),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("the confinement is not UTF-8".into()),
    };
    let (code, action, reason) = match confinement.and_then(|confinement| restrict(&confinement)) {
        Err(error) => (EXIT_NOT_CONFINED, "confined", error),
        Ok(()) => (super::guard::EXIT_NOT_STARTED, "started", become_command(command).to_string()),
    };
    let _ = writeln!(io::stderr(), "mainspring guard: {name} could not be {action}: {reason}");
    ExitCode::from(code)
}

/// Replaces this process. Returns only on error.
fn become_command(command: &[OsString]) -> io::Error {
    use std::os::unix::process::CommandExt;
    match command.split_first() {
        Some((program, arguments)) => std::process::Command::new(program).args(arguments).exec(),
        None => io::ErrorKind::InvalidInput.into(),
    }
}

#[cfg(not(target_os = "linux"))]
fn restrict(_confinement: &Confinement) -> Result<(), String> {
    Err("this system has no Landlock".into())
}

#[cfg(target_os = "linux")]
fn restrict(confinement: &Confinement) -> Result<(), String> {
    drop_capabilities().map_err(|error| format!("its capabilities cannot be dropped: {error}"))?;
    linux::restrict(confinement).map_err(|error| error.to_string())
}

/// Drops every capability of this process and of its descendants, even those of root, because Landlock does
/// not restrict all capabilities. No program can gain one again: `no_new_privs`, which is set here, prevents
/// it.
#[cfg(target_os = "linux")]
fn drop_capabilities() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::path::{Component, Path, PathBuf};

    use landlock::{
        ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, Ruleset,
        RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
    };
    use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

    use super::Confinement;

    /// The version of Landlock whose file accesses must be restricted.
    const REQUIRED: ABI = ABI::V3;
    /// The version of Landlock whose accesses and scopes are restricted if the kernel knows them.
    const WANTED: ABI = ABI::V6;
    /// Files that every program may write, and devices of terminals.
    const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts"];
    /// The folder of shared memory.
    const SHARED_MEMORY: &str = "/dev/shm";

    pub(super) fn restrict(confinement: &Confinement) -> Result<(), RulesetError> {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(REQUIRED))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(WANTED))?
            .scope(Scope::from_all(WANTED))?;
        let ruleset = match &confinement.ports {
            // Fails if the kernel cannot restrict the ports: a configured restriction is never dropped.
            Some(_) => ruleset
                .set_compatibility(CompatLevel::HardRequirement)
                .handle_access(AccessNet::ConnectTcp)?
                .set_compatibility(CompatLevel::BestEffort),
            None => ruleset,
        };
        let mut rules = Rules {
            ruleset: ruleset.create()?,
            excluded: confinement.hidden.clone(),
            granted: BTreeSet::new(),
        };
        rules.excluded.extend(confinement.protected.iter().cloned());
        let device = make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | IoctlDev});
        for path in DEVICES {
            rules.allow_system(path, device)?;
        }
        // Device files may not be created, and the access to devices is granted above.
        let write = AccessFs::from_all(WANTED) & !make_bitflags!(AccessFs::{MakeChar | MakeBlock | IoctlDev});
        for path in &confinement.writable {
            rules.allow(path, write)?;
        }
        rules.allow_system(SHARED_MEMORY, write)?;
        rules.excluded.clone_from(&confinement.hidden);
        let read = AccessFs::from_read(WANTED);
        rules.allow(Path::new("/"), read)?;
        for path in &confinement.readable {
            rules.allow(path, read)?;
            rules.allow_listing(path)?;
        }
        for port in confinement.ports.iter().flatten() {
            (&mut rules.ruleset).add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        rules.ruleset.restrict_self().map(drop)
    }

    /// The ruleset under construction.
    struct Rules {
        ruleset: RulesetCreated,
        /// The folders to which no access is granted.
        excluded: Vec<PathBuf>,
        /// The paths that have a rule. A path gets one rule, so the wider access is granted first.
        granted: BTreeSet<PathBuf>,
    }

    impl Rules {
        /// Allows `access` to a path of the system, which may be a link.
        fn allow_system(&mut self, path: &str, access: BitFlags<AccessFs>) -> Result<(), RulesetError> {
            match Path::new(path).canonicalize() {
                Ok(path) => self.allow(&path, access),
                Err(_) => Ok(()),
            }
        }

        /// Allows `access` to `path` and everything below, except the excluded folders. A path that does not exist, or
        /// that contains a link or `..`, is left out.
        fn allow(&mut self, path: &Path, access: BitFlags<AccessFs>) -> Result<(), RulesetError> {
            if path.components().any(|part| part == Component::ParentDir) {
                return Ok(());
            }
            if self.granted.contains(path) || self.excluded.iter().any(|excluded| path.starts_with(excluded))
            {
                return Ok(());
            }
            if self.excluded.iter().any(|excluded| excluded.starts_with(path)) {
                for entry in self.entries(path) {
                    self.allow(&entry, access)?;
                }
                return Ok(());
            }
            // A link grants nothing: its target may be anywhere.
            let Some((file, kind)) = open_path(path).filter(|(_, kind)| *kind != FileType::Symlink) else {
                return Ok(());
            };
            let access =
                if kind == FileType::Directory { access } else { access & AccessFs::from_file(WANTED) };
            self.granted.insert(path.to_owned());
            if access.is_empty() { Ok(()) } else { self.add(file, access) }
        }

        /// Allows listing a working folder that contains an excluded folder. The names in the excluded folder can be
        /// listed then, but its files cannot be read.
        fn allow_listing(&mut self, path: &Path) -> Result<(), RulesetError> {
            if !self.excluded.iter().any(|excluded| excluded != path && excluded.starts_with(path)) {
                return Ok(());
            }
            match open_path(path) {
                Some((file, FileType::Directory)) => self.add(file, AccessFs::ReadDir.into()),
                _ => Ok(()),
            }
        }

        /// Returns the entries of a folder that contains an excluded folder. The entries that lead to excluded folders
        /// are among them even if the folder cannot be listed.
        fn entries(&self, folder: &Path) -> BTreeSet<PathBuf> {
            let listed = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let leading = self.excluded.iter().filter_map(|excluded| {
                let next = excluded.strip_prefix(folder).ok()?.components().next()?;
                Some(folder.join(next))
            });
            listed.chain(leading).collect()
        }

        fn add(&mut self, file: OwnedFd, access: BitFlags<AccessFs>) -> Result<(), RulesetError> {
            (&mut self.ruleset).add_rule(PathBeneath::new(file, access)).map(drop)
        }
    }

    /// Opens a path without following a link in it. A link at its end is opened itself.
    fn open_path(path: &Path) -> Option<(OwnedFd, FileType)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
        let kind = FileType::from_raw_mode(fstat(&file).ok()?.st_mode);
        Some((file, kind))
    }
}
