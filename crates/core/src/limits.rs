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
    /// Bytes of one value of state, as JSON.
    pub state_value_bytes: usize,
    /// Keys of state of one run, session or owner.
    pub state_keys: usize,
    /// Client tools of one prompt.
    pub client_tools: usize,
    /// Bytes of the client tools of one prompt, as JSON.
    pub client_tools_bytes: usize,
    /// Bytes of one artifact.
    pub artifact_bytes: usize,
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
            state_value_bytes: 64 << 10,
            state_keys: 1_000,
            client_tools: 64,
            client_tools_bytes: 256 << 10,
            artifact_bytes: 256 << 20,
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

impl BadName {
    pub(crate) const fn new(what: &'static str, reason: &'static str) -> Self {
        Self { what, reason }
    }
}

/// Checks a session's key: 1 to 128 of `a-z A-Z 0-9 _ - .`, not starting with a dot or with `ses_`.
pub fn check_key(key: &str) -> Result<(), BadName> {
    check_word("a session key", key)?;
    if key.starts_with("ses_") {
        return Err(BadName {
            what: "a session key",
            reason: "must not start with ses_, which marks session ids",
        });
    }
    Ok(())
}

/// Checks a key of state: 1 to 128 of `a-z A-Z 0-9 _ - .`, not starting with a dot.
pub fn check_state_key(key: &str) -> Result<(), BadName> {
    check_word("a state key", key)
}

fn check_word(what: &'static str, word: &str) -> Result<(), BadName> {
    let bad = |reason| Err(BadName { what, reason });
    match word {
        "" => bad("must not be empty"),
        _ if word.len() > 128 => bad("has at most 128 characters"),
        _ if word.starts_with('.') => bad("must not start with a dot"),
        _ if !word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) => {
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

/// Checks a media type: `type/subtype`, perhaps with parameters, at most 255 characters.
pub fn check_media_type(text: &str) -> Result<(), BadName> {
    let bad = |reason| Err(BadName { what: "a media type", reason });
    let token = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let fits = essence.trim_end().split_once('/').is_some_and(|(kind, sub)| token(kind) && token(sub));
    match text {
        _ if text.len() > 255 => bad("has at most 255 characters"),
        _ if !fits => bad("must be type/subtype, for example image/png"),
        _ if !parameters.bytes().all(|b| b.is_ascii_graphic() || b == b' ') => {
            bad("may hold only printable ASCII characters")
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
        assert_eq!(check_state_key("ses_1"), Ok(()));
        assert!(check_state_key("a:b").is_err());
    }

    #[test]
    fn media_types() {
        for good in ["text/plain", "image/svg+xml", "text/html; charset=utf-8", "a/b;c=\"d e\""] {
            assert_eq!(check_media_type(good), Ok(()), "{good}");
        }
        for bad in
            ["", "text", "/", "a/", "/b", "text /plain", "a/b\r\nx: y", "a/ü", "a/b/c", &"x/y".repeat(99)]
        {
            assert!(check_media_type(bad).is_err(), "{bad}");
        }
    }
}
