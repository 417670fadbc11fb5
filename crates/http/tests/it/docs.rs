//! docs/http.md, docs/metrics.md and the examples of the OpenAPI document against the code.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use mainspring_core::Limits;
use serde_json::{Value, json};

use crate::world::{Server, send_request};

fn document(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_documented_endpoints_match_the_openapi_document() {
    let openapi = mainspring_http::document(&Limits::default());
    let mut endpoints = vec![];
    for (path, methods) in openapi["paths"].as_object().unwrap() {
        endpoints.extend(
            methods.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())),
        );
    }
    let text = document("http.md");
    let mut rows: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    rows.retain(|row| row.contains(" /"));
    rows.sort_unstable();
    endpoints.sort();
    assert_eq!(rows, endpoints, "docs/http.md against the OpenAPI document");
}

#[test]
fn the_documented_problems_match_the_openapi_document() {
    let openapi = mainspring_http::document(&Limits::default());
    let mut codes_by_status = BTreeMap::<String, BTreeSet<String>>::new();
    for operation in openapi["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|methods| methods.as_object().unwrap().values())
    {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let codes = response["x-codes"].as_array().into_iter().flatten();
            let codes = codes.map(|code| code.as_str().unwrap().to_owned());
            codes_by_status.entry(status.clone()).or_default().extend(codes);
        }
    }
    codes_by_status.retain(|_, codes| !codes.is_empty());
    let text = document("http.md");
    let mut rows = BTreeMap::new();
    for (status, codes) in text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")) {
        if status.parse::<u16>().is_ok() {
            let codes = codes.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            rows.insert(status.to_owned(), codes);
        }
    }
    assert_eq!(rows, codes_by_status, "docs/http.md against the OpenAPI document");
}

#[tokio::test]
async fn the_documented_metrics_match_the_server() {
    let server = Server::start().await;
    // An operation's counter appears after its first call.
    server.get("/health").await;
    let (_, page) = server.get("/metrics").await;
    let named =
        page.as_str().unwrap().lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut names: Vec<String> = named
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .collect();
    let text = document("metrics.md");
    let mut rows: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next()).collect();
    names.sort();
    rows.sort_unstable();
    assert_eq!(rows, names, "docs/metrics.md against /metrics");
}

/// Checks an example against a schema of the document.
fn check_example(document: &Value, name: &str, content: &Value) {
    let schema = json!({"allOf": [content["schema"]], "components": document["components"]});
    let validator = jsonschema::validator_for(&schema).unwrap();
    let problems: Vec<_> =
        validator.iter_errors(&content["example"]).map(|error| error.to_string()).collect();
    assert_eq!(problems, [""; 0], "{name}: {}", content["example"]);
}

#[test]
fn the_examples_fit_their_schemas() {
    let document = mainspring_http::document(&Limits::default());
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let request = &operation["requestBody"]["content"]["application/json"];
            if request.get("example").is_some() {
                check_example(&document, &format!("{method} {path}"), request);
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                let answer = &response["content"]["application/json"];
                if answer.get("example").is_some() {
                    check_example(&document, &format!("{method} {path} {status}"), answer);
                    count += 1;
                }
            }
        }
    }
    assert!(count >= 10, "{count} operations have an example");
}

#[tokio::test]
async fn the_examples_of_requests_are_accepted() {
    let document = mainspring_http::document(&Limits::default());
    let example = |path: &str, method: &str| {
        document["paths"][path][method]["requestBody"]["content"]["application/json"]["example"].clone()
    };
    let server = Server::start().await;
    for (path, method) in
        [("/v1/sessions", "post"), ("/v1/runs", "post"), ("/v1/sessions/{session}/runs", "post")]
    {
        let (status, answer) =
            server.post(&path.replace("{session}", "release-notes"), example(path, method)).await;
        assert!(status.is_success(), "{method} {path}: {answer}");
    }
    let patch = server.request(Method::PATCH, "/v1/sessions/release-notes");
    let (status, answer) = send_request(patch.json(&example("/v1/sessions/{session}", "patch"))).await;
    assert!(status.is_success(), "{answer}");
}
