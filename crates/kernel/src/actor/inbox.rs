//! The inbox: notes between the sessions of a parent run and a child run.
//!
//! ```text
//! parent's session                              child's session
//!                 ◀── delegated ── accepts the run, in the same commit
//! cancels, ends   ── cancel ──▶    stops the run
//!                 ◀── settled ──── ends the run, in the same commit
//! ```
//!
//! A note is written in the commit that makes it true, and removed in the commit that acts on it: after a crash in
//! between, the next start finds it. A note may be outdated by then, so the receiver checks the current state.

use mainspring_core::delegation::follow_child;
use mainspring_core::{
    Body, CancelReason, Delegation, DelegationId, NewDelegation, RunId, RunStatus, SessionId,
};

use super::{Actor, Draft};
use crate::adapter::Recording;
use crate::error::Error;
use crate::store::{Commit, DelegationsOf, InboxItem, Note, Row, StoreError};

/// A delegation that a run of the session has made.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    pub(crate) delegation: Delegation,
    /// The child's session was sent [`Note::Cancel`].
    pub(crate) cancel_sent: bool,
}

impl From<Delegation> for Child {
    fn from(delegation: Delegation) -> Self {
        Self { delegation, cancel_sent: false }
    }
}

/// A delegation, and the channel of an adapter that waits until it is settled.
pub(crate) type Waiter = (DelegationId, Recording<Delegation>);

impl Actor {
    /// Processes the notes in the inbox, in order. Retries while the store is unavailable, since nobody sends
    /// [`super::Command::Inbox`] again.
    pub(crate) async fn process_inbox(&mut self) {
        let mut pause = 50;
        loop {
            let error = match Box::pin(self.process_notes()).await {
                Ok(()) => return,
                Err(error) => error,
            };
            let session = self.fence.session;
            if self.over || self.shared.tasks.is_stopping() {
                tracing::warn!(%error, %session, "the inbox is left for the next start");
                return;
            }
            if let Error::Corrupt(_) = error {
                tracing::error!(%error, %session, "the inbox cannot be read; its notes stay");
                return;
            }
            tracing::warn!(%error, %session, "the inbox could not be processed yet");
            self.rest(&mut pause).await;
        }
    }

    async fn process_notes(&mut self) -> Result<(), Error> {
        for InboxItem { id, note, .. } in self.shared.store.inbox(self.fence.session).await? {
            // A handled note is removed with what it caused.
            let handled = Row::InboxTaken(id);
            match note {
                Note::Delegated { delegation } => {
                    Box::pin(self.record_delegation(*delegation, handled)).await?;
                }
                Note::Settled { delegation } => {
                    Box::pin(self.record_settlement(*delegation, handled)).await?;
                }
                Note::Cancel { run } => {
                    self.stop(run, CancelReason::Parent).await?;
                    // Stopping twice is stopping once, so the outcome of this commit need not be known.
                    let commit = Commit { fence: self.fence, events: vec![], rows: vec![handled] };
                    self.shared.store.commit(commit.into()).await?;
                }
            }
        }
        Ok(())
    }

    /// Records that a run of this session has delegated work. Cancels the child if the run has ended meanwhile.
    async fn record_delegation(&mut self, delegation: Delegation, handled: Row) -> Result<(), Error> {
        let parent = self.run_status(delegation.parent_run).await?;
        let mut draft = self.draft_about(delegation.parent_run);
        draft.about(
            delegation.parent_run,
            Body::DelegationCreated {
                delegation_id: delegation.id,
                child_session_id: delegation.child_session,
                child_run_id: delegation.child_run,
                mode: delegation.mode,
                objective: delegation.objective.clone(),
            },
        );
        draft.row(handled);
        let run = delegation.parent_run;
        draft.hot.children.push(delegation.into());
        draft.cancel_children(run, parent);
        self.commit_about(draft).await?;
        Ok(())
    }

    /// Records that a delegation of this session is settled, and answers the adapters that wait for it.
    async fn record_settlement(&mut self, delegation: Delegation, handled: Row) -> Result<(), Error> {
        let mut draft = self.draft_about(delegation.parent_run);
        let (delegation_id, status) = (delegation.id, delegation.status);
        draft.about(delegation.parent_run, Body::DelegationCompleted { delegation_id, status });
        draft.row(handled);
        draft.hot.children.retain(|child| child.delegation.id != delegation.id);
        self.commit_about(draft).await?;
        for (_, waiter) in self.waiters.extract_if(.., |(id, _)| *id == delegation.id) {
            let _ = waiter.send(Ok(delegation.clone()));
        }
        Ok(())
    }

    /// Answers `waiter` once the delegation is settled.
    pub(super) async fn await_settled(&mut self, delegation: DelegationId, waiter: Recording<Delegation>) {
        match self.shared.store.delegations(&DelegationsOf::Id(delegation)).await {
            Ok(found) => match found.into_iter().next() {
                Some(settled) if settled.status.is_settled() => drop(waiter.send(Ok(settled))),
                Some(_) => self.waiters.push((delegation, waiter)),
                None => drop(waiter.send(Err(Error::not_found("delegation", delegation).into()))),
            },
            Err(error) => drop(waiter.send(Err(Error::from(error).into()))),
        }
    }

    /// The status of a run of this session.
    async fn run_status(&self, run: RunId) -> Result<RunStatus, Error> {
        match self.active.as_ref().filter(|active| active.run.id == run) {
            Some(active) => Ok(active.run.state.status()),
            None => Ok(self.run_known(run).await?.state.status()),
        }
    }

    /// A draft for events about a run that do not change the run.
    fn draft_about(&self, run: RunId) -> Draft {
        let (draft, _) = self.draft(false);
        match self.active.as_ref().filter(|active| active.run.id == run) {
            Some(active) => draft.with_run(active.run.clone(), Some(active.attempt.clone())),
            None => draft,
        }
    }

    async fn commit_about(&mut self, draft: Draft) -> Result<(), StoreError> {
        let of_active = draft.run.is_some();
        match of_active {
            true => self.take_over(draft).await,
            false => self.commit(draft).await.map(drop),
        }
    }
}

impl Draft {
    /// Propagates the new status of the draft's run to its parent and its children.
    pub(super) fn propagate_status(&mut self) {
        let Some(run) = &self.run else { return };
        let (id, status, at) = (run.id, run.state.status(), self.at);
        if let Some(place) = self.hot.tasks.iter().position(|task| task.child_run == id)
            && let Some(changed) = follow_child(&self.hot.tasks[place], status, at)
        {
            self.row(Row::Delegation(Box::new(changed.clone())));
            if changed.status.is_settled() {
                self.hot.tasks.remove(place);
                let parent = changed.parent_session;
                self.leave_note(parent, Note::Settled { delegation: Box::new(changed) });
            } else {
                self.hot.tasks[place] = changed;
            }
        }
        self.cancel_children(id, status);
    }

    /// Cancels the children of `run` if its `status` requires that: all of them if the run is cancelled, the awaited
    /// ones if it ends in another way.
    fn cancel_children(&mut self, run: RunId, status: RunStatus) {
        let all = matches!(status, RunStatus::Cancelling | RunStatus::Cancelled);
        if !all && !status.is_ended() {
            return;
        }
        let mut cancelled = vec![];
        for child in self.hot.children.iter_mut().filter(|child| child.delegation.parent_run == run) {
            if !child.cancel_sent && (all || child.delegation.mode.is_awaited()) {
                child.cancel_sent = true;
                cancelled.push((child.delegation.child_session, child.delegation.child_run));
            }
        }
        for (session, run) in cancelled {
            self.leave_note(session, Note::Cancel { run });
        }
    }

    /// Leaves a note in the inbox of another session.
    fn leave_note(&mut self, to: SessionId, note: Note) {
        let item = InboxItem { id: self.ids.event(), at: self.at, note };
        self.row(Row::Inbox(to, item));
    }

    /// Records the delegation that the draft's run is the child of, and notifies the parent's session.
    pub(super) fn accept_delegation(&mut self, new: &NewDelegation) {
        let delegation = new.accept(self.hot.session.id, self.at);
        self.row(Row::Delegation(Box::new(delegation.clone())));
        let note = Note::Delegated { delegation: Box::new(delegation.clone()) };
        self.leave_note(delegation.parent_session, note);
        self.hot.tasks.push(delegation);
    }
}
