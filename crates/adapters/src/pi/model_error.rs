//! Errors of model providers, as pi reports them.
//!
//! Pi passes on the provider's error as text, prefixed with the HTTP status if there was one. It has already retried
//! what it can retry.

use mainspring_core::Failure;

/// Classifies a provider's error message.
pub(super) fn to_failure(message: &str) -> Failure {
    let text = message.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let code = match status(message) {
        Some(401 | 403) => "authentication",
        Some(402 | 429) => "quota_exceeded",
        Some(408 | 504) => "timeout",
        Some(500..) => "transport_interruption",
        Some(400..) => "invalid_request",
        _ if says(&["api key", "unauthorized", "authentication", "credentials", "/login"]) => {
            "authentication"
        }
        _ if says(&["rate limit", "rate_limit", "quota", "usage limit", "too many requests", "billing"]) => {
            "quota_exceeded"
        }
        _ if says(&["timed out", "timeout"]) => "timeout",
        _ if says(&[
            "overloaded",
            "connection",
            "econn",
            "fetch failed",
            "network",
            "socket",
            "terminated",
        ]) =>
        {
            "transport_interruption"
        }
        _ if says(&["invalid_request", "context length", "context window", "too long"]) => "invalid_request",
        _ => "adapter_execution_failed",
    };
    let message = if message.is_empty() { "the agent's turn failed; it did not say why" } else { message };
    Failure::new(code, message)
}

/// The HTTP status at the beginning of a message.
fn status(message: &str) -> Option<u16> {
    let digits = message.get(..3).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let is_whole_word = !message[3..].starts_with(|next: char| next.is_alphanumeric());
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
            ("", "adapter_execution_failed"),
            ("ünbekannt", "adapter_execution_failed"),
        ] {
            assert_eq!(to_failure(message).code, code, "{message}");
        }
    }
}
