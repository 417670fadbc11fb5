//! Problems: every error of this edge, as `application/problem+json` (RFC 9457) with a stable code.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_kernel::Error;
use serde_json::json;

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// Stable, snake_case.
    pub code: &'static str,
    /// For people: names the thing and the remedy.
    pub detail: String,
    /// True when the same request may succeed later.
    pub retryable: bool,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), retryable: false }
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::NotFound { .. } => StatusCode::NOT_FOUND,
            Error::Forbidden(_) => StatusCode::FORBIDDEN,
            Error::Invalid(_) | Error::UnknownAdapter { .. } | Error::Unsupported { .. } => {
                StatusCode::BAD_REQUEST
            }
            Error::BadImport { .. } | Error::AmbiguousMode | Error::NoModel | Error::InitialMessages => {
                StatusCode::BAD_REQUEST
            }
            Error::NotUserMessage(_) | Error::NotAssistantMessage(_) | Error::Abandoned(_) => {
                StatusCode::BAD_REQUEST
            }
            Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Error::RequestConflict { .. } | Error::AlreadyExists { .. } | Error::Busy { .. } => {
                StatusCode::CONFLICT
            }
            Error::Expired { .. } => StatusCode::GONE,
            Error::NotLatest(_) | Error::Refused(_) | Error::TooMany { .. } => StatusCode::CONFLICT,
            Error::Changed { .. } => StatusCode::PRECONDITION_FAILED,
            Error::Overloaded { .. } => StatusCode::TOO_MANY_REQUESTS,
            Error::ShuttingDown | Error::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Error::Corrupt(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::warn!(%error, "a request could not be carried out");
        }
        Self { status, code: error.code(), detail: error.to_string(), retryable: error.is_retryable() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
            "retryable": self.retryable,
        });
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.retryable {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

pub(super) async fn no_such_endpoint() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not_found", "there is no such endpoint; resources are under /v1")
}

pub(super) async fn no_such_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "this endpoint does not take this method",
    )
}
