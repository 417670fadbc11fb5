//! Sandboxes: the confinement of an agent's processes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::message::names;

/// The files that an agent's processes may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SandboxProfile {
    /// The agent's own folders and a private temporary folder.
    ReadOnly,
    /// The folders of `read_only`, the working folder, its git directory and the system's temporary folder.
    Workspace,
    /// Everything that the user may write.
    #[default]
    Off,
}
names!(SandboxProfile { ReadOnly => "read_only", Workspace => "workspace", Off => "off" });

/// The means by which a sandbox is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Landlock, a feature of the Linux kernel.
    Landlock,
    /// Nothing: the processes are not confined.
    None,
}

/// The confinement under which an attempt's agent works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The profile in force.
    pub profile: SandboxProfile,
    /// How the profile is enforced.
    pub enforcement: Enforcement,
    /// The version of Landlock in the kernel, if Landlock enforces the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abi: Option<u32>,
    /// A restriction or a gap that a person should know of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The working folder, if the agent may write there and in no other folder of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The configured reach of a confined agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<SandboxReach>,
}

/// The reach of a confined agent beyond its working folder and its own folders.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SandboxReach {
    /// The further folders and files that the agent may write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<String>,
    /// The TCP ports that the agent may connect to; absent if it may connect to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<u16>>,
}

impl SandboxReach {
    /// Removes the folders that are not inside a folder of `outer`, and the ports that `outer` does not allow.
    #[must_use]
    pub fn within(mut self, outer: &Self) -> Self {
        let is_inside = |path: &String| outer.writable.iter().any(|outer| Path::new(path).starts_with(outer));
        self.writable.retain(is_inside);
        self.ports = match (self.ports, &outer.ports) {
            (Some(own), Some(outer)) => Some(own.into_iter().filter(|port| outer.contains(port)).collect()),
            (own, outer) => own.or_else(|| outer.clone()),
        };
        self
    }
}

impl SandboxProfile {
    /// Returns the profile that permits less.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::ReadOnly, _) | (_, Self::ReadOnly) => Self::ReadOnly,
            (Self::Workspace, _) | (_, Self::Workspace) => Self::Workspace,
            (Self::Off, Self::Off) => Self::Off,
        }
    }
}

impl Sandbox {
    /// The sandbox of an agent that is not confined.
    pub fn none(note: Option<String>) -> Self {
        Self {
            profile: SandboxProfile::Off,
            enforcement: Enforcement::None,
            abi: None,
            note,
            folder: None,
            reach: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reach_within_another_has_no_more_folders_and_ports() {
        let reach = |writable: &[&str], ports: Option<&[u16]>| SandboxReach {
            writable: writable.iter().map(|path| (*path).to_owned()).collect(),
            ports: ports.map(<[u16]>::to_vec),
        };
        let outer = reach(&["/data", "/cache"], Some(&[443, 80]));
        for (own, within) in [
            (reach(&["/data/x", "/database", "/etc"], None), reach(&["/data/x"], Some(&[443, 80]))),
            (reach(&["/cache", "/"], Some(&[80, 22])), reach(&["/cache"], Some(&[80]))),
        ] {
            assert_eq!(own.within(&outer), within);
        }
        assert_eq!(reach(&["/a"], Some(&[1])).within(&reach(&["/"], None)), reach(&["/a"], Some(&[1])));
    }
}
