//! A flipped bit in the database of a real server: pages, streams and commands name the damaged row and return the
//! others.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::cli::{json_lines, run};
use crate::http::{Server, open_stream};

/// Flips a bit of `text` wherever the database has it.
fn flip(home: &Path, text: &str) {
    let path = home.join("state/mainspring.sqlite3");
    let mut bytes = fs::read(&path).unwrap();
    let found: Vec<usize> =
        (0..bytes.len() - text.len()).filter(|at| bytes[*at..].starts_with(text.as_bytes())).collect();
    assert!(!found.is_empty(), "{text} is not stored");
    found.into_iter().for_each(|at| bytes[at + 1] ^= 4);
    fs::write(&path, bytes).unwrap();
}

fn kinds(items: &Value) -> Vec<&str> {
    items.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_flipped_bit_is_named_by_pages_streams_and_commands() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let home = dir.path();
    let mut last = String::new();
    for text in ["say alpha", "say bravo", "say charlie"] {
        let done = run(home, &["prompt", "--session", "a", "--json", text]);
        assert_eq!(done.code, 0, "{}", done.err);
        let lines = json_lines(&done);
        last = lines.iter().rev().find_map(|line| line["runId"].as_str()).unwrap().to_owned();
    }
    let sound = run(home, &["verify"]);
    assert_eq!(sound.code, 0, "{}", sound.out);
    flip(home, "say bravo");
    let server = Server::start_in(dir.clone(), &[]);

    let (status, page) = server.get("/v1/sessions/a/messages").await;
    assert_eq!(status, StatusCode::OK, "{page}");
    assert_eq!(page["items"].as_array().unwrap().len(), 5);
    let damage = &page["damaged"][0];
    assert_eq!((&damage["kind"], &damage["index"]), (&json!("message"), &json!(2)), "{page}");
    let id = damage["id"].as_str().unwrap();
    let (_, rest) = server.get("/v1/sessions/a/messages?limit=4").await;
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (4, &json!("1")), "{rest}");
    let (_, snapshot) = server.get("/v1/sessions/a/snapshot").await;
    assert_eq!(snapshot["damaged"], page["damaged"]);
    let (_, tree) = server.get("/v1/sessions/a/tree").await;
    assert_eq!((tree["items"].as_array().unwrap().len(), &tree["damaged"][0]["id"]), (5, &json!(id)));
    let (status, one) = server.get(&format!("/v1/sessions/a/messages/{id}")).await;
    assert_eq!((status, &one["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("corrupt")));
    let (_, found) = server.get("/v1/search?q=say").await;
    assert!(found["damaged"].as_array().is_some_and(|damaged| !damaged.is_empty()), "{found}");

    let (_, events) = server.get("/v1/sessions/a/events?limit=500").await;
    let told: Vec<&Value> =
        events["items"].as_array().unwrap().iter().filter(|event| event["type"] == "event.damaged").collect();
    assert_eq!(told.len(), 1, "{:?}", kinds(&events["items"]));
    assert_eq!(
        (&told[0]["payload"]["eventType"], &told[0]["payload"]["messageId"]),
        (&json!("message.completed"), &json!(id))
    );
    let mut stream = open_stream(&server, "/v1/sessions/a/events?after=0.0").await;
    let frame = stream.next_of("event.damaged").await;
    assert_eq!(frame.data, *told[0]);
    assert_eq!(stream.next_of("run.succeeded").await.data["sessionId"], frame.data["sessionId"]);
    let mut stream = open_stream(&server, "/v1/events?after=0.0").await;
    assert_eq!(stream.next_of("event.damaged").await.data, *told[0]);
    // The text of a run consists of messages after its prompt: neither a later run nor the prompt's own run
    // needs the damaged prompt.
    let (_, run_of_last) = server.get(&format!("/v1/runs/{last}")).await;
    assert_eq!(run_of_last["finalText"], "charlie\n", "{run_of_last}");
    drop(server);

    let shown = run(home, &["session", "show", "a"]);
    assert!(
        shown.code == 0 && shown.out.contains("charlie") && shown.err.contains(id),
        "{}{}",
        shown.out,
        shown.err
    );
    let tree = run(home, &["session", "tree", "a"]);
    assert!(tree.code == 0 && tree.err.contains(id), "{}", tree.err);
}

#[tokio::test]
async fn the_stream_of_a_run_ends_although_its_last_event_is_damaged() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let home = dir.path();
    let done = run(home, &["prompt", "--session", "a", "--json", "say alpha"]);
    let id =
        json_lines(&done).iter().rev().find_map(|line| line["runId"].as_str().map(str::to_owned)).unwrap();
    let database = rusqlite::Connection::open(home.join("state/mainspring.sqlite3")).unwrap();
    let changed =
        database.execute("UPDATE events SET pos = pos + 64 WHERE type = 'run.succeeded'", []).unwrap();
    assert_eq!(changed, 1);
    database.close().unwrap();
    let server = Server::start_in(dir.clone(), &[]);
    let mut stream = open_stream(&server, &format!("/v1/runs/{id}/events")).await;
    let damaged = stream.next_of("event.damaged").await;
    assert_eq!(damaged.data.get("runId"), None);
    assert_eq!(stream.next().await, None, "the run has ended, and no event of it follows");
}
