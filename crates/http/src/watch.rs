//! Middleware: limits concurrent requests, counts and times them.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::ProblemCode;
use crate::{Http, Problem};

/// The header that names the history of the events.
const HISTORY_HEADER: HeaderName = HeaderName::from_static("mainspring-history");

/// Limits the number of concurrent requests. A stream stops counting once its headers are sent.
pub(super) async fn limit_concurrency(State(http): State<Http>, request: Request, next: Next) -> Response {
    let Ok(_permit) = http.requests.try_acquire() else {
        let detail = format!("{} requests are already in progress; try again", http.limits.requests);
        let problem = Problem::transient(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail);
        return problem.into_response();
    };
    next.run(request).await
}

/// Names the history of the events in each response.
pub(super) async fn add_history(State(http): State<Http>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(history) = http.kernel.history().and_then(|token| HeaderValue::from_str(token).ok()) {
        response.headers_mut().insert(HISTORY_HEADER, history);
    }
    response
}

/// Counts and times responses. In debug builds, checks that the OpenAPI document lists each problem.
pub(super) async fn record_metrics(State(http): State<Http>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let started = http.kernel.elapsed();
    let response = next.run(request).await;
    let took = http.kernel.elapsed().saturating_sub(started);
    let operation = path.and_then(|path| http.operations.id(&method, path.as_str()));
    // Unknown paths must not become labels.
    let Some(operation) = operation else {
        http.metrics.record_request(&http.metrics.no_operation, response.status(), took);
        return response;
    };
    http.metrics.record_request(operation, response.status(), took);
    if let Some(ProblemCode(code)) = response.extensions().get() {
        debug_assert!(
            http.document().lists_problem(operation, response.status(), code),
            "{operation} answered {} {code}, which the OpenAPI document does not list: add it to the operation's x-problems",
            response.status(),
        );
    }
    response
}
