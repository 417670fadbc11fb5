//! `mainspring state`, `mainspring artifact` and `mainspring session append`.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::{command, json_lines, run};

/// Runs a command that succeeds, and returns its output.
pub(crate) fn done(dir: &Path, arguments: &[&str]) -> String {
    let output = run(dir, arguments);
    assert_eq!(output.code, 0, "{arguments:?}: {}", output.err);
    output.out
}

/// Runs a command that succeeds, and returns its JSON objects.
pub(crate) fn objects(dir: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = run(dir, &[arguments, &["--json"]].concat());
    assert_eq!(output.code, 0, "{arguments:?}: {}", output.err);
    json_lines(&output)
}

#[test]
fn state_is_set_read_listed_and_deleted_with_its_history() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["session", "new", "a"]);
    for of in [&[][..], &["--session", "a"]] {
        let of_state = |words: &[&'static str]| [&["state"], words, of].concat();
        let first = objects(dir, &of_state(&["set", "theme", "dark", "--if-absent"]));
        assert_eq!(first[0]["value"], "dark", "a text that is no JSON is stored as text");
        assert_eq!(run(dir, &of_state(&["set", "theme", "1", "--if-absent"])).code, 4);
        let version = first[0]["version"].to_string();
        let set = of_state(&["set", "theme", r#"{"dark":true}"#]);
        let set = [&set[..], &["--if-version", &version]].concat();
        assert_eq!(objects(dir, &set)[0]["value"], json!({"dark": true}));
        assert_eq!(run(dir, &set).code, 4, "the version is another one now");
        assert_eq!(done(dir, &of_state(&["get", "theme"])).trim(), r#"{"dark":true}"#);
        assert_eq!(objects(dir, &of_state(&["list"]))[0]["key"], "theme");
        assert_eq!(objects(dir, &of_state(&["delete", "theme", "--if-present"]))[0]["deleted"], true);
        assert_eq!(run(dir, &of_state(&["get", "theme"])).code, 3);
        let history = objects(dir, &of_state(&["history", "theme"]));
        let deleted: Vec<_> = history.iter().map(|change| change["deleted"].as_bool().unwrap()).collect();
        assert_eq!(deleted, [true, false, false]);
        assert_eq!(history[0]["by"]["kind"], "caller");
        assert!(done(dir, &of_state(&["history", "theme"])).contains("(deleted)"));
    }
}

#[test]
fn an_artifact_is_stored_listed_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["session", "new", "a"]);
    let (source, target) = (dir.join("plan.png"), dir.join("copy.png"));
    std::fs::write(&source, b"\x89PNG\r\n\x1a\nrest").unwrap();
    let stored = objects(dir, &["artifact", "put", "a", source.to_str().unwrap(), "--role", "result"]);
    assert_eq!((&stored[0]["mimeType"], &stored[0]["name"]), (&json!("image/png"), &json!("plan.png")));
    let id = stored[0]["artifactId"].as_str().unwrap();
    assert_eq!(objects(dir, &["artifact", "list", "a"]), stored);
    assert!(done(dir, &["artifact", "list", "a"]).contains("image/png"));
    done(dir, &["artifact", "get", &id[..12], "--output", target.to_str().unwrap()]);
    assert_eq!(std::fs::read(&target).unwrap(), std::fs::read(&source).unwrap());
    let printed = command(dir).args(["artifact", "get", id]).output().unwrap();
    assert_eq!(printed.stdout, std::fs::read(&source).unwrap());
    assert_eq!(objects(dir, &["artifact", "get", id]), stored);
    assert_eq!(run(dir, &["artifact", "get", "art_00000000"]).code, 3);
}

#[test]
fn a_short_artifact_that_cannot_be_written_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["session", "new", "a"]);
    let source = dir.join("note.txt");
    std::fs::write(&source, "no line break").unwrap();
    let stored = objects(dir, &["artifact", "put", "a", source.to_str().unwrap()]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut get = command(dir);
    get.args(["artifact", "get", stored[0]["artifactId"].as_str().unwrap()]);
    assert!(!get.stdout(full).status().unwrap().success());
}

#[test]
fn a_message_is_appended_once() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["session", "new", "a"]);
    let append = ["session", "append", "a", "remember this", "--id", "m1"];
    let first = objects(dir, &append);
    assert_eq!(first[0]["externalId"], "m1");
    assert_eq!(objects(dir, &append), first);
    assert!(done(dir, &["session", "show", "a"]).contains("remember this"));
}
