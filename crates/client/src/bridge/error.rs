//! What went wrong with a query or the process, by what the caller does next.

use super::QueryIds;

/// Why a handle did not get what it asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BridgeError {
    /// The query has ended without success. What the ids name is durable.
    #[error("{message}")]
    Failed {
        /// Stable, snake_case.
        code: String,
        /// For people.
        message: String,
        /// What it became, as far as it is known.
        ids: Box<QueryIds>,
    },
    /// A handle asks one thing at a time.
    #[error("{request:?} is under way: wait for its end, interrupt it, or ask through another handle")]
    Busy {
        /// What is under way.
        request: String,
    },
    /// There is nothing to interrupt.
    #[error("no query of this handle is under way")]
    Idle,
    /// The process cannot be started, or dies whenever it is. What was asked may have been accepted: the same request id
    /// tells, once a process lives.
    #[error("the runtime process is lost: {why}")]
    Lost {
        /// What was seen of it last.
        why: String,
    },
    /// The process was stopped by this side.
    #[error("the runtime process was stopped")]
    Stopped,
    /// The process of this state directory was started otherwise.
    #[error(
        "the runtime process of {state_dir} was started with other arguments: stop it first, or ask for it with the same"
    )]
    Launched {
        /// Whose process.
        state_dir: String,
    },
    /// The process does not speak as it should.
    #[error("the runtime process does not speak the protocol: {what}")]
    Protocol {
        /// What it said.
        what: String,
    },
}

impl BridgeError {
    /// The stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Failed { code, .. } => code,
            Self::Busy { .. } => "request_active",
            Self::Idle => "no_request",
            Self::Lost { .. } => "process_lost",
            Self::Stopped => "process_stopped",
            Self::Launched { .. } => "process_conflict",
            Self::Protocol { .. } => "protocol",
        }
    }
}
