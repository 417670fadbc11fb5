//! The command `on_attention`: it is run when a person is needed, and when no person is needed any more.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;

use crate::http::Server;

#[tokio::test]
async fn the_command_is_run_for_a_question_its_end_and_a_failure() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (pipe, script) = (dir.path().join("pipe"), dir.path().join("hook"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let text =
        format!("#!/bin/sh\nprintf '%s|%s\\n' \"$MAINSPRING_ATTENTION_KIND\" \"$*\" > {}\n", pipe.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
    let command = format!("{} now", script.display());
    let server = Server::start_in(dir, &[("MAINSPRING_ON_ATTENTION", command.as_str())]);
    // Open for writing too, so that the pipe does not end with its first writer.
    let pipe = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let mut lines = BufReader::new(pipe).lines().map(Result::unwrap);
    let prompt = |text: &str| json!({"prompt": text, "session": {"key": "a", "title": "Tea"}});
    let (_, run) = server.post("/v1/runs", prompt("ask Milk?; fail no milk")).await;
    assert_eq!(lines.next().unwrap(), "waiting|now Tea Milk?");
    let (_, run) = server.get(&format!("/v1/runs/{}", run["runId"].as_str().unwrap())).await;
    let answer = json!({"waitId": run["wait"]["waitId"], "answer": {"kind": "input", "input": "no"}});
    server.post(&format!("/v1/runs/{}/answer", run["runId"].as_str().unwrap()), answer).await;
    assert_eq!(lines.next().unwrap(), "resolved|now Tea The question is not open any more.");
    assert_eq!(lines.next().unwrap(), "failed|now Tea no milk");
}
