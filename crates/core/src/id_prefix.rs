//! Shortened ids: the beginning of an id, which people type instead of the whole id.
//!
//! A prefix that is unique today may match a second id tomorrow, so prefixes are never stored, and only the lookup by
//! prefix accepts them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{ArtifactId, DelegationId, GrantId, KeyId, MessageId, RunId, SessionId};
use crate::message::names;

/// The number of hexadecimal digits of an id.
const ID_DIGITS: usize = 32;

/// The kinds of things that can be found by the beginning of their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum IdKind {
    /// Sessions (`ses_…`).
    Session,
    /// Runs (`run_…`).
    Run,
    /// Messages (`msg_…`).
    Message,
    /// Artifacts (`art_…`).
    Artifact,
    /// Delegations (`del_…`).
    Delegation,
    /// Grants (`grant_…`).
    Grant,
    /// API keys (`key_…`).
    Key,
}
names!(IdKind {
    Session => "session",
    Run => "run",
    Message => "message",
    Artifact => "artifact",
    Delegation => "delegation",
    Grant => "grant",
    Key => "key",
});

impl IdKind {
    /// The letters before the underscore in ids of this kind.
    pub const fn letters(self) -> &'static str {
        match self {
            Self::Session => SessionId::PREFIX,
            Self::Run => RunId::PREFIX,
            Self::Message => MessageId::PREFIX,
            Self::Artifact => ArtifactId::PREFIX,
            Self::Delegation => DelegationId::PREFIX,
            Self::Grant => GrantId::PREFIX,
            Self::Key => KeyId::PREFIX,
        }
    }

    /// Formats the id of these bytes.
    pub fn format(self, bytes: [u8; 16]) -> String {
        match self {
            Self::Session => SessionId::from_bytes(bytes).to_string(),
            Self::Run => RunId::from_bytes(bytes).to_string(),
            Self::Message => MessageId::from_bytes(bytes).to_string(),
            Self::Artifact => ArtifactId::from_bytes(bytes).to_string(),
            Self::Delegation => DelegationId::from_bytes(bytes).to_string(),
            Self::Grant => GrantId::from_bytes(bytes).to_string(),
            Self::Key => KeyId::from_bytes(bytes).to_string(),
        }
    }
}

/// The error for a text that is not the beginning of an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the beginning of a {kind} id: expected {}_ and up to 32 hexadecimal digits", .kind.letters())]
pub struct BadIdPrefix {
    text: String,
    kind: IdKind,
}

/// The beginning of an id, or a whole id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdPrefix {
    kind: IdKind,
    /// Between 1 and 32 lower-case hexadecimal digits.
    digits: String,
}

impl IdPrefix {
    /// Parses the beginning of an id of `kind`. The letters of the kind may be left out.
    pub fn parse(kind: IdKind, text: &str) -> Result<Self, BadIdPrefix> {
        let letters = text.strip_prefix(kind.letters()).and_then(|rest| rest.strip_prefix('_'));
        let digits = letters.unwrap_or(text);
        let is_prefix =
            (1..=ID_DIGITS).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        match is_prefix {
            true => Ok(Self { kind, digits: digits.to_lowercase() }),
            false => Err(BadIdPrefix { text: text.chars().take(64).collect(), kind }),
        }
    }

    /// The kind of the id.
    pub const fn kind(&self) -> IdKind {
        self.kind
    }

    /// The smallest and the largest id that begin with this prefix.
    pub fn range(&self) -> ([u8; 16], [u8; 16]) {
        (self.filled_with(0x0), self.filled_with(0xf))
    }

    /// The bytes of the prefix, with `digit` in place of each missing digit.
    fn filled_with(&self, digit: u8) -> [u8; 16] {
        let mut bytes = [digit << 4 | digit; 16];
        for (at, char) in self.digits.chars().enumerate().take(ID_DIGITS) {
            let value = char.to_digit(16).and_then(|value| u8::try_from(value).ok()).unwrap_or_default();
            let (byte, is_high) = (&mut bytes[at / 2], at % 2 == 0);
            *byte = if is_high { value << 4 | *byte & 0x0f } else { *byte & 0xf0 | value };
        }
        bytes
    }
}

impl fmt::Display for IdPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.kind.letters(), self.digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_spans_exactly_the_ids_that_begin_with_it() {
        for text in ["run_1a2", "1a2", "1A2"] {
            let prefix = IdPrefix::parse(IdKind::Run, text).unwrap();
            assert_eq!(prefix.to_string(), "run_1a2", "{text}");
            let (first, last) = prefix.range();
            assert_eq!(IdKind::Run.format(first), "run_1a200000000000000000000000000000");
            assert_eq!(IdKind::Run.format(last), "run_1a2fffffffffffffffffffffffffffff");
        }
        let whole = RunId::from_random([7; 16]);
        let prefix = IdPrefix::parse(IdKind::Run, &whole.to_string()).unwrap();
        assert_eq!(prefix.range(), (*whole.as_bytes(), *whole.as_bytes()));
    }

    #[test]
    fn a_malformed_prefix_is_refused() {
        let long = "0".repeat(33);
        for text in ["", "run_", "ses_1a", "run_xyz", "1a-2", long.as_str()] {
            assert!(IdPrefix::parse(IdKind::Run, text).is_err(), "{text}");
        }
        let error = IdPrefix::parse(IdKind::Key, "run_1a").unwrap_err();
        insta::assert_snapshot!(error, @r#""run_1a" is not the beginning of a key id: expected key_ and up to 32 hexadecimal digits"#);
    }
}
