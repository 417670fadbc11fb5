//! Converts a run's state to and from columns.

use mainspring_core::{
    Answer, ApprovalRequest, AttemptId, CancelReason, ClientCall, ClientResult, Failure, OnExpiry, Replies,
    RetryReason, RunState, RunStatus, Time, Wait, WaitId, WaitRequest,
};
use rusqlite::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::columns::{Columns, json};

/// The columns of `runs` that hold the state, except `status`.
#[derive(Debug, Default)]
pub(super) struct StateColumns<'run> {
    pub(super) attempt: Option<AttemptId>,
    pub(super) retry_at: Option<Time>,
    pub(super) wait: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) error: Option<&'run Failure>,
}

/// A wait in its stored form, including the fields that its public form omits.
#[derive(Serialize, Deserialize)]
struct StoredWait {
    id: WaitId,
    request: WaitRequest,
    question: String,
    expires_at: Option<Time>,
    #[serde(default)]
    on_expiry: OnExpiry,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approval: Option<Box<ApprovalRequest>>,
    held: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    calls: Vec<ClientCall>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    results: Vec<ClientResult>,
    resume: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replies: Option<Box<Replies>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<Answer>,
}

impl<'run> StateColumns<'run> {
    pub(super) fn new(state: &'run RunState) -> Result<Self> {
        let mut columns = Self { attempt: state.holder(), ..Self::default() };
        match state {
            RunState::Queued { retry_at, retry_reason } => {
                columns.retry_at = *retry_at;
                columns.reason = retry_reason.as_ref().map(json).transpose()?;
            }
            RunState::WaitingInput { wait, .. } | RunState::WaitingApproval { wait, .. } => {
                columns.wait = Some(json(&StoredWait {
                    id: wait.id,
                    request: wait.request,
                    question: wait.question.clone(),
                    expires_at: wait.expires_at,
                    on_expiry: wait.on_expiry,
                    approval: wait.approval.clone(),
                    held: wait.held,
                    calls: wait.calls.clone(),
                    results: wait.results.clone(),
                    resume: wait.resume.clone(),
                    replies: wait.replies.clone(),
                    answer: wait.answer.clone(),
                })?);
            }
            RunState::Cancelling { reason, .. } | RunState::Cancelled { reason } => {
                columns.reason = Some(json(reason)?);
            }
            RunState::Failed { error } | RunState::TimedOut { error } | RunState::Orphaned { error } => {
                columns.error = Some(error);
            }
            RunState::Starting { .. } | RunState::Running { .. } | RunState::Succeeded {} => {}
        }
        Ok(columns)
    }
}

/// Reads the state from `status, active_attempt_id, retry_at_ms, wait, reason, error_code, error_message`.
pub(super) fn state_read(columns: &mut Columns<'_>) -> Result<RunState> {
    let status = columns.name(RunStatus::from_name)?;
    let (attempt, retry_at) = (columns.maybe_id()?, columns.maybe_time()?);
    let wait = columns.maybe_json::<StoredWait>()?.map(|wait| {
        Box::new(Wait {
            id: wait.id,
            request: wait.request,
            question: wait.question,
            expires_at: wait.expires_at,
            on_expiry: wait.on_expiry,
            approval: wait.approval,
            held: wait.held,
            calls: wait.calls,
            results: wait.results,
            resume: wait.resume,
            replies: wait.replies,
            answer: wait.answer,
        })
    });
    // The column holds the reason of a retry or that of a cancellation.
    let (retry_reason, reason) = match status {
        RunStatus::Queued => (columns.maybe_json::<RetryReason>()?, None),
        _ => (None, columns.maybe_json::<CancelReason>()?),
    };
    let error = columns.failure()?;
    let state = match status {
        RunStatus::Queued => Some(RunState::Queued { retry_at, retry_reason }),
        RunStatus::Starting => attempt.map(|attempt| RunState::Starting { attempt }),
        RunStatus::Running => attempt.map(|attempt| RunState::Running { attempt }),
        RunStatus::WaitingInput => {
            attempt.zip(wait).map(|(attempt, wait)| RunState::WaitingInput { attempt, wait })
        }
        RunStatus::WaitingApproval => {
            attempt.zip(wait).map(|(attempt, wait)| RunState::WaitingApproval { attempt, wait })
        }
        RunStatus::Cancelling => {
            attempt.zip(reason).map(|(attempt, reason)| RunState::Cancelling { attempt, reason })
        }
        RunStatus::Succeeded => Some(RunState::Succeeded {}),
        RunStatus::Failed => error.map(|error| RunState::Failed { error }),
        RunStatus::Cancelled => reason.map(|reason| RunState::Cancelled { reason }),
        RunStatus::TimedOut => error.map(|error| RunState::TimedOut { error }),
        RunStatus::Orphaned => error.map(|error| RunState::Orphaned { error }),
    };
    state.ok_or_else(|| columns.invalid(format!("a column that a {status} run needs is empty")))
}
