//! Delegations: a durable tie from a parent run to a child run.
//!
//! ```text
//! pending ──start──▶ running ──settle──▶ succeeded | failed | cancelled
//! ```
//!
//! Invariant: a settled delegation stays settled, also when its child is tried again.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{Artifact, ArtifactId, DelegationId, Failure, RunId, RunStatus, SessionId, Time, Usage};

/// A parent run's tie to a child run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Delegation {
    /// Its id.
    #[serde(rename = "delegationId")]
    pub id: DelegationId,
    /// The session that delegates.
    #[serde(rename = "parentSessionId")]
    pub parent_session: SessionId,
    /// The run that delegates.
    #[serde(rename = "parentRunId")]
    pub parent_run: RunId,
    /// The session that does the work.
    #[serde(rename = "childSessionId")]
    pub child_session: SessionId,
    /// The run that does the work.
    #[serde(rename = "childRunId")]
    pub child_run: RunId,
    /// How the parent waits.
    pub mode: DelegationMode,
    /// Where it stands.
    pub status: DelegationStatus,
    /// What is to be achieved.
    pub objective: String,
    /// What came of it, where that was kept as an artifact.
    #[serde(rename = "resultArtifactId", default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ArtifactId>,
    /// When it was made.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When it was settled.
    #[serde(rename = "completedAtMs", default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

/// How a parent delegates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DelegationMode {
    /// Wait for the result.
    Call,
    /// Go on at once.
    Spawn,
    /// Give an earlier child more to do, and wait for the result.
    Continue,
}
names!(DelegationMode { Call => "call", Spawn => "spawn", Continue => "continue" });

impl DelegationMode {
    /// True when the parent does nothing else until the child has ended.
    pub const fn is_awaited(self) -> bool {
        matches!(self, Self::Call | Self::Continue)
    }
}

/// Where a delegation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DelegationStatus {
    /// The child is queued.
    Pending,
    /// The child works.
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
    /// True when nothing changes it any more.
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// What a child that stands at `run` makes of its delegation.
    const fn of(run: RunStatus) -> Self {
        match run {
            RunStatus::Queued => Self::Pending,
            RunStatus::Succeeded => Self::Succeeded,
            RunStatus::Cancelled => Self::Cancelled,
            RunStatus::Failed | RunStatus::TimedOut | RunStatus::Orphaned => Self::Failed,
            _ => Self::Running,
        }
    }
}

/// What came of delegated work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct DelegationResult {
    /// How the child ended, or where it stands if it was tried again since.
    pub status: RunStatus,
    /// What it said last.
    pub summary: String,
    /// True when that is only the beginning: the rest is in the child's session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// What it made, the newest first.
    pub artifacts: Vec<Artifact>,
    /// Tool calls that are known to have succeeded.
    pub verified_effects: Vec<DoneEffect>,
    /// What it asked and nobody answered.
    pub open_questions: Vec<String>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// What it used, without those it delegated to in turn.
    pub usage: Usage,
}

/// A tool call that is known to have succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct DoneEffect {
    /// The call.
    pub tool_use_id: String,
    /// The tool.
    pub name: String,
}

/// What becomes of `delegation` when its child stands at `child`; none if that changes nothing.
///
/// A child that goes back to the queue to be tried again still works.
pub fn follow(delegation: &Delegation, child: RunStatus, at: Time) -> Option<Delegation> {
    let status = DelegationStatus::of(child);
    if delegation.status.is_settled() || status == delegation.status || status == DelegationStatus::Pending {
        return None;
    }
    let completed_at = status.is_settled().then_some(at);
    Some(Delegation { status, completed_at, ..delegation.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> Delegation {
        Delegation {
            id: DelegationId::from_random([1; 16]),
            parent_session: SessionId::from_random([2; 16]),
            parent_run: RunId::from_random([3; 16]),
            child_session: SessionId::from_random([4; 16]),
            child_run: RunId::from_random([5; 16]),
            mode: DelegationMode::Call,
            status: DelegationStatus::Pending,
            objective: "look it up".into(),
            result: None,
            created_at: Time(0),
            completed_at: None,
        }
    }

    #[test]
    fn a_delegation_stands_where_its_child_does() {
        let pending = pending();
        assert_eq!(follow(&pending, RunStatus::Queued, Time(1)), None);
        let running = follow(&pending, RunStatus::Starting, Time(1)).unwrap();
        assert_eq!((running.status, running.completed_at), (DelegationStatus::Running, None));
        for same in [RunStatus::Running, RunStatus::WaitingInput, RunStatus::Cancelling, RunStatus::Queued] {
            assert_eq!(follow(&running, same, Time(2)), None);
        }
        let cancelled = follow(&running, RunStatus::Cancelled, Time(3)).unwrap();
        assert_eq!((cancelled.status, cancelled.completed_at), (DelegationStatus::Cancelled, Some(Time(3))));
    }

    #[test]
    fn a_settled_delegation_stays_settled() {
        let settled = follow(&pending(), RunStatus::Orphaned, Time(1)).unwrap();
        assert_eq!(settled.status, DelegationStatus::Failed);
        for later in [RunStatus::Queued, RunStatus::Running, RunStatus::Succeeded] {
            assert_eq!(follow(&settled, later, Time(2)), None);
        }
    }
}
