//! `mainspring doctor` changes nothing, even if it finds problems.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mainspring_core::{NodeId, Time};
use mainspring_store::StateDir;

use crate::cli::run;
use crate::guests::Process;

/// Content and modification time of every file and folder below `folder`. A socket has no content.
pub(crate) fn tree(folder: &Path) -> BTreeMap<PathBuf, (Option<Vec<u8>>, SystemTime)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                folders.push(path.clone());
            }
            let content = metadata.is_file().then(|| fs::read(&path).unwrap());
            found.insert(path, (content, metadata.modified().unwrap()));
        }
    }
    found
}

#[test]
fn doctor_leaves_every_file_as_a_crash_left_it() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::write(dir.path().join("notes.txt"), "tea").unwrap();
    let attached = run(dir.path(), &["prompt", "--session", "a", "--attach", "notes.txt", "say hi"]);
    assert_eq!(attached.code, 0, "{}", attached.err);
    let mut running = Process::start(dir.path(), &["prompt", "--session", "b", "say x; hang"]);
    assert_eq!(running.read_line(), "x\n");
    let mut queued = Process::start(dir.path(), &["prompt", "--json", "--session", "b", "say later"]);
    assert!(queued.read_line().contains("run.queued"));
    // Kills the processes: the guest first, because it would otherwise take the directory over.
    drop(queued);
    drop(running);
    assert!(fs::metadata(state.join("mainspring.sqlite3-wal")).unwrap().len() > 0);

    let before = tree(&state);
    for arguments in [&["doctor"][..], &["doctor", "--thorough"], &["doctor", "--json"]] {
        let doctor = run(dir.path(), arguments);
        assert_eq!(doctor.code, 0, "{}{}", doctor.out, doctor.err);
        assert!(doctor.out.contains("the next start records them as orphaned"), "{}", doctor.out);
        assert!(doctor.out.contains("1 wait for a process"), "{}", doctor.out);
        assert!(tree(&state) == before, "{arguments:?} changed a file");
    }

    let wal = state.join("mainspring.sqlite3-wal");
    fs::remove_file(state.join("mainspring.sqlite3-shm")).unwrap();
    let before = tree(&state);
    let doctor = run(dir.path(), &["doctor"]);
    assert!(
        doctor.out.contains("1 wait for a process"),
        "the commits of the WAL are counted: {}",
        doctor.out
    );
    assert!(tree(&state) == before && wal.exists());
}

/// This process stands for a server that was started with `--store`.
#[test]
fn commands_know_the_store_of_the_running_server() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), &["prompt", "--adapter", "script", "say hi"]).code, 0);
    let (state, store) = (dir.path().join("state"), "postgres://ada@db.example.com/main");
    let node = NodeId::from_random([1; 16]);
    let owned = StateDir::open_for(&state, Time(1), node, Some(store)).unwrap();
    let doctor = run(dir.path(), &["doctor"]);
    assert!(doctor.out.contains(&format!("{store}, not checked")), "{}{}", doctor.out, doctor.err);
    for command in ["backup", "verify", "vacuum"] {
        let target = dir.path().join("copy").display().to_string();
        let arguments = if command == "backup" { vec![command, &target] } else { vec![command] };
        let refused = run(dir.path(), &arguments);
        assert_eq!(refused.code, 2, "{command}: {}", refused.err);
        let remedy = if command == "vacuum" { "the tools of PostgreSQL" } else { "--store" };
        assert!(refused.err.contains(store) && refused.err.contains(remedy), "{command}: {}", refused.err);
    }
    drop(owned);
    assert_eq!(run(dir.path(), &["verify"]).code, 0, "the database in the directory");
}
