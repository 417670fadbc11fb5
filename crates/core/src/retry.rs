//! Retries: why a run gets another attempt, what the retry changes about the run, and when another adapter takes over.
//!
//! ```text
//! failed attempt ──temporary, attempts left──▶ same adapter, after a pause
//!                ──before any output, and another adapter helps──▶ next fallback, at once
//!                ──else──▶ the run fails; a caller may retry it with other options
//! ```

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{FailureCode, Message, MessageStatus, Role, Run, RunId, RunLimits, Time};

/// Why an attempt follows another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RetryReason {
    /// The runtime no longer had the native session of the attempt before.
    Stale,
    /// The attempt before had no valid login.
    Authentication,
    /// The process, worker or connection of the attempt before broke down.
    Crash,
    /// The attempt before failed with another temporary error, such as an overloaded provider.
    Temporary,
    /// A caller retried the run.
    User,
    /// Another adapter takes over from the adapter of the attempt before.
    Failover,
}
names!(RetryReason {
    Stale => "stale", Authentication => "authentication", Crash => "crash", Temporary => "temporary", User => "user",
    Failover => "failover",
});

impl RetryReason {
    /// Classifies an automatic retry on the same adapter, by the code of the failure that it follows.
    pub fn after_failure(code: &FailureCode) -> Self {
        match code {
            FailureCode::Authentication => Self::Authentication,
            FailureCode::StaleBinding => Self::Stale,
            FailureCode::AdapterCrashed
            | FailureCode::ExecutorLost
            | FailureCode::TransportInterruption
            | FailureCode::ModelConnectionBroken => Self::Crash,
            _ => Self::Temporary,
        }
    }
}

/// Another attempt of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextAttempt {
    /// The reason.
    pub reason: RetryReason,
    /// The earliest time of the attempt; at once if `None`.
    pub at: Option<Time>,
    /// The changes that the retry makes to the run.
    pub change: RunChange,
}

impl NextAttempt {
    /// A retry of the unchanged run.
    pub fn new(reason: RetryReason, at: Time) -> Self {
        Self { reason, at: Some(at), change: RunChange::default() }
    }
}

/// The changes that a retry makes to its run. Absent fields stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunChange {
    /// The adapter. Another adapter uses its own default model unless the change names one.
    pub adapter: Option<String>,
    /// The model. A model and a model profile are one choice: either replaces both.
    pub model: Option<String>,
    /// The model profile.
    pub model_profile: Option<String>,
    /// The limits that change. Limits that are not set stay as they are.
    pub limits: RunLimits,
}

impl RunChange {
    /// Applies the change to `run`.
    pub fn apply(&self, run: &mut Run) {
        let options = &mut run.options;
        let adapter = self.adapter.as_ref().filter(|adapter| **adapter != run.adapter);
        if adapter.is_some() || self.model.is_some() || self.model_profile.is_some() {
            options.model.clone_from(&self.model);
            options.model_profile.clone_from(&self.model_profile);
        }
        if let Some(adapter) = adapter {
            run.adapter.clone_from(adapter);
        }
        if !self.limits.is_empty() {
            options.limits = self.limits.or(options.limits);
            // The budget was computed from the old limits. The next model call computes it again.
            run.budget = None;
        }
    }
}

/// An adapter that takes over where another one cannot work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    /// The adapter.
    pub adapter: String,
    /// The model; the adapter's default if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// True when another adapter may succeed after a failure with this code: the agent cannot be started or reached, has no
/// valid login, or has no capacity. Other failures concern the request itself and would be repeated.
pub fn another_adapter_helps(code: &FailureCode) -> bool {
    matches!(
        code,
        FailureCode::AdapterUnavailable
            | FailureCode::AdapterIncompatible
            | FailureCode::AdapterCrashed
            | FailureCode::AdapterExecutionFailed
            | FailureCode::Authentication
            | FailureCode::BindingFailed
            | FailureCode::QuotaExceeded
            | FailureCode::StaleBinding
            | FailureCode::Timeout
            | FailureCode::TransportInterruption
            | FailureCode::ModelConnectionBroken
            | FailureCode::ModelKeyMissing
            | FailureCode::ModelNotConfigured
            | FailureCode::ModelOverloaded
            | FailureCode::ModelQuotaExhausted
            | FailureCode::ModelRateLimited
            | FailureCode::ModelUnauthorized
    )
}

/// Finds the next adapter for a run: the first of `fallbacks` that was not tried yet.
pub fn next_fallback<'a>(fallbacks: &'a [Fallback], tried: &[&str]) -> Option<&'a Fallback> {
    fallbacks.iter().find(|fallback| !tried.contains(&fallback.adapter.as_str()))
}

/// Finds the message beneath which `run`, which has ended, is tried again: the last message of its `path`, root first,
/// that is not a failed answer of the run. A failure leaves one failed answer, or one for each stretch of text between
/// two questions. Returns the index of the message in `path`; `None` if there is none.
pub fn retry_base<'a>(
    run: RunId,
    mut path: impl DoubleEndedIterator<Item = &'a Message> + ExactSizeIterator,
) -> Option<usize> {
    path.rposition(|message| {
        let is_failed = message.role == Role::Assistant && message.status == MessageStatus::Failed;
        message.run != Some(run) || !is_failed
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MessageId, SessionId};

    #[test]
    fn the_reason_of_a_retry_follows_from_the_failure() {
        for (code, reason) in [
            ("adapter_crashed", RetryReason::Crash),
            ("executor_lost", RetryReason::Crash),
            ("authentication", RetryReason::Authentication),
            ("stale_binding", RetryReason::Stale),
            ("model_overloaded", RetryReason::Temporary),
        ] {
            assert_eq!(RetryReason::after_failure(&code.into()), reason, "{code}");
            assert_eq!(RetryReason::from_name(reason.name()), Some(reason));
        }
    }

    /// Builds a message: `p` a prompt, `a` an answer, `f` a failed answer; an upper-case letter stands for a message of
    /// another run.
    fn message(kind: char) -> Message {
        let status = match kind.to_ascii_lowercase() {
            'f' => MessageStatus::Failed,
            _ => MessageStatus::Completed,
        };
        let run = if kind.is_ascii_uppercase() { [2; 16] } else { [1; 16] };
        Message {
            id: MessageId::from_random([1; 16]),
            session: SessionId::from_random([1; 16]),
            run: Some(RunId::from_random(run)),
            role: if kind.eq_ignore_ascii_case(&'p') { Role::User } else { Role::Assistant },
            status,
            content: vec![],
            usage: None,
            created_at: Time(1),
            agent: None,
            external_id: None,
        }
    }

    #[test]
    fn a_run_is_tried_again_beneath_the_last_message_before_its_failure() {
        for (path, base) in [
            ("", None),
            ("f", None),
            ("pf", Some(0)),
            ("pff", Some(0)),
            ("paf", Some(1)),
            ("pfaf", Some(2)),
            ("PFpf", Some(2)),
            ("PFf", Some(1)),
        ] {
            let path: Vec<Message> = path.chars().map(message).collect();
            let found = retry_base(RunId::from_random([1; 16]), path.iter());
            assert_eq!(found, base, "{path:?}");
        }
    }

    #[test]
    fn failures_of_the_request_itself_do_not_change_the_adapter() {
        for code in ["limit_reached", "model_refused", "model_context_too_long", "invalid_request", "refusal"]
        {
            assert!(!another_adapter_helps(&code.into()), "{code}");
        }
        for code in ["authentication", "model_quota_exhausted"] {
            assert!(another_adapter_helps(&code.into()), "{code}");
        }
    }

    #[test]
    fn fallbacks_are_used_in_order_and_once() {
        let fallback = |adapter: &str| Fallback { adapter: adapter.into(), model: None };
        let all = [fallback("b"), fallback("c")];
        let next = |tried: &[&str]| next_fallback(&all, tried).map(|fallback| fallback.adapter.as_str());
        assert_eq!((next(&["a"]), next(&["a", "b"]), next(&["a", "b", "c"])), (Some("b"), Some("c"), None));
    }
}
