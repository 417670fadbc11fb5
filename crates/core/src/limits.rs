//! Limits on sizes and counts, and the syntax of names.

use serde::Serialize;

/// Size and count limits, applied at every entry point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Maximum bytes of a prompt.
    pub prompt_bytes: usize,
    /// Maximum bytes of one message, streamed or recorded.
    pub message_bytes: usize,
    /// Maximum characters of a title.
    pub title_chars: usize,
    /// Maximum bytes of a session's metadata and of its model options, as JSON.
    pub metadata_bytes: usize,
    /// Maximum bytes of one state value, as JSON.
    pub state_value_bytes: usize,
    /// Maximum number of state keys per run, session or owner.
    pub state_keys: usize,
    /// Maximum number of client tools per prompt.
    pub client_tools: usize,
    /// Maximum bytes of the client tools of one prompt, as JSON.
    pub client_tools_bytes: usize,
    /// Maximum bytes of one artifact.
    pub artifact_bytes: usize,
    /// Maximum bytes of an imported file.
    pub import_bytes: usize,
    /// Maximum number of items on one page.
    pub page: usize,
    /// Maximum number of queued prompts per session.
    pub queue_per_session: usize,
    /// Maximum number of queued prompts in all sessions.
    pub queue_total: usize,
    /// Maximum number of automatic attempts per run.
    pub attempts: u32,
    /// Maximum number of delegated runs of one run that have not ended.
    pub children_per_run: usize,
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
            children_per_run: 16,
        }
    }
}

/// Why a name is not well-formed.
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

/// Checks a state key: 1 to 128 of `a-z A-Z 0-9 _ - .`, not starting with a dot.
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

/// Checks a free-text name: owner, client, request or reference.
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

/// Checks a native session id that a caller names. Refuses an id that can be mistaken for another one: with white space
/// around it, or with invisible characters.
pub fn check_native_id(native: &str) -> Result<(), BadName> {
    check_text("a native session id", native)?;
    let bad = |reason| Err(BadName { what: "a native session id", reason });
    match native {
        _ if native.trim() != native => bad("must not begin or end with white space"),
        _ if native.chars().any(is_invisible) => bad("must not hold characters that are not seen"),
        _ => Ok(()),
    }
}

/// True for an invisible character: white space other than a blank, marks of direction and width, byte order marks.
fn is_invisible(c: char) -> bool {
    let is_mark = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}');
    is_mark || (c.is_whitespace() && c != ' ')
}

/// Checks a media type: `type/subtype`, optionally with parameters, at most 255 characters.
pub fn check_media_type(text: &str) -> Result<(), BadName> {
    let bad = |reason| Err(BadName { what: "a media type", reason });
    let token = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let is_valid = essence.trim_end().split_once('/').is_some_and(|(kind, sub)| token(kind) && token(sub));
    match text {
        _ if text.len() > 255 => bad("has at most 255 characters"),
        _ if !is_valid => bad("must be type/subtype, for example image/png"),
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
    fn a_native_id_with_invisible_characters_is_refused() {
        for bad in [
            "",
            " n1",
            "n1 ",
            "n1\n",
            "\tn1",
            "n1\u{a0}",
            "n\u{200b}1",
            "n1\u{feff}",
            "\u{202e}n1",
            "n\u{2003}1",
        ] {
            assert!(check_native_id(bad).is_err(), "{bad:?}");
        }
        for good in ["n1", "native old", "0198f0a2-7c1d", "ses_1", "é1"] {
            assert_eq!(check_native_id(good), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn session_and_state_keys_are_checked() {
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
    fn media_types_are_checked() {
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
