//! An older copy of the state directory that is put back by hand: readers of the other history get a reset.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::cli::run;
use crate::http::{Server, open_stream};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy(&entry.path(), &target),
            kind if kind.is_file() => drop(fs::copy(entry.path(), target).unwrap()),
            _ => {}
        }
    }
}

fn prompt(home: &Path, text: &str) {
    let done = run(home, &["prompt", "--session", "a", text]);
    assert_eq!(done.code, 0, "{}", done.err);
}

#[tokio::test]
async fn a_reader_of_another_history_is_reset_although_the_cursors_have_passed_it() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (home, state) = (dir.path(), dir.path().join("state"));
    prompt(home, "say kept");
    copy(&state, &home.join("copy"));
    // The reader reads two turns of a history that will be replaced.
    let mut server = Server::start_in(dir.clone(), &[]);
    let done = server.wait_ended(&server.prompt("a", "say lost").await).await;
    assert_eq!(done["finalText"], "lost\n");
    let response = server.request(Method::GET, "/v1/sessions/a/events?limit=500").send().await.unwrap();
    let history = response.headers()["mainspring-history"].to_str().unwrap().to_owned();
    let page: serde_json::Value = response.json().await.unwrap();
    let last = page["items"].as_array().unwrap().last().unwrap().clone();
    let position = format!("{}.{}", last["cursor"], last["pos"]);
    let resume = |path: &str| format!("{path}?after={position}&history={history}");
    // A restart makes no difference.
    server.kill();
    drop(server);
    let mut server = Server::start_in(dir.clone(), &[]);
    let (status, page) = server.get(&resume("/v1/sessions/a/events")).await;
    assert_eq!((status, &page["items"]), (StatusCode::OK, &json!([])), "{page}");
    server.kill();
    drop(server);

    fs::rename(&state, home.join("replaced")).unwrap();
    copy(&home.join("copy"), &state);
    for _ in 0..3 {
        prompt(home, "say other");
    }
    let server = Server::start_in(dir.clone(), &[]);
    let (_, page) = server.get("/v1/sessions/a/events?limit=500").await;
    let newest = page["items"].as_array().unwrap().last().unwrap()["cursor"].as_u64().unwrap();
    assert!(newest > last["cursor"].as_u64().unwrap(), "the cursors have passed the reader's");
    let mut stream = open_stream(&server, &resume("/v1/sessions/a/events")).await;
    let first = stream.next().await.unwrap();
    assert_eq!(first.event, "reset");
    assert!(!first.data.to_string().contains("lost") && first.data.to_string().contains("other"));
    for path in ["/v1/sessions/a/events", "/v1/events"] {
        let (status, problem) = server.get(&resume(path)).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::GONE, &json!("cursor_expired")),
            "{path}: {problem}"
        );
    }
    // A position without a history is accepted, as in earlier versions.
    let (status, _) = server.get(&format!("/v1/sessions/a/events?after={position}")).await;
    assert_eq!(status, StatusCode::OK);
}
