//! Failures: why a run, an attempt or a tool call failed, as a stable code and a message.
//!
//! Codes are strings on the wire and in the store, and agents report codes of their own. A code that decides what
//! happens next, such as how a run is retried (see [`crate::retry`]), or that several adapters report, is a variant of
//! [`FailureCode`], so that its producers and its readers cannot disagree.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An error with a stable code and a message for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Failure {
    /// A stable code in snake_case.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub code: FailureCode,
    /// A message for people.
    pub message: String,
}

impl Failure {
    /// Creates a failure from its code and message.
    pub fn new(code: impl Into<FailureCode>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// Defines the codes: the variant and the text of each.
macro_rules! codes {
    ($($(#[$doc:meta])+ $variant:ident => $text:literal,)+) => {
        /// The stable code of a failure, represented by its text in JSON and in the store.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FailureCode {
            $($(#[$doc])+ $variant,)+
            /// Another code: reported by an agent or an adapter, and not needed for any decision.
            Other(OtherCode),
        }

        impl FailureCode {
            /// The texts of all codes except [`Self::Other`].
            pub const ALL: &'static [&'static str] = &[$($text),+];

            /// The text of the code.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Other(OtherCode(text)) => text,
                }
            }

            fn known(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// An agent that is not configured, does not start or cannot be reached.
    AdapterUnavailable => "adapter_unavailable",
    /// An agent that cannot do what the run needs, or speaks another version of its protocol.
    AdapterIncompatible => "adapter_incompatible",
    /// An adapter that panicked.
    AdapterCrashed => "adapter_crashed",
    /// An agent's turn that failed for no known reason.
    AdapterExecutionFailed => "adapter_execution_failed",
    /// A failure that requires a login.
    Authentication => "authentication",
    /// An agent that opened no session of its own.
    BindingFailed => "binding_failed",
    /// A run whose process ended before it had recorded the end of the run.
    ExecutorLost => "executor_lost",
    /// A run that was stopped at one of its limits.
    LimitReached => "limit_reached",
    /// An agent's account that has no requests left for now.
    QuotaExceeded => "quota_exceeded",
    /// An agent that no longer has the native session of a binding.
    StaleBinding => "stale_binding",
    /// An agent, or its model, that did not answer in time.
    Timeout => "timeout",
    /// A process or connection that ended during a turn.
    TransportInterruption => "transport_interruption",
    /// A connection to a model provider that failed or was closed.
    ModelConnectionBroken => "model_connection_broken",
    /// A model provider without a key.
    ModelKeyMissing => "model_key_missing",
    /// A model that is not configured.
    ModelNotConfigured => "model_not_configured",
    /// A model provider that is overloaded or had an internal error.
    ModelOverloaded => "model_overloaded",
    /// An account at a model provider whose quota is used up.
    ModelQuotaExhausted => "model_quota_exhausted",
    /// A model provider that got too many requests.
    ModelRateLimited => "model_rate_limited",
    /// A model provider that rejected its key.
    ModelUnauthorized => "model_unauthorized",
    /// A run that ended although goals were pending.
    GoalsFailed => "goals_failed",
}

/// The text of a code that is no variant of [`FailureCode`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OtherCode(String);

impl From<String> for FailureCode {
    fn from(text: String) -> Self {
        Self::known(&text).unwrap_or(Self::Other(OtherCode(text)))
    }
}

impl From<&str> for FailureCode {
    fn from(text: &str) -> Self {
        Self::known(text).unwrap_or_else(|| Self::Other(OtherCode(text.to_owned())))
    }
}

impl From<FailureCode> for String {
    fn from(code: FailureCode) -> Self {
        match code {
            FailureCode::Other(OtherCode(text)) => text,
            known => known.as_str().to_owned(),
        }
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for FailureCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FailureCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_its_text_in_json() {
        for text in FailureCode::ALL.iter().copied().chain(["script_failed", ""]) {
            let failure = Failure::new(text, "it failed");
            let json = serde_json::to_value(&failure).unwrap();
            assert_eq!(json, serde_json::json!({ "code": text, "message": "it failed" }));
            assert_eq!(serde_json::from_value::<Failure>(json).unwrap(), failure);
            assert_eq!((failure.code.to_string(), String::from(failure.code)), (text.into(), text.into()));
        }
    }

    #[test]
    fn a_known_text_is_never_parsed_as_other() {
        for text in FailureCode::ALL {
            for code in [FailureCode::from(*text), FailureCode::from((*text).to_owned())] {
                assert!(!matches!(code, FailureCode::Other(_)), "{text}");
            }
        }
    }
}
