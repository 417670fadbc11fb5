//! Refusals: the reasons why a command is rejected. A refused command changes nothing.

use crate::{Approval, AttemptId, Decider, RunId, RunStatus, SessionId, Time, WaitId};

/// Defines an error's stable codes: the method `code` and the list `CODES`, both from one table. Variants after the
/// semicolon delegate to the codes of another error, which `CODES` does not repeat.
#[macro_export]
macro_rules! codes {
    ($($variant:pat => $code:literal,)+ $(; $other:pat => $delegated:expr,)*) => {
        /// Every code defined by this type, in the order of its variants.
        pub const CODES: &'static [&'static str] = &[$($code),+];

        /// The stable code of this error.
        pub const fn code(&self) -> &'static str {
            match self {
                $($variant => $code,)+
                $($other => $delegated,)*
            }
        }
    };
}

/// The reason why a command was refused. A refused command changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A later attempt has taken over authority from the sender.
    #[error("attempt {by} is stale, {holder} has authority")]
    StaleAttempt {
        /// The attempt that sent the command.
        by: AttemptId,
        /// The attempt that has authority.
        holder: AttemptId,
    },
    /// No attempt of the run has authority: the run has ended or is queued.
    #[error("the run is {status}; attempt {by} has no authority")]
    NoAuthority {
        /// The attempt that sent the command.
        by: AttemptId,
        /// The status of the run.
        status: RunStatus,
    },
    /// The run has ended.
    #[error("the run has ended: {status}")]
    Ended {
        /// The final status of the run.
        status: RunStatus,
    },
    /// The run was merged into another run, which takes commands for both.
    #[error("the run's prompt became part of {into}: use that run")]
    Merged {
        /// The run that it was merged into.
        into: RunId,
    },
    /// The answered wait is not the open one.
    #[error("{wait} is not open; the run is {status}")]
    NotWaiting {
        /// The wait that was answered.
        wait: WaitId,
        /// The status of the run.
        status: RunStatus,
    },
    /// The wait already has an answer.
    #[error("{wait} has been answered already{}", by_whom(.first.as_deref()))]
    Answered {
        /// The wait that was answered again.
        wait: WaitId,
        /// The first answer, which counts.
        first: Option<Box<FirstAnswer>>,
    },
    /// The answer is of another kind than the wait asks for.
    #[error("{wait} asks for {wanted}, not {given}")]
    WrongAnswer {
        /// The wait that was answered.
        wait: WaitId,
        /// The kind of answer the wait asks for.
        wanted: &'static str,
        /// The kind of answer that was given.
        given: &'static str,
    },
    /// The approval does not offer this answer.
    #[error("{wait} cannot be answered with {given}; it offers {offered}")]
    NotOffered {
        /// The wait that was answered.
        wait: WaitId,
        /// The answer that was given.
        given: &'static str,
        /// The answers that are possible.
        offered: String,
    },
    /// The wait does not ask for the result of this tool call.
    #[error("{wait} does not wait for a result of {tool_use_id:?}; it waits for {wanted}")]
    UnknownToolUse {
        /// The wait that was answered.
        wait: WaitId,
        /// The tool call that was named.
        tool_use_id: String,
        /// The tool calls whose results are missing.
        wanted: String,
    },
    /// The tool call already has a different result.
    #[error("the call {tool_use_id:?} has another result already; the first one counts")]
    ResultConflict {
        /// The tool call.
        tool_use_id: String,
    },
    /// The session belongs to no org, so it cannot be shared with one.
    #[error(
        "the session belongs to no org: only one that was made with an org's key can be shown to that org"
    )]
    NoOrg,
    /// The session is closed and takes no new work.
    #[error("the session {session} is closed and takes no new work: reopen it, or fork it")]
    SessionClosed {
        /// The session.
        session: SessionId,
    },
    /// The command is not possible in the current state.
    #[error("not possible while the {what} is {status}")]
    WrongState {
        /// The kind of object.
        what: &'static str,
        /// The object's status.
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
        Self::NotOffered { .. } => "answer_not_offered",
        Self::UnknownToolUse { .. } => "unknown_tool_use",
        Self::ResultConflict { .. } => "tool_result_conflict",
        Self::NoOrg => "no_org",
        Self::SessionClosed { .. } => "session_closed",
        Self::WrongState { .. } => "wrong_state",
    }
}

/// The answer that a wait got first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstAnswer {
    /// The party that answered.
    pub by: Decider,
    /// When it was answered.
    pub at: Time,
    /// The decision, if the wait was an approval.
    pub decision: Option<Approval>,
}

fn by_whom(first: Option<&FirstAnswer>) -> String {
    first.map_or_else(String::new, |first| {
        let decision = first.decision.map_or("answered", Approval::name);
        format!(": {decision} by {} at {}", first.by, first.at)
    })
}
