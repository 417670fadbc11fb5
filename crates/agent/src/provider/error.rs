//! Errors of model calls, by what the caller does next: retry or not.

use mainspring_core::FailureCode;
use serde_json::Value;

/// Why a model call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// The kind of error.
    pub kind: ErrorKind,
    /// The message, for people. Contains no key.
    pub message: String,
    /// How long the provider asks to wait, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// True if the model certainly did not begin to work on the call.
    is_rejected: bool,
}

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Too many requests. Retryable.
    RateLimited,
    /// The provider is overloaded or had an internal error. Retryable.
    Overloaded,
    /// The connection failed or was closed. Retryable.
    Broken,
    /// No such model is configured.
    NotConfigured,
    /// The key is missing.
    KeyMissing,
    /// The key was rejected.
    Unauthorized,
    /// The quota of the account is exhausted.
    QuotaExhausted,
    /// The provider rejected the request as invalid.
    Invalid,
    /// The request exceeds the context window.
    ContextTooLong,
    /// The model refused to answer.
    Refused,
}

impl ErrorKind {
    /// Returns the stable error code.
    pub fn code(self) -> FailureCode {
        match self {
            Self::RateLimited => FailureCode::ModelRateLimited,
            Self::Overloaded => FailureCode::ModelOverloaded,
            Self::Broken => FailureCode::ModelConnectionBroken,
            Self::NotConfigured => FailureCode::ModelNotConfigured,
            Self::KeyMissing => FailureCode::ModelKeyMissing,
            Self::Unauthorized => FailureCode::ModelUnauthorized,
            Self::QuotaExhausted => FailureCode::ModelQuotaExhausted,
            Self::Invalid => "model_invalid_request".into(),
            Self::ContextTooLong => "model_context_too_long".into(),
            Self::Refused => "model_refused".into(),
        }
    }

    /// Returns true if the same request may succeed later.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::RateLimited | Self::Overloaded | Self::Broken)
    }
}

impl ModelError {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let is_rejected = !matches!(kind, ErrorKind::Overloaded | ErrorKind::Broken | ErrorKind::Refused);
        Self { kind, message: message.into(), retry_after_ms: None, is_rejected }
    }

    /// Returns true if the provider counts nothing for a call that fails with this error before any output: the call was
    /// not sent, or it was answered with a status that says that the model did not work on it (a 4xx other than 408, or
    /// the 503 or 529 of an overloaded provider).
    ///
    /// All other failures may be billed, and the provider does not say whether they are: a server that failed halfway
    /// or whose gateway lost the answer (500, 502, 504), a connection that broke, a refusal, an error inside a
    /// response that began with success.
    pub const fn is_free(&self) -> bool {
        self.is_rejected
    }

    /// Creates the error of a response that ended early.
    pub(crate) fn connection_closed() -> Self {
        Self::new(ErrorKind::Broken, "the provider closed the connection before the response was complete")
    }

    /// Classifies an error response.
    pub(super) fn from_response(status: Option<u16>, body: &str) -> Self {
        let json: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        // The body is `{"error": {…}}`, the error itself, or a list with one of these.
        let json = if json.is_array() { &json[0] } else { &json };
        let error = json.get("error").unwrap_or(json);
        let field = |name: &str| error[name].as_str().unwrap_or_default();
        let message = match field("message") {
            "" => body.trim(),
            message => message,
        };
        let reasons = error["details"].as_array().into_iter().flatten();
        let reasons: Vec<&str> = reasons.filter_map(|detail| detail["reason"].as_str()).collect();
        let codes =
            [field("type"), field("code"), field("status"), &reasons.join(" ")].join(" ").to_lowercase();
        let kind = kind_of(status, &codes, &message.to_lowercase());
        let is_rejected = match status {
            Some(400..500) => !matches!(kind, ErrorKind::Broken | ErrorKind::Refused),
            Some(503 | 529) => true,
            Some(_) | None => false,
        };
        let status = status.map(|status| format!(" (status {status})")).unwrap_or_default();
        let excerpt: String = message.chars().take(500).collect();
        Self {
            kind,
            message: format!("the provider says: {excerpt}{status}"),
            retry_after_ms: retry_delay_ms(error),
            is_rejected,
        }
    }
}

fn kind_of(status: Option<u16>, codes: &str, message: &str) -> ErrorKind {
    let has_code = |any: &[&str]| any.iter().any(|code| codes.contains(code));
    let too_long = [
        "prompt is too long",
        "maximum context length",
        "context window",
        "exceeds the maximum number of tokens",
    ];
    match status {
        _ if has_code(&["context_length_exceeded"]) || too_long.iter().any(|text| message.contains(text)) => {
            ErrorKind::ContextTooLong
        }
        _ if has_code(&["insufficient_quota", "billing"]) => ErrorKind::QuotaExhausted,
        _ if has_code(&[
            "authentication",
            "permission",
            "invalid_api_key",
            "api_key_invalid",
            "unauthenticated",
        ]) =>
        {
            ErrorKind::Unauthorized
        }
        _ if has_code(&["rate_limit", "resource_exhausted"]) => ErrorKind::RateLimited,
        _ if has_code(&["overloaded", "unavailable", "server_error", "api_error", "internal"]) => {
            ErrorKind::Overloaded
        }
        Some(401 | 403) => ErrorKind::Unauthorized,
        Some(402) => ErrorKind::QuotaExhausted,
        Some(408) | None => ErrorKind::Broken,
        Some(429) => ErrorKind::RateLimited,
        Some(status) if status >= 500 => ErrorKind::Overloaded,
        Some(_) => ErrorKind::Invalid,
    }
}

/// Reads the delay from the body of a Gemini error: `"retryDelay": "2.5s"`.
fn retry_delay_ms(error: &Value) -> Option<u64> {
    let details = error["details"].as_array()?;
    let delay = details.iter().find_map(|detail| detail["retryDelay"].as_str())?;
    parse_seconds(delay.strip_suffix('s')?)
}

/// Parses seconds, possibly with a fraction, into milliseconds.
pub(super) fn parse_seconds(text: &str) -> Option<u64> {
    let seconds: f64 = text.trim().parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some((seconds * 1000.0).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_responses_are_classified() {
        let cases = [
            (
                Some(429),
                r#"{"error":{"code":"insufficient_quota","message":"You exceeded"}}"#,
                ErrorKind::QuotaExhausted,
            ),
            (Some(429), "slow down", ErrorKind::RateLimited),
            (Some(403), "", ErrorKind::Unauthorized),
            (Some(502), "<html>", ErrorKind::Overloaded),
            (Some(404), r#"{"error":{"message":"model not found"}}"#, ErrorKind::Invalid),
            (None, "connection reset", ErrorKind::Broken),
            (None, r#"{"error":{"type":"overloaded_error","message":"Overloaded"}}"#, ErrorKind::Overloaded),
            (
                Some(400),
                r#"[{"error":{"status":"INVALID_ARGUMENT","message":"x","details":[{"reason":"API_KEY_INVALID"}]}}]"#,
                ErrorKind::Unauthorized,
            ),
        ];
        for (status, body, kind) in cases {
            assert_eq!(ModelError::from_response(status, body).kind, kind, "{body}");
        }
    }

    #[test]
    fn a_call_is_free_only_if_the_model_did_not_begin_it() {
        let free = |status| ModelError::from_response(status, "").is_free();
        for status in [400, 401, 402, 404, 413, 429, 503, 529] {
            assert!(free(Some(status)), "{status}");
        }
        for status in [408, 500, 502, 504] {
            assert!(!free(Some(status)), "{status}");
        }
        let overloaded = r#"{"error":{"type":"overloaded_error","message":"Overloaded"}}"#;
        assert!(!ModelError::from_response(None, overloaded).is_free(), "within a response");
        assert!(ModelError::new(ErrorKind::KeyMissing, "not sent").is_free());
        assert!(!ModelError::connection_closed().is_free());
    }

    #[test]
    fn retry_delays_are_parsed_in_every_form() {
        let body = r#"{"error":{"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"2.5s"}]}}"#;
        assert_eq!(ModelError::from_response(Some(429), body).retry_after_ms, Some(2500));
        assert_eq!(parse_seconds("7"), Some(7000));
        assert_eq!(parse_seconds("-1"), None);
        assert_eq!(parse_seconds("Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }
}
