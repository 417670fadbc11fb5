//! `mainspring backup`, `restore`, `verify`, `repair` and `vacuum`, on a real state directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::cli::{CommandOutput, json_lines, run};
use crate::doctor::tree;
use crate::http::{Server, open_stream};

/// Lists the files below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let found = tree(folder).into_iter().filter(|(_, (content, _))| content.is_some());
    found.map(|(path, _)| path.strip_prefix(folder).unwrap().to_owned()).collect()
}

pub(crate) fn succeeded(output: CommandOutput) -> CommandOutput {
    assert_eq!(output.code, 0, "{}{}", output.out, output.err);
    output
}

/// Reads the text of a session's messages.
fn texts(dir: &Path, session: &str) -> Vec<Value> {
    let shown = succeeded(run(dir, &["session", "show", session, "--json"]));
    let messages = json_lines(&shown)[0]["messages"].as_array().unwrap().clone();
    messages.into_iter().map(|message| message["content"].clone()).collect()
}

#[tokio::test]
async fn a_backup_of_a_running_server_is_restored_and_readers_of_lost_events_are_reset() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let home = dir.path();
    fs::write(home.join("notes.txt"), "tea").unwrap();
    let mut server = Server::start_in(dir.clone(), &[]);
    succeeded(run(home, &["prompt", "--session", "a", "--attach", "notes.txt", "say kept"]));
    succeeded(run(home, &["key", "create", "k"]));
    let running = server.prompt("b", "say half; hang").await;
    let backup = json_lines(&succeeded(run(home, &["backup", "copy", "--json"])))[0].clone();
    assert_eq!((backup["sessions"].as_u64(), backup["artifacts"].as_u64()), (Some(2), Some(1)));
    succeeded(run(home, &["backup", "copy.tar"]));
    let names: Vec<String> =
        files(&home.join("copy")).into_iter().map(|path| path.to_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(!names.iter().any(|name| name.contains("token")), "{names:?}");
    let again = run(home, &["backup", "copy"]);
    assert!(again.code == 4 && again.err.contains("exists already"), "{}", again.err);

    // Events after the backup, which are lost.
    succeeded(run(home, &["prompt", "--session", "a", "say lost"]));
    let (_, page) = server.get("/v1/sessions/a/events?limit=500").await;
    let last = page["items"].as_array().unwrap().last().unwrap();
    let lost = format!("{}.{}", last["cursor"], last["pos"]);
    let kept = texts(home, "a");
    server.kill();

    let refused = run(home, &["restore", "copy"]);
    assert!(refused.code == 4 && refused.err.contains("mainspring.sqlite3"), "{}", refused.err);
    for backup in ["copy", "copy.tar"] {
        fs::remove_dir_all(home.join("state")).unwrap();
        let restored = succeeded(run(home, &["restore", backup, "--json"]));
        assert!(json_lines(&restored)[0]["continuesAfterCursor"].as_u64().unwrap() > 1 << 32);
        assert_eq!(texts(home, "a"), kept[..2], "{backup}");
        succeeded(run(home, &["verify"]));
        let found = succeeded(run(home, &["session", "search", "kept", "--json"]));
        assert!(!found.out.is_empty(), "{backup}");
        let keys = succeeded(run(home, &["key", "list", "--json"]));
        assert_eq!(keys.out, "", "keys are not part of a backup");
    }

    let server = Server::start_in(dir.clone(), &[]);
    let mut reader = open_stream(&server, &format!("/v1/sessions/a/events?after={lost}")).await;
    let first = reader.next().await.unwrap();
    assert_eq!(first.event, "reset", "{:?}", first.data);
    server.prompt("a", "say again").await;
    while reader.next().await.unwrap().data["type"] != "run.succeeded" {}
    let (status, problem) = server.get(&format!("/v1/sessions/a/events?after={lost}")).await;
    assert_eq!((status, &problem["code"]), (StatusCode::GONE, &json!("cursor_expired")));
    let (_, orphan) = server.get(&format!("/v1/runs/{}", running["runId"].as_str().unwrap())).await;
    assert_eq!(orphan["status"], "orphaned");
}

#[test]
fn a_damaged_backup_is_refused_and_nothing_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    fs::write(home.join("notes.txt"), "tea").unwrap();
    succeeded(run(home, &["prompt", "--session", "a", "--attach", "notes.txt", "say kept"]));
    for backup in ["copy", "copy.tar"] {
        succeeded(run(home, &["backup", backup]));
    }
    fs::remove_dir_all(home.join("state")).unwrap();
    let victims: Vec<PathBuf> =
        files(&home.join("copy")).into_iter().map(|file| home.join("copy").join(file)).collect();
    for victim in victims.iter().chain([&home.join("copy.tar")]) {
        let bytes = fs::read(victim).unwrap();
        let mut damaged = bytes.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 4;
        fs::write(victim, damaged).unwrap();
        let backup = if victim.ends_with("copy.tar") { "copy.tar" } else { "copy" };
        let refused = run(home, &["restore", backup]);
        assert!(matches!(refused.code, 2 | 5), "{}: {}{}", victim.display(), refused.out, refused.err);
        assert!(!home.join("state/mainspring.sqlite3").exists() && !home.join("state/artifacts").exists());
        fs::write(victim, bytes).unwrap();
    }
    let none = run(home, &["restore", "notes.txt"]);
    assert!(none.code == 2 && none.err.contains("error[not_a_backup]"), "{}", none.err);
    let nothing = run(home, &["backup", "other"]);
    assert!(nothing.code == 3 && nothing.err.contains("nothing to back up"), "{}", nothing.err);
    succeeded(run(home, &["restore", "copy"]));
    assert_eq!(texts(home, "a").len(), 2);
}

#[test]
fn verify_names_damage_and_repair_lists_the_remaining_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (home, database) = (dir.path(), dir.path().join("state/mainspring.sqlite3"));
    fs::write(home.join("notes.txt"), "tea").unwrap();
    succeeded(run(home, &["prompt", "--session", "a", "--attach", "notes.txt", "say kept"]));
    succeeded(run(home, &["backup", "copy"]));
    succeeded(run(home, &["prompt", "--session", "b", "say later"]));
    let verified = succeeded(run(home, &["verify", "--json"]));
    let parts: Vec<Value> = json_lines(&verified).into_iter().map(|part| part["part"].clone()).collect();
    assert_eq!(parts, ["structure", "checksums", "events", "trees", "artifacts", "audit"]);

    let blob = files(&home.join("state/artifacts")).into_iter().find(|path| !path.starts_with("staging"));
    fs::write(home.join("state/artifacts").join(blob.unwrap()), "toa").unwrap();
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.execute_batch("UPDATE messages SET content = replace(content, 'kept', 'kent')").unwrap();
    connection.execute_batch("UPDATE messages SET content = replace(content, 'later', 'laser')").unwrap();
    // A row without a checksum is compared with its events.
    connection.execute_batch("UPDATE runs SET status = 'failed', state_checksum = NULL").unwrap();
    connection.close().unwrap();
    let before = tree(&home.join("state"));
    let verified = run(home, &["verify"]);
    assert_eq!(verified.code, 5, "{}", verified.out);
    assert!(
        verified.out.contains("message msg_") && verified.out.contains("its hash has changed"),
        "{}",
        verified.out
    );
    assert!(verified.out.contains("is failed, but its last event is run.succeeded"), "{}", verified.out);
    assert!(tree(&home.join("state")) == before, "verify changes nothing");

    let repaired = run(home, &["repair", "--from", "copy"]);
    assert_eq!(repaired.code, 5, "{}{}", repaired.out, repaired.err);
    assert!(repaired.out.contains("artifact contents (1)"), "{}", repaired.out);
    assert!(repaired.out.contains("damaged rows, from the backup (2)"), "{}", repaired.out);
    assert!(repaired.out.contains("outcomes of runs, from their events (2)"), "{}", repaired.out);
    // No backup has the messages of the later session.
    assert_eq!(repaired.out.matches("not repaired message msg_").count(), 2, "{}", repaired.out);
    assert!(!repaired.out.contains("its hash has changed"), "{}", repaired.out);
    assert!(home.join("state/mainspring.sqlite3.before-repair").exists());
    succeeded(run(home, &["vacuum"]));
}

#[test]
fn repair_and_vacuum_are_refused_while_the_directory_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let (_owner, _) = crate::guests::serve(dir.path());
    for command in ["repair", "vacuum"] {
        let refused = run(dir.path(), &[command]);
        assert!(refused.code == 6 && refused.err.contains("state_dir_owned"), "{command}: {}", refused.err);
    }
    succeeded(run(dir.path(), &["verify"]));
}

/// The copy is served in place of the original: the same session, artifact and cursors.
#[test]
fn a_copied_state_directory_holds_the_same_data() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    fs::write(home.join("notes.txt"), "tea").unwrap();
    succeeded(run(home, &["prompt", "--session", "a", "--attach", "notes.txt", "say kept"]));
    succeeded(run(home, &["key", "create", "k"]));
    let copy = |from: &str, to: &str| run(home, &["store", "copy", "--from", from, "--to", to, "--json"]);
    let copied = json_lines(&succeeded(copy("state", "other")))[0].clone();
    assert_eq!((copied["sessions"].as_u64(), copied["artifacts"].as_u64()), (Some(1), Some(1)), "{copied}");
    let refused = copy("state", "other");
    assert!(refused.code == 4 && refused.err.contains("holds data"), "{}", refused.err);
    let refused = copy("state", "./state");
    assert!(refused.code == 2 && refused.err.contains("source and as the target"), "{}", refused.err);
    let refused = copy("nothing", "third");
    assert!(refused.code == 3 && refused.err.contains("does not exist"), "{}", refused.err);

    let before = texts(home, "a");
    let events = |home: &Path| succeeded(run(home, &["session", "export", "a"])).out;
    let exported = events(home);
    fs::rename(home.join("state"), home.join("original")).unwrap();
    fs::rename(home.join("other"), home.join("state")).unwrap();
    assert_eq!(texts(home, "a"), before);
    assert_eq!(events(home), exported, "messages, runs, artifacts with their bytes, and events");
    succeeded(run(home, &["verify"]));
    assert!(succeeded(run(home, &["key", "list"])).out.contains('k'));
    succeeded(run(home, &["prompt", "--session", "a", "say more"]));

    // Damaged content is not copied, and the target cannot be used as a store before all content is copied.
    let blob = home.join("state/artifacts").join(files(&home.join("state/artifacts")).pop().unwrap());
    fs::write(&blob, "not").unwrap();
    let refused = copy("state", "fourth");
    assert!(refused.code == 5 && refused.err.contains("damaged"), "{}", refused.err);
    let refused = run(home, &["--state-dir", "fourth", "session", "list"]);
    assert!(refused.code == 5 && refused.err.contains("unfinished copy"), "{}", refused.err);
    fs::write(&blob, "tea").unwrap();
    let continued = json_lines(&succeeded(copy("state", "fourth")));
    assert_eq!(continued[0]["records"], continued[1]["records"], "no record is written again: {continued:?}");
    succeeded(run(home, &["--state-dir", "fourth", "verify"]));
}
