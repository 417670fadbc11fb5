//! Process trees, as `/proc` shows them.

use std::collections::HashMap;
use std::fs;

use rustix::process::Pid;

/// Every living descendant of `root`, whatever session or group it has put itself into.
pub(super) fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for pid in processes() {
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

/// Every process that has a variable `name` whose value `is` right, in the environment it was started with. One that
/// dropped it is not found.
pub fn marked(name: &str, is: impl Fn(&str) -> bool) -> Vec<Pid> {
    let has = |pid: &Pid| {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
        let mut variables =
            environment.split(|byte| *byte == 0).filter_map(|it| std::str::from_utf8(it).ok());
        variables.any(|it| it.strip_prefix(name).and_then(|it| it.strip_prefix('=')).is_some_and(&is))
    };
    processes().filter(has).collect()
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// The parent of a process that has not ended.
fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The name is in parentheses and may hold anything; after it come state and parent.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => Pid::from_raw(fields.next()?.parse().ok()?),
    }
}
