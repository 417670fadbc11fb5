//! Where a run stands: by name, and with what is true there.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::wait::Wait;
use crate::{AttemptId, CancelReason, Failure, Time};

/// Where a run or an attempt stands, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Waits for a worker, or for its next attempt.
    Queued,
    /// A worker is being prepared.
    Starting,
    /// The agent works.
    Running,
    /// Waits for an input, or for results of the caller's tools.
    WaitingInput,
    /// Waits for an approval.
    WaitingApproval,
    /// Is being stopped.
    Cancelling,
    /// Did what it was asked. Final.
    Succeeded,
    /// Failed. Settled: only a retry reopens it.
    Failed,
    /// Was stopped. Final.
    Cancelled,
    /// Took too long. Settled.
    TimedOut,
    /// Its executor is gone. Settled.
    Orphaned,
}
names!(RunStatus {
    Queued => "queued", Starting => "starting", Running => "running", WaitingInput => "waiting_input",
    WaitingApproval => "waiting_approval", Cancelling => "cancelling", Succeeded => "succeeded", Failed => "failed",
    Cancelled => "cancelled", TimedOut => "timed_out", Orphaned => "orphaned",
});

impl RunStatus {
    /// True when nothing executes any more.
    pub const fn is_ended(self) -> bool {
        self.is_final() || self.is_settled()
    }

    /// True when nothing can reopen it.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled)
    }

    /// True when only a retry reopens it.
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut | Self::Orphaned)
    }
}

/// Where a run stands, with what is true there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "status", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum RunState {
    /// Waits for a worker; after a failure not before `retry_at`.
    Queued {
        /// When it may be tried again.
        #[serde(rename = "retryAtMs", skip_serializing_if = "Option::is_none")]
        retry_at: Option<Time>,
    },
    /// `attempt` is being prepared.
    Starting {
        /// Who has authority.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
    },
    /// `attempt` executes.
    Running {
        /// Who has authority.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
    },
    /// `attempt` waits for a person, or for the caller's tools.
    #[serde(rename = "waiting_input")]
    WaitingInput {
        /// Who has authority.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
        /// What it waits for.
        wait: Wait,
    },
    /// `attempt` waits for an approval.
    WaitingApproval {
        /// Who has authority.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
        /// What it waits for.
        wait: Wait,
    },
    /// `attempt` was told to stop.
    Cancelling {
        /// Who has authority until it has stopped.
        #[serde(rename = "activeAttemptId")]
        attempt: AttemptId,
        /// Why.
        reason: CancelReason,
    },
    /// Done.
    Succeeded {},
    /// Failed.
    Failed {
        /// How.
        error: Failure,
    },
    /// Stopped.
    Cancelled {
        /// Why.
        reason: CancelReason,
    },
    /// Took too long.
    TimedOut {
        /// How.
        error: Failure,
    },
    /// Executor gone.
    Orphaned {
        /// How.
        error: Failure,
    },
}

impl RunState {
    /// The state by name.
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

    /// What it waits for.
    pub const fn wait(&self) -> Option<&Wait> {
        match self {
            Self::WaitingInput { wait, .. } | Self::WaitingApproval { wait, .. } => Some(wait),
            _ => None,
        }
    }

    pub(super) const fn wait_mut(&mut self) -> Option<&mut Wait> {
        match self {
            Self::WaitingInput { wait, .. } | Self::WaitingApproval { wait, .. } => Some(wait),
            _ => None,
        }
    }

    /// What went wrong.
    pub const fn error(&self) -> Option<&Failure> {
        match self {
            Self::Failed { error } | Self::TimedOut { error } | Self::Orphaned { error } => Some(error),
            _ => None,
        }
    }
}
