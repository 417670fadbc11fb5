//! Process trees, read from `/proc`.

use std::collections::HashMap;
use std::fs;

use mainspring_core::LeftProcess;
use rustix::process::Pid;

/// The most characters of a command line that are shown.
const MAX_COMMAND_CHARS: usize = 200;
/// How often the command line of a process is read that has none.
const EXEC_READS: u32 = 100;

/// Lists every living descendant of `root`, in whatever session or process group.
pub(super) fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for pid in all_processes() {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let grandchildren = children.remove(pid).unwrap_or_default();
        found.extend(grandchildren);
        next += 1;
    }
    found
}

/// A process, told apart from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    pid: i32,
    /// When the process was started, in clock ticks since the system's start.
    started: u64,
}

impl ProcessId {
    /// Returns the living process with this number. A process that has ended and is not reaped yet does not live.
    fn of(pid: Pid) -> Option<Self> {
        let fields = stat(pid)?;
        let is_alive = !matches!(fields.first()?.as_str(), "Z" | "X");
        // The start is the 22nd field of the file; the first two are not among these.
        let started = fields.get(19)?.parse().ok()?;
        is_alive.then_some(Self { pid: pid.as_raw_pid(), started })
    }

    /// Reports whether the process lives.
    pub(crate) fn is_alive(self) -> bool {
        Pid::from_raw(self.pid).and_then(Self::of) == Some(self)
    }

    /// Kills the process, and no other one that has its number since.
    pub(super) fn kill(self) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        #[cfg(target_os = "linux")]
        {
            use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
            // The number belongs to one process while the descriptor is open.
            if let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
                && self.is_alive()
            {
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
        #[cfg(not(target_os = "linux"))]
        if self.is_alive() {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }

    /// Describes the process for people.
    pub(crate) fn describe(self) -> LeftProcess {
        LeftProcess { pid: self.pid, command: self.command() }
    }

    /// The command line, with spaces between its words; the name in brackets if it has none. Empty if the process has
    /// ended.
    fn command(self) -> String {
        let read = |file: &str| fs::read(format!("/proc/{}/{file}", self.pid)).unwrap_or_default();
        let shown = |bytes: &[u8]| -> String {
            let text = String::from_utf8_lossy(bytes).replace('\0', " ");
            text.trim().chars().take(MAX_COMMAND_CHARS).collect()
        };
        for _ in 0..EXEC_READS {
            let command = shown(&read("cmdline"));
            if !command.is_empty() || !self.is_alive() {
                return command;
            }
            // A process that is becoming another program has no command line for a moment.
            std::thread::yield_now();
        }
        format!("[{}]", shown(&read("comm")))
    }
}

/// Lists every living descendant of the subreaper `root`. Reads only the processes of this tree.
///
/// A process that loses its parent becomes a child of `root`. So if those are the same before and after, none was missed.
pub(super) fn descendants_of_subreaper(root: Pid) -> Vec<ProcessId> {
    loop {
        let before = children(root);
        let mut found = before.clone();
        let mut next = 0;
        while let Some(pid) = found.get(next).copied() {
            found.extend(children(pid));
            next += 1;
        }
        if children(root) == before {
            return found.into_iter().filter_map(ProcessId::of).collect();
        }
    }
}

/// The children of every thread of a process, ended ones included.
fn children(parent: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", parent.as_raw_pid()));
    let mut children = vec![];
    for thread in threads.into_iter().flatten().flatten() {
        let list = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    children
}

/// Lists every process that was started with a variable `name` whose value `matches`. A process started without the
/// variable is not found, even if its parent has it.
pub fn processes_with_variable(name: &str, matches: impl Fn(&str) -> bool) -> Vec<Pid> {
    let has_variable = |pid: &Pid| {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
        let mut variables =
            environment.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
        variables.any(|entry| {
            let value = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
            value.is_some_and(&matches)
        })
    };
    all_processes().filter(has_variable).collect()
}

fn all_processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Reports whether a process of this group lives.
pub(super) fn has_group(group: Pid) -> bool {
    let is_member = |pid: Pid| {
        let fields = stat(pid)?;
        let lives = !matches!(fields.first()?.as_str(), "Z" | "X");
        Some(lives && fields.get(2)?.parse() == Ok(group.as_raw_pid()))
    };
    all_processes().any(|pid| is_member(pid).unwrap_or(false))
}

/// Returns the parent of a process, unless the process has ended.
fn parent(pid: Pid) -> Option<Pid> {
    let fields = stat(pid)?;
    match fields.first()?.as_str() {
        "Z" | "X" => None,
        _ => Pid::from_raw(fields.get(1)?.parse().ok()?),
    }
}

/// The fields of a process's `stat` after its name: the state, the parent, and others.
fn stat(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The name is in parentheses and may contain any character.
    Some(stat.get(stat.rfind(')')? + 1..)?.split_whitespace().map(str::to_owned).collect())
}
