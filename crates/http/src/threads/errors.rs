//! Problems in the form that the `roboto` Python package expects: `{"error": {"error_code", "message"}}`, and nothing
//! else. `error_code` names the exception that the package raises.
//!
//! The package retries 408, 429 and most of 5xx up to ten times, so a refusal is answered with 400, 401, 403, 404 or
//! 409.

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mainspring_api::threads::{ErrorEnvelope, ThreadError};

use crate::homes::BelongsTo;
use crate::problem::ProblemCode;

/// The maximum size of a problem document that is read.
const PROBLEM_MAX_BYTES: usize = 1 << 20;

/// Rewrites a response that is a problem document. Other responses stay as they are.
pub(super) async fn rewrite(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let Some(ProblemCode(code)) = response.extensions().get().copied() else { return response };
    let (status, name) = exception(response.status(), code);
    let retry = response.headers().get(header::RETRY_AFTER).cloned();
    let belongs_to = response.extensions().get::<BelongsTo>().copied();
    let body = axum::body::to_bytes(response.into_body(), PROBLEM_MAX_BYTES).await.unwrap_or_default();
    let problem: Option<mainspring_api::Problem> = serde_json::from_slice(&body).ok();
    let message = problem.map_or_else(|| code.to_owned(), |problem| problem.detail);
    let error = ThreadError { error_code: name.into(), message };
    let json = serde_json::to_string(&ErrorEnvelope { error }).unwrap_or_default();
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], json).into_response();
    // The audit log records the code of the problem, not the exception.
    response.extensions_mut().insert(ProblemCode(code));
    if let Some(server) = belongs_to {
        response.extensions_mut().insert(server);
    }
    response.headers_mut().extend(retry.map(|retry| (header::RETRY_AFTER, retry)));
    response
}

/// The status and the exception of a problem.
fn exception(status: StatusCode, code: &str) -> (StatusCode, &'static str) {
    match (status, code) {
        (_, "overloaded") => (StatusCode::SERVICE_UNAVAILABLE, "RobotoServiceException"),
        (StatusCode::UNAUTHORIZED, _) => (status, "RobotoUnauthorizedException"),
        (StatusCode::FORBIDDEN, _) => (status, "RobotoUnauthorizedException"),
        (StatusCode::NOT_FOUND, _) => (status, "RobotoNotFoundException"),
        (StatusCode::TOO_MANY_REQUESTS, _) | (_, "too_many") => {
            (StatusCode::FORBIDDEN, "RobotoLimitExceededException")
        }
        (_, "request_conflict" | "already_exists" | "tool_result_conflict" | "agent_taken") => {
            (StatusCode::CONFLICT, "RobotoConflictException")
        }
        (StatusCode::INSUFFICIENT_STORAGE, _) => (StatusCode::SERVICE_UNAVAILABLE, "RobotoServiceException"),
        _ if status.is_server_error() => (status, "RobotoServiceException"),
        _ => (StatusCode::BAD_REQUEST, "RobotoInvalidRequestException"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PROBLEMS;

    #[test]
    fn only_server_errors_get_a_status_that_the_package_retries() {
        for (status, code) in PROBLEMS {
            let (to, name) = exception(*status, code);
            let is_retried = to.is_server_error();
            assert_eq!(is_retried, name == "RobotoServiceException", "{code}");
            let allowed = [400, 401, 403, 404, 409];
            assert!(is_retried || allowed.contains(&to.as_u16()), "{code}: {to}");
        }
    }
}
