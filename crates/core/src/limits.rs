//! Limits: what is too much, and how names must look.

use serde::Serialize;

/// The limits every door applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Bytes of a prompt.
    pub prompt_bytes: usize,
    /// Bytes of one message, streamed or recorded.
    pub message_bytes: usize,
    /// Characters of a title.
    pub title_chars: usize,
    /// Bytes of a session's metadata, and of its model options, as JSON.
    pub metadata_bytes: usize,
    /// Bytes of a file that is imported.
    pub import_bytes: usize,
    /// Items of one page.
    pub page: usize,
    /// Prompts that wait in one session.
    pub queue_per_session: usize,
    /// Prompts that wait in all sessions.
    pub queue_total: usize,
    /// Attempts of one run without somebody asking for another.
    pub attempts: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            prompt_bytes: 1 << 20,
            message_bytes: 16 << 20,
            title_chars: 200,
            metadata_bytes: 64 << 10,
            import_bytes: 1 << 30,
            page: 500,
            queue_per_session: 100,
            queue_total: 10_000,
            attempts: 3,
        }
    }
}

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {reason}")]
pub struct BadName {
    what: &'static str,
    reason: &'static str,
}

/// Checks a session's key: 1 to 128 of `a-z A-Z 0-9 _ - .`, not starting with a dot or with `ses_`.
pub fn check_key(key: &str) -> Result<(), BadName> {
    let bad = |reason| Err(BadName { what: "a session key", reason });
    match key {
        "" => bad("must not be empty"),
        _ if key.len() > 128 => bad("has at most 128 characters"),
        _ if key.starts_with('.') => bad("must not start with a dot"),
        _ if key.starts_with("ses_") => bad("must not start with ses_, which marks session ids"),
        _ if !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) => {
            bad("may hold only letters, digits, underscore, hyphen and dot")
        }
        _ => Ok(()),
    }
}

/// Checks a name that is free text: owner, client, request, reference.
pub fn check_text(what: &'static str, text: &str) -> Result<(), BadName> {
    match text {
        "" => Err(BadName { what, reason: "must not be empty" }),
        _ if text.len() > 512 => Err(BadName { what, reason: "has at most 512 bytes" }),
        _ if text.chars().any(char::is_control) => {
            Err(BadName { what, reason: "must not hold control characters" })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for good in ["a", "my-task.1", "A_b", &"x".repeat(128)] {
            assert_eq!(check_key(good), Ok(()), "{good}");
        }
        for bad in ["", ".hidden", "ses_1", "a/b", "ä", "a b", &"x".repeat(129)] {
            assert!(check_key(bad).is_err(), "{bad}");
        }
    }
}
