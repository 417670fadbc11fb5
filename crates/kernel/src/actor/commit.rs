//! Commits: a draft becomes durable, then the actor takes its state over, then its events are published. On an error
//! nothing has changed.

use std::sync::Arc;

use mainspring_core::{Binding, BindingId, BindingStatus, Body, Cursor, Event, Run, RunId, SessionChange};

use super::draft::{Finished, Subject};
use super::hot::Hot;
use super::patience::{INITIAL_BACKOFF_MS, MAX_BACKOFF_MS};
use super::{Active, Actor, AttemptDraft, Command, Draft, SessionDraft};
use crate::feed::OpenText;
use crate::store::{Commit, NewEvent, Row, StoreError};

impl Actor {
    /// Opens a draft on the present state. The feed holds new text back until the draft is committed or given up.
    pub(super) fn draft(&self) -> SessionDraft {
        self.draft_sealing(false).0
    }

    /// Opens a draft of the active run that leaves the streamed text open.
    pub(super) fn draft_of(&self, active: &Active) -> AttemptDraft {
        self.draft().of_attempt(active.run().clone(), active.attempt().clone())
    }

    /// Opens a draft of the active run that completes the text streamed so far.
    pub(super) fn draft_completing(&self, active: &Active) -> AttemptDraft {
        let (draft, text) = self.draft_sealing(true);
        draft.of_attempt(active.run().clone(), active.attempt().clone()).with_text(text)
    }

    fn draft_sealing(&self, seal: bool) -> (SessionDraft, Vec<OpenText>) {
        let (pos, text) = self.feed.begin_commit(seal);
        (Draft::new(self.shared.ids.clone(), self.shared.clock.now(), pos, self.hot.clone()), text)
    }

    /// Gives the open draft up: the feed publishes new text again.
    pub(super) fn give_up(&self) {
        self.feed.publish(vec![], None);
        self.feed.reopen();
    }

    /// Gives the open draft up if `result` is an error.
    pub(super) fn give_up_on_error<T, E>(&self, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() {
            self.give_up();
        }
        result
    }

    /// Makes `draft` durable, takes its state over and publishes its events. Returns the run and attempt of the draft.
    ///
    /// Not an `async fn`: its future would hold the draft besides the commit.
    pub(super) fn commit<S: Subject>(
        &mut self,
        mut draft: Draft<S>,
    ) -> impl Future<Output = Result<S, StoreError>> + use<'_, S> {
        let is_empty = draft.is_empty();
        if !is_empty {
            S::propagate_status(&mut draft);
        }
        let Finished { mut commit, completed_to, hot, subject } = draft.finish(self.fence);
        if completed_to.is_none() && !is_empty {
            let chunks = self.feed.needed_by_commit();
            commit.rows.extend((!chunks.is_empty()).then_some(Row::Chunks(chunks)));
        }
        let commit = Arc::new(commit);
        async move {
            match is_empty {
                true => self.give_up(),
                false => self.store_commit(commit, completed_to, hot).await?,
            }
            Ok(subject)
        }
    }

    async fn store_commit(
        &mut self,
        commit: Arc<Commit>,
        completed_to: Option<u64>,
        hot: Box<Hot>,
    ) -> Result<(), StoreError> {
        let clock = &self.shared.clock;
        let begun = clock.elapsed();
        self.shared.images.withdraw(self.fence.session);
        let outcome = match self.shared.store.commit(commit.clone()).await {
            // Boxed: it is rare.
            Err(error) if error.is_outcome_unknown() => Box::pin(self.resolve_outcome(&commit, error)).await,
            outcome => outcome,
        };
        let meters = &self.shared.meters;
        match outcome {
            Ok(cursors) => {
                meters.committed(cursors.len(), clock.elapsed().saturating_sub(begun));
                self.committed(&commit, cursors, completed_to, hot);
                Ok(())
            }
            Err(error) => {
                meters.commit_failures.add(1);
                self.shared.store_health.report(&error);
                // Another writer may have changed the rows, or the outcome is still unknown.
                self.shared.images.remove(self.fence.session);
                self.give_up();
                if error == StoreError::Fenced {
                    tracing::error!(session = %self.fence.session, "another writer has taken over this session");
                    self.lifetime.end();
                }
                Err(error)
            }
        }
    }

    /// Takes the state of a durable commit over, publishes its events and wakes the readers and sessions that
    /// depend on them.
    fn committed(&mut self, commit: &Commit, cursors: Vec<Cursor>, completed_to: Option<u64>, hot: Box<Hot>) {
        let shared = &self.shared;
        shared.images.publish(self.fence.session, &commit.rows, !self.hot.session.is_stored());
        // A commit that holds an ended run has ended that run.
        for run in runs(commit).filter(|run| run.state.status().is_ended()) {
            shared.meters.ended(&run.adapter, run.state.status());
        }
        shared.forget_native_sessions(released_bindings(commit));
        self.feed.set_visibility(hot.session.visibility);
        if let Some(audit) = &shared.options.audit {
            commit.events.iter().for_each(|event| audit.decision(&hot.session, event));
        }
        let events = self.events_of(commit, cursors);
        shared.owner_wakers.notify(&hot.session.owner, &events);
        self.feed.commit_stored();
        self.feed.publish(events, completed_to);
        if commit.events.iter().any(is_searchable) {
            shared.search_stale.notify_one();
        }
        for row in &commit.rows {
            if let Row::Inbox(to, _) = row {
                shared.dispatch(*to, Command::Inbox);
            }
        }
        self.cache.tree.apply_rows(&commit.rows);
        if let Some(active) = &self.active {
            active.rows_committed(&commit.rows);
        }
        self.hot = hot;
    }

    /// Builds the events of a commit as readers get them.
    fn events_of(&self, commit: &Commit, cursors: Vec<Cursor>) -> Vec<Arc<Event>> {
        let request = |id: RunId| {
            let active = self.active.iter().map(|active| active.run().as_ref());
            let run = runs(commit).chain(active).find(|run| run.id == id)?;
            run.request.request_id.clone()
        };
        let event = |(event, cursor): (&NewEvent, Cursor)| {
            Arc::new(Event {
                id: event.id,
                cursor,
                pos: event.pos,
                session: self.fence.session,
                run: event.run,
                attempt: event.attempt,
                request: event.run.and_then(request),
                at: event.at,
                body: event.body.clone(),
            })
        };
        commit.events.iter().zip(cursors).map(event).collect()
    }

    /// Reads from the store whether a commit of unknown outcome is durable, before any caller is answered.
    /// Returns `why` for a commit without events, which cannot be found.
    async fn resolve_outcome(&self, commit: &Commit, why: StoreError) -> Result<Vec<Cursor>, StoreError> {
        let (at, _) = self.feed.snapshot();
        let first = commit.events.first().map(|event| event.id);
        let mut backoff_ms = INITIAL_BACKOFF_MS;
        loop {
            let limit = commit.events.len();
            match self.shared.store.events_after(self.fence.session, None, at.cursor, limit).await {
                Ok(events) if first.is_some() && events.first().map(|event| event.id) == first => {
                    return Ok(events.iter().map(|event| event.cursor).collect());
                }
                Ok(_) => return Err(why),
                Err(still) if still.is_outcome_unknown() && !self.shared.tasks.is_stopping() => {
                    tracing::warn!(%why, %still, "the outcome of a commit is not known yet");
                    self.backoff(&mut backoff_ms).await;
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Sleeps for `backoff_ms` before a retry, and doubles it.
    async fn backoff(&self, backoff_ms: &mut u64) {
        let clock = &self.shared.clock;
        clock.sleep_for(*backoff_ms).await;
        *backoff_ms = (*backoff_ms * 2).min(MAX_BACKOFF_MS);
    }
}

/// Lists the runs that a commit changes.
fn runs(commit: &Commit) -> impl Iterator<Item = &Run> {
    commit.rows.iter().filter_map(|row| match row {
        Row::Run(run) => Some(&**run),
        _ => None,
    })
}

/// Lists the bindings that a commit replaces or invalidates.
fn released_bindings(commit: &Commit) -> impl Iterator<Item = &Binding> {
    let is_replaced = |id: BindingId| {
        commit
            .events
            .iter()
            .any(|event| matches!(event.body, Body::BindingReplaced { binding_id, .. } if binding_id == id))
    };
    commit.rows.iter().filter_map(move |row| match row {
        Row::Binding(binding) if binding.status == BindingStatus::Invalid || is_replaced(binding.id) => {
            Some(&**binding)
        }
        _ => None,
    })
}

/// True for an event whose text the search index holds.
fn is_searchable(event: &NewEvent) -> bool {
    matches!(
        event.body,
        Body::MessageCompleted { .. }
            | Body::SessionCreated { .. }
            | Body::SessionUpdated { change: SessionChange::Title { .. } }
    )
}
