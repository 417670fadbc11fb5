//! Process trees, read from `/proc`.

use std::collections::HashMap;
use std::fs;

use rustix::process::Pid;

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

/// Returns the parent of a process, unless the process has ended.
fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The name is in parentheses and may contain any character. State and parent follow it.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => Pid::from_raw(fields.next()?.parse().ok()?),
    }
}
