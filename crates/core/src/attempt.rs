//! Attempts: one execution of a run by one worker.
//!
//! ```text
//! starting ──open──▶ running ◀──▶ waiting_input | waiting_approval
//!     │                 │
//!     └──── cancel ─────┴──▶ cancelling ──stop──▶ cancelled
//! any of them ──fail──▶ failed | timed_out | orphaned        running ──▶ succeeded
//! ```
//!
//! The attempt with authority mirrors the status of its run; [`crate::run`] decides for both.
//! Invariant: an ended attempt never changes again.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    ArtifactId, AttemptId, BindingId, Body, Failure, LeftProcess, NodeId, Refusal, RetryReason, RunId,
    RunStatus, Sandbox, Time, Usage,
};

/// One execution of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The attempt's id.
    #[serde(rename = "attemptId")]
    pub id: AttemptId,
    /// The run this attempt executes.
    #[serde(rename = "runId")]
    pub run: RunId,
    /// The number of the attempt within its run: 1 for the first, one more for each retry.
    #[serde(rename = "attemptNo")]
    pub no: u32,
    /// The status of the attempt.
    pub status: RunStatus,
    /// The adapter that executes the attempt.
    pub adapter: String,
    /// The mainspring process that executes the attempt.
    #[serde(rename = "nodeId")]
    pub node: NodeId,
    /// The process of the runtime that executes the attempt. Absent if mainspring itself does.
    #[serde(rename = "adapterInstanceId", default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The runtime's own id of the execution.
    #[serde(rename = "adapterNativeRunId", default, skip_serializing_if = "Option::is_none")]
    pub native_run: Option<String>,
    /// The binding to the runtime-native session that the attempt uses, or was to resume when it failed.
    #[serde(rename = "bindingId", skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingId>,
    /// The earlier attempt that this attempt resumes from.
    #[serde(rename = "resumeFromAttemptId", skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<AttemptId>,
    /// The newest artifact of the run with the role `checkpoint` when the attempt was created. A first attempt has none.
    #[serde(rename = "checkpointArtifactId", default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<ArtifactId>,
    /// Why the attempt follows the one before. Absent for a first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_reason: Option<RetryReason>,
    /// The error of a failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// True when the error is temporary and a retry may succeed.
    pub retryable: bool,
    /// Tokens and cost of the attempt.
    pub usage: Usage,
    /// The confinement of the agent. Absent if its processes are not known to mainspring, or have not started yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// The processes that were still running when the attempt's turn had ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_running: Vec<LeftProcess>,
    /// Further facts that the runtime has reported about the execution.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Object, required = false))]
    pub metadata: Map<String, Value>,
    /// The progress of the attempt's cancellation.
    #[serde(flatten)]
    pub cancellation: Cancellation,
    /// When the attempt was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the agent could begin to work.
    #[serde(rename = "startedAtMs", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the attempt ended.
    #[serde(rename = "completedAtMs", skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

/// The stages of a cancellation, each with the time it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Cancellation {
    /// When the cancellation was requested.
    #[serde(rename = "cancellationRequestedAtMs", skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Time>,
    /// When the stop signal was sent to the adapter.
    #[serde(rename = "cancellationDispatchedAtMs", skip_serializing_if = "Option::is_none")]
    pub dispatched_at: Option<Time>,
    /// When the adapter acknowledged the signal.
    #[serde(rename = "cancellationAcknowledgedAtMs", skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<Time>,
}

/// A command to an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The agent can work now.
    Open,
    /// Reports whether the stop signal reached the adapter.
    Dispatch {
        /// True if the signal was sent.
        dispatched: bool,
        /// True if the adapter acknowledged the signal.
        acknowledged: bool,
    },
}

/// Decides the effect of `command` on `attempt`: the event to record, or a refusal.
pub fn decide(attempt: &Attempt, command: Command) -> Result<Body, Refusal> {
    match (attempt.status, command) {
        (RunStatus::Starting, Command::Open) => Ok(Body::AttemptStarted {}),
        (RunStatus::Cancelling, Command::Dispatch { dispatched, acknowledged }) => {
            Ok(Body::AttemptCancelDispatch { dispatched, acknowledged })
        }
        (status, _) => Err(Refusal::WrongState { what: "attempt", status: status.name() }),
    }
}

/// Applies an event to `attempt`. Infallible: the event has already been decided.
pub fn apply(attempt: &mut Attempt, body: &Body, at: Time) {
    // A queued run keeps its previous attempt while it waits for a retry; the run's events do not concern that
    // attempt.
    if attempt.status.is_ended() {
        return;
    }
    match body {
        Body::AttemptStarted {} => attempt.started_at = Some(at),
        Body::AttemptLeftRunning { processes } => attempt.left_running.clone_from(processes),
        Body::AttemptConfined { sandbox } => attempt.sandbox = Some(sandbox.clone()),
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
