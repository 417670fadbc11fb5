//! Problems: every error of this edge, as `application/problem+json` (RFC 9457) with a stable code.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainspring_api::ToJson;
use mainspring_core::{FirstAnswer, NodeId, Refusal, RunStatus};
use mainspring_kernel::Error;

use crate::HttpLimits;
use crate::homes::BelongsTo;

/// Every problem of the HTTP API: status and code. Responses and the OpenAPI document both use this table. A kernel
/// error gets the status of the first row with its code.
pub const PROBLEMS: &[(StatusCode, &str)] = &[
    (StatusCode::BAD_REQUEST, "invalid_request"),
    (StatusCode::BAD_REQUEST, "adapter_not_registered"),
    (StatusCode::BAD_REQUEST, "adapter_incompatible"),
    (StatusCode::BAD_REQUEST, "invalid_name"),
    (StatusCode::BAD_REQUEST, "option_not_used"),
    (StatusCode::BAD_REQUEST, "limit_not_enforceable"),
    (StatusCode::BAD_REQUEST, "not_user_message"),
    (StatusCode::BAD_REQUEST, "not_assistant_message"),
    (StatusCode::BAD_REQUEST, "abandoned_message"),
    (StatusCode::BAD_REQUEST, "ambiguous_mode"),
    (StatusCode::BAD_REQUEST, "no_model"),
    (StatusCode::BAD_REQUEST, "initial_messages_not_supported"),
    (StatusCode::BAD_REQUEST, "invalid_import"),
    (StatusCode::BAD_REQUEST, "unknown_tool_use"),
    (StatusCode::UNAUTHORIZED, "authentication"),
    (StatusCode::FORBIDDEN, "forbidden"),
    (StatusCode::FORBIDDEN, "folder_not_allowed"),
    (StatusCode::FORBIDDEN, "not_allowed_by_key"),
    (StatusCode::TOO_MANY_REQUESTS, "spend_limit_reached"),
    (StatusCode::FORBIDDEN, "forbidden_host"),
    (StatusCode::FORBIDDEN, "forbidden_origin"),
    (StatusCode::NOT_FOUND, "not_found"),
    (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
    (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
    (StatusCode::CONFLICT, "request_conflict"),
    (StatusCode::CONFLICT, "already_exists"),
    (StatusCode::CONFLICT, "agent_taken"),
    (StatusCode::CONFLICT, "goal_type_taken"),
    (StatusCode::CONFLICT, "session_busy"),
    (StatusCode::CONFLICT, "session_closed"),
    (StatusCode::CONFLICT, "not_latest_run"),
    (StatusCode::CONFLICT, "not_at_tip"),
    (StatusCode::CONFLICT, "stale_attempt"),
    (StatusCode::CONFLICT, "no_authority"),
    (StatusCode::CONFLICT, "run_ended"),
    (StatusCode::CONFLICT, "run_merged"),
    (StatusCode::CONFLICT, "not_waiting"),
    (StatusCode::CONFLICT, "already_answered"),
    (StatusCode::CONFLICT, "wrong_answer"),
    (StatusCode::CONFLICT, "answer_not_offered"),
    (StatusCode::CONFLICT, "tool_result_conflict"),
    (StatusCode::CONFLICT, "no_org"),
    (StatusCode::CONFLICT, "wrong_state"),
    (StatusCode::CONFLICT, "too_many"),
    (StatusCode::CONFLICT, "login_failed"),
    (StatusCode::CONFLICT, "delegation_too_deep"),
    (StatusCode::CONFLICT, "would_deadlock"),
    (StatusCode::GONE, "cursor_expired"),
    (StatusCode::PRECONDITION_FAILED, "version_conflict"),
    (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
    (StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable"),
    (StatusCode::TOO_MANY_REQUESTS, "overloaded"),
    (StatusCode::TOO_MANY_REQUESTS, "quota_reached"),
    (StatusCode::TOO_MANY_REQUESTS, "adapter_full"),
    (StatusCode::TOO_MANY_REQUESTS, "too_many_children"),
    (StatusCode::TOO_MANY_REQUESTS, "too_many_streams"),
    (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
    (StatusCode::INTERNAL_SERVER_ERROR, "session_failed"),
    (StatusCode::INTERNAL_SERVER_ERROR, "request_failed"),
    (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
    (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    (StatusCode::SERVICE_UNAVAILABLE, "store_lost"),
    (StatusCode::INSUFFICIENT_STORAGE, "store_full"),
    (StatusCode::SERVICE_UNAVAILABLE, "audit_failed"),
    (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
];

/// Returns the status of a kernel error code. A test checks that every code has one.
pub(super) fn status_of(code: &str) -> StatusCode {
    let row = PROBLEMS.iter().find(|(_, known)| *known == code);
    row.map_or(StatusCode::INTERNAL_SERVER_ERROR, |(status, _)| *status)
}

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// A stable code in snake_case.
    pub code: &'static str,
    /// A sentence for people: names the resource and the remedy.
    pub detail: String,
    /// True when the same request may succeed later.
    pub retryable: bool,
    /// The status of the run that keeps a session busy.
    pub run_status: Option<RunStatus>,
    /// The first answer to a wait that was answered again.
    pub first_answer: Option<Box<FirstAnswer>>,
    /// The server of the cluster that the request belongs to.
    pub belongs_to: Option<NodeId>,
}

impl Problem {
    /// Creates a problem that is not retryable. [`PROBLEMS`] must contain its status and code.
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let (retryable, run_status, first_answer, belongs_to) = (false, None, None, None);
        Self { status, code, detail: detail.into(), retryable, run_status, first_answer, belongs_to }
    }

    /// Creates a retryable problem.
    pub(super) fn transient(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::new(status, code, detail) }
    }

    /// The problem of a request whose body does not arrive in time.
    pub(super) fn slow_body(limits: &HttpLimits) -> Self {
        let detail = format!(
            "the body did not arrive within {} ms, or a file at less than {} bytes per second; send it faster",
            limits.body_ms, limits.body_rate
        );
        Self::transient(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail)
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = status_of(error.code());
        let belongs_to = match &error {
            Error::Elsewhere { node } => Some(*node),
            _ => None,
        };
        if status.is_server_error() && belongs_to.is_none() {
            tracing::warn!(%error, "request failed");
        }
        let run_status = match &error {
            Error::Busy { status } => Some(*status),
            _ => None,
        };
        let first_answer = match &error {
            Error::Refused(Refusal::Answered { first, .. }) => first.clone(),
            _ => None,
        };
        let retryable = error.is_retryable();
        let plain = Self::new(status, error.code(), error.to_string());
        Self { retryable, run_status, first_answer, belongs_to, ..plain }
    }
}

/// The problem's code, as a response extension for the middleware.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProblemCode(pub(super) &'static str);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = mainspring_api::Problem {
            kind: "about:blank".into(),
            title: self.status.canonical_reason().unwrap_or("Error").into(),
            status: self.status.as_u16(),
            code: self.code.into(),
            detail: self.detail,
            retryable: self.retryable,
            run_status: self.run_status,
            answered_at: self.first_answer.as_ref().map(|first| first.at),
            answered_by: self.first_answer.map(|first| Box::new(first.by)),
        };
        let mut response = (self.status, body.to_json().unwrap_or_default()).into_response();
        response.extensions_mut().insert(ProblemCode(self.code));
        if let Some(node) = self.belongs_to {
            response.extensions_mut().insert(BelongsTo(node));
        }
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
        "this endpoint does not support this method",
    )
}

#[cfg(test)]
mod tests {
    use mainspring_core::Refusal;

    use super::*;

    #[test]
    fn every_code_of_the_kernel_has_a_status() {
        for code in Error::CODES.iter().chain(Refusal::CODES) {
            assert!(
                PROBLEMS.iter().any(|(_, known)| known == code),
                "{code} has no row in PROBLEMS: add one with its status"
            );
        }
    }
}
