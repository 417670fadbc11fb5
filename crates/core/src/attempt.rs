//! Attempts: one execution of a run by one worker.
//!
//! ```text
//! starting ──open──▶ running ◀──▶ waiting_input | waiting_approval
//!     │                 │
//!     └──── cancel ─────┴──▶ cancelling ──stop──▶ cancelled
//! any of them ──fail──▶ failed | timed_out | orphaned        running ──▶ succeeded
//! ```
//!
//! An attempt that has authority mirrors its run's status; [`crate::run`] decides for both.
//! Invariant: an ended attempt never changes again.

use serde::{Deserialize, Serialize};

use crate::{AttemptId, BindingId, Body, Failure, NodeId, Refusal, RunId, RunStatus, Time, Usage};

/// One execution of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Its id.
    #[serde(rename = "attemptId")]
    pub id: AttemptId,
    /// The run it executes.
    #[serde(rename = "runId")]
    pub run: RunId,
    /// 1 for the first, and one more for each retry.
    #[serde(rename = "attemptNo")]
    pub no: u32,
    /// Where it stands.
    pub status: RunStatus,
    /// The adapter that executes it.
    pub adapter: String,
    /// The process it runs in.
    #[serde(rename = "nodeId")]
    pub node: NodeId,
    /// The runtime-native session it uses.
    #[serde(rename = "bindingId", skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingId>,
    /// The attempt it takes over from.
    #[serde(rename = "resumeFromAttemptId", skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<AttemptId>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// True when what went wrong may go right another time.
    pub retryable: bool,
    /// What it used.
    pub usage: Usage,
    /// How far its cancellation has come.
    #[serde(flatten)]
    pub cancellation: Cancellation,
    /// When it was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the adapter got control.
    #[serde(rename = "startedAtMs", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(rename = "completedAtMs", skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

/// The stages of a cancellation, each with the moment it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Cancellation {
    /// Somebody asked.
    #[serde(rename = "cancellationRequestedAtMs", skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Time>,
    /// The adapter was told.
    #[serde(rename = "cancellationDispatchedAtMs", skip_serializing_if = "Option::is_none")]
    pub dispatched_at: Option<Time>,
    /// The adapter confirmed.
    #[serde(rename = "cancellationAcknowledgedAtMs", skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<Time>,
}

/// What may be asked of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The adapter takes control.
    Open,
    /// The adapter was told to stop.
    Dispatch {
        /// The signal left.
        dispatched: bool,
        /// The adapter confirmed it.
        acknowledged: bool,
    },
}

/// Decides what `command` does to `attempt`: the event to record, or a refusal.
pub fn decide(attempt: &Attempt, command: Command) -> Result<Body, Refusal> {
    match (attempt.status, command) {
        (RunStatus::Starting, Command::Open) => Ok(Body::AttemptStarted {}),
        (RunStatus::Cancelling, Command::Dispatch { dispatched, acknowledged }) => {
            Ok(Body::AttemptCancelDispatch { dispatched, acknowledged })
        }
        (status, _) => Err(Refusal::WrongState { what: "attempt", status: status.name() }),
    }
}

/// Changes `attempt` as `body` says. Cannot fail: what was decided happens.
pub fn apply(attempt: &mut Attempt, body: &Body, at: Time) {
    // A run that waits to be tried again still has its last attempt, and what happens to the run is not about it.
    if attempt.status.is_ended() {
        return;
    }
    match body {
        Body::AttemptStarted {} => attempt.started_at = Some(at),
        Body::BindingCreated { binding_id, .. } | Body::BindingResumed { binding_id } => {
            attempt.binding = Some(*binding_id);
        }
        Body::RunRunning {} => attempt.status = RunStatus::Running,
        Body::RunWaitingInput { .. } => attempt.status = RunStatus::WaitingInput,
        Body::RunWaitingApproval { .. } => attempt.status = RunStatus::WaitingApproval,
        Body::RunCancellationRequested { .. } => attempt.cancellation.requested_at = Some(at),
        Body::RunCancelling {} => attempt.status = RunStatus::Cancelling,
        Body::AttemptCancelDispatch { dispatched, acknowledged } => {
            let cancellation = &mut attempt.cancellation;
            cancellation.dispatched_at = cancellation.dispatched_at.or(dispatched.then_some(at));
            cancellation.acknowledged_at = cancellation.acknowledged_at.or(acknowledged.then_some(at));
        }
        Body::UsageUpdated { usage } => attempt.usage += *usage,
        Body::AttemptFailed { status, error, retryable } => {
            attempt.status = *status;
            attempt.error = Some(error.clone());
            attempt.retryable = *retryable;
            attempt.completed_at = Some(at);
        }
        Body::AttemptCancelled { .. } => {
            attempt.status = RunStatus::Cancelled;
            attempt.completed_at = Some(at);
        }
        Body::RunSucceeded { .. } => {
            attempt.status = RunStatus::Succeeded;
            attempt.completed_at = Some(at);
        }
        _ => {}
    }
}
