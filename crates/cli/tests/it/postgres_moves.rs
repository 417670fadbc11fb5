//! Moves data in and out of PostgreSQL with the real program: copies that are killed, backups of a served database,
//! restores, verification.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;

use serde_json::Value;

use crate::backup::succeeded;
use crate::cli::{CommandOutput, command, json_lines, run};
use crate::http::Server;
use crate::postgres_cluster::{Psql, database, psql, psql_open};

/// Starts a command that is going to be killed.
fn start(home: &Path, arguments: &[&str]) -> Child {
    command(home).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Waits until a connection waits for a lock of another one.
fn wait_for_lock(url: &str) {
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database =
                   (SELECT oid FROM pg_database WHERE datname = current_database())";
    while psql(url, waiting) == "0" {}
}

/// Makes a session with an artifact and two runs, a second session, and a key.
fn fill(home: &Path, store: &[&str]) {
    fs::write(home.join("notes.txt"), "tea").unwrap();
    let run = |arguments: &[&str]| succeeded(run(home, &[store, arguments].concat()));
    run(&["prompt", "--session", "a", "--attach", "notes.txt", "say kept"]);
    run(&["prompt", "--session", "a", "say more"]);
    run(&["prompt", "--session", "b", "say other"]);
    run(&["key", "create", "k"]);
}

fn exported(home: &Path, store: &[&str]) -> String {
    succeeded(run(home, &[store, &["session", "export", "a"]].concat())).out
}

/// Checks that no command uses an unfinished copy as a store.
fn refuse_unfinished(home: &Path, store: &[&str]) {
    let commands: &[&[&str]] = &[&["prompt", "say no"], &["session", "list"], &["verify"], &["backup", "no"]];
    for arguments in commands {
        let refused = run(home, &[store, arguments].concat());
        assert_eq!(refused.code, 5, "{arguments:?}: {}{}", refused.out, refused.err);
        for part in ["unfinished copy", "mainspring store copy", "mainspring store discard"] {
            assert!(refused.err.contains(part), "{arguments:?}: {}", refused.err);
        }
    }
    let doctor = run(home, &[store, &["doctor"]].concat());
    assert!(doctor.code == 5 && doctor.out.contains("unfinished copy"), "{}", doctor.out);
    assert!(!home.join("no").exists());
}

/// Returns the number of records after which a finished copy had continued, and its last line.
fn finished(copied: CommandOutput) -> (u64, Value) {
    let lines = json_lines(&succeeded(copied));
    assert_eq!(lines[0]["step"], "continues", "{lines:?}");
    (lines[0]["records"].as_u64().unwrap(), lines[1].clone())
}

/// Each time the copy is killed while it writes another kind of records.
#[test]
fn a_copy_into_postgresql_that_is_killed_continues() {
    let (dir, url) = (tempfile::tempdir().unwrap(), database());
    let home = dir.path();
    fill(home, &[]);
    let expected = exported(home, &[]);
    let store = ["--store", &url];
    // Makes the tables, on which the triggers are.
    succeeded(run(home, &[&store[..], &["session", "list"]].concat()));
    psql(
        &url,
        "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END'",
    );
    let arguments = ["store", "copy", "--from", "state", "--to", &url, "--json"];
    let mut last = 0;
    for table in ["sessions", "messages", "events", "histories"] {
        psql(&url, &format!("CREATE TRIGGER stop BEFORE INSERT ON {table} EXECUTE FUNCTION stop()"));
        let mut holder: Psql = psql_open(&url);
        holder.run("SELECT pg_advisory_lock(42);");
        let copying = start(home, &arguments);
        wait_for_lock(&url);
        kill(copying);
        drop(holder);
        psql(&url, &format!("DROP TRIGGER stop ON {table}"));
        let kept = psql(&url, "SELECT count(*) FROM runs").parse::<u64>().unwrap()
            + psql(&url, "SELECT count(*) FROM messages").parse::<u64>().unwrap()
            + psql(&url, "SELECT count(*) FROM events").parse::<u64>().unwrap();
        assert!(kept >= last, "{table}");
        last = kept;
        refuse_unfinished(home, &store);
    }
    assert!(last > 10);
    let other = tempfile::tempdir().unwrap();
    fill(other.path(), &[]);
    let refused = run(other.path(), &arguments);
    assert!(refused.code == 4 && refused.err.contains("copy_of_another"), "{}", refused.err);
    let (kept, copied) = finished(run(home, &arguments));
    assert!(kept > last && copied["kept"] == kept, "{kept} {copied}");
    assert!(copied["records"].as_u64().unwrap() > kept, "{copied}");
    assert_eq!(copied["findings"], serde_json::json!([]), "{copied}");
    fs::rename(home.join("state/mainspring.sqlite3"), home.join("before.sqlite3")).unwrap();
    assert_eq!(exported(home, &store), expected);
    assert!(succeeded(run(home, &[&store[..], &["verify"]].concat())).out.contains("records"));
}

#[test]
fn a_copy_out_of_postgresql_that_is_killed_continues_or_is_discarded() {
    let (dir, url) = (tempfile::tempdir().unwrap(), database());
    let home = dir.path();
    let store = ["--store", &url];
    fill(home, &store);
    let expected = exported(home, &store);
    let there = ["--state-dir", "there"];
    let arguments = ["store", "copy", "--from", &url, "--to", "there", "--json"];
    let killed_at = |table: &str| {
        let mut holder: Psql = psql_open(&url);
        holder.run(&format!("BEGIN; LOCK TABLE {table};"));
        let copying = start(home, &arguments);
        wait_for_lock(&url);
        kill(copying);
        drop(holder);
    };
    for table in ["runs", "cursors", "lost_events"] {
        killed_at(table);
        refuse_unfinished(home, &there);
    }
    let refused = run(home, &["store", "copy", "--from", "there", "--to", "third"]);
    assert!(refused.code == 5 && refused.err.contains("unfinished copy"), "{}", refused.err);
    let (kept, copied) = finished(run(home, &arguments));
    assert!(kept > 10 && copied["kept"] == kept, "{kept} {copied}");
    assert_eq!(copied["findings"], serde_json::json!([]), "{copied}");
    assert_eq!(exported(home, &there), expected);
    succeeded(run(home, &[&there[..], &["verify"]].concat()));
    let refused = run(home, &["store", "discard", "there"]);
    assert!(refused.code == 3 && refused.err.contains("not an unfinished copy"), "{}", refused.err);

    // The source changes while the copy is interrupted: it begins again.
    fs::remove_dir_all(home.join("there")).unwrap();
    killed_at("cursors");
    succeeded(run(home, &[&store[..], &["prompt", "--session", "a", "say later"]].concat()));
    let lines = json_lines(&succeeded(run(home, &arguments)));
    assert_eq!((&lines[0]["step"], &lines[1]["kept"]), (&"begins_again".into(), &0.into()), "{lines:?}");
    assert_eq!(exported(home, &there), exported(home, &store));

    fs::remove_dir_all(home.join("there")).unwrap();
    killed_at("cursors");
    succeeded(run(home, &["store", "discard", "there"]));
    assert!(!home.join("there/mainspring.sqlite3").exists());
    succeeded(run(home, &[&there[..], &["prompt", "say new"]].concat()));
}

#[test]
fn two_copies_at_once_into_one_target_are_refused() {
    let (dir, url) = (tempfile::tempdir().unwrap(), database());
    let home = dir.path();
    fill(home, &["--store", &url]);
    let mut holder: Psql = psql_open(&url);
    holder.run("BEGIN; LOCK TABLE runs;");
    let first = start(home, &["store", "copy", "--from", &url, "--to", "there"]);
    wait_for_lock(&url);
    let second = run(home, &["store", "copy", "--from", &database(), "--to", "there"]);
    assert!(second.code == 6 && second.err.contains("state_dir_owned"), "{}", second.err);
    let read = run(home, &["--state-dir", "there", "verify"]);
    assert!(read.code == 5 && read.err.contains("unfinished copy"), "{}", read.err);
    kill(first);
}

/// The backup is made while the server works, and restored into SQLite and into another PostgreSQL.
#[tokio::test]
async fn a_backup_of_a_served_postgresql_is_restored_into_either_store() {
    let (dir, url) = (Arc::new(tempfile::tempdir().unwrap()), database());
    let home = dir.path();
    let store = ["--store", url.as_str()];
    let at = |arguments: &[&str]| run(home, &[&store[..], arguments].concat());
    let mut server = Server::start_in(dir.clone(), &[("MAINSPRING_STORE", &url)]);
    fill(home, &store);
    server.prompt("c", "say half; hang").await;
    let unnamed = run(home, &["backup", "copy"]);
    assert!(unnamed.code == 2 && unnamed.err.contains("--store"), "{}", unnamed.err);
    let made = json_lines(&succeeded(at(&["backup", "copy", "--json"])))[0].clone();
    assert_eq!((made["sessions"].as_u64(), made["artifacts"].as_u64()), (Some(3), Some(1)), "{made}");
    succeeded(at(&["backup", "copy.tar"]));
    assert!(fs::read(home.join("copy/mainspring.sqlite3")).unwrap().starts_with(b"SQLite format 3"));
    let verified = json_lines(&succeeded(at(&["verify", "--json"])));
    let parts: Vec<&str> = verified.iter().map(|part| part["part"].as_str().unwrap()).collect();
    assert_eq!(parts, ["records", "events", "trees", "artifacts", "audit"]);
    assert!(verified[0]["checked"].as_u64() > Some(20), "{verified:?}");
    let kept = exported(home, &store);
    succeeded(at(&["prompt", "--session", "a", "say lost"]));
    let full = at(&["restore", "copy"]);
    assert!(full.code == 6, "{}", full.err);
    server.kill();
    let full = at(&["restore", "copy"]);
    assert!(full.code == 4 && full.err.contains("holds data"), "{}", full.err);

    fs::rename(home.join("state"), home.join("original")).unwrap();
    let restored = json_lines(&succeeded(run(home, &["restore", "copy", "--json"])))[0].clone();
    assert!(restored["continuesAfterCursor"].as_u64() > made["lastCursor"].as_u64(), "{restored}");
    assert_eq!(exported(home, &[]), kept);
    assert_eq!(succeeded(run(home, &["key", "list"])).out.lines().count(), 0, "keys are not in a backup");
    succeeded(run(home, &["verify"]));
    succeeded(run(home, &["prompt", "--session", "a", "say on"]));

    let other = database();
    let there = ["--store", other.as_str()];
    fs::remove_dir_all(home.join("state")).unwrap();
    let restored = succeeded(run(home, &[&there[..], &["restore", "copy.tar"]].concat()));
    assert!(restored.out.contains("postgres://"), "{}", restored.out);
    assert_eq!(exported(home, &there), kept);
    succeeded(run(home, &[&there[..], &["verify"]].concat()));
    succeeded(run(home, &[&there[..], &["prompt", "--session", "a", "say on"]].concat()));
}

/// Each damage is reported with the record, or with the record that contradicts it.
#[test]
fn verify_names_the_damage_of_a_postgresql_and_a_copy_reports_it() {
    let (dir, url) = (tempfile::tempdir().unwrap(), database());
    let home = dir.path();
    let store = ["--store", url.as_str()];
    let at = |arguments: &[&str]| run(home, &[&store[..], arguments].concat());
    fill(home, &store);
    for session in ["c", "d", "e", "f", "g"] {
        succeeded(at(&["prompt", "--session", session, "say text"]));
    }
    succeeded(at(&["session", "rename", "c", "First title"]));
    succeeded(at(&["state", "set", "--session", "d", "color", "\"red\""]));
    let sound = succeeded(at(&["verify"]));
    assert!(sound.out.contains("no problems found"), "{}", sound.out);

    let of = |key: &str| format!("(SELECT session_id FROM sessions WHERE key = '{key}')");
    let (b, c, d, e, f, g) = (of("b"), of("c"), of("d"), of("e"), of("f"), of("g"));
    for sql in [
        format!(
            "UPDATE sessions SET body = replace(body, 'First title', 'Other title') WHERE session_id = {c}"
        ),
        format!("UPDATE session_state SET value = '\"blue\"' WHERE session_id = {d}"),
        format!("DELETE FROM attempts WHERE run_id IN (SELECT run_id FROM runs WHERE session_id = {d})"),
        format!("UPDATE runs SET status = 'failed' WHERE session_id = {e}"),
        format!("UPDATE messages SET content_bytes = content_bytes + 1 WHERE session_id = {e}"),
        format!(
            "UPDATE events SET pos = 0 WHERE cursor = (SELECT max(cursor) FROM events WHERE session_id = {f})"
        ),
        format!("UPDATE events SET type = 'run.failed' WHERE type = 'run.succeeded' AND session_id = {f}"),
        format!(
            "UPDATE events SET payload = '{{\"usage\": {{\"inputTokens\": 99}}}}'
             WHERE type = 'run.succeeded' AND session_id = {c}"
        ),
        format!("DELETE FROM messages WHERE session_id = {g}"),
        format!("UPDATE events SET owner_id = 'nobody' WHERE session_id = {b}"),
    ] {
        psql(&url, &sql);
    }
    let found = at(&["verify"]);
    assert_eq!(found.code, 5, "{}", found.out);
    for part in [
        "has another title than its last change",
        "state \"color\" of ses_",
        "counts 1 attempts, but has 0",
        "its column status differs from the record",
        "its column content_bytes differs from the record",
        "before the event ahead of it",
        "is succeeded, but its last event is run.failed",
        "says 99 and",
        "messages instead of",
        "which is missing",
        "ends at a message that is missing",
        "answers prompt msg_",
        "belongs to 'nobody', but its session to",
    ] {
        assert!(found.out.contains(part), "{part}: {}", found.out);
    }

    let copied = run(home, &["store", "copy", "--from", &url, "--to", "there"]);
    assert_eq!(copied.code, 5, "{}{}", copied.out, copied.err);
    assert!(copied.out.contains("counts 1 attempts, but has 0"), "{}", copied.out);
    assert!(succeeded(run(home, &["--state-dir", "there", "session", "list"])).out.contains('c'));

    psql(&url, &format!("UPDATE sessions SET body = '{{' WHERE session_id = {c}"));
    let found = at(&["verify"]);
    assert!(
        found.code == 5 && found.out.contains("the column body of a row cannot be read"),
        "{}",
        found.out
    );
}
