//! The OpenAPI document: made of the same registrations as the routes, so that neither can be forgotten.
//!
//! A handler says what is its own: parameters, body, answers, and in `x-problems` the codes that it alone can give.
//! What every request may meet on its way to a handler is added here, and codes become answers: one per status, with
//! the codes it may carry.

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

/// A problem that may be answered: status and code.
pub(super) type Row = (StatusCode, &'static str);

/// What every request may meet.
pub(super) const OPEN: &[Row] = &[
    (StatusCode::FORBIDDEN, "forbidden_host"),
    (StatusCode::FORBIDDEN, "forbidden_origin"),
    (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
];

/// What a request for a resource may meet.
pub(super) const RESOURCE: &[Row] = &[
    OPEN[0],
    OPEN[1],
    OPEN[2],
    (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
    (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
];

/// What a request may meet that must say who it comes from.
const CALLER: &[Row] = &[
    (StatusCode::BAD_REQUEST, "invalid_request"),
    (StatusCode::UNAUTHORIZED, "authentication"),
    (StatusCode::NOT_FOUND, "not_found"),
    (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
    (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
];

/// What a request with a body may meet besides.
const BODY: &[Row] = &[
    (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
    (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
];

/// The document, ready to be sent, and the problems that it tells of each operation, by its id.
#[derive(Debug)]
pub(super) struct Document {
    text: Bytes,
    problems: BTreeMap<String, BTreeSet<Row>>,
}

impl Document {
    /// The document of a server with these limits.
    pub(super) fn new(limits: &Limits) -> Self {
        let (mut paths, mut schemas, mut problems) = (Map::new(), Map::new(), BTreeMap::new());
        for (endpoints, common) in endpoints() {
            let mut api = serde_json::to_value(endpoint::told(endpoints)).unwrap_or_default();
            schemas.extend(taken(&mut api, "/components/schemas"));
            for (path, mut methods) in taken(&mut api, "/paths") {
                for operation in methods.as_object_mut().into_iter().flat_map(Map::values_mut) {
                    let told = complete(operation, &path, common, limits);
                    problems.insert(operation["operationId"].as_str().unwrap_or_default().to_owned(), told);
                }
                paths.insert(path, methods);
            }
        }
        schemas.insert(
            "Problem".into(),
            serde_json::to_value(mainspring_api::Problem::schema()).unwrap_or_default(),
        );
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "mainspring",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Durable sessions for AI agents. Errors are `application/problem+json` with a stable \
                                `code`; creating requests are exactly-once under an `Idempotency-Key`; events come \
                                as pages, or as server-sent events that resume where a reader was.",
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

    /// True when the document says that the operation may be answered so.
    pub(super) fn tells(&self, operation: &str, status: StatusCode, code: &'static str) -> bool {
        self.problems.get(operation).is_some_and(|problems| problems.contains(&(status, code)))
    }
}

/// The object at `pointer`, taken out.
fn taken(value: &mut Value, pointer: &str) -> Map<String, Value> {
    match value.pointer_mut(pointer).map(Value::take) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// Completes what a handler says of itself. Returns the problems it may answer.
fn complete(operation: &mut Value, path: &str, common: &[Row], limits: &Limits) -> BTreeSet<Row> {
    let own = operation.as_object_mut().and_then(|fields| fields.remove("x-problems")).unwrap_or_default();
    let own = own.as_array().into_iter().flatten().filter_map(Value::as_str);
    let own = own.filter_map(|code| PROBLEMS.iter().find(|(_, known)| *known == code));
    let mut problems: BTreeSet<Row> = common.iter().chain(own).copied().collect();
    let has_body = operation.get("requestBody").is_some();
    if has_body {
        problems.extend(BODY);
    }
    // Those that say nothing of security need what the document asks of all.
    if operation.get("security").is_none() {
        problems.extend(CALLER);
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        operation["parameters"] = parameters.into_iter().chain([owner()]).collect();
    }
    let mut by_status: BTreeMap<StatusCode, Vec<&str>> = BTreeMap::new();
    for (status, code) in &problems {
        by_status.entry(*status).or_default().push(code);
    }
    for (status, codes) in by_status {
        operation["responses"][status.as_str()] = answer(status, &codes);
    }
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        // What is not sent is absent; there is no null in an address or a header.
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

/// The header that names the owner to act for.
fn owner() -> Value {
    json!({
        "name": "Mainspring-Owner", "in": "header", "required": false,
        "description": "For whom to act. The token acts for anybody, and for the configured owner if none is named; a \
                        key acts for its own owner alone.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 512},
    })
}

/// What a status with these codes looks like.
fn answer(status: StatusCode, codes: &[&str]) -> Value {
    let text = |description: &str| json!({"description": description, "schema": {"type": "string"}});
    let mut headers = Map::new();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert("WWW-Authenticate".into(), text("`Bearer`"));
    }
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        headers.insert("Retry-After".into(), text("Seconds."));
    }
    let listed = codes.iter().map(|code| format!("`{code}`")).collect::<Vec<_>>().join(", ");
    let schema = json!({"allOf": [
        {"$ref": "#/components/schemas/Problem"},
        {"type": "object", "properties": {"status": {"enum": [status.as_u16()]}, "code": {"enum": codes}}},
    ]});
    json!({
        "description": format!("{}: {listed}", status.canonical_reason().unwrap_or("Error")),
        "headers": headers,
        "content": {"application/problem+json": {"schema": schema}},
    })
}

/// The OpenAPI document of a server with these limits.
pub fn document(limits: &Limits) -> Value {
    serde_json::from_slice(&Document::new(limits).text).unwrap_or_default()
}

/// This document
#[utoipa::path(
    get, path = "/openapi.json", security(()),
    responses((status = 200, description = "An OpenAPI 3.1 document", body = serde_json::Value)),
)]
pub(super) async fn openapi(State(http): State<Http>) -> Response {
    let mut response = http.document().text.clone().into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests;
