//! A real process that cannot write its files: the limit of file sizes (`ulimit -f`) is lowered while it runs.

use std::sync::Arc;

use reqwest::{Method, StatusCode};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::{Value, json};

use crate::http::{Server, open_stream, send_request};

/// Limits the files of a process to `bytes`, or to the limit of this process if none.
pub(crate) fn limit_files(process: Pid, bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    prlimit(Some(process), Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}

impl Server {
    fn limit_files(&self, bytes: Option<u64>) {
        limit_files(self.pid(), bytes);
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.id()).unwrap()).unwrap()
    }
}

fn is_refused(status: StatusCode, problem: &Value) -> bool {
    let codes = [json!("store_full"), json!("unavailable")];
    matches!(status.as_u16(), 503 | 507) && codes.contains(&problem["code"]) && problem["retryable"] == true
}

#[tokio::test]
async fn a_full_disk_blocks_nothing_and_everything_goes_on_afterwards() {
    let server = Server::start();
    let run = server.prompt("a", "say before; sleep 300ms; say after").await;
    let mut events = open_stream(&server, "/v1/sessions/a/events?after=0.0").await;
    while events.next().await.unwrap().event != "message.delta" {}
    server.limit_files(Some(1));
    while events.next().await.unwrap().event != "store.failed" {}

    let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let (status, problem) = server.post(&format!("{path}/cancel"), json!({})).await;
    assert!(is_refused(status, &problem), "cancel: {status} {problem}");
    let patch = server.request(Method::PATCH, "/v1/sessions/a").json(&json!({"title": "Tea"}));
    let (status, problem) = send_request(patch).await;
    assert!(is_refused(status, &problem), "patch: {status} {problem}");
    let body = json!({"prompt": "say new", "session": {"key": "b"}});
    let (status, problem) = server.post("/v1/runs", body).await;
    assert!(is_refused(status, &problem), "prompt: {status} {problem}");
    let (status, _) = server.get("/v1/sessions/a/snapshot").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(server.get("/v1/sessions/a/messages").await.0, StatusCode::OK);
    let (status, problem) = server.get("/ready").await;
    assert!(is_refused(status, &problem), "ready: {status} {problem}");

    server.limit_files(None);
    // In any order: the run may be recorded before the store is tested again.
    let (mut recovered, mut succeeded) = (false, false);
    while !(recovered && succeeded) {
        let frame = events.next().await.unwrap();
        recovered |= frame.event == "store.recovered";
        succeeded |= frame.event == "run.succeeded";
    }
    assert_eq!(server.get("/ready").await.0, StatusCode::OK);
    let (_, page) = server.get("/v1/sessions/a/messages").await;
    assert!(page.to_string().contains("before") && page.to_string().contains("after"), "{page}");
    server.wait_ended(&server.prompt("b", "say new").await).await;
}

#[tokio::test]
async fn a_process_with_a_full_disk_ends_on_a_signal() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut server = Server::start_in(dir.clone(), &[("MAINSPRING_DRAIN_MS", "200")]);
    let run = server.prompt("a", "say before; hang").await;
    let mut events = open_stream(&server, "/v1/sessions/a/events?after=0.0").await;
    while events.next().await.unwrap().event != "message.delta" {}
    server.limit_files(Some(1));
    server.post("/v1/runs", json!({"prompt": "say new", "session": {"key": "b"}})).await;
    while events.next().await.unwrap().event != "store.failed" {}
    kill_process(server.pid(), Signal::TERM).unwrap();
    assert!(server.wait().success(), "the server exits without an error");
    drop(server);
    let server = Server::start_in(dir, &[]);
    let (_, run) = server.get(&format!("/v1/runs/{}", run["runId"].as_str().unwrap())).await;
    assert_eq!(run["status"], "orphaned", "{run}");
}
