//! Refuses input that an operation does not read: unknown query parameters, and a body where none is taken.
//!
//! Unknown keys of a body are refused by the request types of `mainspring-api`.

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Query, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainspring_api::request::suggestion;

use crate::endpoint::Inputs;
use crate::{Http, Problem};

/// The longest body that is read where none is taken: enough for `{}`, which many clients send.
const EMPTY_BODY_MAX_BYTES: usize = 1024;

/// Refuses a request with a query parameter or a body that its operation does not read.
pub(super) async fn refuse_unknown_input(State(http): State<Http>, request: Request, next: Next) -> Response {
    let has_query = request.uri().query().is_some_and(|query| !query.is_empty());
    let has_body = !request.body().is_end_stream();
    if !has_query && !has_body {
        return next.run(request).await;
    }
    let path = request.extensions().get::<MatchedPath>().cloned();
    let Some(inputs) = path.and_then(|path| http.operations.inputs(request.method(), path.as_str())) else {
        return next.run(request).await;
    };
    match refuse(inputs, request).await {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Like [`refuse_unknown_input`], for endpoints that need no credentials. The status endpoints ignore any input.
pub(super) async fn refuse_unknown_open_input(http: State<Http>, request: Request, next: Next) -> Response {
    match request.uri().path().starts_with("/v1/") {
        true => refuse_unknown_input(http, request, next).await,
        false => next.run(request).await,
    }
}

async fn refuse(inputs: &Inputs, request: Request) -> Result<Request, Problem> {
    // The extractor refuses a query that cannot be parsed.
    if let Ok(Query(query)) = Query::<Vec<(String, String)>>::try_from_uri(request.uri()) {
        let known: Vec<&str> = inputs.query.iter().map(String::as_str).collect();
        if let Some((name, _)) = query.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            let name: String = name.chars().take(64).collect();
            let remedy = suggestion(&name, &known);
            return Err(Problem::invalid(format!("unknown query parameter `{name}`{remedy}")));
        }
    }
    if inputs.body {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, EMPTY_BODY_MAX_BYTES).await;
    let is_empty = bytes.is_ok_and(|bytes| {
        let text = bytes.trim_ascii();
        text.is_empty() || (text.starts_with(b"{") && text[1..].trim_ascii() == b"}")
    });
    match is_empty {
        true => Ok(Request::from_parts(parts, Body::empty())),
        false => Err(Problem::invalid("this operation reads no body: send none")),
    }
}
