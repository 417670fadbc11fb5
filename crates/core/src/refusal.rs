//! Refusals: why a rule said no. A refused command changes nothing.

use serde::{Deserialize, Serialize};

use crate::{AttemptId, RunId, RunStatus, WaitId};

/// Gives an error its stable codes: `code`, and `CODES`, which lists them all. Both come from one table, so that a
/// code that exists cannot be missing in what is said of them. What follows a semicolon has codes of its own.
#[macro_export]
macro_rules! codes {
    ($($variant:pat => $code:literal,)+ $(; $other:pat => $delegated:expr,)*) => {
        /// Every code of its own, in the order of the variants.
        pub const CODES: &'static [&'static str] = &[$($code),+];

        /// The stable code.
        pub const fn code(&self) -> &'static str {
            match self {
                $($variant => $code,)+
                $($other => $delegated,)*
            }
        }
    };
}

/// Why a command was refused. A refused command changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The sender lost its authority to a later attempt.
    #[error("attempt {by} is stale, {holder} has authority")]
    StaleAttempt {
        /// Who sent the command.
        by: AttemptId,
        /// Who may.
        holder: AttemptId,
    },
    /// The run is over, or no attempt of it has authority.
    #[error("the run is {status}; attempt {by} has no authority")]
    NoAuthority {
        /// Who sent the command.
        by: AttemptId,
        /// Where the run stands.
        status: RunStatus,
    },
    /// The run is over.
    #[error("the run has ended: {status}")]
    Ended {
        /// How it ended.
        status: RunStatus,
    },
    /// What was asked of the run is now asked of the one that has taken its prompt.
    #[error("the run's prompt became part of {into}: ask that one")]
    Merged {
        /// Which run works on it.
        into: RunId,
    },
    /// The wait that was answered is not the one that is open.
    #[error("{wait} is not open; the run is {status}")]
    NotWaiting {
        /// What was answered.
        wait: WaitId,
        /// Where the run stands.
        status: RunStatus,
    },
    /// The wait has an answer already.
    #[error("{wait} has been answered already")]
    Answered {
        /// What was answered again.
        wait: WaitId,
    },
    /// The answer does not fit what was asked.
    #[error("{wait} asks for {wanted}, not {given}")]
    WrongAnswer {
        /// What was answered.
        wait: WaitId,
        /// What it asks for.
        wanted: &'static str,
        /// What came.
        given: &'static str,
    },
    /// The run does not wait for the result of this call.
    #[error("{wait} does not wait for a result of {tool_use_id:?}; it waits for {wanted}")]
    UnknownToolUse {
        /// What was answered.
        wait: WaitId,
        /// The call that was named.
        tool_use_id: String,
        /// The calls that it waits for.
        wanted: String,
    },
    /// The call has another result already.
    #[error("the call {tool_use_id:?} has another result already; the first one counts")]
    ResultConflict {
        /// The call.
        tool_use_id: String,
    },
    /// There is nobody whom the session could be shown to.
    #[error(
        "the session belongs to no org: only one that was made with an org's key can be shown to that org"
    )]
    NoOrg,
    /// The command does not fit this state.
    #[error("not possible while the {what} is {status}")]
    WrongState {
        /// The kind of thing.
        what: &'static str,
        /// Where it stands.
        status: &'static str,
    },
}

impl Refusal {
    crate::codes! {
        Self::StaleAttempt { .. } => "stale_attempt",
        Self::NoAuthority { .. } => "no_authority",
        Self::Ended { .. } => "run_ended",
        Self::Merged { .. } => "run_merged",
        Self::NotWaiting { .. } => "not_waiting",
        Self::Answered { .. } => "already_answered",
        Self::WrongAnswer { .. } => "wrong_answer",
        Self::UnknownToolUse { .. } => "unknown_tool_use",
        Self::ResultConflict { .. } => "tool_result_conflict",
        Self::NoOrg => "no_org",
        Self::WrongState { .. } => "wrong_state",
    }
}

/// What went wrong, for the record: a stable code and a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Failure {
    /// Stable, snake_case.
    pub code: String,
    /// For people.
    pub message: String,
}

impl Failure {
    /// The code of a failure that goes away once somebody logs in.
    pub const AUTHENTICATION: &str = "authentication";

    /// A failure with this code and message.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}
