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

use mainspring_core::{
    Body, CancelReason, Delegation, DelegationId, NewDelegation, RunId, RunStatus, SessionId, StateWriter,
};
use serde_json::{Map, Value};

use super::draft::{AttemptSlot, OfRun};
use super::patience::INITIAL_BACKOFF_MS;
use super::{Actor, Draft, Subject};
use crate::adapter::HandleReply;
use crate::error::Error;
use crate::store::{Commit, DelegationsOf, InboxItem, Note, Row, StatePlace, StateRow};

impl Actor {
    /// Processes the notes in the inbox, in order. Retries while the store is unavailable, since
    /// [`super::Command::Inbox`] is sent only once.
    pub(crate) async fn process_inbox(&mut self) {
        let mut backoff_ms = INITIAL_BACKOFF_MS;
        loop {
            let error = match Box::pin(self.process_notes()).await {
                Ok(()) => return,
                Err(error) => error,
            };
            let session = self.fence.session;
            if self.lifetime.is_over() || self.shared.tasks.is_stopping() {
                tracing::warn!(%error, %session, "the inbox is left for the next start");
                return;
            }
            if let Error::Corrupt(_) = error {
                tracing::error!(%error, %session, "the inbox cannot be read; its notes stay");
                return;
            }
            tracing::warn!(%error, %session, "the inbox could not be processed yet");
            if self.wait_for_store(&mut backoff_ms, &error).await.is_break() {
                return;
            }
        }
    }

    async fn process_notes(&mut self) -> Result<(), Error> {
        for InboxItem { id, note, .. } in self.shared.store.inbox(self.fence.session).await? {
            // A handled note is removed in the commit of its effects.
            let handled = Row::InboxTaken(id);
            match note {
                Note::Delegated { delegation } => {
                    Box::pin(self.record_delegation(*delegation, handled)).await?;
                }
                Note::Settled { delegation } => {
                    Box::pin(self.record_settlement(*delegation, handled)).await?;
                }
                Note::Cancel { run } => {
                    Box::pin(self.stop(run, CancelReason::Parent)).await?;
                    if self.lifetime.is_over() {
                        // The cancellation may not be recorded: the note is left for the next start.
                        return Err(Error::ShuttingDown);
                    }
                    // Stopping is idempotent, so the outcome of this commit need not be known.
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
        let mut draft = self.draft();
        draft.emit_for_run(
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
        draft.hot.delegations.add_child(delegation);
        draft.cancel_children(run, parent);
        self.commit(draft).await?;
        Ok(())
    }

    /// Records that a delegation of this session is settled, and answers the attempts that wait for it.
    async fn record_settlement(&mut self, delegation: Delegation, handled: Row) -> Result<(), Error> {
        let mut draft = self.draft();
        let (delegation_id, status) = (delegation.id, delegation.status);
        draft.emit_for_run(delegation.parent_run, Body::DelegationCompleted { delegation_id, status });
        draft.row(handled);
        draft.hot.delegations.remove_child(delegation.id);
        self.commit(draft).await?;
        self.waiters.settle(&delegation);
        Ok(())
    }

    /// Answers `waiter` once the delegation is settled.
    pub(super) async fn await_settled(&mut self, delegation: DelegationId, waiter: HandleReply<Delegation>) {
        match self.shared.store.delegations(&DelegationsOf::Id(delegation)).await {
            Ok(found) => match found.into_iter().next() {
                Some(settled) if settled.status.is_settled() => drop(waiter.send(Ok(settled))),
                Some(_) => self.waiters.add(delegation, waiter),
                None => drop(waiter.send(Err(Error::not_found("delegation", delegation).into()))),
            },
            Err(error) => drop(waiter.send(Err(Error::from(error).into()))),
        }
    }

    /// Returns the status of a run of this session.
    async fn run_status(&self, run: RunId) -> Result<RunStatus, Error> {
        match self.active.as_ref().filter(|active| active.run().id == run) {
            Some(active) => Ok(active.status()),
            None => Ok(self.run_known(run).await?.state.status()),
        }
    }
}

impl<A: AttemptSlot> Draft<OfRun<A>> {
    /// Propagates the new status of the draft's run to its parent and its children.
    pub(super) fn propagate_run_status(&mut self) {
        let (id, status) = (self.subject.run.id, self.subject.run.state.status());
        if let Some(changed) = self.hot.delegations.follow(id, status, self.result_artifact, self.at) {
            self.row(Row::Delegation(Box::new(changed.clone())));
            if changed.status.is_settled() {
                let parent = changed.parent_session;
                self.leave_note(parent, Note::Settled { delegation: Box::new(changed) });
            }
        }
        self.cancel_children(id, status);
    }
}

impl<S: Subject> Draft<S> {
    /// Cancels the children of `run` if its `status` requires that.
    fn cancel_children(&mut self, run: RunId, status: RunStatus) {
        for (session, run) in self.hot.delegations.cancel_children(run, status) {
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
        self.hot.delegations.add_own_delegation(delegation);
    }

    /// Gives the new run the state that it starts with.
    pub(super) fn seed_state(&mut self, run: RunId, state: &Map<String, Value>) {
        for (key, value) in state {
            let (key, value) = (key.clone(), Some(value.clone()));
            let row = StateRow { place: StatePlace::Run(run), key, version: 1, value, at: self.at };
            self.state_set(row, StateWriter::Caller { key_id: None });
        }
    }
}
