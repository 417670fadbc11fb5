//! Trees, forks, search and exported files.

use axum::http::{Method, StatusCode};
use mainspring_test_support::{TestNode, native_agent};
use serde_json::{Value, json};

use crate::world::{Server, send_request};

impl Server {
    async fn path(&self, session: &str) -> Vec<String> {
        let (_, page) = self.get(&format!("/v1/sessions/{session}/messages")).await;
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["messageId"].as_str().unwrap().to_owned())
            .collect()
    }

    async fn branch(&self, session: &str, body: Value) -> Value {
        let path = format!("/v1/sessions/{session}/runs");
        let request = self.request(Method::POST, &path).header("prefer", "wait=30").json(&body);
        send_request(request).await.1
    }
}

#[tokio::test]
async fn a_tree_is_branched_navigated_and_read() {
    let server = Server::start().await;
    server.play("a", "say one").await;
    let first = server.path("a").await;
    server.branch("a", json!({"place": {"kind": "regenerate", "messageId": first[0]}})).await;
    let second = server.path("a").await;
    assert_eq!((&second[0], second.len()), (&first[0], 2));
    let (status, family) = server.get(&format!("/v1/sessions/a/messages/{}", first[1])).await;
    assert_eq!(status, StatusCode::OK, "{family}");
    assert_eq!(family["siblings"], json!([first[1], second[1]]));
    assert_eq!(
        (&family["parentId"], &family["active"], &family["depth"]),
        (&json!(first[0]), &json!(false), &json!(1))
    );
    let (_, root) = server.get(&format!("/v1/sessions/a/messages/{}", first[0])).await;
    assert_eq!((&root["cursor"], &root["children"]), (&json!(second[1]), &family["siblings"]));

    // The tree's pages list parents before children.
    let mut nodes: Vec<Value> = vec![];
    let mut next = String::new();
    loop {
        let (_, page) = server.get(&format!("/v1/sessions/a/tree?limit=2{next}")).await;
        nodes.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(after) => next = format!("&after={after}"),
            None => break,
        }
    }
    assert_eq!(nodes.len(), 3);
    assert_eq!((&nodes[0]["cursor"], &nodes[2]["active"]), (&json!(second[1]), &json!(true)));

    let (_, session) = server.get("/v1/sessions/a").await;
    let navigate = |to: Value, tag: Value| {
        let request = server.request(Method::POST, "/v1/sessions/a/navigate").json(&json!({"messageId": to}));
        send_request(request.header("if-match", format!("\"{tag}\"")))
    };
    let (status, moved) = navigate(json!(first[1]), session["version"].clone()).await;
    assert_eq!((status, &moved["tipMessageId"]), (StatusCode::OK, &json!(first[1])), "{moved}");
    let (status, stale) = navigate(Value::Null, session["version"].clone()).await;
    assert_eq!((status, &stale["code"]), (StatusCode::PRECONDITION_FAILED, &json!("version_conflict")));
    let (status, cleared) = navigate(Value::Null, moved["version"].clone()).await;
    assert_eq!((status, cleared.get("tipMessageId")), (StatusCode::OK, None), "{cleared}");
    assert!(server.path("a").await.is_empty());
    let hangs = server.prompt("a", "hang").await;
    let (status, busy) = server.post("/v1/sessions/a/navigate", json!({"messageId": first[1]})).await;
    assert_eq!((status, &busy["code"]), (StatusCode::CONFLICT, &json!("session_busy")), "{hangs}");
}

#[tokio::test]
async fn a_fork_is_idempotent_and_survives_the_deletion_of_its_source() {
    let server = Server::start().await;
    server.play("a", "say one").await;
    let path = server.path("a").await;
    let fork = |title: &str| {
        let body = json!({"messageId": path[1], "key": "f", "title": title});
        send_request(
            server.request(Method::POST, "/v1/sessions/a/fork").header("idempotency-key", "k1").json(&body),
        )
    };
    let (status, made) = fork("mine").await;
    assert_eq!((status, &made["forkedFrom"]["messageId"]), (StatusCode::CREATED, &json!(path[1])), "{made}");
    let (status, again) = fork("mine").await;
    assert_eq!((status, &again["sessionId"]), (StatusCode::OK, &made["sessionId"]));
    assert_eq!(fork("theirs").await.1["code"], "request_conflict");
    server.play("f", "say two").await;
    assert_eq!((server.path("f").await.len(), server.path("a").await.len()), (4, 2));
    let (status, kept) = send_request(server.request(Method::DELETE, "/v1/sessions/a")).await;
    assert_eq!((status, &kept["keptForForks"]), (StatusCode::OK, &json!([made["sessionId"]])));
    assert_eq!(server.path("f").await[..2], path[..]);
    let (status, _) = send_request(server.request(Method::DELETE, "/v1/sessions/f")).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_session_can_be_exported_and_imported() {
    let (here, there) = (Server::start().await, Server::start().await);
    here.play("a", "say hello world").await;
    here.branch("a", json!({"prompt": "say other", "place": {"kind": "root"}})).await;
    let response = here.request(Method::GET, "/v1/sessions/a/export").send().await;
    assert_eq!(response.headers()["content-type"], "application/jsonl");
    let file = response.text().await;
    let import = |server: &Server, kind: &str, file: &str| {
        send_request(
            server.request(Method::POST, "/v1/import").header("content-type", kind).body(file.to_owned()),
        )
    };
    let (status, problem) = import(&there, "application/json", &file).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, &json!("unsupported_media_type"))
    );
    let cut: String = file.lines().take(4).map(|line| line.to_owned() + "\n").collect();
    let (status, problem) = import(&there, "application/jsonl", &cut).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_import")));
    assert!(problem["detail"].as_str().unwrap().starts_with("line 5:"), "{problem}");
    // The rows of a failed import are removed in the background; until then their session id is taken.
    let (status, session) = loop {
        let (status, session) = import(&there, "application/x-ndjson", &file).await;
        if session["code"] != "already_exists" {
            break (status, session);
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(status, StatusCode::CREATED, "{session}");
    let again = there.request(Method::GET, "/v1/sessions/a/export").send().await.text().await;
    assert_eq!(again, file);
    assert_eq!(import(&there, "application/jsonl", &file).await.1["code"], "already_exists");

    let (status, found) = there.get("/v1/search?q=HELLO%20wor").await;
    let hits = found["items"].as_array().unwrap();
    assert_eq!((status, hits.len()), (StatusCode::OK, 3), "{found}");
    assert_eq!((&hits[0]["sessionId"], &hits[1]["snippet"]), (&session["sessionId"], &json!("hello world")));
    assert!(hits[1]["messageId"].is_string() && hits[0].get("messageId").is_none(), "the title comes first");
    for strange in ["%22", "*", "a%20AND%20(", "%00", "%F0%9F%92%A9"] {
        let (status, _) = there.get(&format!("/v1/search?q={strange}")).await;
        assert!(status == StatusCode::OK || status == StatusCode::BAD_REQUEST, "{strange}: {status}");
    }
}

#[tokio::test]
async fn sessions_are_started_pinned_and_renamed() {
    let server = Server::with(TestNode::builder().adapter(native_agent())).await;
    let start = async |body: Value| server.post("/v1/sessions", body).await;
    let (status, made) =
        start(json!({"new": "a", "adapter": "agent", "model": "m1", "systemPrompt": "be kind"})).await;
    assert_eq!((status, &made["options"]["model"]), (StatusCode::CREATED, &json!("m1")), "{made}");
    let (status, loaded) = start(json!({"load": "a", "model": "m2", "systemPrompt": "be brief"})).await;
    assert_eq!(
        (status, &loaded["options"]),
        (StatusCode::OK, &json!({"model": "m1", "systemPrompt": "be brief"}))
    );
    for (body, status, code) in [
        (json!({"new": "a"}), 409, "already_exists"),
        (json!({"new": "b", "load": "a"}), 400, "ambiguous_mode"),
        (json!({"new": true, "messages": []}), 400, "initial_messages_not_supported"),
        (json!({"new": true, "modelRequired": true}), 400, "no_model"),
        (json!({"load": "nobody"}), 404, "not_found"),
        (json!({"new": true, "key": "b"}), 400, "invalid_request"),
    ] {
        let (came, problem) = start(body.clone()).await;
        assert_eq!((came.as_u16(), &problem["code"]), (status, &json!(code)), "{body}");
    }
    let prompt = json!({"prompt": "say hi", "session": {"new": "c"}});
    assert_eq!(server.post("/v1/runs", prompt).await.0, StatusCode::BAD_REQUEST);
    let patch =
        send_request(server.request(Method::PATCH, "/v1/sessions/a").json(&json!({"pinned": true}))).await;
    assert_eq!(patch.1["pinned"], true);
    server.play("b", "say a first prompt that is rather longer than fifty characters are").await;
    let listed = async |query: &str| server.get(&format!("/v1/sessions?{query}")).await.1["items"].clone();
    let pinned = listed("pinned=true").await;
    assert_eq!((pinned.as_array().unwrap().len(), &pinned[0]["key"]), (1, &json!("a")));
    let others = listed("pinned=false").await;
    assert_eq!(others[0]["title"], "say a first prompt that is rather longer than…");
    assert_eq!(others[0]["titleSource"], "heuristic");
}
