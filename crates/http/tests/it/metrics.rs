//! Prometheus metrics.

use std::collections::BTreeMap;

use axum::http::{Method, StatusCode};
use mainspring_test_support::TestNode;
use serde_json::json;

use crate::world::Server;

/// Parses every sample of `page`, by name and labels.
fn samples(page: &str) -> BTreeMap<&str, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect()
}

#[tokio::test]
async fn metrics_count_the_work() {
    let one_worker = TestNode::builder().options(|options| {
        options.max_workers = 1;
        options.limits.queue_total = 1;
    });
    let server = Server::with(one_worker.system_clock()).await;
    for (key, script) in [("a", "say hello there"), ("b", "fail no luck")] {
        let run = server.prompt(key, script).await;
        server.wait_ended(&run).await;
    }
    let held = server.prompt("c", "hang").await;
    server.prompt("d", "say hi").await;
    let (status, _) = server.post("/v1/runs", json!({"prompt": "say hi", "session": {"key": "e"}})).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    server.get("/v1/sessions/nobody").await;
    server.get("/v1/nothing").await;

    let response = server.request(Method::GET, "/metrics").send().await;
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let page = response.text().await;
    assert!(page.ends_with("# EOF\n"));
    let samples = samples(&page);
    let value = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("no {name} in\n{page}"));
    for (name, expected) in [
        ("mainspring_build_info{version=\"0.1.0\"}", 1.0),
        ("mainspring_runs{state=\"active\"}", 1.0),
        ("mainspring_runs{state=\"queued\"}", 1.0),
        ("mainspring_runs{state=\"blocked\"}", 0.0),
        ("mainspring_runs_accepted_total", 4.0),
        ("mainspring_queue_refusals_total", 1.0),
        ("mainspring_runs_ended_total{adapter=\"script\",status=\"succeeded\"}", 1.0),
        ("mainspring_runs_ended_total{adapter=\"script\",status=\"failed\"}", 1.0),
        ("mainspring_commit_failures_total", 0.0),
        ("mainspring_late_calls_total", 0.0),
        ("mainspring_http_streams", 0.0),
        ("mainspring_http_requests_total{operation=\"run_create\",status=\"202\"}", 4.0),
        ("mainspring_http_requests_total{operation=\"run_create\",status=\"429\"}", 1.0),
        ("mainspring_http_requests_total{operation=\"session_get\",status=\"404\"}", 1.0),
        ("mainspring_http_requests_total{operation=\"none\",status=\"404\"}", 1.0),
        ("mainspring_http_request_seconds_count{operation=\"run_create\"}", 5.0),
    ] {
        assert_eq!(value(name), expected, "{name} in\n{page}");
    }
    let commits = value("mainspring_commits_total");
    assert_eq!(value("mainspring_commit_seconds_bucket{le=\"+Inf\"}"), commits);
    assert!(commits >= 6.0 && value("mainspring_events_total") > commits);
    assert!(value("mainspring_commit_seconds_sum") > 0.0);
    assert!(value("mainspring_sessions_in_memory") >= 2.0);
    // Streamed text is counted when it is written, every 100 ms, so the count may lag behind.
    let streamed = async {
        loop {
            let page = server.get("/metrics").await.1;
            let samples = self::samples(page.as_str().unwrap());
            if samples["mainspring_streamed_bytes_total"] == 12.0 && samples["mainspring_deltas_total"] >= 2.0
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), streamed).await.unwrap();
    server.post(&format!("/v1/runs/{}/cancel", held["runId"].as_str().unwrap()), json!({})).await;
}
