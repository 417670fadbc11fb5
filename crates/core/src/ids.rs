//! Identifiers: a prefix that names the kind, and a UUIDv4 without hyphens.
//!
//! Invariant: an id of one kind never parses as an id of another kind. Nothing here draws a random number; the kernel
//! passes the bytes in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// The error for a text that is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind} id: expected {prefix}_ and 32 hexadecimal digits")]
pub struct BadId {
    text: String,
    kind: &'static str,
    prefix: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The prefix before the underscore in ids of this kind.
            pub const PREFIX: &'static str = $prefix;

            /// Creates an id from 16 random bytes, setting the version and variant bits of a UUIDv4.
            pub fn from_random(bytes: [u8; 16]) -> Self {
                Self(uuid::Builder::from_random_bytes(bytes).into_uuid())
            }

            /// Reads an id back from its stored form.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// The stored form: 16 bytes.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        #[cfg(feature = "schema")]
        crate::schema::text!($name, concat!("^", $prefix, "_[0-9a-f]{32}$"));

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "_{}"), self.0.as_simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .filter(|hex| hex.len() == 32)
                    .and_then(|hex| Uuid::try_parse(hex).ok())
                    .map(Self)
                    .ok_or_else(|| BadId { text: text.chars().take(64).collect(), kind: $kind, prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}

id!(/// The id of a session.
    SessionId, "ses", "session");
id!(/// The id of a run.
    RunId, "run", "run");
id!(/// The id of an attempt.
    AttemptId, "att", "attempt");
id!(/// The id of an event.
    EventId, "evt", "event");
id!(/// The id of a binding.
    BindingId, "bind", "binding");
id!(/// The id of an artifact.
    ArtifactId, "art", "artifact");
id!(/// The id of a delegation.
    DelegationId, "del", "delegation");
id!(/// The id of a grant.
    GrantId, "grant", "grant");
id!(/// The id of a message.
    MessageId, "msg", "message");
id!(/// The id of a step.
    StepId, "step", "step");
id!(/// The id of a goal.
    GoalId, "goal", "goal");
id!(/// The id of a running mainspring process.
    NodeId, "node", "node");
id!(/// The id of an API key.
    KeyId, "key", "key");
id!(/// The id of a wait.
    WaitId, "wait", "wait");
id!(/// The id of feedback on a message.
    FeedbackId, "fb", "feedback");
id!(/// The id of a webhook.
    WebhookId, "hook", "webhook");

/// The id of a line of the tree. Internal, never public.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId(pub i64);

impl LineId {
    /// Creates a line id from random bytes, without their sign bit.
    pub fn from_random(bytes: [u8; 8]) -> Self {
        Self(i64::from_le_bytes(bytes) & i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_parses_back_and_only_as_its_own_kind() {
        let run = RunId::from_random([7; 16]);
        assert_eq!(run.to_string(), "run_07070707070747078707070707070707");
        assert_eq!(run.to_string().parse(), Ok(run));
        assert_eq!(serde_json::from_str::<RunId>(&serde_json::to_string(&run).unwrap()).unwrap(), run);
        let error = run.to_string().parse::<SessionId>().unwrap_err();
        insta::assert_snapshot!(error, @r#""run_07070707070747078707070707070707" is not a session id: expected ses_ and 32 hexadecimal digits"#);
    }

    #[test]
    fn hyphens_and_wrong_lengths_do_not_parse() {
        for text in [
            "run_",
            "run_07070707-0707-4707-8707-070707070707",
            "run_0707070707074707870707070707070",
            "07",
            "",
        ] {
            assert!(text.parse::<RunId>().is_err(), "{text}");
        }
    }
}
