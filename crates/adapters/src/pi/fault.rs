//! Faults: what pi says when a model does not answer, by kind.
//!
//! Pi passes on what the provider said, as text: a status in front of it where there was one. What it could try again it
//! has tried again by then.

use mainspring_core::Failure;

/// What to tell of a turn that ended with an error.
pub(super) fn failure(message: &str) -> Failure {
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

/// The HTTP status that a message begins with.
fn status(message: &str) -> Option<u16> {
    let digits = message.get(..3).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let alone = !message[3..].starts_with(|next: char| next.is_alphanumeric());
    digits.parse().ok().filter(|status| alone && (400..600).contains(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_kinds() {
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
            assert_eq!(failure(message).code, code, "{message}");
        }
    }
}
