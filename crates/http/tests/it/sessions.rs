//! Sessions: found, created, changed.

use axum::http::{Method, StatusCode};
use mainspring_test_support::{TestNode, native_agent};
use serde_json::{Value, json};

use crate::world::{Server, send_request};

#[tokio::test]
async fn two_writers_do_not_overwrite_each_other() {
    let server = Server::start().await;
    let (status, session) = server.post("/v1/sessions", json!({"key": "a", "title": "first"})).await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, same) = server.post("/v1/sessions", json!({"key": "a"})).await;
    assert_eq!((status, &same["sessionId"]), (StatusCode::OK, &session["sessionId"]));
    let tag = server.request(Method::GET, "/v1/sessions/a").send().await.headers()["etag"].clone();
    let patch = |title: &str| {
        let body = json!({"title": title});
        send_request(
            server.request(Method::PATCH, "/v1/sessions/a").header("if-match", tag.clone()).json(&body),
        )
    };
    assert_eq!(patch("mine").await.0, StatusCode::OK);
    let (status, problem) = patch("theirs").await;
    assert_eq!((status, &problem["code"]), (StatusCode::PRECONDITION_FAILED, &json!("version_conflict")));
    assert_eq!(server.get("/v1/sessions/a").await.1["title"], "mine");
}

#[tokio::test]
async fn a_closed_session_refuses_prompts_until_it_is_open() {
    let server = Server::start().await;
    server.post("/v1/sessions", json!({"key": "a"})).await;
    let set = |status: &str| {
        send_request(server.request(Method::PATCH, "/v1/sessions/a").json(&json!({"status": status})))
    };
    let prompt = || server.post("/v1/runs", json!({"prompt": "say hi", "session": {"key": "a"}}));
    assert_eq!(set("closed").await.1["status"], "closed");
    let (status, problem) = prompt().await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("session_closed")));
    assert!(problem["detail"].as_str().unwrap().contains("reopen it"), "{problem}");
    assert_eq!(server.get("/v1/sessions?status=closed").await.1["items"].as_array().unwrap().len(), 1);
    assert_eq!(set("open").await.1["status"], "open");
    assert_eq!(prompt().await.0, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn every_session_field_can_be_set_and_cleared() {
    let server = Server::with(TestNode::builder().adapter(native_agent())).await;
    let settings = json!({
        "model": "m1", "systemPrompt": "be kind", "modelOptions": {"seed": 7}, "cwd": "/home", "metadata": {"a": 1},
    });
    let mut body = settings.clone();
    body["key"] = json!("a");
    let (status, problem) = server.post("/v1/sessions", body.clone()).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::BAD_REQUEST, &json!("option_not_used")),
        "the adapter `script` has no such options"
    );
    body["adapter"] = json!("agent");
    let (_, session) = server.post("/v1/sessions", body).await;
    for (name, value) in settings.as_object().unwrap() {
        assert_eq!(&session[name], value, "{name}");
    }
    let run = server.wait_ended(&server.prompt("a", "say hi").await).await;
    assert_eq!(
        run["options"],
        json!({
            "model": "m1", "systemPrompt": "be kind", "modelOptions": {"seed": 7}, "cwd": "/home",
            "agentDefinition": "mainspring.generalist@1",
        })
    );
    let patch = |body: Value| send_request(server.request(Method::PATCH, "/v1/sessions/a").json(&body));
    let bad = patch(json!({"title": "never", "modelOptions": 1})).await;
    let title = server.get("/v1/sessions/a").await.1["title"].clone();
    assert_eq!((bad.0, title), (StatusCode::BAD_REQUEST, json!("say hi")));
    let clear = json!({"model": null, "systemPrompt": null, "modelOptions": null, "cwd": null, "metadata": null, "modelProfile": "fast"});
    let (status, session) = patch(clear).await;
    assert_eq!(
        (status, &session["metadata"], &session["modelProfile"]),
        (StatusCode::OK, &json!({}), &json!("fast"))
    );
    for name in ["model", "systemPrompt", "modelOptions", "cwd"] {
        assert!(session.get(name).is_none(), "{name}: {session}");
    }
}

#[tokio::test]
async fn a_refused_agent_change_names_the_json_field() {
    let server = Server::with(TestNode::builder().adapter(native_agent())).await;
    server.post("/v1/sessions", json!({"key": "a", "adapter": "agent"})).await;
    let set = |body: Value| send_request(server.request(Method::PATCH, "/v1/sessions/a/agent").json(&body));
    let call = json!({"type": "tool_use", "id": "t1", "name": "add", "input": {}});
    let open_call = json!([{"role": "assistant", "content": [call]}]);
    for (body, part) in [
        (json!({"modle": "m"}), "did you mean `model`?"),
        (json!({"messages": open_call}), "`messages`: messages[0]: these tool calls have no result"),
        (json!({"messages": [{"role": "user", "contents": []}]}), "`contents`"),
        (json!({"agentDefinition": "nobody"}), "`agentDefinition`: no agent definition \"nobody\""),
    ] {
        let (status, problem) = set(body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(part), "{problem}");
    }
    let (status, session) = set(json!({"model": "m1", "systemPrompt": "Be brief."})).await;
    assert_eq!((status, &session["model"]), (StatusCode::OK, &json!("m1")));
    let (_, cleared) = set(json!({"model": null})).await;
    assert_eq!((cleared.get("model"), &cleared["systemPrompt"]), (None, &json!("Be brief.")));
    let view = server.get("/v1/sessions/a").await.1;
    assert_eq!((&view["liveStatus"], view.get("currentStep")), (&json!("idle"), None));
    let listed = server.get("/v1/sessions?open=true").await.1;
    assert_eq!(listed["items"][0]["liveStatus"], "idle");
}

#[tokio::test]
async fn the_other_filters_apply_to_a_session_found_by_its_name() {
    let server = Server::start().await;
    server.play("idle", "say hi").await;
    server.prompt("works", "ask Which?").await;
    let ben = json!({"name": "k", "ownerId": "ben", "orgId": "acme"});
    let cat = json!({"name": "k", "ownerId": "cat", "orgId": "acme"});
    let key = async |new: Value| server.post("/v1/keys", new).await.1["secret"].as_str().unwrap().to_owned();
    let (ben, cat) = (key(ben).await, key(cat).await);
    let shared = server.anonymous(Method::POST, "/v1/sessions").bearer_auth(&ben);
    let (_, shared) = send_request(shared.json(&json!({"key": "shared", "visibility": "org"}))).await;
    let shared = shared["sessionId"].as_str().unwrap();
    let found = async |secret: Option<&str>, query: &str| {
        let path = format!("/v1/sessions?{query}");
        let request = match secret {
            Some(secret) => server.anonymous(Method::GET, &path).bearer_auth(secret),
            None => server.request(Method::GET, &path),
        };
        let (status, page) = send_request(request).await;
        assert_eq!(status, StatusCode::OK, "{query}: {page}");
        page["items"].as_array().unwrap().len()
    };
    for (query, count) in [
        ("session=idle", 1),
        ("session=idle&live=false", 1),
        ("session=idle&live=true", 0),
        ("session=works&live=true", 1),
        ("session=works&open=true", 1),
        ("session=works&scope=own", 1),
        ("session=works&status=closed", 0),
    ] {
        assert_eq!(found(None, query).await, count, "{query}");
    }
    for (secret, scope, count) in [
        (&cat, "", 1),
        (&cat, "&scope=all", 1),
        (&cat, "&scope=org", 1),
        (&cat, "&scope=own", 0),
        (&cat, "&open=true", 0),
        (&ben, "&scope=own", 1),
        (&ben, "&open=true", 1),
    ] {
        assert_eq!(found(Some(secret), &format!("session={shared}{scope}")).await, count, "{scope}");
    }
}
