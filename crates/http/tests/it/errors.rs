//! Errors: problems with a stable code and a remedy. A refused request changes nothing.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use mainspring_reference_store::MemoryStore;
use mainspring_store::Fault;
use mainspring_test_support::TestNode;
use serde_json::json;

use crate::world::{Server, send_request};

#[tokio::test]
async fn requests_from_other_sites_are_refused() {
    let server = Server::start().await;
    let with = |name: &'static str, value: &str| {
        send_request(server.request(Method::GET, "/v1/sessions").header(name, value))
    };
    assert_eq!(with("host", "evil.example").await.1["code"], "forbidden_host");
    assert_eq!(with("origin", "http://evil.example").await.1["code"], "forbidden_origin");
    let own = server.request(Method::GET, "/v1/sessions").header("host", "localhost:7433");
    assert_eq!(send_request(own.header("origin", "http://localhost:7433")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn bad_requests_are_problems_with_stable_codes() {
    let server = Server::start().await;
    let unknown = "/v1/runs/run_00000000000040008000000000000000";
    let cases = [
        (server.request(Method::GET, "/v1/sessions/nobody"), 404, "not_found"),
        (server.request(Method::GET, unknown), 404, "not_found"),
        (server.request(Method::GET, "/v1/runs/run_1"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/sessions?limit=0"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/sessions?limit=-1"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/sessions?nonsense=1"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/sessions?before=x"), 400, "invalid_request"),
        (server.request(Method::GET, "/v1/nothing"), 404, "not_found"),
        (server.request(Method::PUT, "/v1/sessions"), 405, "method_not_allowed"),
        (server.request(Method::POST, "/v1/runs").body("{"), 415, "unsupported_media_type"),
        (
            server.request(Method::POST, "/v1/runs").header("content-type", "application/json").body("{"),
            400,
            "invalid_request",
        ),
        (server.request(Method::POST, "/v1/runs").json(&json!({"promt": "x"})), 400, "invalid_request"),
        (server.request(Method::POST, "/v1/sessions").json(&json!([null, "k"])), 400, "invalid_request"),
        (server.request(Method::POST, "/v1/runs").json(&json!({"prompt": ""})), 400, "invalid_request"),
        (
            server.request(Method::POST, "/v1/runs").json(&json!({"prompt": "x", "adapter": "no"})),
            400,
            "adapter_not_registered",
        ),
        (
            server.request(Method::POST, "/v1/runs").json(&json!({"prompt": "a".repeat(2 << 20)})),
            413,
            "too_large",
        ),
        (
            server.request(Method::POST, "/v1/runs").json(&json!({"prompt": "a".repeat(20 << 20)})),
            413,
            "too_large",
        ),
        (server.request(Method::POST, &format!("{unknown}/cancel")), 404, "not_found"),
    ];
    for (request, status, code) in cases {
        let label = format!("{request:?}").chars().take(200).collect::<String>();
        let response = request.send().await;
        let kind = response.headers().get("content-type").cloned();
        assert_eq!(response.status().as_u16(), status, "{label}");
        assert_eq!(kind.unwrap(), "application/problem+json", "{label}");
        let problem = response.json().await;
        assert_eq!(problem["code"], code, "{label}");
    }
    assert_eq!(server.get("/v1/sessions").await.1["items"], json!([]));
}

#[tokio::test]
async fn invalid_client_tools_are_named_in_the_error() {
    let server = Server::start().await;
    for (options, part) in [
        (json!({"tools": [{"name": "a b", "inputSchema": {}}]}), "\"a b\": a name has 1 to 64"),
        (json!({"tools": [{"name": "a", "inputSchema": {"type": "string"}}]}), "JSON Schema for an object"),
        (json!({"tools": [{"name": "a"}]}), "inputSchema"),
        (json!({"tools": [{"name": "a", "inputSchema": {}, "parameters": {}}]}), "parameters"),
    ] {
        let (status, problem) = server.post("/v1/runs", json!({"prompt": "hi", "options": options})).await;
        assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_request")));
        assert!(problem["detail"].as_str().unwrap().contains(part), "{problem}");
    }
}

#[tokio::test]
async fn a_problem_names_its_remedy_and_says_whether_to_try_again() {
    let one = TestNode::builder().options(|options| {
        options.max_workers = 1;
        options.limits.queue_per_session = 1;
    });
    let server = Server::with(one).await;
    for text in ["say begun; hang", "say queued"] {
        server.prompt("a", text).await;
    }
    let body = json!({"prompt": "say more", "session": {"key": "a"}});
    let full = server.request(Method::POST, "/v1/runs").json(&body).send().await;
    assert_eq!(
        (full.status(), &full.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
    );
    let problem = full.json().await;
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("overloaded"), &json!(true)));
    let anonymous = server.anonymous(Method::GET, "/v1/sessions").send().await;
    assert_eq!(anonymous.headers()["www-authenticate"], "Bearer");
    assert!(anonymous.json().await["detail"].as_str().unwrap().contains("Authorization: Bearer KEY"));
    server.node.kernel.shutdown().await;
    let (status, problem) = server.post("/v1/runs", body).await;
    assert_eq!(
        (status, &problem["code"], &problem["retryable"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("shutting_down"), &json!(true))
    );
}

#[tokio::test]
async fn a_commit_that_fails_leaves_nothing_half_done() {
    let store = Arc::new(MemoryStore::default());
    let server = Server::with(TestNode::builder().store(store.clone())).await;
    store.inject_fault(Fault::CommitFails);
    let (status, problem) = server.post("/v1/sessions", json!({"key": "a"})).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")),
        "{problem}"
    );
    assert_eq!(server.get("/v1/sessions").await.1["items"], json!([]));
    assert_eq!(
        server.post("/v1/sessions", json!({"key": "a"})).await.0,
        StatusCode::CREATED,
        "a later commit succeeds"
    );
}

#[tokio::test]
async fn a_repeated_deciding_header_is_refused() {
    let server = Server::start().await;
    for (name, first, second) in [
        ("mainspring-owner", "ada", "eve"),
        ("authorization", "Bearer x", "Bearer y"),
        ("idempotency-key", "a", "b"),
        ("if-match", "\"1\"", "\"2\""),
    ] {
        let request = match name {
            "authorization" => server.anonymous(Method::GET, "/v1/me"),
            _ => server.request(Method::GET, "/v1/me"),
        };
        let (status, problem) = send_request(request.header(name, first).header(name, second)).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_request")),
            "{name}"
        );
        assert!(problem["detail"].as_str().unwrap().contains(name), "{problem}");
    }
}
