//! Delegations: a durable tie from a parent run to a child run.
//!
//! ```text
//! pending ──start──▶ running ──settle──▶ succeeded | failed | cancelled
//! ```
//!
//! Invariant: a settled delegation stays settled, also when its child is tried again.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{ArtifactId, Body, DelegationId, Refusal, RunId, RunStatus, SessionId, Time};

/// A parent run's tie to a child run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delegation {
    /// Its id.
    #[serde(rename = "delegationId")]
    pub id: DelegationId,
    /// The session that delegates.
    pub parent_session: SessionId,
    /// The run that delegates.
    pub parent_run: RunId,
    /// The session that does the work.
    pub child_session: SessionId,
    /// The run that does the work.
    pub child_run: RunId,
    /// How the parent waits.
    pub mode: DelegationMode,
    /// Where it stands.
    pub status: DelegationStatus,
    /// What is to be achieved.
    pub objective: String,
    /// What came of it.
    pub result: Option<ArtifactId>,
    /// When it was made.
    pub created_at: Time,
    /// When it was settled.
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
    /// Give an earlier child more to do.
    Continue,
}
names!(DelegationMode { Call => "call", Spawn => "spawn", Continue => "continue" });

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

/// Decides what the child's `status` means for `delegation`: an event once it settles, nothing before.
pub fn decide(delegation: &Delegation, child: RunStatus) -> Result<Option<Body>, Refusal> {
    use DelegationStatus::{Cancelled, Failed, Pending, Running, Succeeded};
    match (delegation.status, child) {
        (Pending | Running, status) if !status.is_ended() => Ok(None),
        (Pending | Running, status) => {
            let status = match status {
                RunStatus::Succeeded => Succeeded,
                RunStatus::Cancelled => Cancelled,
                _ => Failed,
            };
            Ok(Some(Body::DelegationCompleted { delegation_id: delegation.id, status }))
        }
        (settled, _) => Err(Refusal::WrongState { what: "delegation", status: settled.name() }),
    }
}

/// Changes `delegation` as `body` says. Cannot fail: what was decided happens.
pub fn apply(delegation: &mut Delegation, body: &Body, at: Time) {
    if let Body::DelegationCompleted { status, .. } = body {
        delegation.status = *status;
        delegation.completed_at = Some(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settled_delegation_stays_settled() {
        let mut delegation = Delegation {
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
        };
        assert_eq!(decide(&delegation, RunStatus::Running), Ok(None));
        let settled = decide(&delegation, RunStatus::Orphaned).unwrap().unwrap();
        apply(&mut delegation, &settled, Time(1));
        assert_eq!(delegation.status, DelegationStatus::Failed);
        assert!(decide(&delegation, RunStatus::Succeeded).is_err());
    }
}
