//! What goes wrong with a model, by what the caller does next: try again, or not.

use serde_json::Value;

/// Why a model did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// What happened, for people. Holds no key.
    pub message: String,
    /// How long the provider asks to wait, in milliseconds.
    pub retry_after: Option<u64>,
}

/// What kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Too many requests. Later it may go right.
    RateLimited,
    /// The provider has too much to do, or broke. Later it may go right.
    Overloaded,
    /// The connection could not be made, or broke off. Later it may go right.
    Broken,
    /// No such model is configured.
    NotConfigured,
    /// There is no key.
    KeyMissing,
    /// The key is not right.
    Unauthorized,
    /// The account is used up.
    QuotaExhausted,
    /// The provider does not understand the request.
    Invalid,
    /// The conversation does not fit the model.
    ContextTooLong,
    /// The model will not answer.
    Refused,
}

impl ErrorKind {
    /// The stable code.
    pub const fn code(self) -> &'static str {
        match self {
            Self::RateLimited => "model_rate_limited",
            Self::Overloaded => "model_overloaded",
            Self::Broken => "model_connection_broken",
            Self::NotConfigured => "model_not_configured",
            Self::KeyMissing => "model_key_missing",
            Self::Unauthorized => "model_unauthorized",
            Self::QuotaExhausted => "model_quota_exhausted",
            Self::Invalid => "model_invalid_request",
            Self::ContextTooLong => "model_context_too_long",
            Self::Refused => "model_refused",
        }
    }

    /// True when the same request may go right later.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::RateLimited | Self::Overloaded | Self::Broken)
    }
}

impl ModelError {
    /// A failure.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    /// What an answer with this status and body means.
    pub(super) fn of_answer(status: Option<u16>, body: &str) -> Self {
        let json: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        // `{"error": {…}}`, the error itself, or a list of one.
        let json = if json.is_array() { &json[0] } else { &json };
        let error = json.get("error").unwrap_or(json);
        let word = |name: &str| error[name].as_str().unwrap_or_default();
        let message = match word("message") {
            "" => body.trim(),
            message => message,
        };
        let reasons = error["details"].as_array().into_iter().flatten();
        let reasons: Vec<&str> = reasons.filter_map(|detail| detail["reason"].as_str()).collect();
        let words = [word("type"), word("code"), word("status"), &reasons.join(" ")].join(" ").to_lowercase();
        let kind = kind_of(status, &words, &message.to_lowercase());
        let status = status.map(|status| format!(" (status {status})")).unwrap_or_default();
        let shown: String = message.chars().take(500).collect();
        Self { kind, message: format!("the provider says: {shown}{status}"), retry_after: retry_delay(error) }
    }
}

fn kind_of(status: Option<u16>, words: &str, message: &str) -> ErrorKind {
    let says = |what: &[&str]| what.iter().any(|what| words.contains(what));
    let too_long = [
        "prompt is too long",
        "maximum context length",
        "context window",
        "exceeds the maximum number of tokens",
    ];
    match status {
        _ if says(&["context_length_exceeded"]) || too_long.iter().any(|what| message.contains(what)) => {
            ErrorKind::ContextTooLong
        }
        _ if says(&["insufficient_quota", "billing"]) => ErrorKind::QuotaExhausted,
        _ if says(&[
            "authentication",
            "permission",
            "invalid_api_key",
            "api_key_invalid",
            "unauthenticated",
        ]) =>
        {
            ErrorKind::Unauthorized
        }
        _ if says(&["rate_limit", "resource_exhausted"]) => ErrorKind::RateLimited,
        _ if says(&["overloaded", "unavailable", "server_error", "api_error", "internal"]) => {
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

/// Gemini says in its body how long to wait: `"retryDelay": "2.5s"`.
fn retry_delay(error: &Value) -> Option<u64> {
    let details = error["details"].as_array()?;
    let delay = details.iter().find_map(|detail| detail["retryDelay"].as_str())?;
    seconds(delay.strip_suffix('s')?)
}

/// Seconds, perhaps with a fraction, as milliseconds.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let seconds: f64 = text.trim().parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some((seconds * 1000.0).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_providers_say_has_a_kind() {
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
            assert_eq!(ModelError::of_answer(status, body).kind, kind, "{body}");
        }
    }

    #[test]
    fn a_delay_is_read_in_every_form() {
        let body = r#"{"error":{"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"2.5s"}]}}"#;
        assert_eq!(ModelError::of_answer(Some(429), body).retry_after, Some(2500));
        assert_eq!(seconds("7"), Some(7000));
        assert_eq!(seconds("-1"), None);
        assert_eq!(seconds("Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }
}
