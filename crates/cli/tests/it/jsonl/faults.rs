//! Regression tests for faults seen in the protocol's first implementation. Tests that need a real agent are in `acp`
//! and `pi`, tests that need a kill in `restart`; docs/acceptance.md lists all of them.

use mainspring_test_support::jsonl::query;
use rusqlite::OpenFlags;
use serde_json::{Value, json};

use super::Host;
use crate::cli::{json_lines, run};

fn interrupt(request: &str) -> Value {
    json!({"type": "interrupt", "protocolVersion": 2, "requestId": request, "clientId": "test"})
}

#[test]
fn fault_thinking_text() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::start(dir.path());
    let mut answer = host.query_followed("r", "k", "think xyzzy-plugh; say aloud");
    let received = host.receive_query("r");
    answer.wait().unwrap();
    assert!(received.iter().any(|line| line["type"] == "thinking_delta" && line["text"] == "xyzzy-plugh"));
    host.close();
    let mut aloud = 0;
    for file in std::fs::read_dir(dir.path().join("state")).unwrap() {
        let path = file.unwrap().path();
        let bytes = if path.is_file() { std::fs::read(path).unwrap() } else { continue };
        let holds =
            |text: &str| bytes.windows(text.len()).filter(|window| *window == text.as_bytes()).count();
        // The prompt, a script, contains the thought itself. The search index holds its words one by one.
        assert_eq!(holds("xyzzy-plugh"), holds("think xyzzy-plugh"));
        aloud += holds("aloud") - holds("say aloud");
    }
    assert!(aloud > 0, "the answer is stored");
}

#[test]
fn an_image_is_stored_once_and_model_directory_and_alias_are_applied() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::start_with(dir.path(), &["--alias", "acp-claude=script"], &[]);
    let image =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let hinted = dir.path().join("hinted");
    std::fs::create_dir(&hinted).unwrap();
    host.send(&json!({"type": "warmup", "cwd": hinted, "models": ["m1"]}));
    let mut line = query("r", "k", "say seen");
    line["imageBase64"] = image.into();
    line["adapterId"] = "acp-claude".into();
    line["model"] = "m2".into();
    host.send(&line);
    host.send(&line);
    let first = host.receive_end("r");
    assert_eq!(first["text"], "seen\n");
    host.send(&line);
    assert_eq!(host.receive_end("r")["runId"], first["runId"]);
    host.send(&json!({"type": "query", "protocolVersion": 2, "requestId": "h", "clientId": "test", "prompt": "say x", "model": "m1"}));
    host.receive_end("h");
    host.close();
    let owner = ["--owner", "desktop-local-user", "--json"];
    let runs = json_lines(&run(dir.path(), &[&["run", "list"][..], &owner].concat()));
    let options: Vec<_> =
        runs.iter().map(|run| (run["options"]["model"].clone(), run["options"]["cwd"].clone())).collect();
    assert_eq!(options[0], (json!("m1"), json!(hinted)));
    assert_eq!(options[1], (json!("m2"), json!(dir.path())), "the default is the home directory");
    let session = first["sessionId"].as_str().unwrap();
    let shown = json_lines(&run(dir.path(), &[&["session", "show", session][..], &owner].concat()));
    let prompt = &shown[0]["messages"][0]["content"];
    assert_eq!((&prompt[0]["type"], &prompt[0]["mimeType"]), (&json!("attachment"), &json!("image/png")));
    let folders = std::fs::read_dir(dir.path().join("state/artifacts")).unwrap();
    let kept = folders.filter(|folder| folder.as_ref().unwrap().file_name() != "staging").count();
    assert_eq!(kept, 1, "the image is stored once");
}

#[test]
fn fault_delta_throughput() {
    const DELTAS: u32 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::start(dir.path());
    host.query("r", "k", &format!("stream {DELTAS} x; hang"));
    host.receive_until(|line| line["type"] == "text_delta");
    // Deltas are written once per clock tick, not one row each.
    let database = dir.path().join("state/mainspring.sqlite3");
    let database = rusqlite::Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let kept = || {
        let sql = "SELECT count(*), coalesce(sum(length(text)), 0) FROM chunks";
        database.query_row(sql, [], |row| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?))).unwrap()
    };
    while kept().1 < DELTAS * 2 {}
    assert!(kept().0 < DELTAS / 10, "{} rows", kept().0);
    host.send(&interrupt("r"));
    let end = host.receive_end("r");
    assert_eq!(end["text"].as_str().unwrap().matches('x').count(), DELTAS as usize);
    assert_eq!(kept(), (0, 0), "text that is in its message is not stored twice");
    // The stored events of a run do not depend on how its text was streamed.
    let owner = ["--owner", "desktop-local-user", "--json"];
    let events = run(dir.path(), &[&["run", "events", end["runId"].as_str().unwrap()][..], &owner].concat());
    let events = json_lines(&events);
    assert!(events.len() < 20, "{} events", events.len());
    assert!(events.iter().all(|event| event["type"] != "message.delta"));
}
