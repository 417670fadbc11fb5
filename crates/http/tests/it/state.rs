//! State of sessions, runs and owners.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::world::{Server, send_request};

#[tokio::test]
async fn state_of_every_scope_has_the_same_operations() {
    let server = Server::start().await;
    let run = server.prompt("a", "say hi; hang").await;
    let run = run["runId"].as_str().unwrap();
    server.post("/v1/sessions", json!({"key": "b"})).await;
    for root in ["/v1/sessions/b/state", &format!("/v1/runs/{run}/state"), "/v1/state"] {
        let path = format!("{root}/theme");
        let put = |headers: &[(&str, &str)], value: Value| {
            let request = server.request(Method::PUT, &path).json(&value);
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            async move {
                let response = request.send().await;
                let tag = response.headers().get("etag").map(|tag| tag.to_str().unwrap().to_owned());
                (response.status().as_u16(), tag, response.json().await)
            }
        };
        assert_eq!(server.get(&path).await.0, StatusCode::NOT_FOUND, "{root}");
        let (status, first, entry) = put(&[("if-none-match", "*")], json!({"dark": true})).await;
        assert_eq!((status, &entry["value"]), (201, &json!({"dark": true})), "{root}");
        let first = first.unwrap();
        assert_eq!(first, format!("\"{}\"", entry["version"]), "{root}");
        let (status, _, problem) = put(&[("if-none-match", "*")], json!(1)).await;
        assert_eq!((status, &problem["code"]), (412, &json!("version_conflict")), "{root}");
        let (status, second, _) = put(&[("if-match", &first)], Value::Null).await;
        assert_eq!(status, 200, "{root}");
        assert_eq!(put(&[("if-match", &first)], json!(2)).await.0, 412, "{root}");
        assert_eq!(put(&[("if-match", "soon")], json!(2)).await.0, 400, "{root}");
        assert_eq!(put(&[("if-match", "*"), ("if-none-match", "*")], json!(2)).await.0, 400, "{root}");
        let cached = server.request(Method::GET, &path).header("if-none-match", second.unwrap());
        assert_eq!(send_request(cached).await.0, StatusCode::NOT_MODIFIED, "{root}");
        assert_eq!(server.get(&path).await.1["value"], Value::Null, "{root}");

        for key in ["b", "a"] {
            let set = server.request(Method::PUT, &format!("{root}/{key}")).json(&json!(key));
            assert_eq!(send_request(set).await.0, StatusCode::CREATED, "{root}");
        }
        let (_, page) = server.get(&format!("{root}?limit=2")).await;
        assert_eq!((&page["items"][0]["key"], &page["next"]), (&json!("a"), &json!("b")), "{root}");
        let (_, rest) = server.get(&format!("{root}?after=b")).await;
        assert_eq!((&rest["items"][0]["key"], rest.get("next")), (&json!("theme"), None), "{root}");
        let stale = server.request(Method::DELETE, &path).header("if-match", &first);
        assert_eq!(send_request(stale).await.0, StatusCode::PRECONDITION_FAILED, "{root}");
        for _ in 0..2 {
            assert_eq!(
                send_request(server.request(Method::DELETE, &path)).await.0,
                StatusCode::NO_CONTENT,
                "{root}"
            );
        }
        let bad = server.request(Method::PUT, &format!("{root}/a%2Fb")).json(&json!(1));
        assert_eq!(send_request(bad).await.0, StatusCode::BAD_REQUEST, "{root}");
        let large = server.request(Method::PUT, &path).json(&"x".repeat(70_000));
        assert_eq!(send_request(large).await.1["code"], "too_large", "{root}");
    }
    let busy = send_request(server.request(Method::PUT, "/v1/sessions/a/state/k").json(&json!(1))).await;
    assert_eq!((busy.0, &busy.1["code"]), (StatusCode::CONFLICT, &json!("session_busy")));
    let misplaced = server.get(&format!("/v1/state?at=msg_{}", "0".repeat(32))).await;
    assert_eq!(misplaced.1["code"], "invalid_request");
}

#[tokio::test]
async fn state_is_read_as_of_a_message() {
    let server = Server::start().await;
    let set = async |value: Value| {
        send_request(server.request(Method::PUT, "/v1/sessions/a/state/k").json(&value)).await.0
    };
    server.post("/v1/sessions", json!({"key": "a"})).await;
    set(json!("before")).await;
    for value in ["one", "two"] {
        let run = server.prompt("a", "say hi").await;
        server.wait_ended(&run).await;
        assert_eq!(set(json!(value)).await, StatusCode::OK);
    }
    let (_, messages) = server.get("/v1/sessions/a/messages").await;
    for (at, value) in [(0, "before"), (1, "one"), (2, "one"), (3, "two")] {
        let message = messages["items"][at]["messageId"].as_str().unwrap();
        let (_, entry) = server.get(&format!("/v1/sessions/a/state/k?at={message}")).await;
        assert_eq!(entry["value"], value, "{at}");
        let (_, page) = server.get(&format!("/v1/sessions/a/state?at={message}")).await;
        assert_eq!(page["items"][0], entry, "{at}");
    }
    let (_, events) = server.get("/v1/sessions/a/events?limit=500").await;
    let changed = events["items"].as_array().unwrap().iter().filter(|event| event["type"] == "state.changed");
    assert_eq!(
        changed.map(|event| event["payload"].clone()).collect::<Vec<_>>()[1],
        json!({"scope": "session", "key": "k", "version": 2, "by": "caller", "deleted": false, "value": "one"})
    );
}
