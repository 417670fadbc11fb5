//! Messages of refusals: each names the parameter, the header or the field. Input that would fail later is refused at
//! once. Also the failed sessions that `/health` lists, for admins of the server only.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use mainspring_reference_store::MemoryStore;
use mainspring_store::Fault;
use mainspring_test_support::TestNode;
use serde_json::{Value, json};

use crate::world::{RequestBuilder, Server, send_request};

/// Sends a request, checks that the answer is a problem with this status and code, and returns the problem's detail.
async fn detail(request: RequestBuilder, status: u16, code: &str) -> String {
    let response = request.send().await;
    let kind = response.headers().get("content-type").cloned();
    let got = response.status().as_u16();
    let problem = response.json().await;
    assert_eq!((got, problem["code"].as_str()), (status, Some(code)), "{problem}");
    assert_eq!(kind.unwrap(), "application/problem+json", "{problem}");
    problem["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_query_that_cannot_be_read_names_its_parameter() {
    let server = Server::start().await;
    for (query, wanted) in [
        ("/v1/sessions?limit=abc", "the query parameter `limit` cannot be \"abc\": "),
        ("/v1/sessions?limit=-1", "the query parameter `limit` cannot be \"-1\": "),
        ("/v1/sessions?limit=1&limit=2", "the query parameter `limit` is given twice"),
        ("/v1/search", "the query parameter `q` is missing"),
    ] {
        let detail = detail(server.request(Method::GET, query), 400, "invalid_request").await;
        assert!(detail.starts_with(wanted), "{query}: {detail}");
        assert!(!detail.contains("deserialize"), "{query}: {detail}");
    }
}

#[tokio::test]
async fn a_malformed_wait_is_refused_before_anything_is_done() {
    let server = Server::start().await;
    let prompt = |prefer: &str| {
        let request = server.request(Method::POST, "/v1/runs").header("prefer", prefer);
        request.json(&json!({"prompt": "say hi", "session": {"key": "a"}}))
    };
    for prefer in ["wait=soon", "wait=-1", "wait=", "wait", "respond-async, wait=1.5", "wait=1s"] {
        let detail = detail(prompt(prefer), 400, "invalid_request").await;
        assert!(detail.contains("the header Prefer") && detail.contains("wait=30"), "{prefer}: {detail}");
    }
    assert_eq!(server.get("/v1/sessions").await.1["items"], json!([]), "nothing was accepted");
    for prefer in ["respond-async", "handling=lenient", "WAIT=30", "wait=\"30\"", "wait=99999999999999999999"]
    {
        let (status, run) = send_request(prompt(prefer)).await;
        assert!(status.is_success(), "{prefer}: {run}");
    }
}

#[tokio::test]
async fn a_batch_and_other_bodies_of_mcp_are_problems() {
    let server = Server::start().await;
    let post = |body: &str| {
        let request = server.request(Method::POST, "/mcp").header("host", "localhost");
        let request = request.header("accept", "application/json, text/event-stream");
        request.header("content-type", "application/json").body(body.to_owned())
    };
    let one = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let batch = detail(post(&json!([one, one]).to_string()), 400, "invalid_request").await;
    assert!(batch.contains("one message per request"), "{batch}");
    for body in ["", "{", "1", "null", "\"x\""] {
        let detail = detail(post(body), 400, "invalid_request").await;
        assert!(detail.starts_with("the body: "), "{body}: {detail}");
    }
    let detail = detail(post("{\"not\": \"a message\"}"), 415, "unsupported_media_type").await;
    assert!(detail.contains("JSON-RPC 2.0"), "{detail}");
}

#[tokio::test]
async fn an_invalid_amount_is_refused_with_its_field() {
    let server = Server::start().await;
    for usd in [json!(-1), json!(1e308), json!(-0.01), json!("1")] {
        let body = json!({"name": "k", "ownerId": "ada", "spendPerDayUsd": usd});
        let detail =
            detail(server.request(Method::POST, "/v1/keys").json(&body), 400, "invalid_request").await;
        assert!(detail.contains("spendPerDayUsd"), "{usd}: {detail}");
    }
    assert_eq!(server.get("/v1/keys").await.1["items"], json!([]));
    let body = json!({"prompt": "say hi", "options": {"limits": {"maxCostUsd": -1}}});
    let detail = detail(server.request(Method::POST, "/v1/runs").json(&body), 400, "invalid_request").await;
    assert!(detail.contains("maxCostUsd"), "{detail}");
}

#[tokio::test]
async fn a_key_that_may_not_create_keys_creates_no_ticket() {
    let server = Server::start().await;
    let body = json!({"name": "k", "ownerId": "ada", "role": "admin", "spendPerDayUsd": 1});
    let (status, made) = server.post("/v1/keys", body).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let request = server.anonymous(Method::POST, "/v1/tickets").bearer_auth(made["secret"].as_str().unwrap());
    let detail = detail(request, 403, "forbidden").await;
    assert!(detail.contains("spend per day"), "{detail}");
}

#[tokio::test]
async fn only_admins_of_the_server_read_which_sessions_have_failed() {
    let store = Arc::<MemoryStore>::default();
    let server = Server::with(TestNode::builder().store(store.clone())).await;
    server.play("bad", "say hi").await;
    let health = async |key: Option<&str>| -> Value {
        let request = server.anonymous(Method::GET, "/health");
        let request = match key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let (status, health) = send_request(request).await;
        assert_eq!(status, StatusCode::OK);
        health
    };
    let key = async |role: &str, org: Option<&str>| {
        let body = json!({"name": "k", "ownerId": format!("{role} {org:?}"), "orgId": org, "role": role});
        server.post("/v1/keys", body).await.1["secret"].as_str().unwrap().to_owned()
    };
    let (member, org_admin) = (key("member", None).await, key("admin", Some("acme")).await);
    store.inject_fault(Fault::CommitPanics);
    let (status, problem) =
        send_request(server.request(Method::PATCH, "/v1/sessions/bad").json(&json!({"pinned": true}))).await;
    assert_eq!((status.as_u16(), &problem["code"]), (500, &json!("session_failed")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("ses_"), "{problem}");
    let failed = health(Some(mainspring_test_support::TOKEN)).await["failedSessions"].clone();
    assert_eq!(
        (failed[0]["code"].as_str(), failed[0]["failures"].as_u64()),
        (Some("session_failed"), Some(1))
    );
    for key in [None, Some("wrong"), Some(&*member), Some(&*org_admin)] {
        assert_eq!(health(key).await.get("failedSessions"), None, "{key:?}");
    }
    // The next request to the session succeeds.
    let (status, session) =
        send_request(server.request(Method::PATCH, "/v1/sessions/bad").json(&json!({"pinned": true}))).await;
    assert_eq!(status, StatusCode::OK, "{session}");
    assert_eq!(health(Some(mainspring_test_support::TOKEN)).await.get("failedSessions"), None);
}
