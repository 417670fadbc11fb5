//! Middleware: admits requests, counts and times them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainspring_api::header_name;
use mainspring_kernel::contain::contain;
use mainspring_kernel::quotas::{NotTaken, PoolPermit};
use parking_lot::Mutex;

use crate::access::Authenticated;
use crate::body::BodyLimit;
use crate::problem::ProblemCode;
use crate::slow_body::{SlowBody, TooSlow};
use crate::{Http, Problem, sign_in, threads};

/// The header that names the history of the events.
const HISTORY_HEADER: HeaderName = HeaderName::from_static(header_name::HISTORY);

/// The permit to handle a request: only a limited number are handled at the same time. Middleware holds it until the
/// response begins.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestSlot(Arc<Mutex<Option<PoolPermit>>>);

impl RequestSlot {
    /// Releases the permit: early, if the request from now on only waits and counts as a stream.
    pub(super) fn release(&self) {
        self.0.lock().take();
    }
}

impl FromRequestParts<Http> for RequestSlot {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Http) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// Authenticates a request and takes a permit for it from its owner's share, before a byte of its body is read. A request
/// without a valid credential takes none.
pub(super) async fn admit(State(http): State<Http>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let is_sign_in = path.as_ref().is_some_and(|path| sign_in::SIGN_IN_PATHS.contains(&path.as_str()));
    let inputs = path.and_then(|path| http.operations.inputs(request.method(), path.as_str()));
    // The router refuses a method that the path does not have.
    let Some(inputs) = inputs else { return next.run(request).await };
    let (mut parts, body) = request.into_parts();
    let slot = match is_sign_in {
        // The ticket or code in the body is the credential: no owner is known yet from whose share to take a permit. So
        // that such requests cannot fill the memory, their bodies are small.
        true => {
            parts.extensions.insert(BodyLimit(sign_in::BODY_MAX_BYTES));
            RequestSlot::default()
        }
        false => match take_slot(&http, &mut parts).await {
            Ok(slot) => slot,
            Err(problem) => return problem.into_response(),
        },
    };
    let too_slow = TooSlow::default();
    let body = match body.is_end_stream() {
        true => body,
        false => Body::new(SlowBody::new(body, http.kernel.clone(), http.limits, too_slow.clone())),
    };
    let response = next.run(Request::from_parts(parts, body)).await;
    slot.release();
    match too_slow.get() && inputs.body {
        true => Problem::slow_body(&http.limits).into_response(),
        false => response,
    }
}

/// Authenticates a request and takes a permit for it. The handler finds caller and permit in the request's extensions.
async fn take_slot(http: &Http, parts: &mut Parts) -> Result<RequestSlot, Problem> {
    let Authenticated(caller) = Authenticated::from_request_parts(parts, http).await?;
    let permit =
        http.requests.take(&http.kernel, &caller.owner).map_err(|refused| not_admitted(http, refused))?;
    let slot = RequestSlot(Arc::new(Mutex::new(Some(permit))));
    parts.extensions.insert(caller);
    parts.extensions.insert(slot.clone());
    Ok(slot)
}

fn not_admitted(http: &Http, refused: NotTaken) -> Problem {
    match refused {
        NotTaken::Refused(error) => error.into(),
        NotTaken::Full => {
            let detail = format!("{} requests are already in progress; try again", http.limits.requests);
            Problem::transient(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
        }
    }
}

/// Names the history of the events in each response.
pub(super) async fn add_history(State(http): State<Http>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(history) = http.kernel.history().and_then(|token| HeaderValue::from_str(token).ok()) {
        response.headers_mut().insert(HISTORY_HEADER, history);
    }
    response
}

/// Answers a request whose handler panics, instead of closing its connection. The panic ends this request alone.
pub(super) async fn contain_panics(request: Request, next: Next) -> Response {
    contain(next.run(request)).await.unwrap_or_else(|_logged| {
        let detail = "the server failed while it handled the request; whether the request was carried out is unknown: \
                      read what it concerns before you repeat it. The log says where; please report it";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "request_failed", detail).into_response()
    })
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
    if let Some(ProblemCode(code)) = response.extensions().get()
        && !threads::is_operation(operation)
    {
        debug_assert!(
            http.document().lists_problem(operation, response.status(), code),
            "{operation} answered {} {code}, which the OpenAPI document does not list: add it to the operation's x-problems",
            response.status(),
        );
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use axum::{Router, middleware};
    use tower::ServiceExt as _;

    use super::*;

    async fn fails() -> &'static str {
        panic!("a bug")
    }

    #[tokio::test]
    async fn a_panic_is_answered_and_the_next_request_works() {
        let router = Router::new()
            .route("/panics", get(fails))
            .route("/works", get(|| async { "fine" }))
            .layer(middleware::from_fn(contain_panics));
        let send = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap()
        };
        let failed = send("/panics").await;
        assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(failed.extensions().get::<ProblemCode>().map(|code| code.0), Some("request_failed"));
        assert_eq!(send("/works").await.status(), StatusCode::OK);
    }
}
