//! Delegations: work that a run hands to a child session.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::world::{Server, send_request};

#[tokio::test]
async fn delegated_work_is_made_once_and_returns_its_result() {
    let server = Server::start().await;
    let parent = server.prompt("parent", "say here; hang").await;
    let path = format!("/v1/runs/{}/delegations", parent["runId"].as_str().unwrap());
    let delegate = |body: Value| {
        let request = server.request(Method::POST, &path).header("idempotency-key", "k");
        send_request(request.header("prefer", "wait=30").json(&body))
    };
    let work = json!({"mode": "spawn", "objective": "say found it", "maxDepth": 2});
    let (status, made) = delegate(work.clone()).await;
    assert_eq!((status, &made["run"]["status"]), (StatusCode::OK, &json!("succeeded")), "{made}");
    let (_, again) = delegate(work).await;
    assert_eq!((&again["replayed"], &again["run"]["runId"]), (&json!(true), &made["run"]["runId"]));
    let (status, problem) = delegate(json!({"mode": "spawn", "objective": "say other"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("request_conflict")));

    let mut stream = server.stream("/v1/sessions/parent/events", Some("0.0")).await;
    stream.next_of("delegation.completed").await;
    let id = made["delegation"]["delegationId"].as_str().unwrap();
    let (_, view) = server.get(&format!("/v1/delegations/{id}")).await;
    assert_eq!((&view["status"], &view["outcome"]["summary"]), (&json!("succeeded"), &json!("found it\n")));
    let asked = json!({"mode": "spawn", "objective": "say found it", "context": null, "runMode": "ask", "maxDepth": 2});
    assert_eq!(view["request"], asked);
    let (_, of_parent) = server.get(&path).await;
    assert_eq!((&of_parent["children"][0]["delegationId"], of_parent.get("parent")), (&json!(id), None));
    let child = made["run"]["runId"].as_str().unwrap();
    let (_, of_child) = server.get(&format!("/v1/runs/{child}/delegations")).await;
    assert_eq!((&of_child["parent"]["delegationId"], &of_child["children"]), (&json!(id), &json!([])));
    for bad in [
        json!({"mode": "spawn"}),
        json!({"mode": "order", "objective": "x"}),
        json!({"mode": "spawn", "objective": ""}),
    ] {
        let (status, problem) = server.post(&path, bad.clone()).await;
        assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")), "{bad}");
    }
}

#[tokio::test]
async fn a_delegation_keeps_its_result_when_the_events_of_its_child_are_pruned() {
    let server = Server::start().await;
    let parent = server.prompt("parent", "say here; hang").await;
    let path = format!("/v1/runs/{}/delegations", parent["runId"].as_str().unwrap());
    let work = json!({"mode": "spawn", "objective": "tool add {\"a\":1,\"b\":2}; say found it"});
    let (_, made) = server.post(&path, work).await;
    let mut stream = server.stream("/v1/sessions/parent/events", Some("0.0")).await;
    stream.next_of("delegation.completed").await;
    let view = format!("/v1/delegations/{}", made["delegation"]["delegationId"].as_str().unwrap());
    let (_, before) = server.get(&view).await;
    assert_eq!(before["outcome"]["verifiedEffects"].as_array().map(Vec::len), Some(1), "{before}");
    assert_eq!(before["outcome"].get("eventsPruned"), None);

    let child = format!("/v1/sessions/{}", before["childSessionId"].as_str().unwrap());
    let (_, page) = server.get(&format!("{child}/events?limit=500")).await;
    let last = page["items"].as_array().unwrap().last().unwrap();
    let until = json!({"before": format!("{}.{}", last["cursor"], last["pos"])});
    let (status, problem) = server.post(&format!("{child}/compact"), until).await;
    assert_eq!(status, StatusCode::OK, "{problem}");
    let (status, after) = server.get(&view).await;
    assert_eq!(status, StatusCode::OK, "{after}");
    let mut expected = before;
    expected["outcome"]["verifiedEffects"] = json!([]);
    expected["outcome"]["eventsPruned"] = json!(true);
    assert_eq!(after, expected);
}
