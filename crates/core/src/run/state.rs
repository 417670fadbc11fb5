//! The status and the state of a run.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::wait::Wait;
use crate::{AttemptId, CancelReason, Failure, RetryReason, Time};

/// The status of a run or an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Waiting for its turn, for a permit or for a retry.
    Queued,
    /// The attempt is being prepared.
    Starting,
    /// The agent is working.
    Running,
    /// Waiting for input or for results of client tools.
    WaitingInput,
    /// Waiting for an approval.
    WaitingApproval,
    /// Being cancelled.
    Cancelling,
    /// Completed successfully. Final.
    Succeeded,
    /// Failed. Can be retried.
    Failed,
    /// Cancelled. Final.
    Cancelled,
    /// Exceeded its time limit, or a wait expired. Can be retried.
    TimedOut,
    /// The process that executed the run is gone. Can be retried.
    Orphaned,
}
names!(RunStatus {
    Queued => "queued", Starting => "starting", Running => "running", WaitingInput => "waiting_input",
    WaitingApproval => "waiting_approval", Cancelling => "cancelling", Succeeded => "succeeded", Failed => "failed",
    Cancelled => "cancelled", TimedOut => "timed_out", Orphaned => "orphaned",
});

impl RunStatus {
    /// True when the run or the attempt has ended.
    pub const fn is_ended(self) -> bool {
        self.is_final() || self.is_settled()
    }

    /// True when the run cannot be reopened.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled)
    }

    /// True when the run has ended without success, and a retry can reopen it.
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut | Self::Orphaned)
    }
}

/// The state of a run: its status and the data that belongs to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "status", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum RunState {
    /// Waiting for its turn or for a permit. Does not start before `retry_at`.
    Queued {
        /// The earliest time of the next attempt.
        #[serde(rename = "retryAtMs", skip_serializing_if = "Option::is_none")]
        retry_at: Option<Time>,
        /// Why the run is queued again. Absent before its first attempt.
        #[serde(rename = "retryReason", default, skip_serializing_if = "Option::is_none")]
        retry_reason: Option<RetryReason>,
    },
    /// `attempt` is being prepared.
    Starting {
        /// The attempt with authority.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
    },
    /// `attempt` executes.
    Running {
        /// The attempt with authority.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
    },
    /// `attempt` waits for input or for results of client tools.
    #[serde(rename = "waiting_input")]
    WaitingInput {
        /// The attempt with authority.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
        /// The open wait.
        wait: Box<Wait>,
    },
    /// `attempt` waits for an approval.
    WaitingApproval {
        /// The attempt with authority.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
        /// The open wait.
        wait: Box<Wait>,
    },
    /// `attempt` was signalled to stop.
    Cancelling {
        /// The attempt with authority, until it has stopped.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
        /// The reason of the cancellation.
        reason: CancelReason,
    },
    /// Completed successfully.
    Succeeded {},
    /// Failed.
    Failed {
        /// The error.
        error: Failure,
    },
    /// Cancelled.
    Cancelled {
        /// The reason of the cancellation.
        reason: CancelReason,
    },
    /// Exceeded its time limit, or a wait expired.
    TimedOut {
        /// The error.
        error: Failure,
    },
    /// The process that executed the run is gone.
    Orphaned {
        /// The error.
        error: Failure,
    },
}

impl RunState {
    /// The status of this state.
    pub const fn status(&self) -> RunStatus {
        match self {
            Self::Queued { .. } => RunStatus::Queued,
            Self::Starting { .. } => RunStatus::Starting,
            Self::Running { .. } => RunStatus::Running,
            Self::WaitingInput { .. } => RunStatus::WaitingInput,
            Self::WaitingApproval { .. } => RunStatus::WaitingApproval,
            Self::Cancelling { .. } => RunStatus::Cancelling,
            Self::Succeeded {} => RunStatus::Succeeded,
            Self::Failed { .. } => RunStatus::Failed,
            Self::Cancelled { .. } => RunStatus::Cancelled,
            Self::TimedOut { .. } => RunStatus::TimedOut,
            Self::Orphaned { .. } => RunStatus::Orphaned,
        }
    }

    /// The attempt that has authority.
    pub const fn holder(&self) -> Option<AttemptId> {
        match self {
            Self::Starting { attempt }
            | Self::Running { attempt }
            | Self::WaitingInput { attempt, .. }
            | Self::WaitingApproval { attempt, .. }
            | Self::Cancelling { attempt, .. } => Some(*attempt),
            _ => None,
        }
    }

    /// The open wait.
    pub fn wait(&self) -> Option<&Wait> {
        match self {
            Self::WaitingInput { wait, .. } | Self::WaitingApproval { wait, .. } => Some(wait),
            _ => None,
        }
    }

    pub(super) fn wait_mut(&mut self) -> Option<&mut Wait> {
        match self {
            Self::WaitingInput { wait, .. } | Self::WaitingApproval { wait, .. } => Some(wait),
            _ => None,
        }
    }

    /// The error of a run that ended without success.
    pub const fn error(&self) -> Option<&Failure> {
        match self {
            Self::Failed { error } | Self::TimedOut { error } | Self::Orphaned { error } => Some(error),
            _ => None,
        }
    }
}
