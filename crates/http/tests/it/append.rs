//! Messages that another program appends.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::world::Server;

fn turn(id: &str, beneath: &str) -> Value {
    json!({
        "id": id,
        "beneath": beneath,
        "agent": "adder",
        "messages": [
            {"role": "assistant", "id": "r1", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "toolUseId": "c1", "name": "add", "content": [{"type": "text", "text": "2"}]},
            ]},
            {"role": "assistant", "agent": "writer", "content": "it is 2", "createdAtMs": 5},
        ],
        "usage": {"inputTokens": 3, "costUsd": 0.5},
    })
}

#[tokio::test]
async fn a_program_keeps_its_conversation_in_a_session() {
    let server = Server::start().await;
    // Creating the conversation again opens the same session.
    for opening in ["created", "existing"] {
        let (_, session) = server.post("/v1/sessions", json!({"key": "a"})).await;
        assert_eq!(session["opening"], opening, "{session}");
    }
    let said = json!({"id": "m1", "content": "what is 1 + 1?"});
    let (status, message) = server.post("/v1/sessions/a/messages", said.clone()).await;
    assert_eq!((status, &message["externalId"]), (StatusCode::CREATED, &json!("m1")), "{message}");
    assert_eq!(server.post("/v1/sessions/a/messages", said).await, (StatusCode::OK, message.clone()));
    let (status, appended) = server.post("/v1/sessions/a/results", turn("t1", "m1")).await;
    assert_eq!(status, StatusCode::CREATED, "{appended}");
    assert_eq!(
        server.post("/v1/sessions/a/results", turn("t1", "m1")).await,
        (StatusCode::OK, appended.clone())
    );
    let (_, path) = server.get("/v1/sessions/a/messages").await;
    let mut expected = vec![message];
    expected.extend(appended["messages"].as_array().unwrap().iter().cloned());
    assert_eq!(path["items"], json!(expected));
    assert_eq!((&expected[1]["agent"], &expected[3]["agent"]), (&json!("adder"), &json!("writer")));
    assert_eq!(expected[3]["usage"]["inputTokens"], 3);
    assert_eq!(expected[3]["createdAtMs"], 5);
}

#[tokio::test]
async fn an_append_is_refused_with_its_reason() {
    let server = Server::start().await;
    server.post("/v1/sessions", json!({"key": "a"})).await;
    server.post("/v1/sessions/a/messages", json!({"id": "m1", "content": "one"})).await;
    for (path, body, status, code) in [
        ("messages", json!({"id": "m1", "content": "two"}), 409, "request_conflict"),
        ("messages", json!({"id": "", "content": "two"}), 400, "invalid_request"),
        ("messages", json!({"content": "two"}), 400, "invalid_request"),
        ("results", turn("t1", "m0"), 409, "not_at_tip"),
        ("results", json!({"id": "t1", "messages": []}), 400, "invalid_request"),
        (
            "results",
            json!({"id": "t1", "messages": [{"role": "user", "content": "hi"}]}),
            400,
            "invalid_request",
        ),
        ("results", json!({"id": "t1", "messages": [], "usage": {"tokens": 1}}), 400, "invalid_request"),
    ] {
        let (found, problem) = server.post(&format!("/v1/sessions/a/{path}"), body.clone()).await;
        assert_eq!((found.as_u16(), &problem["code"]), (status, &json!(code)), "{body}: {problem}");
    }
    let run = server.prompt("a", "hang").await;
    for (path, body) in [("messages", json!({"id": "m2", "content": "two"})), ("results", turn("t1", "m1"))] {
        let (found, problem) = server.post(&format!("/v1/sessions/a/{path}"), body).await;
        assert_eq!((found, &problem["code"]), (StatusCode::CONFLICT, &json!("session_busy")));
    }
    server.post(&format!("/v1/runs/{}/cancel", run["runId"].as_str().unwrap()), json!({})).await;
}
