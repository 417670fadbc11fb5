//! Delegations: a durable link from a parent run to a child run.
//!
//! ```text
//! pending ──start──▶ running ──settle──▶ succeeded | failed | cancelled
//!    └── settle, if the child ends before it starts ──▲
//! ```
//!
//! Invariant: a settled delegation never changes again, even if its child is retried.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::names;
use crate::{Artifact, ArtifactId, DelegationId, Failure, RunId, RunStatus, SessionId, Time, Usage};

mod request;
pub use request::{NetworkMember, RequestFields, StoredRequest};

/// A link from a parent run to a child run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Delegation {
    /// The delegation's id.
    #[serde(rename = "delegationId")]
    pub id: DelegationId,
    /// The session of the parent run.
    #[serde(rename = "parentSessionId")]
    pub parent_session: SessionId,
    /// The run that delegates.
    #[serde(rename = "parentRunId")]
    pub parent_run: RunId,
    /// The session of the child run.
    #[serde(rename = "childSessionId")]
    pub child_session: SessionId,
    /// The run that does the work.
    #[serde(rename = "childRunId")]
    pub child_run: RunId,
    /// Whether the parent waits, and whether the child's session is new.
    pub mode: DelegationMode,
    /// The child's progress.
    pub status: DelegationStatus,
    /// The goal of the child.
    pub objective: String,
    /// The request that created the delegation, without absent fields. Absent in older delegations.
    #[serde(default, skip_serializing_if = "StoredRequest::is_absent")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub request: StoredRequest,
    /// The child's newest artifact of the role `result` when the delegation was settled. Absent if there was none: the
    /// result is the child's text.
    #[serde(rename = "resultArtifactId", default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ArtifactId>,
    /// When the child was accepted.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the delegation was settled.
    #[serde(rename = "completedAtMs", default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

/// A delegation whose child has not been accepted yet. The child's session is known only on acceptance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewDelegation {
    /// The delegation's id.
    pub id: DelegationId,
    /// The session of the parent run.
    pub parent_session: SessionId,
    /// The run that delegates.
    pub parent_run: RunId,
    /// The id that the child run gets.
    pub child_run: RunId,
    /// Whether the parent waits, and whether the child's session is new.
    pub mode: DelegationMode,
    /// The goal of the child.
    pub objective: String,
    /// The request that makes the delegation.
    pub request: StoredRequest,
    /// The state that the child run starts with.
    pub state: Map<String, Value>,
}

impl NewDelegation {
    /// Returns the pending delegation after `child_session` has accepted the child at `at`.
    pub fn accept(&self, child_session: SessionId, at: Time) -> Delegation {
        Delegation {
            id: self.id,
            parent_session: self.parent_session,
            parent_run: self.parent_run,
            child_session,
            child_run: self.child_run,
            mode: self.mode,
            status: DelegationStatus::Pending,
            objective: self.objective.clone(),
            request: self.request.clone(),
            result: None,
            created_at: at,
            completed_at: None,
        }
    }
}

/// How a parent delegates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DelegationMode {
    /// Creates a session for the child; the parent waits for the result.
    Call,
    /// Creates a session for the child; the parent continues at once.
    Spawn,
    /// Gives a new run to a session that exists; the parent waits for the result.
    Continue,
}
names!(DelegationMode { Call => "call", Spawn => "spawn", Continue => "continue" });

impl DelegationMode {
    /// True when the parent waits until the child has ended.
    pub const fn is_awaited(self) -> bool {
        matches!(self, Self::Call | Self::Continue)
    }
}

/// The progress of a delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DelegationStatus {
    /// The child is queued.
    Pending,
    /// The child has started and has not ended.
    Running,
    /// The child succeeded.
    Succeeded,
    /// The child failed, timed out or was orphaned.
    Failed,
    /// The child was cancelled.
    Cancelled,
}
names!(DelegationStatus {
    Pending => "pending", Running => "running", Succeeded => "succeeded", Failed => "failed", Cancelled => "cancelled",
});

impl DelegationStatus {
    /// True when the delegation never changes again.
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// The status of a delegation whose child has the status `child`.
    const fn from_child(child: RunStatus) -> Self {
        match child {
            RunStatus::Queued => Self::Pending,
            RunStatus::Succeeded => Self::Succeeded,
            RunStatus::Cancelled => Self::Cancelled,
            RunStatus::Failed | RunStatus::TimedOut | RunStatus::Orphaned => Self::Failed,
            _ => Self::Running,
        }
    }
}

/// The result of a delegation, as its parent gets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct DelegationResult {
    /// The child's status. The child may be active again if it was retried since.
    pub status: RunStatus,
    /// The child's last message.
    pub summary: String,
    /// True when `summary` is only the beginning of that message. The rest is in the child's session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The child's artifacts, the newest first.
    pub artifacts: Vec<Artifact>,
    /// Tool calls that are known to have succeeded.
    pub verified_effects: Vec<DoneEffect>,
    /// Questions of the child that nobody answered.
    pub open_questions: Vec<String>,
    /// True when events of the child run were pruned: `verifiedEffects` and `openQuestions` list only those of the events
    /// that remain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events_pruned: bool,
    /// The child's failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// The child's usage, without the usage of runs that it delegated to in turn.
    pub usage: Usage,
}

/// A tool call that is known to have succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct DoneEffect {
    /// The id of the call.
    pub tool_use_id: String,
    /// The tool.
    pub name: String,
}

/// Returns `delegation` after its child reached the status `child`; `None` if nothing changes. `result` is the child's
/// result artifact, which a settled delegation names.
///
/// A child that is queued again for a retry still counts as running.
pub fn follow_child(
    delegation: &Delegation,
    child: RunStatus,
    result: Option<ArtifactId>,
    at: Time,
) -> Option<Delegation> {
    let status = DelegationStatus::from_child(child);
    if delegation.status.is_settled() || status == delegation.status || status == DelegationStatus::Pending {
        return None;
    }
    let completed_at = status.is_settled().then_some(at);
    let result = result.filter(|_| status.is_settled());
    Some(Delegation { status, result, completed_at, ..delegation.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> Delegation {
        let new = NewDelegation {
            id: DelegationId::from_random([1; 16]),
            parent_session: SessionId::from_random([2; 16]),
            parent_run: RunId::from_random([3; 16]),
            child_run: RunId::from_random([5; 16]),
            mode: DelegationMode::Call,
            objective: "look it up".into(),
            request: StoredRequest::default(),
            state: Map::new(),
        };
        new.accept(SessionId::from_random([4; 16]), Time(0))
    }

    #[test]
    fn an_accepted_delegation_is_pending_in_the_childs_session() {
        let pending = pending();
        assert_eq!(pending.child_session, SessionId::from_random([4; 16]));
        assert_eq!((pending.status, pending.completed_at), (DelegationStatus::Pending, None));
    }

    #[test]
    fn a_delegation_follows_the_status_of_its_child() {
        let pending = pending();
        let artifact = Some(ArtifactId::from_random([6; 16]));
        assert_eq!(follow_child(&pending, RunStatus::Queued, None, Time(1)), None);
        let running = follow_child(&pending, RunStatus::Starting, artifact, Time(1)).unwrap();
        assert_eq!(
            (running.status, running.result, running.completed_at),
            (DelegationStatus::Running, None, None)
        );
        for same in [RunStatus::Running, RunStatus::WaitingInput, RunStatus::Cancelling, RunStatus::Queued] {
            assert_eq!(follow_child(&running, same, artifact, Time(2)), None);
        }
        let cancelled = follow_child(&running, RunStatus::Cancelled, None, Time(3)).unwrap();
        assert_eq!((cancelled.status, cancelled.completed_at), (DelegationStatus::Cancelled, Some(Time(3))));
        let succeeded = follow_child(&running, RunStatus::Succeeded, artifact, Time(3)).unwrap();
        assert_eq!((succeeded.status, succeeded.result), (DelegationStatus::Succeeded, artifact));
    }

    #[test]
    fn a_settled_delegation_never_changes() {
        let settled = follow_child(&pending(), RunStatus::Orphaned, None, Time(1)).unwrap();
        assert_eq!(settled.status, DelegationStatus::Failed);
        for later in [RunStatus::Queued, RunStatus::Running, RunStatus::Succeeded] {
            assert_eq!(follow_child(&settled, later, None, Time(2)), None);
        }
    }
}
