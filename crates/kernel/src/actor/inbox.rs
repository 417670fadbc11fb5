//! The inbox: what sessions tell each other about delegated work.
//!
//! ```text
//! parent's session                              child's session
//!                 ◀── delegated ── accepts the run, in the same commit
//! cancels, ends   ── cancel ──▶    stops it
//!                 ◀── settled ──── ends it, in the same commit
//! ```
//!
//! A note is left in the commit that makes it true, and is taken in the commit that acts upon it: whatever crashes in
//! between, the next start finds it. What a note says may have become untrue meanwhile, so whoever takes it looks.

use mainspring_core::{Body, CancelReason, Delegation, DelegationId, RunId, RunStatus, SessionId};
use serde::{Deserialize, Serialize};

use super::commit::FIRST_PAUSE_MS;
use super::{Actor, Draft, Subject};
use crate::adapter::HandleReply;
use crate::error::Error;
use crate::store::{Commit, DelegationsOf, InboxItem, Row, StoreError};

/// What one session tells another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub(crate) enum Note {
    /// A run of yours has delegated work.
    Delegated {
        /// To whom, and what.
        delegation: Box<Delegation>,
    },
    /// Work that a run of yours delegated has ended.
    Settled {
        /// Which.
        delegation: Box<Delegation>,
    },
    /// Stop a run: whoever delegated it has no use for it any more.
    Cancel {
        /// Which.
        run: RunId,
    },
}

/// Work that a run of the session has delegated.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    pub(crate) delegation: Delegation,
    /// It was told to stop.
    pub(crate) told: bool,
}

impl From<Delegation> for Child {
    fn from(delegation: Delegation) -> Self {
        Self { delegation, told: false }
    }
}

/// Who waits for delegated work to end.
pub(crate) type Waiter = (DelegationId, HandleReply<Delegation>);

impl Actor {
    /// Takes what other sessions have left, in order. Nobody asks again, so this does not give up.
    pub(crate) async fn inbox(&mut self) {
        let mut pause = FIRST_PAUSE_MS;
        loop {
            match Box::pin(self.inbox_take()).await {
                Ok(()) => return,
                Err(error) if self.lifetime.is_over() || self.shared.tasks.is_stopping() => {
                    tracing::warn!(%error, session = %self.fence.session, "an inbox waits for the next start");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, session = %self.fence.session, "an inbox could not be emptied yet");
                    self.rest(&mut pause).await;
                }
            }
        }
    }

    async fn inbox_take(&mut self) -> Result<(), Error> {
        for item in self.shared.store.inbox(self.fence.session).await? {
            match serde_json::from_value(item.item.clone()) {
                Ok(Note::Delegated { delegation }) => Box::pin(self.delegated(item, *delegation)).await?,
                Ok(Note::Settled { delegation }) => Box::pin(self.settled(item, *delegation)).await?,
                Ok(Note::Cancel { run }) => {
                    self.stop(run, CancelReason::Parent).await?;
                    self.taken(item).await?;
                }
                Err(error) => {
                    tracing::error!(%error, session = %self.fence.session, "a note makes no sense and is dropped");
                    self.taken(item).await?;
                }
            }
        }
        Ok(())
    }

    /// A run of this session has delegated work. If it has ended meanwhile, so does what nobody waits for any more.
    async fn delegated(&mut self, item: InboxItem, delegation: Delegation) -> Result<(), Error> {
        let parent = self.status_of(delegation.parent_run).await?;
        let mut draft = self.draft();
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
        draft.row(Row::InboxTaken(item.id));
        let run = delegation.parent_run;
        draft.hot.children.push(delegation.into());
        draft.children_stop(run, parent);
        self.commit(draft).await?;
        Ok(())
    }

    async fn settled(&mut self, item: InboxItem, delegation: Delegation) -> Result<(), Error> {
        let mut draft = self.draft();
        let (delegation_id, status) = (delegation.id, delegation.status);
        draft.about(delegation.parent_run, Body::DelegationCompleted { delegation_id, status });
        draft.row(Row::InboxTaken(item.id));
        draft.hot.children.retain(|child| child.delegation.id != delegation.id);
        self.commit(draft).await?;
        for (_, waiter) in self.waiters.extract_if(.., |(id, _)| *id == delegation.id) {
            let _ = waiter.send(Ok(delegation.clone()));
        }
        Ok(())
    }

    /// Answers `waiter` once the work that a run of this session delegated has ended.
    pub(super) async fn await_settled(&mut self, delegation: DelegationId, waiter: HandleReply<Delegation>) {
        match self.shared.store.delegations(&DelegationsOf::Id(delegation)).await {
            Ok(found) => match found.into_iter().next() {
                Some(settled) if settled.status.is_settled() => drop(waiter.send(Ok(settled))),
                Some(_) => self.waiters.push((delegation, waiter)),
                None => drop(waiter.send(Err(Error::not_found("delegation", delegation).into()))),
            },
            Err(error) => drop(waiter.send(Err(Error::from(error).into()))),
        }
    }

    /// Where a run of this session stands.
    async fn status_of(&self, run: RunId) -> Result<RunStatus, Error> {
        match self.active.as_ref().filter(|active| active.run.id == run) {
            Some(active) => Ok(active.run.state.status()),
            None => Ok(self.run_known(run).await?.state.status()),
        }
    }

    /// A note was acted upon. Taking it twice is taking it once, so its outcome need not be known.
    async fn taken(&mut self, item: InboxItem) -> Result<(), StoreError> {
        let rows = vec![Row::InboxTaken(item.id)];
        self.shared.store.commit(Commit { fence: self.fence, events: vec![], rows }.into()).await.map(drop)
    }
}

impl<S: Subject> Draft<S> {
    /// What this draft does to a run means something for those who delegated it, and for those it has delegated to.
    pub(super) fn tell_kin(&mut self) {
        let Some(run) = self.subject.run() else { return };
        let (id, status, at) = (run.id, run.state.status(), self.at);
        if let Some(place) = self.hot.tasks.iter().position(|task| task.child_run == id)
            && let Some(changed) = mainspring_core::delegation::follow(&self.hot.tasks[place], status, at)
        {
            self.row(Row::Delegation(Box::new(changed.clone())));
            if changed.status.is_settled() {
                self.hot.tasks.remove(place);
                let to = changed.parent_session;
                self.note(to, &Note::Settled { delegation: Box::new(changed) });
            } else {
                self.hot.tasks[place] = changed;
            }
        }
        self.children_stop(id, status);
    }

    /// Who cancels a run cancels what it has delegated. However else it ends, nobody waits any more for what it waited
    /// for.
    fn children_stop(&mut self, run: RunId, status: RunStatus) {
        let all = matches!(status, RunStatus::Cancelling | RunStatus::Cancelled);
        if !all && !status.is_ended() {
            return;
        }
        let mut notes = vec![];
        for child in self.hot.children.iter_mut().filter(|child| child.delegation.parent_run == run) {
            if !child.told && (all || child.delegation.mode.is_awaited()) {
                child.told = true;
                notes
                    .push((child.delegation.child_session, Note::Cancel { run: child.delegation.child_run }));
            }
        }
        notes.iter().for_each(|(to, note)| self.note(*to, note));
    }

    /// Leaves a note for another session.
    pub(super) fn note(&mut self, to: SessionId, note: &Note) {
        let item = serde_json::to_value(note).unwrap_or_default();
        let item = InboxItem { id: self.ids.event(), at: self.at, item };
        self.row(Row::Inbox(to, item));
    }

    /// A run that was accepted is somebody's delegated work.
    pub(super) fn delegate(&mut self, delegation: &Delegation) {
        self.row(Row::Delegation(Box::new(delegation.clone())));
        self.note(delegation.parent_session, &Note::Delegated { delegation: Box::new(delegation.clone()) });
        self.hot.tasks.push(delegation.clone());
    }
}
