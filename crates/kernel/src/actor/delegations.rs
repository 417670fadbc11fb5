//! The delegations of a session's runs that are not settled, and the attempts that wait for them.

use mainspring_core::delegation::follow_child;
use mainspring_core::{ArtifactId, Delegation, DelegationId, RunId, RunStatus, SessionId, Time};

use crate::adapter::HandleReply;
use crate::scheduler::Lender;

/// Unsettled delegations.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delegations {
    /// Delegations that runs of this session carry out.
    own: Vec<Delegation>,
    /// Delegations that runs of this session have made.
    children: Vec<Child>,
}

#[derive(Debug, Clone)]
struct Child {
    delegation: Delegation,
    /// True once the child's session was sent [`crate::store::Note::Cancel`].
    cancel_sent: bool,
}

impl From<Delegation> for Child {
    fn from(delegation: Delegation) -> Self {
        Self { delegation, cancel_sent: false }
    }
}

impl Delegations {
    /// Restores the unsettled delegations of `session`.
    pub(super) fn restore(delegations: Vec<Delegation>, session: SessionId) -> Self {
        let (own, children): (Vec<_>, Vec<_>) =
            delegations.into_iter().partition(|delegation| delegation.child_session == session);
        Self { own, children: children.into_iter().map(Child::from).collect() }
    }

    /// The delegation that `run` carries out.
    pub(super) fn own(&self, run: RunId) -> Option<&Delegation> {
        self.own.iter().find(|own| own.child_run == run)
    }

    /// The run that waits for `run` and lends it its permit meanwhile.
    pub(super) fn lender(&self, run: RunId) -> Option<Lender> {
        let own = self.own(run)?;
        // A member of a network runs on the adapter of its parent, so it can use the parent's place there.
        let (run, lends_place) = (own.parent_run, own.request.member().is_some());
        own.mode.is_awaited().then_some(Lender { run, lends_place })
    }

    /// Adds a delegation that a run of this session carries out.
    pub(super) fn add_own_delegation(&mut self, own: Delegation) {
        self.own.push(own);
    }

    /// Adds a delegation that a run of this session has made.
    pub(super) fn add_child(&mut self, child: Delegation) {
        self.children.push(child.into());
    }

    /// Removes a settled delegation that a run of this session has made.
    pub(super) fn remove_child(&mut self, id: DelegationId) {
        self.children.retain(|child| child.delegation.id != id);
    }

    /// True when `run` carries out a delegation that is not settled.
    pub(super) fn is_delegated(&self, run: RunId) -> bool {
        self.own(run).is_some()
    }

    /// Applies the status of `run` to the delegation that it carries out. Returns the delegation if it has changed.
    /// `result` is the result artifact of the run.
    pub(super) fn follow(
        &mut self,
        run: RunId,
        status: RunStatus,
        result: Option<ArtifactId>,
        at: Time,
    ) -> Option<Delegation> {
        let index = self.own.iter().position(|own| own.child_run == run)?;
        let changed = follow_child(&self.own[index], status, result, at)?;
        match changed.status.is_settled() {
            true => drop(self.own.remove(index)),
            false => self.own[index] = changed.clone(),
        }
        Some(changed)
    }

    /// Decides which children of `run` are cancelled because of its `status`: all of them if the run is cancelled, the
    /// awaited ones if it ends in another way. Returns the session and the run of each, once.
    pub(super) fn cancel_children(&mut self, run: RunId, status: RunStatus) -> Vec<(SessionId, RunId)> {
        let all = matches!(status, RunStatus::Cancelling | RunStatus::Cancelled);
        if !all && !status.is_ended() {
            return vec![];
        }
        let cancelled = |child: &&mut Child| {
            child.delegation.parent_run == run
                && !child.cancel_sent
                && (all || child.delegation.mode.is_awaited())
        };
        let cancel = |child: &mut Child| {
            child.cancel_sent = true;
            (child.delegation.child_session, child.delegation.child_run)
        };
        self.children.iter_mut().filter(cancelled).map(cancel).collect()
    }
}

/// The attempts that wait until a delegation is settled.
#[derive(Default)]
pub(super) struct Waiters(Vec<(DelegationId, HandleReply<Delegation>)>);

impl Waiters {
    pub(super) fn add(&mut self, delegation: DelegationId, waiter: HandleReply<Delegation>) {
        self.0.push((delegation, waiter));
    }

    /// Answers the attempts that wait for `delegation`, which is settled.
    pub(super) fn settle(&mut self, delegation: &Delegation) {
        for (_, waiter) in self.0.extract_if(.., |(id, _)| *id == delegation.id) {
            let _ = waiter.send(Ok(delegation.clone()));
        }
    }
}
