//! Errors of queries and of the process, by what the caller does next.

use super::QueryIds;

/// Why a request of a handle failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// The query ended without success. The ids name durable records.
    #[error("{message}")]
    Failed {
        /// A stable code in snake_case.
        code: String,
        /// A message for people.
        message: String,
        /// The ids of the query, as far as they are known.
        ids: Box<QueryIds>,
    },
    /// The handle already has an active query; it may have only one.
    #[error("{request:?} is under way: wait for its end, interrupt it, or ask through another handle")]
    Busy {
        /// The request id of the active query.
        request: String,
    },
    /// The handle has no active query to interrupt.
    #[error("no query of this handle is under way")]
    Idle,
    /// The process cannot be started, or died too often in a row. The request may have been accepted: send it again
    /// under the same request id once a process runs.
    #[error("the runtime process is lost: {reason}")]
    Lost {
        /// The last failure of the process.
        reason: String,
    },
    /// The process was stopped by this application.
    #[error("the runtime process was stopped")]
    Stopped,
    /// A process of this state directory already runs with other launch options.
    #[error(
        "the runtime process of {state_dir} was started with other arguments: stop it first, or ask for it with the same"
    )]
    LaunchConflict {
        /// The state directory of the process.
        state_dir: String,
    },
    /// The process violates the protocol.
    #[error("the runtime process does not speak the protocol: {problem}")]
    Protocol {
        /// The violation.
        problem: String,
    },
}

impl BridgeError {
    /// Returns the stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Failed { code, .. } => code,
            Self::Busy { .. } => "request_active",
            Self::Idle => "no_request",
            Self::Lost { .. } => "process_lost",
            Self::Stopped => "process_stopped",
            Self::LaunchConflict { .. } => "process_conflict",
            Self::Protocol { .. } => "protocol",
        }
    }
}
