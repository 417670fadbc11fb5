//! Sandboxes of agents: which profile a run gets, and what the processes of a profile may read and write.
//!
//! | profile | writable |
//! |---|---|
//! | `read_only` | the agent's own folders, caches, configured folders, private temporary folder, null, terminals, shared memory |
//! | `workspace` | also the working folder, its git directory, the system's temporary folder |
//! | `off` | everything that the user may write |
//!
//! Under the first two, everything but the state directory is readable. A run that may only answer, or whose adapter
//! denies everything, is `read_only`, even if another profile is configured.
//!
//! A confinement lasts as long as its process, so a pooled process is reused only for runs with the same profile.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainspring_core::{Enforcement, Failure, Sandbox, SandboxProfile, SandboxReach};
use mainspring_kernel::policy::Permissions;

use crate::process::{Confinement, agent_variable};

mod folders;
mod git;
mod inner;
mod links;
pub use folders::{OwnFolder, own_folders};

/// The lowest version of Landlock that is used. Earlier ones do not restrict the truncation of files.
const MIN_ABI: u32 = 3;
/// The version of Landlock from which signals and abstract sockets are restricted.
const SCOPES_ABI: u32 = 6;

/// How the processes of an adapter are confined.
#[derive(Debug, Clone, Default)]
pub struct SandboxOptions {
    /// The configured profile of runs that may act. `None` follows the permissions.
    pub profile: Option<SandboxProfile>,
    /// Further folders that a confined agent may write.
    pub writable: Vec<PathBuf>,
    /// The TCP ports that a confined agent may connect to. `None` means all.
    pub ports: Option<Vec<u16>>,
    /// The folders that no confined agent may read or write.
    pub hidden: Vec<PathBuf>,
    /// The folders and files that no confined agent may write.
    pub protected: Vec<PathBuf>,
    /// The version of Landlock in the kernel; see [`landlock_abi`].
    pub landlock: Option<u32>,
}

/// Returns the version of Landlock in this kernel; `None` if the kernel has no Landlock, or one that is too old.
#[cfg(target_os = "linux")]
pub fn landlock_abi() -> Option<u32> {
    use landlock::{LandlockStatus, RestrictSelf};
    // Without flags this restricts nothing: it only asks the kernel.
    let LandlockStatus::Available { effective_abi, kernel_abi } =
        RestrictSelf::default().no_new_privs(false).apply().ok()?.landlock
    else {
        return None;
    };
    let abi = u32::try_from(kernel_abi.unwrap_or(effective_abi as i32)).ok()?;
    (abi >= MIN_ABI).then_some(abi)
}

/// Returns the version of Landlock in this kernel: always `None`, as only Linux has Landlock.
#[cfg(not(target_os = "linux"))]
pub fn landlock_abi() -> Option<u32> {
    None
}

impl SandboxOptions {
    /// Decides the sandbox of a run in `folder`. `adapter` are the permissions of its adapter, `run` those of the run. Fails
    /// if the run must be confined and cannot be.
    pub(crate) fn decide(
        &self,
        adapter: Permissions,
        run: Permissions,
        folder: &Path,
    ) -> Result<Sandbox, Failure> {
        let wanted = match (run, self.profile) {
            (Permissions::Deny, _) => SandboxProfile::ReadOnly,
            (_, Some(configured)) => configured,
            (Permissions::Ask, None) => SandboxProfile::Workspace,
            (Permissions::Legacy, None) => SandboxProfile::Off,
        };
        if wanted == SandboxProfile::Off {
            return Ok(Sandbox::none(None));
        }
        let Some(abi) = self.landlock else {
            let is_default = self.profile.is_none() && run != Permissions::Deny;
            let is_waived = self.profile == Some(SandboxProfile::Off) || adapter == Permissions::Legacy;
            return match is_default || is_waived {
                true => {
                    Ok(Sandbox::none(Some("this system has no Landlock: nothing confines the agent".into())))
                }
                false => Err(unavailable(wanted)),
            };
        };
        let notes = [
            self.split_note(wanted, folder),
            (abi < SCOPES_ABI).then(|| {
                format!(
                    "Landlock {abi} does not restrict signals: the agent can end other processes of its user"
                )
            }),
        ];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        Ok(Sandbox {
            profile: wanted,
            enforcement: Enforcement::Landlock,
            abi: Some(abi),
            note: (!notes.is_empty()).then(|| notes.join("; ")),
            folder: None,
            reach: Some(self.reach()),
        })
    }

    /// The configured reach of a confined agent.
    pub(crate) fn reach(&self) -> SandboxReach {
        let writable = self.writable.iter().map(|path| resolve(path).to_string_lossy().into_owned());
        SandboxReach { writable: writable.collect(), ports: self.ports.clone() }
    }

    /// Returns these options with the reach narrowed to `outer`.
    pub(crate) fn within(&self, outer: &SandboxReach) -> Self {
        let SandboxReach { writable, ports } = self.reach().within(outer);
        Self { writable: writable.into_iter().map(PathBuf::from).collect(), ports, ..self.clone() }
    }

    /// The protected paths without links. A path that is a link is protected as well as its target: an agent must not replace
    /// the link either.
    fn protected_paths(&self) -> Vec<PathBuf> {
        let link = |path: &PathBuf| Some(resolve(path.parent()?).join(path.file_name()?));
        let mut paths: Vec<PathBuf> = self.protected.iter().map(|path| resolve(path)).collect();
        paths.extend(self.protected.iter().filter_map(link));
        paths.sort();
        paths.dedup();
        paths
    }

    /// Describes the restriction of a working folder if it contains a folder that the agent may not write. Landlock
    /// cannot exclude a folder from a rule for its parent, so every other entry gets a rule.
    fn split_note(&self, profile: SandboxProfile, folder: &Path) -> Option<String> {
        let folder = resolve(folder);
        let excluded = self.hidden.iter().map(|path| resolve(path)).chain(self.protected_paths());
        let inside = excluded.into_iter().find(|path| path.starts_with(&folder))?;
        (profile == SandboxProfile::Workspace).then(|| {
            format!(
                "{} contains {}, which the agent may not write: new files and folders cannot be made directly in the folders \
                 between them",
                folder.display(),
                inside.display()
            )
        })
    }
}

/// The sandbox of one process.
#[derive(Debug, Clone)]
pub struct ProcessSandbox {
    /// The options of its adapter.
    pub options: Arc<SandboxOptions>,
    /// The profile.
    pub profile: SandboxProfile,
    /// The working folder of the session.
    pub folder: PathBuf,
    /// The agent's command, which determines the agent's own folders.
    pub command: Vec<String>,
    /// The variables that the adapter adds to the agent's environment.
    pub env: Vec<(String, String)>,
    /// Names of variables that the agent inherits from mainspring's own environment.
    pub pass_env: Vec<String>,
}

impl ProcessSandbox {
    /// The variables that switch the agent's own sandbox to a kind that works within this sandbox.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        inner::variables(&self.command, &|name| agent_variable(name, &self.env, &self.pass_env))
    }

    /// The files that the process may use; `None` if the profile is off. Creates the agent's own folders where they are
    /// missing.
    pub(crate) fn confinement(&self) -> Option<Confinement> {
        let Self { options, folder, .. } = self;
        let mut writable: Vec<PathBuf> = match self.profile {
            SandboxProfile::Off => return None,
            SandboxProfile::ReadOnly => vec![],
            SandboxProfile::Workspace => {
                let temporary = [std::env::temp_dir(), "/tmp".into()];
                let temporary = temporary.into_iter().filter_map(|path| path.canonicalize().ok());
                [folder.clone()].into_iter().chain(git::folders(folder)).chain(temporary).collect()
            }
        };
        let variable = |name: &str| agent_variable(name, &self.env, &self.pass_env);
        writable.extend(own_folders(&self.command, &variable).iter().filter_map(OwnFolder::prepare));
        writable.extend(self.configured(&writable));
        Some(Confinement {
            readable: vec![folder.clone()],
            writable,
            hidden: options.hidden.iter().map(|path| resolve(path)).collect(),
            protected: options.protected_paths(),
            ports: options.ports.clone(),
        })
    }

    /// The configured folders without links in their paths. `granted` are the other folders that the agent may write.
    fn configured(&self, granted: &[PathBuf]) -> Vec<PathBuf> {
        let configured = &self.options.writable;
        // Folders that this profile does not make writable count too: an earlier agent with another profile may have made
        // a link there.
        let folders = granted.iter().chain([&self.folder]).cloned();
        let others = configured.iter().filter_map(|path| path.canonicalize().ok());
        let writable: Vec<PathBuf> = folders.chain(others).collect();
        let resolved = configured.iter().filter_map(|path| {
            let resolved = links::resolve_unless_writable(path, &writable);
            if resolved.is_none() && path.exists() {
                tracing::warn!(path = %path.display(), "a writable folder is not granted: an agent may have made the link");
            }
            resolved
        });
        resolved.collect()
    }
}

fn unavailable(profile: SandboxProfile) -> Failure {
    let message = format!(
        "this run must be confined ({profile}), and this system has no Landlock (Linux 6.2 or later): write sandbox = \
         \"off\" into the adapter's table to run it unconfined"
    );
    Failure::new("sandbox_unavailable", message)
}

/// Resolves the links of a path as far as it exists.
fn resolve(path: &Path) -> PathBuf {
    let known = path.ancestors().find_map(|known| Some((known, known.canonicalize().ok()?)));
    match known.and_then(|(known, real)| Some((real, path.strip_prefix(known).ok()?))) {
        // Joining an empty path would add a slash.
        Some((real, rest)) if rest.as_os_str().is_empty() => real,
        Some((real, rest)) => real.join(rest),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests;
