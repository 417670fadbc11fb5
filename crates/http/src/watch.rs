//! What every request passes: it is counted, timed and bounded.

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Answered;
use crate::{Http, Problem};

/// Works on so many requests at once and no more. A stream is let go once it has begun.
pub(super) async fn bound(State(http): State<Http>, request: Request, next: Next) -> Response {
    let Ok(_permit) = http.requests.try_acquire() else {
        let detail = format!("{} requests are being worked on already; try again", http.limits.requests);
        let problem = Problem::passing(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail);
        return problem.into_response();
    };
    next.run(request).await
}

/// Counts and times what is answered, and sees that it is what the document says.
pub(super) async fn observe(State(http): State<Http>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let begun = http.kernel.elapsed();
    let response = next.run(request).await;
    let took = http.kernel.elapsed().saturating_sub(begun);
    let operation = path.and_then(|path| http.operations.id(&method, path.as_str()));
    // Whoever asks for what does not exist must not make a label of it.
    let Some(operation) = operation else {
        http.metrics.answered(&http.metrics.nothing, response.status(), took);
        return response;
    };
    http.metrics.answered(operation, response.status(), took);
    if let Some(Answered(code)) = response.extensions().get() {
        debug_assert!(
            http.document().tells(operation, response.status(), code),
            "{operation} answered {} {code}, which its document does not say: add it to its x-problems",
            response.status(),
        );
    }
    response
}
