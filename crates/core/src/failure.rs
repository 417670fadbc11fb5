//! Failures: why a run, an attempt or a tool call failed, as a stable code and a message.
//!
//! Codes are strings on the wire and in the store, and agents report codes of their own. A code that decides how a run is
//! retried (see [`crate::retry`]), or that several adapters report, is a constant of [`Failure`], so that its producers and
//! its readers cannot disagree.

use serde::{Deserialize, Serialize};

/// An error with a stable code and a message for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Failure {
    /// A stable code in snake_case.
    pub code: String,
    /// A message for people.
    pub message: String,
}

/// Defines a constant for each code, and the list `CODES` of all of them.
macro_rules! constants {
    ($($(#[$doc:meta])+ $name:ident = $code:literal;)+) => {
        $($(#[$doc])+ pub const $name: &'static str = $code;)+

        /// Every code that is a constant.
        pub const CODES: &'static [&'static str] = &[$(Self::$name),+];
    };
}

impl Failure {
    constants! {
        /// The code of an agent that is not configured, does not start or cannot be reached.
        ADAPTER_UNAVAILABLE = "adapter_unavailable";
        /// The code of an agent that cannot do what the run needs, or speaks another version of its protocol.
        ADAPTER_INCOMPATIBLE = "adapter_incompatible";
        /// The code of an adapter that panicked.
        ADAPTER_CRASHED = "adapter_crashed";
        /// The code of an agent's turn that failed for no known reason.
        ADAPTER_EXECUTION_FAILED = "adapter_execution_failed";
        /// The code of a failure that requires a login.
        AUTHENTICATION = "authentication";
        /// The code of an agent that opened no session of its own.
        BINDING_FAILED = "binding_failed";
        /// The code of a run whose process ended before it had recorded the end of the run.
        EXECUTOR_LOST = "executor_lost";
        /// The code of a run that was stopped at one of its limits.
        LIMIT_REACHED = "limit_reached";
        /// The code of an agent's account that has no requests left for now.
        QUOTA_EXCEEDED = "quota_exceeded";
        /// The code of an agent that no longer has the native session of a binding.
        STALE_BINDING = "stale_binding";
        /// The code of an agent, or its model, that did not answer in time.
        TIMEOUT = "timeout";
        /// The code of a process or connection that ended during a turn.
        TRANSPORT_INTERRUPTION = "transport_interruption";
        /// The code of a connection to a model provider that failed or was closed.
        MODEL_CONNECTION_BROKEN = "model_connection_broken";
        /// The code of a model provider without a key.
        MODEL_KEY_MISSING = "model_key_missing";
        /// The code of a model that is not configured.
        MODEL_NOT_CONFIGURED = "model_not_configured";
        /// The code of a model provider that is overloaded or had an internal error.
        MODEL_OVERLOADED = "model_overloaded";
        /// The code of an account at a model provider whose quota is used up.
        MODEL_QUOTA_EXHAUSTED = "model_quota_exhausted";
        /// The code of a model provider that got too many requests.
        MODEL_RATE_LIMITED = "model_rate_limited";
        /// The code of a model provider that rejected its key.
        MODEL_UNAUTHORIZED = "model_unauthorized";
    }

    /// Creates a failure from its code and message.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}
