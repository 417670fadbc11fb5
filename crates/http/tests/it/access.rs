//! Access: calls every operation of the OpenAPI document without permission.

use std::collections::BTreeSet;

use axum::http::{Method, StatusCode};
use mainspring_test_support::{TOKEN, TestNode, asking_agent};
use serde_json::{Value, json};

use crate::issuer::{Issuer, Signer};
use crate::world::{RequestBuilder, Server, send_request};

mod matrix;

/// Expected answer of an operation about another owner's data.
#[derive(Debug, Clone, Copy)]
enum Foreign {
    /// 404 `not_found`.
    NotFound,
    /// 403 `forbidden`.
    Forbidden,
    /// A list without the foreign items.
    NotListed,
    /// A stream whose first frame has no foreign data.
    NotStreamed,
    /// An answer that contains no owner's data.
    Nothing,
    /// Success, on the caller's own data.
    Own,
    /// An error for another reason.
    Refused,
}
use Foreign::{Forbidden, NotFound, NotListed, NotStreamed, Nothing, Own, Refused};

/// An example of each operation: query string, body, expected answer about foreign data. `SESSION` stands for the
/// foreign session.
const EXAMPLES: &[(&str, &str, &str, Foreign)] = &[
    ("adapter_list", "", "", Nothing),
    ("model_list", "", "", Nothing),
    ("cluster_status", "", "", Forbidden),
    ("agent_create", "", r#"{"id": "mine"}"#, Own),
    ("agent_delete", "", "", NotFound),
    ("agent_get", "", "", NotFound),
    ("agent_list", "", "", NotListed),
    ("artifact_content", "", "", NotFound),
    ("artifact_delete", "", "", NotFound),
    ("artifact_get", "", "", NotFound),
    ("artifact_put", "", "bytes", NotFound),
    ("attempt_get", "", "", NotFound),
    ("attempt_stderr", "", "", NotFound),
    // Records of refusals repeat the ids in the caller's own requests, so only the other kinds are listed here.
    ("audit_list", "?kind=change", "", NotListed),
    ("audit_list", "?kind=decision", "", NotListed),
    ("audit_list", "?kind=change&owner=them", "", NotListed),
    ("binding_adopt", "", r#"{"adapter": "script", "adapterNativeSessionId": "n"}"#, NotFound),
    ("binding_invalidate", "", "", NotFound),
    ("binding_list", "", "", NotFound),
    ("delegation_get", "", "", NotFound),
    ("feed", "", "", NotStreamed),
    ("feedback_give", "", r#"{"sentiment": "positive"}"#, NotFound),
    ("feedback_list", "", "", NotFound),
    ("goal_type_create", "", r#"{"name": "mine", "schema": {}}"#, Own),
    ("goal_type_get", "", "", NotFound),
    ("goal_type_list", "", "", NotListed),
    ("grant_list", "", "", NotListed),
    ("grant_revoke", "", "", NotFound),
    ("health", "", "", Nothing),
    ("host_call_answer", "", r#"{"no": 1, "result": 1}"#, Refused),
    ("host_call_list", "", "", Refused),
    ("id_find", "?kind=session&prefix=SESSION", "", Nothing),
    ("id_find", "?kind=run&prefix={run}", "", Nothing),
    ("id_find", "?kind=artifact&prefix={artifact}", "", Nothing),
    ("id_find", "?kind=delegation&prefix={delegation}", "", Nothing),
    ("id_find", "?kind=key&prefix={key}", "", Nothing),
    ("id_find", "?kind=message&prefix={message}&session=SESSION", "", NotFound),
    ("key_create", "", r#"{"name": "mine", "ownerId": "them"}"#, Forbidden),
    ("key_create", "", r#"{"name": "mine", "orgId": "theirs"}"#, Forbidden),
    ("key_list", "", "", NotListed),
    ("key_revoke", "", "", NotFound),
    ("listener_open", "", "", Forbidden),
    ("login_create", "", r#"{"methodId": "token"}"#, Refused),
    ("login_list", "", "", Nothing),
    ("me", "", "", Nothing),
    ("message_append", "", r#"{"id": "m1", "content": "hi"}"#, NotFound),
    ("metrics", "", "", Forbidden),
    ("openapi", "", "", Nothing),
    ("owner_events", "", "", NotListed),
    ("owner_state_delete", "", "", Own),
    ("owner_state_get", "", "", NotFound),
    ("owner_state_history", "", "", Own),
    ("owner_state_list", "", "", NotListed),
    ("owner_state_set", "", "1", Own),
    ("ready", "", "", Nothing),
    ("results_append", "", r#"{"id": "t1", "messages": [{"role": "assistant", "content": "hi"}]}"#, NotFound),
    (
        "run_answer",
        "",
        r#"{"waitId": "wait_00000000000040008000000000000000", "answer": {"kind": "input", "input": 1}}"#,
        NotFound,
    ),
    ("run_artifacts", "", "", NotFound),
    ("run_attempts", "", "", NotFound),
    ("run_grants", "", "", NotFound),
    ("run_step", "", "", NotFound),
    ("run_steps", "", "", NotFound),
    ("run_route", "", "", NotFound),
    ("run_processes", "", "", NotFound),
    ("run_processes_end", "", "", NotFound),
    ("run_cancel", "", "", NotFound),
    ("run_create", "", r#"{"prompt": "say hi", "session": {"sessionId": "SESSION"}}"#, NotFound),
    ("run_create_in", "", r#"{"prompt": "say hi"}"#, NotFound),
    ("run_delegate", "", r#"{"mode": "spawn", "objective": "say hi"}"#, NotFound),
    ("run_delegations", "", "", NotFound),
    ("run_events", "", "", NotFound),
    ("run_get", "", "", NotFound),
    ("run_list", "?session=SESSION", "", NotFound),
    ("run_list", "", "", NotListed),
    ("run_retry", "", "", NotFound),
    ("run_state_delete", "", "", NotFound),
    ("run_state_get", "", "", NotFound),
    ("run_state_history", "", "", NotFound),
    ("run_state_list", "", "", NotFound),
    ("run_state_set", "", "1", NotFound),
    (
        "session_adopt",
        "",
        r#"{"session": {"sessionId": "SESSION"}, "adapter": "agent", "adapterNativeSessionId": "n"}"#,
        NotFound,
    ),
    ("session_agent", "", "", NotFound),
    ("session_agent_set", "", r#"{"model": null}"#, NotFound),
    ("session_artifacts", "", "", NotFound),
    ("session_changes", "", "", NotFound),
    ("session_close", "", "", NotFound),
    ("session_compact", "", r#"{"before": "0.0"}"#, NotFound),
    ("session_delete", "", "", NotFound),
    ("session_events", "", "", NotFound),
    ("session_export", "", "", NotFound),
    ("session_fork", "", r#"{"messageId": "MESSAGE"}"#, NotFound),
    ("session_goals", "", "", NotFound),
    ("session_get", "", "", NotFound),
    ("session_import", "", r#"{"format": "none"}"#, Refused),
    ("session_list", "", "", NotListed),
    ("session_list", "?scope=org", "", NotListed),
    ("session_list", "?open=true", "", NotListed),
    ("session_list", "?view=cards&live=true", "", NotListed),
    ("session_list", "?externalKind=task&externalId=7", "", NotListed),
    ("session_message", "", "", NotFound),
    ("session_messages", "", "", NotFound),
    ("session_navigate", "", r#"{"messageId": null}"#, NotFound),
    ("session_patch", "", r#"{"title": "mine"}"#, NotFound),
    ("session_resolve", "", r#"{"sessionId": "SESSION"}"#, NotFound),
    ("session_search", "?q=Tea", "", NotListed),
    ("session_snapshot", "", "", NotFound),
    ("session_pin", "", "", NotFound),
    ("session_unpin", "", "", NotFound),
    ("session_tool_delete", "", "", NotFound),
    ("session_tool_put", "", r#"{"inputSchema": {"type": "object"}}"#, NotFound),
    ("session_usage", "", "", NotFound),
    ("session_state_delete", "", "", NotFound),
    ("session_state_get", "", "", NotFound),
    ("session_state_history", "", "", NotFound),
    ("session_state_list", "", "", NotFound),
    ("session_state_set", "", "1", NotFound),
    ("session_tree", "", "", NotFound),
    (
        "sign_in_exchange",
        "",
        r#"{"code": "c", "verifier": "0123456789012345678901234567890123456789012", "nonce": "0123456789012345"}"#,
        Refused,
    ),
    ("sign_in_ways", "", "", Nothing),
    ("ticket_create", "", "", Own),
    ("ticket_redeem", "", r#"{"ticket": "none"}"#, Refused),
    ("tool_list", "", "", Nothing),
    ("usage_report", "?by=session", "", Nothing),
    ("wait_list", "", "", NotListed),
    ("webhook_create", "", r#"{"url": "https://example.com/"}"#, Refused),
    ("webhook_dead", "", "", NotFound),
    ("webhook_list", "", "", NotListed),
    ("webhook_remove", "", "", NotFound),
    ("webhook_retry", "", "", NotFound),
    ("webhook_test", "", "", NotFound),
];

/// Operations that need no token.
const OPEN: &[&str] = &["health", "openapi", "ready", "sign_in_ways"];

/// One operation of the OpenAPI document.
struct Operation {
    id: String,
    method: Method,
    path: String,
    is_open: bool,
}

/// Reads the operations from the OpenAPI document that `server` serves.
async fn operations(server: &Server) -> Vec<Operation> {
    let document = server.get("/openapi.json").await.1;
    let mut found = vec![];
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            found.push(Operation {
                id: operation["operationId"].as_str().unwrap().to_owned(),
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                is_open: operation["security"] == json!([{}]),
            });
        }
    }
    found
}

/// Ids of the resources that the examples use.
struct Names<'a> {
    session: &'a str,
    run: &'a str,
    attempt: &'a str,
    key: &'a str,
    message: &'a str,
    artifact: &'a str,
    agent: &'a str,
    delegation: &'a str,
    grant: &'a str,
}

/// Builds the example requests of an operation on the resources in `names`, without a token.
fn requests<'a>(
    server: &'a Server,
    operation: &'a Operation,
    names: &'a Names<'a>,
) -> impl Iterator<Item = (RequestBuilder, Foreign)> + 'a {
    let fill = move |text: &str| {
        let text = text.replace("{session}", names.session).replace("{run}", names.run);
        let text = text.replace("{attempt}", names.attempt);
        let text = text.replace("{key}", names.key).replace("SESSION", names.session);
        let text = text.replace("{message}", names.message).replace("MESSAGE", names.message);
        let text = text.replace("{artifact}", names.artifact).replace("{adapter}", "script");
        let text = text.replace("{agent}", names.agent).replace("{grant}", names.grant);
        let text = text.replace("{step}", "1").replace("{tool}", "rain");
        let text = text.replace("{goal_type}", "their_goal");
        let text =
            text.replace("{webhook}", "hook_00000000000040008000000000000000").replace("{cursor}", "1");
        text.replace("{delegation}", names.delegation)
    };
    EXAMPLES.iter().filter(|(id, ..)| *id == operation.id).map(move |(_, query, body, foreign)| {
        let path = fill(&format!("{}{query}", operation.path));
        let request = server.anonymous(operation.method.clone(), &path);
        let request = match body.is_empty() {
            true => request,
            false if operation.id == "session_import" => {
                request.header("content-type", "application/jsonl").body(fill(body))
            }
            false => request.header("content-type", "application/json").body(fill(body)),
        };
        (request, *foreign)
    })
}

#[tokio::test]
async fn every_operation_has_an_access_test() {
    let server = Server::start().await;
    let known: BTreeSet<String> =
        operations(&server).await.into_iter().map(|operation| operation.id).collect();
    let tested: BTreeSet<String> = EXAMPLES.iter().map(|(id, ..)| (*id).to_owned()).collect();
    let listed: Vec<&str> =
        include_str!("access/untested.txt").lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(listed, [""; 0], "give these a line in EXAMPLES");
    let missing: Vec<_> = known.difference(&tested).collect();
    assert!(missing.is_empty(), "{missing:?} have no line in EXAMPLES of tests/it/access.rs");
    let gone: Vec<_> = tested.difference(&known).collect();
    assert!(gone.is_empty(), "{gone:?} are in EXAMPLES and in no document");
}

#[tokio::test]
async fn every_operation_requires_a_token_or_key() {
    let server = Server::start().await;
    let run = server.wait_ended(&server.prompt("a", "say hi").await).await;
    let (_, key) = server.post("/v1/keys", json!({"name": "ci"})).await;
    let [run, attempt, key] =
        [&run["runId"], &run["lastAttemptId"], &key["keyId"]].map(|id| id.as_str().unwrap());
    let state = async || [server.get("/v1/sessions").await, server.get("/v1/keys").await];
    let before = state().await;
    let (message, artifact) =
        ("msg_00000000000040008000000000000000", "art_00000000000040008000000000000000");
    let names = Names {
        session: "a",
        run,
        attempt,
        key,
        message,
        artifact,
        agent: "a@1",
        delegation: "del_00000000000040008000000000000000",
        grant: "grant_00000000000040008000000000000000",
    };
    for operation in operations(&server).await {
        assert_eq!(operation.is_open, OPEN.contains(&operation.id.as_str()), "{}", operation.id);
        let no_key = format!("msk_{TOKEN}");
        for token in [None, Some("wrong"), Some(&TOKEN[1..]), Some(&*no_key)] {
            for (request, _) in requests(&server, &operation, &names) {
                let request = token.into_iter().fold(request, RequestBuilder::bearer_auth);
                let (status, problem) = send_request(request).await;
                let expected = if operation.is_open { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
                assert_eq!(status, expected, "{} {token:?}", operation.id);
                assert!(
                    operation.is_open || problem["code"] == "authentication",
                    "{}: {problem}",
                    operation.id
                );
            }
        }
    }
    assert_eq!(state().await, before, "nothing was changed");
}

/// Creates a key for `owner` as an admin of `org`.
async fn admin(server: &Server, owner: &str, org: &str) -> Value {
    let body = json!({"name": owner, "ownerId": owner, "orgId": org, "role": "admin"});
    server.post("/v1/keys", body).await.1
}

/// Creates a grant for the owner of `key`: allows an approval request for the whole session. Returns the grant's id.
async fn grant_of(server: &Server, key: &str) -> String {
    let prompt = json!({"prompt": "ls", "adapter": "asker", "session": {"key": "asks"}});
    let request = server.anonymous(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&prompt);
    let (_, run) = send_request(request.bearer_auth(key)).await;
    let answer = json!({"kind": "approval", "decision": "allowed", "scope": "session"});
    let answer = json!({"waitId": run["wait"]["waitId"], "answer": answer});
    let path = format!("/v1/runs/{}/answer", run["runId"].as_str().unwrap());
    let request = server.anonymous(Method::POST, &path).json(&answer).bearer_auth(key);
    assert_eq!(send_request(request).await.0, StatusCode::OK);
    let (_, page) = send_request(server.anonymous(Method::GET, "/v1/grants").bearer_auth(key)).await;
    page["items"][0]["grantId"].as_str().unwrap().to_owned()
}

/// A caller that has nothing to do with the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stranger {
    /// An admin of another org.
    Admin,
    /// A member of another org.
    Member,
    /// A member of the same org; the data is private.
    Colleague,
    /// A token of an identity provider, of another org.
    Token,
}

impl Stranger {
    /// The secret or token of the caller.
    async fn credential(self, server: &Server, issuer: &Issuer) -> String {
        let (org, role) = match self {
            Self::Admin => ("ours", "admin"),
            Self::Member => ("ours", "member"),
            Self::Colleague => ("theirs", "member"),
            Self::Token => return issuer.sign(&issuer.claims("us", Some("ours"))),
        };
        let body = json!({"name": "us", "ownerId": "us", "orgId": org, "role": role});
        server.post("/v1/keys", body).await.1["secret"].as_str().unwrap().to_owned()
    }

    /// Returns the expected answer to `request`, given the one for an admin: other callers may not use keys at all.
    fn answer(self, operation: &str, request: &str, for_admin: Foreign) -> Foreign {
        // A ticket is exchanged for a key, so creating one requires the same permission.
        let about_keys =
            operation.starts_with("key_") || operation == "ticket_create" || request.contains("kind=key");
        if about_keys && self != Self::Admin { Forbidden } else { for_admin }
    }
}

#[tokio::test]
async fn data_of_another_owner_is_not_found_by_an_admin_of_another_org() {
    check_stranger(Stranger::Admin).await;
}

#[tokio::test]
async fn data_of_another_owner_is_not_found_by_a_member_of_another_org() {
    check_stranger(Stranger::Member).await;
}

#[tokio::test]
async fn private_data_of_another_owner_is_not_found_by_a_member_of_the_same_org() {
    check_stranger(Stranger::Colleague).await;
}

#[tokio::test]
async fn data_of_another_owner_is_not_found_by_a_token_of_another_org() {
    check_stranger(Stranger::Token).await;
}

async fn check_stranger(stranger: Stranger) {
    let issuer = Issuer::start(Signer::ed25519(1)).await;
    let builder = issuer.accepted_by(TestNode::builder().adapter(asking_agent()));
    let server = Server::with(builder).await;
    let theirs = admin(&server, "them", "theirs").await;
    let them = theirs["secret"].as_str().unwrap();
    let us = &stranger.credential(&server, &issuer).await;
    let visibility = if stranger == Stranger::Colleague { "private" } else { "org" };
    let prompt = json!({"prompt": "ask Tea?", "session": {"key": "theirs", "visibility": visibility}});
    let request = server.anonymous(Method::POST, "/v1/runs").header("prefer", "wait=30").json(&prompt);
    let (_, run) = send_request(request.bearer_auth(them)).await;
    assert_eq!(run["status"], "waiting_input", "{run}");
    let [session, run, attempt, key, message] =
        [&run["sessionId"], &run["runId"], &run["lastAttemptId"], &theirs["keyId"], &run["promptMessageId"]]
            .map(|id| id.as_str().unwrap());
    let keep = server.anonymous(Method::POST, &format!("/v1/sessions/{session}/artifacts")).body("bytes");
    let (_, artifact) = send_request(keep.bearer_auth(them)).await;
    let artifact = artifact["artifactId"].as_str().unwrap();
    let goal_type = json!({"name": "their_goal", "schema": {"type": "object"}});
    for (path, made) in [("/v1/agents", json!({"id": "their.agent"})), ("/v1/goal-types", goal_type)] {
        let define = server.anonymous(Method::POST, path).json(&made);
        assert_eq!(send_request(define.bearer_auth(them)).await.0, StatusCode::CREATED, "{path}");
    }
    let agent = "their.agent@1";
    let work = json!({"mode": "spawn", "objective": "ask Coffee?"});
    let request = server.anonymous(Method::POST, &format!("/v1/runs/{run}/delegations")).json(&work);
    let (_, delegated) = send_request(request.header("prefer", "wait=30").bearer_auth(them)).await;
    assert_eq!(delegated["run"]["status"], "waiting_input", "{delegated}");
    let delegation = delegated["delegation"]["delegationId"].as_str().unwrap();
    let grant = &grant_of(&server, them).await;
    // The owner's view, which must not change.
    let lists = ["/v1/sessions", "/v1/sessions?scope=org", "/v1/runs", "/v1/keys"];
    let mut before = vec![];
    for list in lists {
        before.push(send_request(server.anonymous(Method::GET, list).bearer_auth(them)).await);
        let is_empty = before.last().unwrap().1["items"].as_array().unwrap().is_empty();
        assert_eq!(is_empty, visibility == "private" && list.contains("scope=org"), "{list}");
    }
    let feed = server.anonymous(Method::GET, "/v1/feed").bearer_auth(them).send().await;
    assert!(feed.frames().next().await.unwrap().data.to_string().contains(session));

    let ids = [session, run, attempt, key, message, artifact, delegation, grant, "their.agent", "their_goal"];
    let shows = |text: String| ids.iter().any(|id| text.contains(id));
    for operation in operations(&server).await.iter().filter(|operation| !operation.is_open) {
        // Session keys are scoped to their owner, so the foreign key matches no session here.
        let by_name = operation.path.contains("{session}").then_some("theirs");
        for session in [session].into_iter().chain(by_name) {
            for (request, foreign) in requests(
                &server,
                operation,
                &Names { session, run, attempt, key, message, artifact, agent, delegation, grant },
            ) {
                let shown = format!("{stranger:?} {} {request:?}", operation.id);
                let foreign = stranger.answer(&operation.id, &shown, foreign);
                let request = request.bearer_auth(us);
                if let NotStreamed = foreign {
                    let first = request.send().await.frames().next().await.unwrap();
                    assert!(!shows(first.data.to_string()), "{shown}");
                    continue;
                }
                let (status, body) = send_request(request).await;
                if let Own | Refused = foreign {
                    assert_eq!(status.is_success(), matches!(foreign, Own), "{shown}: {body}");
                    continue;
                }
                let (expected, code) = match foreign {
                    NotFound => (StatusCode::NOT_FOUND, json!("not_found")),
                    Forbidden => (StatusCode::FORBIDDEN, json!("forbidden")),
                    _ => (StatusCode::OK, Value::Null),
                };
                assert_eq!((status, &body["code"]), (expected, &code), "{shown}");
                assert_eq!(matches!(foreign, NotListed), body["items"].is_array(), "{shown}");
                // An error may repeat the requested id; a successful answer must not contain it.
                assert!(status != StatusCode::OK || !shows(body.to_string()), "{shown}");
            }
        }
    }
    for (list, before) in lists.into_iter().zip(before) {
        let after = send_request(server.anonymous(Method::GET, list).bearer_auth(them)).await;
        assert_eq!(after, before, "{list}, and nothing was changed");
    }
    let still = server.anonymous(Method::GET, "/v1/agents/their.agent").bearer_auth(them);
    assert_eq!(send_request(still).await.0, StatusCode::OK, "the agent of the other owner still exists");
}
