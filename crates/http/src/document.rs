//! The OpenAPI document, built from the same registrations as the routes.
//!
//! A handler documents its parameters, body and responses, and lists its own problem codes in `x-problems`. This module
//! adds the problems of the middleware and the extractors, and turns the codes into one response per status.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_core::Limits;
use serde_json::{Map, Value, json};
use utoipa::PartialSchema;

use crate::problem::PROBLEMS;
use crate::{Http, endpoint, endpoints};

mod examples;
mod shapes;

/// A possible problem of an operation: status and code.
pub(super) type ProblemRow = (StatusCode, &'static str);

/// Problems that any request can get.
pub(super) const OPEN_PROBLEMS: &[ProblemRow] = &[
    (StatusCode::FORBIDDEN, "forbidden_host"),
    (StatusCode::FORBIDDEN, "forbidden_origin"),
    (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
    (StatusCode::BAD_REQUEST, "invalid_request"),
    (StatusCode::INTERNAL_SERVER_ERROR, "request_failed"),
];

/// Problems that a request for a resource can get.
pub(super) const RESOURCE_PROBLEMS: &[ProblemRow] = &[
    OPEN_PROBLEMS[0],
    OPEN_PROBLEMS[1],
    OPEN_PROBLEMS[2],
    OPEN_PROBLEMS[3],
    OPEN_PROBLEMS[4],
    (StatusCode::TOO_MANY_REQUESTS, "quota_reached"),
    (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
    (StatusCode::SERVICE_UNAVAILABLE, "audit_failed"),
    (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
];

/// Problems that an authenticated request can get in addition.
const AUTHENTICATED_PROBLEMS: &[ProblemRow] = &[
    (StatusCode::BAD_REQUEST, "invalid_request"),
    (StatusCode::BAD_REQUEST, "invalid_name"),
    (StatusCode::UNAUTHORIZED, "authentication"),
    (StatusCode::FORBIDDEN, "forbidden"),
    (StatusCode::NOT_FOUND, "not_found"),
    (StatusCode::CONFLICT, "no_authority"),
    (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
    (StatusCode::INTERNAL_SERVER_ERROR, "session_failed"),
    (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    (StatusCode::SERVICE_UNAVAILABLE, "store_lost"),
    (StatusCode::INSUFFICIENT_STORAGE, "store_full"),
];

/// Problems that a request with a body can get in addition.
const BODY_PROBLEMS: &[ProblemRow] = &[
    (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
    (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
];

/// The serialized document, and the problems it lists for each operation id.
#[derive(Debug)]
pub(super) struct Document {
    text: Bytes,
    problems: BTreeMap<String, BTreeSet<ProblemRow>>,
}

impl Document {
    /// Builds the document of a server with these limits.
    pub(super) fn new(limits: &Limits) -> Self {
        let (mut paths, mut schemas, mut problems) = (Map::new(), Map::new(), BTreeMap::new());
        for (endpoints, common) in endpoints() {
            let mut api = serde_json::to_value(endpoint::describe(endpoints)).unwrap_or_default();
            schemas.extend(take_object(&mut api, "/components/schemas"));
            for (path, mut methods) in take_object(&mut api, "/paths") {
                for operation in methods.as_object_mut().into_iter().flat_map(Map::values_mut) {
                    let listed = complete(operation, &path, common, limits);
                    examples::add(operation);
                    problems.insert(operation["operationId"].as_str().unwrap_or_default().to_owned(), listed);
                }
                paths.insert(path, methods);
            }
        }
        // The endpoint for MCP is described by that protocol, not by this document.
        let of_mcp = [RESOURCE_PROBLEMS, AUTHENTICATED_PROBLEMS, BODY_PROBLEMS].concat();
        problems.insert(crate::mcp::OPERATION.to_owned(), of_mcp.into_iter().collect());
        schemas.insert(
            "Problem".into(),
            serde_json::to_value(mainspring_api::Problem::schema()).unwrap_or_default(),
        );
        strict::close_requests(&mut paths, &mut schemas);
        shapes::rewrite(&mut schemas);
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "mainspring",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Durable sessions for AI agents. Errors are `application/problem+json` with a stable \
                                `code`; creating requests are exactly-once under an `Idempotency-Key`; events come \
                                as pages, or as resumable server-sent events.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "security": [{"bearer": []}],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"bearer": {
                    "type": "http", "scheme": "bearer",
                    "description": "An API key, or the token of the state directory, which `mainspring serve --print-token` \
                                    prints.",
                }},
            },
        });
        Self { text: document.to_string().into(), problems }
    }

    /// True when the document lists this problem for the operation.
    pub(super) fn lists_problem(&self, operation: &str, status: StatusCode, code: &'static str) -> bool {
        self.problems.get(operation).is_some_and(|problems| problems.contains(&(status, code)))
    }
}

/// Takes the object at `pointer` out of `value`.
fn take_object(value: &mut Value, pointer: &str) -> Map<String, Value> {
    match value.pointer_mut(pointer).map(Value::take) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// Completes a handler's documentation. Returns the problems of the operation.
fn complete(
    operation: &mut Value,
    path: &str,
    common: &[ProblemRow],
    limits: &Limits,
) -> BTreeSet<ProblemRow> {
    let own = operation.as_object_mut().and_then(|fields| fields.remove("x-problems")).unwrap_or_default();
    let own = own.as_array().into_iter().flatten().filter_map(Value::as_str);
    let own = own.filter_map(|code| PROBLEMS.iter().find(|(_, known)| *known == code));
    let mut problems: BTreeSet<ProblemRow> = common.iter().chain(own).copied().collect();
    let has_body = operation.get("requestBody").is_some();
    if has_body {
        problems.extend(BODY_PROBLEMS);
    }
    // Operations without their own `security` require the document's default: authentication.
    if operation.get("security").is_none() {
        problems.extend(AUTHENTICATED_PROBLEMS);
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        operation["parameters"] = parameters.into_iter().chain([owner_parameter()]).collect();
    }
    let mut by_status: BTreeMap<StatusCode, Vec<&str>> = BTreeMap::new();
    for (status, code) in &problems {
        by_status.entry(*status).or_default().push(code);
    }
    for (status, codes) in by_status {
        operation["responses"][status.as_str()] = problem_response(status, &codes);
    }
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        // An omitted parameter is absent: queries and headers have no null.
        if let Some(kinds) = parameter.pointer_mut("/schema/type").filter(|kinds| kinds.is_array()) {
            *kinds = kinds[0].take();
        }
        if parameter["name"] == "limit" {
            parameter["schema"]["minimum"] = json!(1);
            parameter["schema"]["maximum"] = json!(limits.page);
        }
    }
    let resource = path.strip_prefix("/v1/").and_then(|rest| rest.split('/').next());
    operation["tags"] = json!([resource.unwrap_or("server")]);
    problems
}

/// Describes the header that names the owner to act for.
fn owner_parameter() -> Value {
    json!({
        "name": "Mainspring-Owner", "in": "header", "required": false,
        "description": "The owner to act for. The token may act for any owner and defaults to the configured one; an API \
                        key acts only for its own owner.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 512},
    })
}

/// Describes the response of a status with these problem codes.
fn problem_response(status: StatusCode, codes: &[&str]) -> Value {
    let text = |description: &str| json!({"description": description, "schema": {"type": "string"}});
    let mut headers = Map::new();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert("WWW-Authenticate".into(), text("`Bearer`"));
    }
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        headers.insert("Retry-After".into(), text("Seconds to wait before a retry."));
    }
    let listed = codes.iter().map(|code| format!("`{code}`")).collect::<Vec<_>>().join(", ");
    json!({
        "description": format!("{}: {listed}", status.canonical_reason().unwrap_or("Error")),
        "headers": headers,
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        "x-codes": codes,
    })
}

/// Returns the OpenAPI document of a server with these limits.
pub fn document(limits: &Limits) -> Value {
    serde_json::from_slice(&Document::new(limits).text).unwrap_or_default()
}

/// Returns this OpenAPI document
#[utoipa::path(
    get, path = "/openapi.json", security(()),
    responses((status = 200, description = "An OpenAPI 3.1 document", body = serde_json::Value)),
)]
pub(super) async fn openapi(State(http): State<Http>) -> Response {
    let mut response = http.document().text.clone().into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

mod strict;
#[cfg(test)]
mod tests;
