//! Errors of model providers, as agents report them.
//!
//! Agents pass on the provider's text, often with the HTTP status. They have already retried what they can retry.

use mainspring_core::{Failure, FailureCode};

/// The kind of an error that an agent reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelError {
    Unauthenticated,
    QuotaExceeded,
    TimedOut,
    Interrupted,
    InvalidRequest,
    /// The model refused to answer.
    Refused,
    /// The text fits no other kind.
    Other,
}

impl ModelError {
    /// Classifies the text of an error.
    pub(crate) fn of(message: &str) -> Self {
        let text = message.to_lowercase();
        let contains_any = |words: &[&str]| words.iter().any(|word| text.contains(word));
        match status(message) {
            Some(401 | 403) => Self::Unauthenticated,
            Some(402 | 429) => Self::QuotaExceeded,
            Some(408 | 504) => Self::TimedOut,
            Some(500..) => Self::Interrupted,
            Some(400..) => Self::InvalidRequest,
            _ if contains_any(&["api key", "unauthorized", "authentication", "credentials", "/login"]) => {
                Self::Unauthenticated
            }
            _ if contains_any(&[
                "rate limit",
                "rate_limit",
                "quota",
                "usage limit",
                "too many requests",
                "billing",
            ]) =>
            {
                Self::QuotaExceeded
            }
            _ if contains_any(&["timed out", "timeout"]) => Self::TimedOut,
            _ if contains_any(&[
                "overloaded",
                "connection",
                "econn",
                "fetch failed",
                "network",
                "socket",
                "terminated",
            ]) =>
            {
                Self::Interrupted
            }
            _ if contains_any(&["invalid_request", "context length", "context window", "too long"]) => {
                Self::InvalidRequest
            }
            _ if contains_any(&["refused to", "refusal", "content policy", "content_filter"]) => {
                Self::Refused
            }
            _ => Self::Other,
        }
    }

    /// The stable code of a failure of this kind.
    fn code(self) -> FailureCode {
        match self {
            Self::Unauthenticated => FailureCode::Authentication,
            Self::QuotaExceeded => FailureCode::QuotaExceeded,
            Self::TimedOut => FailureCode::Timeout,
            Self::Interrupted => FailureCode::TransportInterruption,
            Self::InvalidRequest => "invalid_request".into(),
            Self::Refused => "refusal".into(),
            Self::Other => FailureCode::AdapterExecutionFailed,
        }
    }

    /// The failure to record for an error of this kind with this text.
    pub(crate) fn failure(self, message: &str) -> Failure {
        let message =
            if message.is_empty() { "the agent's turn failed; it did not say why" } else { message };
        Failure::new(self.code(), message)
    }
}

/// The HTTP status at the beginning of a message, or after the words that agents put before it.
fn status(message: &str) -> Option<u16> {
    let after = |words: &str| message.find(words).map(|start| &message[start + words.len()..]);
    let marked = ["API Error: ", "status code ", "status: ", "HTTP "].into_iter().filter_map(after);
    [message].into_iter().chain(marked).find_map(leading_status)
}

fn leading_status(text: &str) -> Option<u16> {
    let digits = text.get(..3).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let is_whole_word = !text[3..].starts_with(|next: char| next.is_alphanumeric());
    digits.parse().ok().filter(|status| is_whole_word && (400..600).contains(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_classified_by_status_and_words() {
        for (message, code) in [
            ("401: {\"message\":\"bad key\"}", "authentication"),
            ("No API key found for anthropic.", "authentication"),
            ("429 {\"type\":\"error\"}", "quota_exceeded"),
            ("You have hit your ChatGPT usage limit (plus plan).", "quota_exceeded"),
            ("400: prompt is too long", "invalid_request"),
            ("404: no such model", "invalid_request"),
            ("529 overloaded", "transport_interruption"),
            ("500: {}", "transport_interruption"),
            ("fetch failed", "transport_interruption"),
            ("Connection error.", "transport_interruption"),
            ("504: gateway timeout", "timeout"),
            ("Request timed out.", "timeout"),
            ("4290 things are wrong", "adapter_execution_failed"),
            ("it broke", "adapter_execution_failed"),
            ("Internal error: API Error: 429 {}", "quota_exceeded"),
            ("Request failed with status code 401", "authentication"),
            ("the model refused to answer", "refusal"),
            ("read HTTP 4000 times", "adapter_execution_failed"),
            ("", "adapter_execution_failed"),
            ("ünbekannt", "adapter_execution_failed"),
        ] {
            assert_eq!(ModelError::of(message).failure(message).code.as_str(), code, "{message}");
        }
    }
}
