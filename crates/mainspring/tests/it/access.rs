//! Access: every operation of the document is asked by those who may not.

use std::collections::BTreeSet;

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::http::{Server, answer};

/// What an operation shows of somebody else's.
enum Foreign {
    /// It is not found.
    NotFound,
    /// A list without it.
    NoItems,
    /// It shows nothing that is anybody's.
    Nothing,
}
use Foreign::{NoItems, NotFound, Nothing};

/// An example of each operation: what follows its path, its body, what it shows of somebody else's. `SESSION` and
/// `RUN` stand for theirs.
const EXAMPLES: &[(&str, &str, &str, Foreign)] = &[
    ("adapter_list", "", "", Nothing),
    ("health", "", "", Nothing),
    ("metrics", "", "", Nothing),
    ("openapi", "", "", Nothing),
    ("ready", "", "", Nothing),
    (
        "run_answer",
        "",
        r#"{"waitId": "wait_00000000000040008000000000000000", "answer": {"kind": "input", "input": 1}}"#,
        NotFound,
    ),
    ("run_attempts", "", "", NotFound),
    ("run_cancel", "", "", NotFound),
    ("run_create", "", r#"{"prompt": "say hi", "session": {"sessionId": "SESSION"}}"#, NotFound),
    ("run_create_in", "", r#"{"prompt": "say hi"}"#, NotFound),
    ("run_events", "", "", NotFound),
    ("run_get", "", "", NotFound),
    ("run_list", "?session=SESSION", "", NotFound),
    ("run_list", "", "", NoItems),
    ("run_retry", "", "", NotFound),
    ("session_delete", "", "", NotFound),
    ("session_events", "", "", NotFound),
    ("session_get", "", "", NotFound),
    ("session_list", "", "", NoItems),
    ("session_messages", "", "", NotFound),
    ("session_patch", "", r#"{"title": "mine"}"#, NotFound),
    ("session_resolve", "", r#"{"sessionId": "SESSION"}"#, NotFound),
    ("session_tree", "", "", NotFound),
];

/// Operations that need no token.
const OPEN: &[&str] = &["health", "openapi", "ready"];

/// What the document says of one operation.
struct Operation {
    id: String,
    method: Method,
    path: String,
    is_open: bool,
}

/// The operations of the document that `server` hands out.
async fn operations(server: &Server) -> Vec<Operation> {
    let document: Value =
        server.client.get(format!("{}/openapi.json", server.url)).send().await.unwrap().json().await.unwrap();
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

/// The example requests of an operation on `session` and `run`, without a token.
fn requests<'a>(
    server: &'a Server,
    operation: &'a Operation,
    session: &'a str,
    run: &'a str,
) -> impl Iterator<Item = (RequestBuilder, &'static Foreign)> + 'a {
    let fill = move |text: &str| {
        let text = text.replace("{session}", session).replace("{run}", run);
        text.replace("SESSION", session).replace("RUN", run)
    };
    EXAMPLES.iter().filter(|(id, ..)| *id == operation.id).map(move |(_, query, body, foreign)| {
        let url = fill(&format!("{}{}{query}", server.url, operation.path));
        let request = server.client.request(operation.method.clone(), url);
        let request = match body.is_empty() {
            true => request,
            false => request.header("content-type", "application/json").body(fill(body)),
        };
        (request, foreign)
    })
}

#[tokio::test]
async fn every_operation_has_an_access_test() {
    let server = Server::start_with(&[]);
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
async fn nobody_without_the_token_gets_anywhere() {
    let server = Server::start_with(&[]);
    let run = server.prompt("a", "say hi").await;
    let (run, before) = (run["runId"].as_str().unwrap(), server.ended(&run).await);
    for operation in operations(&server).await {
        assert_eq!(operation.is_open, OPEN.contains(&operation.id.as_str()), "{}", operation.id);
        for token in [None, Some("wrong"), Some(&server.token[1..])] {
            for (request, _) in requests(&server, &operation, "a", run) {
                let request = token.into_iter().fold(request, RequestBuilder::bearer_auth);
                let (status, problem) = answer(request).await;
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
    let (status, after) = server.get(&format!("/v1/runs/{run}")).await;
    assert_eq!((status, after), (StatusCode::OK, before), "and nothing was changed");
}

#[tokio::test]
async fn what_belongs_to_another_is_not_found() {
    let theirs = Server::start_with(&[("MAINSPRING_OWNER", "them")]);
    let run = theirs.prompt("theirs", "say hi").await;
    let run = theirs.ended(&run).await;
    let before = (theirs.get("/v1/sessions/theirs").await, theirs.get("/v1/runs").await);
    let (session, run) = (run["sessionId"].as_str().unwrap(), run["runId"].as_str().unwrap());

    let ours = theirs.restart_with(&[]);
    for operation in operations(&ours).await.iter().filter(|operation| !operation.is_open) {
        // A key is an owner's own, so theirs names nothing here.
        let by_key = operation.path.contains("{session}").then_some("theirs");
        for name in [session].into_iter().chain(by_key) {
            for (request, foreign) in requests(&ours, operation, name, run) {
                let shown = format!("{} {request:?}", operation.id);
                let (status, body) = answer(request.bearer_auth(&ours.token)).await;
                match foreign {
                    NotFound => assert_eq!(
                        (status, &body["code"]),
                        (StatusCode::NOT_FOUND, &json!("not_found")),
                        "{shown}"
                    ),
                    NoItems => assert_eq!((status, &body["items"]), (StatusCode::OK, &json!([])), "{shown}"),
                    Nothing => assert_eq!(status, StatusCode::OK, "{shown}"),
                }
            }
        }
    }

    let theirs = ours.restart_with(&[("MAINSPRING_OWNER", "them")]);
    let after = (theirs.get("/v1/sessions/theirs").await, theirs.get("/v1/runs").await);
    assert_eq!(after, before, "and nothing was changed");
}
