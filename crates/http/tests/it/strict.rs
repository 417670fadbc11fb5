//! No input is ignored silently: unknown keys, query parameters and bodies, and options that the adapter does not use.

use axum::http::{Method, StatusCode};
use mainspring_kernel::adapter::{Capabilities, End};
use mainspring_test_support::{FnAgent, TestNode};
use serde_json::{Map, Value, json};

use crate::world::{Server, send_request};

/// A key that no request has.
const SURPLUS: &str = "surplus";

/// Returns a body with a surplus key in each object that `schema` describes.
fn surplus_bodies(document: &Value, schema: &Value, depth: usize) -> Vec<Value> {
    // Blocks contain blocks.
    if depth > 12 {
        return vec![];
    }
    let nested = |schema: &Value| surplus_bodies(document, schema, depth + 1);
    if let Some(reference) = schema["$ref"].as_str() {
        return nested(document.pointer(&reference[1..]).unwrap());
    }
    let mut found = vec![];
    for all in ["oneOf", "anyOf", "allOf"] {
        found.extend(schema[all].as_array().into_iter().flatten().flat_map(nested));
    }
    found.extend(nested_items(schema, nested));
    let Some(properties) = schema["properties"].as_object() else { return found };
    assert_eq!(schema["additionalProperties"], false, "{schema}");
    // Fields with a single value, such as `kind`, select the schema.
    let tags =
        properties.iter().filter_map(|(name, property)| match property["enum"].as_array()?.as_slice() {
            [only] => Some((name.clone(), only.clone())),
            _ => None,
        });
    let tags: Map<String, Value> = tags.collect();
    let with = |name: &str, value: Value| {
        let mut body = tags.clone();
        body.insert(name.to_owned(), value);
        Value::Object(body)
    };
    found.push(with(SURPLUS, json!(1)));
    for (name, property) in properties {
        found.extend(nested(property).into_iter().map(|value| with(name, value)));
    }
    found
}

fn nested_items(schema: &Value, nested: impl Fn(&Value) -> Vec<Value>) -> Vec<Value> {
    match schema.get("items") {
        Some(items) => nested(items).into_iter().map(|item| json!([item])).collect(),
        None => vec![],
    }
}

/// Operations of the document: method, path with ids filled in, and description.
async fn operations(server: &Server) -> (Value, Vec<(Method, String, Value)>) {
    let document = server.get("/openapi.json").await.1;
    let mut found = vec![];
    for (path, methods) in document["paths"].as_object().unwrap() {
        let id = |kind: &str| format!("{kind}_00000000000040008000000000000000");
        let path = path.replace("{session}", "a").replace("{run}", &id("run")).replace("{key}", &id("key"));
        let path = path.replace("{message}", &id("msg")).replace("{artifact}", &id("art"));
        let path = path.replace("{agent}", "a").replace("{adapter}", "script");
        let path = path.replace("{delegation}", &id("del"));
        for (method, operation) in methods.as_object().unwrap() {
            // The status endpoints decide nothing by their input.
            if path.starts_with("/v1/") {
                found.push((method.to_uppercase().parse().unwrap(), path.clone(), operation.clone()));
            }
        }
    }
    (document, found)
}

#[tokio::test]
async fn every_request_body_refuses_unknown_keys_at_every_depth() {
    let server = Server::start().await;
    let (document, operations) = operations(&server).await;
    let (mut bodies, mut sent) = (0, vec![]);
    for (method, path, operation) in operations {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        bodies += usize::from(schema.is_object());
        for body in surplus_bodies(&document, schema, 0) {
            let (status, problem) = send_request(server.request(method.clone(), &path).json(&body)).await;
            assert_eq!(
                (status, &problem["code"]),
                (StatusCode::BAD_REQUEST, &json!("invalid_request")),
                "{method} {path} {body}: {problem}"
            );
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("unknown key `surplus`"), "{method} {path} {body}: {detail}");
            sent.push(body);
        }
    }
    assert!(bodies >= 15, "{bodies}");
    for nested in [
        json!({"options": {"limits": {SURPLUS: 1}}}),
        json!({"options": {"tools": [{SURPLUS: 1}]}}),
        json!({"prompt": [{"type": "text", SURPLUS: 1}]}),
        json!({"place": {"kind": "tip", SURPLUS: 1}}),
        json!({"answer": {"kind": "tools", "results": [{SURPLUS: 1}]}}),
        json!({"session": {"externalRef": {SURPLUS: 1}}}),
        json!({"limits": {SURPLUS: 1}}),
    ] {
        assert!(sent.contains(&nested), "{nested} was not sent");
    }
    assert_eq!(server.get("/v1/sessions").await.1["items"], json!([]), "nothing was created");
}

#[tokio::test]
async fn every_operation_refuses_unknown_query_parameters_and_surplus_bodies() {
    let server = Server::start().await;
    for (method, path, operation) in operations(&server).await.1 {
        let (status, problem) =
            send_request(server.request(method.clone(), &format!("{path}?surplus=1"))).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{method} {path}: {problem}");
        assert!(detail.contains("unknown query parameter `surplus`"), "{method} {path}: {detail}");
        if operation.get("requestBody").is_none() {
            let (status, problem) =
                send_request(server.request(method.clone(), &path).json(&json!({"a": 1}))).await;
            assert_eq!(
                (status, &problem["detail"]),
                (StatusCode::BAD_REQUEST, &json!("this operation reads no body: send none")),
                "{method} {path}"
            );
        }
    }
    let near = server.get("/v1/sessions?limt=1").await.1;
    assert_eq!(near["detail"], "unknown query parameter `limt`: did you mean `limit`?");
    // An empty object is accepted where no body is taken.
    server.play("a", "say hi").await;
    assert_eq!(server.post("/v1/sessions/a/close", json!({})).await.0, StatusCode::OK);
}

#[tokio::test]
async fn an_option_that_the_adapter_does_not_use_is_refused() {
    let server = Server::start().await;
    for (name, value) in [
        ("systemPrompt", json!("be kind")),
        ("model", json!("anthropic/x")),
        ("modelProfile", json!("fast")),
        ("modelOptions", json!({"seed": 7})),
        ("outputSchema", json!({"type": "object"})),
    ] {
        let refused = |body: Value| server.post("/v1/runs", body);
        for body in [
            json!({"prompt": "say hi", "session": {"key": "a"}, "options": {name: value}}),
            json!({"prompt": "say hi", "session": {"key": "a", name: value}}),
        ] {
            if name == "outputSchema" && body["options"].is_null() {
                continue;
            }
            let (status, problem) = refused(body).await;
            assert_eq!(
                (status, &problem["code"]),
                (StatusCode::BAD_REQUEST, &json!("option_not_used")),
                "{name}"
            );
            let detail = format!("adapter \"script\" does not use the option {name}: leave it out");
            assert_eq!(problem["detail"], detail);
        }
    }
    assert_eq!(server.get("/v1/sessions").await.1["items"], json!([]), "nothing was created");
    let ignored = json!({"prompt": "say hi", "options": {"model": "m"}, "ignoreUnusedOptions": true});
    let (status, run) = server.post("/v1/runs", ignored).await;
    assert!(status.is_success(), "{run}");
    // The defaults of a session apply only to runs whose adapter uses them.
    server.post("/v1/sessions", json!({"key": "b", "model": "m1"})).await;
    assert_eq!(server.play("b", "say hi").await["status"], "succeeded");
}

#[tokio::test]
async fn a_default_of_a_session_is_checked_when_it_is_set_and_reported_where_it_is_not_used() {
    let capabilities =
        Capabilities { options: vec![mainspring_core::RunOption::Model], ..Capabilities::minimal("agent") };
    let agent = FnAgent::new(capabilities, async |_| End::succeeded());
    let server = Server::with(TestNode::builder().adapter(agent)).await;
    let create = |body: Value| server.post("/v1/sessions", body);
    let (status, problem) = create(json!({"key": "a", "model": "m1"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("option_not_used")), "{problem}");
    assert_eq!(create(json!({"key": "a"})).await.0, StatusCode::CREATED);
    let patch = server.request(Method::PATCH, "/v1/sessions/a").json(&json!({"model": "m1"}));
    let (status, problem) = send_request(patch).await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("option_not_used")), "{problem}");
    assert_eq!(create(json!({"key": "b", "adapter": "agent", "model": "m1"})).await.0, StatusCode::CREATED);
    let notices = async |adapter: &str| {
        let body = json!({"prompt": "say hi", "session": {"key": "b"}, "adapter": adapter});
        let (_, run) = server.post("/v1/runs", body).await;
        let (_, page) = server.get(&format!("/v1/runs/{}/events", run["runId"].as_str().unwrap())).await;
        let events = page["items"].as_array().unwrap().clone();
        let texts = events.into_iter().filter(|event| event["type"] == "progress.updated");
        texts.map(|event| event["payload"]["text"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(notices("agent").await, [] as [Value; 0]);
    let told = notices("script").await;
    assert_eq!(told, [json!("defaults of the session that adapter \"script\" does not use: model")]);
}

#[tokio::test]
async fn the_refusal_of_an_option_names_the_adapters_that_use_it() {
    let capabilities =
        Capabilities { options: vec![mainspring_core::RunOption::Model], ..Capabilities::minimal("agent") };
    let agent = FnAgent::new(capabilities, async |_| End::succeeded());
    let server = Server::with(TestNode::builder().adapter(agent)).await;
    let (_, problem) = server.post("/v1/runs", json!({"prompt": "say hi", "options": {"model": "m"}})).await;
    assert_eq!(
        problem["detail"],
        "adapter \"script\" does not use the option model: leave it out, or choose an adapter that does: agent"
    );
    let (status, _) =
        server.post("/v1/runs", json!({"prompt": "hi", "adapter": "agent", "options": {"model": "m"}})).await;
    assert!(status.is_success());
}

#[tokio::test]
async fn an_unknown_key_that_is_long_gets_a_short_answer() {
    let server = Server::start().await;
    let mut body = Map::new();
    body.insert("k".repeat(1 << 20), json!(1));
    let answer = server.request(Method::POST, "/v1/sessions").json(&body).send().await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    let text = answer.text().await;
    assert!(text.len() < 1_024 && text.contains("unknown key `kkk"), "{} bytes", text.len());
}
