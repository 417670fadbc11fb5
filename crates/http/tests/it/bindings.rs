//! Bindings: native sessions adopted, resumed, listed and invalidated.

use axum::http::StatusCode;
use mainspring_test_support::{TestNode, native_agent};
use serde_json::{Value, json};

use crate::world::Server;

impl Server {
    /// Sends a prompt to the agent and returns the native session that answered.
    async fn native(&self, key: &str) -> String {
        let body = json!({"prompt": "go", "adapter": "agent", "session": {"key": key}});
        let (_, run) = self.post("/v1/runs", body).await;
        assert_eq!(self.wait_ended(&run).await["status"], "succeeded");
        let (_, messages) = self.get(&format!("/v1/sessions/{key}/messages")).await;
        let last = messages["items"].as_array().unwrap().last().unwrap();
        last["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_native_session_is_adopted_resumed_and_invalidated() {
    let server = Server::with(TestNode::builder().adapter(native_agent())).await;
    server.post("/v1/sessions", json!({"key": "a"})).await;
    let adopt = |adapter: &str, native: &str| {
        let body = json!({"adapter": adapter, "adapterNativeSessionId": native});
        server.post("/v1/sessions/a/bindings", body)
    };
    let (status, bound) = adopt("agent", "native-old").await;
    assert_eq!((status, &bound["generation"]), (StatusCode::CREATED, &json!(1)), "{bound}");
    for (adapter, native, status, code) in [
        ("agent", "another", StatusCode::CONFLICT, "already_exists"),
        ("script", "x", StatusCode::BAD_REQUEST, "adapter_incompatible"),
        ("nobody", "x", StatusCode::BAD_REQUEST, "adapter_not_registered"),
        ("agent", "", StatusCode::BAD_REQUEST, "invalid_request"),
    ] {
        let (came, problem) = adopt(adapter, native).await;
        assert_eq!((came, &problem["code"]), (status, &json!(code)), "{adapter} {native:?}: {problem}");
    }
    assert_eq!(server.native("a").await, "native-old");
    let (status, gone) = server.delete("/v1/sessions/a/bindings/agent").await;
    assert_eq!((status, &gone["bindingId"]), (StatusCode::OK, &bound["bindingId"]));
    assert_ne!(gone["status"], "active");
    assert_eq!(gone["invalidationReason"], "it was declared invalid");
    assert!(gone["invalidatedAtMs"].is_i64() && gone["lastUsedAtMs"].is_i64(), "{gone}");
    assert_eq!(server.native("a").await, "native-new");
    let (_, page) = server.get("/v1/sessions/a/bindings?limit=1").await;
    assert_eq!(page["items"][0]["generation"], 2);
    let next = page["next"].as_str().unwrap();
    let (_, rest) = server.get(&format!("/v1/sessions/a/bindings?after={next}")).await;
    assert_eq!((&rest["items"][0]["generation"], rest.get("next")), (&json!(1), None));
}

#[tokio::test]
async fn a_session_and_its_native_session_are_adopted_together_once() {
    let server = Server::with(TestNode::builder().adapter(native_agent())).await;
    let adopt = |native: &str| {
        let session = json!({"externalRef": {"kind": "task", "id": "7"}, "key": "task"});
        let body = json!({"session": session, "adapter": "agent", "adapterNativeSessionId": native});
        server.post("/v1/adopt", body)
    };
    let (_, first) = adopt("native-old").await;
    let (_, again) = adopt("native-other").await;
    assert_eq!((&first["adopted"], &again["adopted"]), (&json!(true), &json!(false)));
    assert_eq!(
        (&again["session"]["sessionId"], &again["binding"]),
        (&first["session"]["sessionId"], &first["binding"])
    );
    assert_eq!(server.native("task").await, "native-old");
    let unknown: Value = server.get("/v1/sessions/nobody/bindings").await.1;
    assert_eq!(unknown["code"], "not_found");
}
