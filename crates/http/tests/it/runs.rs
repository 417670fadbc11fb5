//! Runs: created once, waited for, answered, cancelled, retried.

use axum::http::{Method, StatusCode};
use mainspring_test_support::NOW;
use serde_json::{Value, json};

use crate::world::{Server, send_request};

#[tokio::test]
async fn prefer_wait_returns_the_ended_run() {
    let server = Server::start().await;
    let body = json!({"prompt": "say hi", "session": {"key": "a"}});
    let request = server.request(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&body);
    let (status, run) = send_request(request).await;
    assert_eq!((status, &run["status"]), (StatusCode::OK, &json!("succeeded")), "{run}");
    let (_, messages) = server.get("/v1/sessions/a/messages").await;
    assert_eq!(messages["items"][1]["content"][0]["text"], "hi\n");
    let (_, page) = server.get("/v1/sessions/a/events?limit=3").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 3);
    let next = page["next"].as_str().unwrap();
    let (_, rest) = server.get(&format!("/v1/sessions/a/events?after={next}")).await;
    assert_eq!(rest["items"].as_array().unwrap().last().unwrap()["type"], "run.succeeded");
    assert!(rest.get("next").is_none(), "{rest}");
}

#[tokio::test]
async fn the_same_idempotency_key_returns_the_same_run() {
    let server = Server::start().await;
    let send = |text: &str| {
        let body = json!({"prompt": text, "session": {"key": "a"}});
        send_request(server.request(Method::POST, "/v1/runs").header("idempotency-key", "k1").json(&body))
    };
    let (first, again) = (send("say once").await.1, send("say once").await.1);
    assert_eq!(first["runId"], again["runId"]);
    assert_eq!((&first["replayed"], &again["replayed"]), (&json!(false), &json!(true)));
    let (status, problem) = send("say twice").await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("request_conflict")));
}

#[tokio::test]
async fn questions_are_answered_and_runs_cancelled() {
    let server = Server::start().await;
    let body = json!({"prompt": "ask Who?; say fine", "session": {"key": "a"}});
    let request = server.request(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&body);
    let (status, run) = send_request(request).await;
    assert_eq!((status, &run["status"]), (StatusCode::ACCEPTED, &json!("waiting_input")), "{run}");
    let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let reply = json!({"waitId": run["wait"]["waitId"], "answer": {"kind": "input", "input": "me"}});
    assert_eq!(server.post(&format!("{path}/answer"), reply.clone()).await.0, StatusCode::OK);
    assert_eq!(server.wait_ended(&run).await["status"], "succeeded");
    let (status, problem) = server.post(&format!("{path}/answer"), reply).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("already_answered")));

    let run = server.prompt("b", "say begun; hang").await;
    let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    let (status, outcome) = server.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!((status, &outcome["accepted"]), (StatusCode::OK, &json!(true)), "{outcome}");
    assert_eq!(server.wait_ended(&run).await["status"], "cancelled");
}

#[tokio::test]
async fn a_waiting_request_is_answered_when_the_run_ends_or_its_time_is_over() {
    let server = Server::start().await;
    let body = json!({"prompt": "say begun; hang", "session": {"key": "a"}});
    let request =
        server.request(Method::POST, "/v1/runs").header("prefer", "respond-async, wait=5").json(&body);
    let waits = async {
        let mut waiting = std::pin::pin!(send_request(request));
        loop {
            tokio::select! {
                biased;
                answered = &mut waiting => return answered,
                () = tokio::task::yield_now() => server.node.clock.advance(100),
            }
        }
    };
    let (status, run) = waits.await;
    assert_eq!((status, &run["status"]), (StatusCode::ACCEPTED, &json!("running")), "{run}");
    assert!(server.node.clock.now() >= NOW.plus(5_000), "the answer came only after the requested wait");
    let location = server.request(Method::POST, "/v1/runs").json(&json!({"prompt": "say hi"})).send().await;
    assert!(location.headers()["location"].to_str().unwrap().starts_with("/v1/runs/run_"));
}

#[tokio::test]
async fn a_failed_run_is_retried_and_each_attempt_is_listed() {
    let server = Server::start().await;
    let run = server.play("a", "fail no luck").await;
    let path = format!("/v1/runs/{}", run["runId"].as_str().unwrap());
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("script_failed")));
    let (status, problem) = server.post(&format!("{path}/retry"), json!({"limit": {"maxTokens": 5}})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")));
    let (status, queued) = server.post(&format!("{path}/retry"), json!({"limits": {"maxTokens": 5}})).await;
    assert_eq!(
        (&queued["retryReason"], &queued["options"]["limits"]["maxTokens"]),
        (&json!("user"), &json!(5))
    );
    assert_eq!((status, &queued["status"]), (StatusCode::ACCEPTED, &json!("queued")), "{queued}");
    // The stream goes on after the first end, to the second.
    let mut stream = server.stream("/v1/sessions/a/events", Some("0.0")).await;
    stream.next_of("run.failed").await;
    stream.next_of("run.failed").await;
    let (_, attempts) = server.get(&format!("{path}/attempts")).await;
    let numbers: Vec<_> = attempts["items"].as_array().unwrap().iter().map(|one| &one["attemptNo"]).collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(attempts["items"][1]["resumeFromAttemptId"], attempts["items"][0]["attemptId"]);
    for list in ["steps", "grants", "artifacts"] {
        assert_eq!(
            server.get(&format!("{path}/{list}")).await,
            (StatusCode::OK, json!({"items": []})),
            "{list}"
        );
    }
    server.play("a", "say done").await;
    let (status, problem) = server.post(&format!("{path}/retry"), json!({})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("not_latest_run")));
}

#[tokio::test]
async fn an_approval_is_decided_once() {
    let server = Server::start().await;
    for (decision, text) in [("allowed", "Approved.\ndone\n"), ("denied", "Denied.\ndone\n")] {
        let body = json!({"prompt": "approve Sure?; say done", "session": {"key": decision}});
        let request = server.request(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&body);
        let (_, run) = send_request(request).await;
        assert_eq!((&run["status"], &run["wait"]["question"]), (&json!("waiting_approval"), &json!("Sure?")));
        let path = format!("/v1/runs/{}/answer", run["runId"].as_str().unwrap());
        let reply = |answer: Value| json!({"waitId": run["wait"]["waitId"], "answer": answer});
        let (status, problem) = server.post(&path, reply(json!({"kind": "input", "input": 1}))).await;
        assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("wrong_answer")), "{problem}");
        let decided = reply(json!({"kind": "approval", "decision": decision}));
        assert_eq!(server.post(&path, decided.clone()).await.0, StatusCode::OK);
        server.wait_ended(&run).await;
        let (_, messages) = server.get(&format!("/v1/sessions/{decision}/messages")).await;
        let last = messages["items"].as_array().unwrap().last().unwrap();
        assert_eq!(last["content"][0]["text"], text);
        assert_eq!(server.post(&path, decided).await.1["code"], "already_answered");
    }
}

#[tokio::test]
async fn a_busy_session_queues_replaces_or_rejects_the_next_prompt() {
    let server = Server::start().await;
    let send = |policy: &str, text: &str| {
        server.post("/v1/runs", json!({"prompt": text, "session": {"key": "a"}, "policy": policy}))
    };
    let first = server.prompt("a", "say begun; hang").await;
    let (_, queued) = send("enqueue", "say never").await;
    assert_eq!((&queued["status"], &queued["policy"]), (&json!("queued"), &json!("enqueue")));
    let (status, problem) = send("reject", "say no").await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("session_busy")));
    assert!(["starting", "running"].contains(&problem["runStatus"].as_str().unwrap()), "{problem}");
    let (status, problem) = send("steer", "say no").await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::BAD_REQUEST, &json!("adapter_incompatible")),
        "{problem}"
    );
    let (_, latest) = send("interrupt", "say last").await;
    assert_eq!(server.wait_ended(&first).await["status"], "cancelled");
    assert_eq!(server.wait_ended(&latest).await["status"], "succeeded");
}
