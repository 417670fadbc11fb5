//! The audit log of a real server: after a kill, on the command line, in backups.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cli::{json_lines, run};
use crate::http::Server;

/// The files of the log, oldest first.
fn files(home: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.join("state/audit")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")).collect();
    files.sort();
    files
}

fn records(home: &Path) -> Vec<Value> {
    let texts = files(home).into_iter().map(|path| fs::read_to_string(path).unwrap());
    texts
        .flat_map(|text| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<_>>())
        .collect()
}

/// Returns the report of `mainspring verify` about the log.
fn verified(home: &Path) -> (i32, Value) {
    let output = run(home, &["verify", "--json"]);
    let parts = json_lines(&output);
    (output.code, parts.into_iter().find(|part| part["part"] == "audit").unwrap())
}

#[tokio::test]
async fn every_answered_change_is_in_the_log_after_kill_9_and_verify_notices_a_removed_record() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let home = dir.path();
    let mut server = Server::start_in(dir.clone(), &[]);
    let mut runs = vec![];
    for n in 0..20 {
        runs.push(server.prompt(&format!("s{n}"), "say hi").await["runId"].clone());
    }
    server.kill();
    let found = records(home);
    for run in &runs {
        let is_accepted = |record: &&Value| {
            record["operation"] == "run_create" && record["about"].as_array().unwrap().contains(run)
        };
        assert_eq!(found.iter().filter(is_accepted).count(), 1, "{run}");
    }
    let peer = found.iter().find(|record| record["operation"] == "run_create").unwrap();
    assert!(peer["from"]["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{peer}");
    assert_eq!(
        verified(home),
        (0, json!({"part": "audit", "checked": found.len(), "unknown": 0, "findings": []}))
    );
    // A record in the middle is removed, to hide a change.
    let file = files(home).remove(0);
    let text = fs::read_to_string(&file).unwrap();
    let without: String =
        text.split_inclusive('\n').enumerate().filter(|(n, _)| *n != 5).map(|(_, line)| line).collect();
    fs::write(&file, without).unwrap();
    let (code, part) = verified(home);
    assert_eq!(code, 5);
    assert_eq!(part["findings"], json!(["the records 6 to 6 are missing"]));
}

#[test]
fn the_command_prints_records_with_the_user_and_process_of_a_local_caller() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    assert_eq!(run(home, &["prompt", "--session", "a", "say hi"]).code, 0);
    let output = run(home, &["audit", "--operation", "run_create", "--json"]);
    let records = json_lines(&output);
    assert_eq!(records.len(), 1, "{}{}", output.out, output.err);
    assert_eq!(records[0]["by"], json!({"type": "person", "ownerId": "local"}));
    assert_eq!(records[0]["from"]["uid"], rustix::process::geteuid().as_raw());
    assert!(records[0]["from"]["pid"].as_i64().unwrap() > 1);
    let text = run(home, &["audit", "--kind", "change"]).out;
    assert!(text.contains("run_create") && text.contains("by local from uid"), "{text}");
    let none = run(home, &["audit", "--for", "nobody"]);
    assert!(none.code == 0 && none.err.contains("no records"), "{}", none.err);
    assert_eq!(run(home, &["audit", "--since", "1w"]).code, 2);
}

#[test]
fn a_backup_holds_the_log_and_a_restored_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    assert_eq!(run(home, &["prompt", "--session", "a", "say hi"]).code, 0);
    let before = records(home);
    for backup in ["copy", "copy.tar"] {
        assert_eq!(run(home, &["backup", backup]).code, 0);
        fs::rename(home.join("state"), home.join(format!("state-before-{backup}"))).unwrap();
        let restored = run(home, &["restore", backup]);
        assert_eq!(restored.code, 0, "{}", restored.err);
        assert_eq!(records(home)[..before.len()], before[..]);
        assert_eq!(run(home, &["prompt", "--session", "a", "say again"]).code, 0);
        let (code, part) = verified(home);
        assert_eq!((code, &part["findings"]), (0, &json!([])));
        fs::remove_dir_all(home.join("state")).unwrap();
        fs::rename(home.join(format!("state-before-{backup}")), home.join("state")).unwrap();
    }
}

#[test]
fn a_key_for_another_owner_is_made_by_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    assert_eq!(run(home, &["key", "create", "ci", "--for", "bob"]).code, 0);
    let records = json_lines(&run(home, &["audit", "--operation", "key_create", "--json"]));
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(records[0]["by"], json!({"type": "person", "ownerId": "local"}));
    assert_eq!(records[0]["ownerId"], "bob");
}
