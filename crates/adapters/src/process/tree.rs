//! Process trees, read from `/proc`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use mainspring_core::LeftProcess;
use rustix::process::{Pid, Signal};

/// The maximum number of characters of a command line that are reported.
const MAX_COMMAND_CHARS: usize = 200;
/// The maximum number of times that an empty command line of a process is read again.
const EXEC_READS: u32 = 100;
/// The maximum number of readings of a tree until two readings agree.
const MAX_READINGS: u32 = 100;
/// The fields of a process's `stat`, counted from its state.
const PARENT_FIELD: usize = 1;
const GROUP_FIELD: usize = 2;
const START_FIELD: usize = 19;

/// A process in a tree, with its process group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) pid: Pid,
    pub(super) group: Option<Pid>,
}

/// Lists every descendant of `root`, in any session or process group. Includes descendants that have ended and are not
/// reaped yet: another of their threads may still run.
pub(super) fn descendants(root: Pid) -> Vec<Member> {
    let mut children: HashMap<Pid, Vec<Member>> = HashMap::new();
    for pid in all_processes() {
        let Some(fields) = stat(pid) else { continue };
        let field = |at: usize| Pid::from_raw(fields.get(at)?.parse().ok()?);
        if let Some(parent) = field(PARENT_FIELD) {
            children.entry(parent).or_default().push(Member { pid, group: field(GROUP_FIELD) });
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(member) = found.get(next) {
        let grandchildren = children.remove(&member.pid).unwrap_or_default();
        found.extend(grandchildren);
        next += 1;
    }
    found
}

/// Identifies a process, even if a later one gets the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    pid: i32,
    /// When the process was started, in clock ticks since the system's start.
    started: u64,
}

impl ProcessId {
    /// Returns the process with this number if it is alive. A process that has ended and is not reaped yet is not
    /// alive.
    fn of(pid: Pid) -> Option<Self> {
        let fields = stat(pid)?;
        let started = fields.get(START_FIELD)?.parse().ok()?;
        is_alive(pid, &fields).then_some(Self { pid: pid.as_raw_pid(), started })
    }

    /// Reports whether the process is alive.
    pub(crate) fn is_alive(self) -> bool {
        Pid::from_raw(self.pid).and_then(Self::of) == Some(self)
    }

    /// Sends a signal to the process, and never to a later one with the same pid.
    pub(crate) fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        #[cfg(target_os = "linux")]
        {
            use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
            // The number belongs to one process while the descriptor is open.
            if let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
                && self.is_alive()
            {
                let _ = pidfd_send_signal(process, signal);
            }
        }
        #[cfg(not(target_os = "linux"))]
        if self.is_alive() {
            let _ = rustix::process::kill_process(pid, signal);
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

/// One reading of process trees. Processes start and end during a reading, so one reading can miss some of them.
///
/// Two equal readings in a row miss none. A process whose parent has ended becomes a child of the nearest subreaper
/// above it. So if each process of a chain starts the next one and ends, every reading finds a new child of the
/// subreaper, and no two readings are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The processes by number; `None` for a process that had ended. A process counts as living if it lived before its
    /// children were read.
    processes: BTreeMap<i32, Option<ProcessId>>,
    /// Whether the children of a process could not be read.
    is_partial: bool,
}

impl Reading {
    /// Reads the descendants of `roots`, without the roots.
    pub(super) fn of(roots: impl IntoIterator<Item = Pid>) -> Self {
        let mut reading = Self::default();
        let mut parents: Vec<Pid> = roots.into_iter().collect();
        while let Some(parent) = parents.pop() {
            let Some(children) = children(parent) else {
                reading.is_partial = true;
                continue;
            };
            for child in children {
                if let Entry::Vacant(entry) = reading.processes.entry(child.as_raw_pid()) {
                    entry.insert(ProcessId::of(child));
                    parents.push(child);
                }
            }
        }
        reading
    }

    /// Reads the children of `parents` only.
    pub(super) fn of_children(parents: impl IntoIterator<Item = Pid>) -> Self {
        let children = parents.into_iter().flat_map(|parent| children(parent).unwrap_or_default());
        let processes = children.map(|child| (child.as_raw_pid(), ProcessId::of(child))).collect();
        Self { processes, is_partial: false }
    }

    /// Reads the descendants of `processes`, without the processes.
    pub(crate) fn below(processes: impl IntoIterator<Item = ProcessId>) -> Self {
        Self::of(processes.into_iter().filter_map(|process| Pid::from_raw(process.pid)))
    }

    /// Reads the descendants of `root` until two readings agree. Returns `None` if no two readings agree, or if the
    /// children of a process cannot be read.
    pub(super) async fn settled(root: Pid) -> Option<Self> {
        let mut last = Self::of([root]);
        for _ in 0..MAX_READINGS {
            if last.is_partial {
                return None;
            }
            tokio::task::yield_now().await;
            let next = Self::of([root]);
            if next == last {
                return Some(next);
            }
            last = next;
        }
        None
    }

    /// The processes that were alive during the reading.
    pub(crate) fn living(&self) -> impl Iterator<Item = ProcessId> {
        self.processes.values().copied().flatten()
    }

    /// Removes the processes in `left_out`.
    pub(super) fn without(mut self, left_out: &HashSet<ProcessId>) -> Self {
        self.processes.retain(|_, process| process.is_none_or(|process| !left_out.contains(&process)));
        self
    }

    /// Adds a process if it is alive.
    pub(crate) fn insert(&mut self, process: ProcessId) {
        if process.is_alive() {
            self.processes.insert(process.pid, Some(process));
        }
    }

    /// Reports whether every process of the trees was read and none lived.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_partial && self.living().next().is_none()
    }
}

/// The children of every thread of a process, ended ones included. `None` if they cannot be read.
fn children(parent: Pid) -> Option<Vec<Pid>> {
    let mut children = vec![];
    for thread in threads(parent) {
        match fs::read_to_string(thread.join("children")) {
            Ok(list) => {
                children.extend(list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
            }
            // The thread exists, but the kernel does not provide this file.
            Err(_) if thread.join("stat").exists() => return None,
            Err(_) => {}
        }
    }
    Some(children)
}

/// The folders of the threads of a process; none if it has ended.
fn threads(pid: Pid) -> impl Iterator<Item = PathBuf> {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()));
    threads.into_iter().flatten().flatten().map(|thread| thread.path())
}

/// Lists every process that was started with a variable `name` whose value `matches`. A process started without the
/// variable is not found, even if its parent has it.
pub fn processes_with_variable(name: &str, matches: impl Fn(&str) -> bool) -> Vec<Pid> {
    let has_variable = |pid: &Pid| {
        let environment = environment(*pid);
        let mut variables =
            environment.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
        variables.any(|entry| {
            let value = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
            value.is_some_and(&matches)
        })
    };
    all_processes().filter(has_variable).collect()
}

/// The variables that a process was started with. If its first thread has ended, only its other threads have them.
fn environment(pid: Pid) -> Vec<u8> {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
    if !environment.is_empty() || !stat(pid).is_some_and(|fields| has_ended(&fields)) {
        return environment;
    }
    let of_threads = threads(pid).map(|thread| fs::read(thread.join("environ")).unwrap_or_default());
    of_threads.into_iter().find(|environment| !environment.is_empty()).unwrap_or_default()
}

/// Returns the guard of a process: its ancestor, or the process itself, that is a child of this process. `None` if
/// there is no such ancestor.
#[cfg(target_os = "linux")]
pub(crate) fn guard_of(pid: Pid) -> Option<Pid> {
    let own = rustix::process::getpid();
    let mut pid = pid;
    loop {
        // The second field is the parent.
        match Pid::from_raw(stat(pid)?.get(1)?.parse().ok()?)? {
            parent if parent == own => return Some(pid),
            parent => pid = parent,
        }
    }
}

/// The value of the variable `MARK_VARIABLE` with which a process was started.
#[cfg(target_os = "linux")]
pub(crate) fn mark_of(pid: Pid) -> Option<String> {
    let environment = environment(pid);
    let mut variables =
        environment.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    variables.find_map(|entry| Some(entry.strip_prefix(super::MARK_VARIABLE)?.strip_prefix('=')?.to_owned()))
}

fn all_processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Reports whether a process of this group is alive.
pub(super) fn has_group(group: Pid) -> bool {
    let is_member = |pid: Pid| {
        let fields = stat(pid)?;
        Some(fields.get(GROUP_FIELD)?.parse() == Ok(group.as_raw_pid()) && is_alive(pid, &fields))
    };
    all_processes().any(|pid| is_member(pid).unwrap_or(false))
}

/// Reports whether a process with these fields of its `stat` is alive. The fields are those of its first thread: if
/// that thread has ended, the other threads may still run.
fn is_alive(pid: Pid, fields: &[String]) -> bool {
    let is_running = |thread: PathBuf| read_stat(&thread).is_some_and(|fields| !has_ended(&fields));
    !has_ended(fields) || threads(pid).any(is_running)
}

/// Reports whether a thread with these fields of its `stat` has ended.
fn has_ended(fields: &[String]) -> bool {
    fields.first().is_none_or(|state| matches!(state.as_str(), "Z" | "X"))
}

/// The fields of a process's `stat` after its name: the state, the parent, and others.
fn stat(pid: Pid) -> Option<Vec<String>> {
    read_stat(Path::new(&format!("/proc/{}", pid.as_raw_pid())))
}

/// The fields of the file `stat` in the folder of a process or a thread.
fn read_stat(folder: &Path) -> Option<Vec<String>> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The name is in parentheses and may contain any character.
    Some(stat.get(stat.rfind(')')? + 1..)?.split_whitespace().map(str::to_owned).collect())
}
