//! Committing: a draft becomes durable, then is taken over, then is published; or nothing has changed.

use std::sync::Arc;

use mainspring_core::{Attempt, Binding, BindingStatus, Cursor, Event, Run};

use super::{Actor, Command, Draft};
use crate::feed::OpenText;
use crate::store::{Commit, Row, StoreError};

impl Actor {
    /// A draft on the state as it is; `seal` when it completes what is being streamed.
    pub(super) fn draft(&self, seal: bool) -> (Draft, Vec<OpenText>) {
        let (pos, text) = self.feed.hold(seal);
        (Draft::new(self.shared.ids.clone(), self.shared.clock.now(), pos, self.hot.clone()), text)
    }

    /// Gives a draft up: what was held back flows again.
    pub(super) fn give_up(&self) {
        self.feed.publish(vec![], None);
        self.feed.unseal();
    }

    /// Makes `draft` durable, takes its state over and publishes its events. On an error nothing has changed.
    pub(super) async fn commit(
        &mut self,
        mut draft: Draft,
    ) -> Result<(Option<Run>, Option<Attempt>), StoreError> {
        if draft.is_empty() {
            self.give_up();
            return Ok((draft.run, draft.attempt));
        }
        draft.propagate_status();
        let (commit, completed) = draft.commit(self.fence);
        let commit = Arc::new(commit);
        let (clock, meters) = (&self.shared.clock, &self.shared.meters);
        let begun = clock.elapsed();
        let cursors = match self.shared.store.commit(commit.clone()).await {
            Err(StoreError::Unavailable(why)) => self.look_up(&commit, why).await,
            outcome => outcome,
        };
        match cursors {
            Ok(cursors) => {
                meters.committed(cursors.len(), clock.elapsed().saturating_sub(begun));
                // An ended run is only ever changed by the commit that ended it.
                for run in runs(&commit).filter(|run| run.state.status().is_ended()) {
                    meters.ended(&run.adapter, run.state.status());
                }
                let request = |of| runs(&commit).find(|run| Some(run.id) == of)?.request.request_id.clone();
                let events = commit.events.iter().zip(cursors).map(|(event, cursor)| {
                    Arc::new(Event {
                        id: event.id,
                        cursor,
                        pos: event.pos,
                        session: self.fence.session,
                        run: event.run,
                        attempt: event.attempt,
                        request: request(event.run),
                        at: event.at,
                        body: event.body.clone(),
                    })
                });
                let bindings = commit.rows.iter().filter_map(|row| match row {
                    Row::Binding(binding) => Some(&**binding),
                    _ => None,
                });
                let over = |binding: &&Binding| {
                    matches!(binding.status, BindingStatus::Closed | BindingStatus::Invalid)
                };
                self.shared.natives_forget(bindings.filter(over));
                self.feed.show_guests(draft.hot.session.visibility);
                let events: Vec<_> = events.collect();
                self.shared.wakes.happened(&draft.hot.session.owner, &events);
                self.feed.publish(events, completed);
                if draft.is_searched() {
                    self.shared.written.notify_one();
                }
                for row in &commit.rows {
                    if let Row::Inbox(to, _) = row {
                        self.shared.dispatch(*to, Command::Inbox);
                    }
                }
                self.known.follow(&commit.rows);
                self.hot = draft.hot;
                self.stored = true;
                Ok((draft.run, draft.attempt))
            }
            Err(error) => {
                meters.commit_failures.add(1);
                self.give_up();
                if error == StoreError::Fenced {
                    tracing::error!(session = %self.fence.session, "another writer has taken over this session");
                    self.over = true;
                }
                Err(error)
            }
        }
    }

    /// Finds out what became of a commit whose outcome is not known, before anybody is told anything.
    pub(super) async fn look_up(&self, commit: &Commit, why: String) -> Result<Vec<Cursor>, StoreError> {
        let (at, _) = self.feed.now();
        let first = commit.events.first().map(|event| event.id);
        let mut pause = 50;
        loop {
            let limit = commit.events.len();
            match self.shared.store.events_after(self.fence.session, None, at.cursor, limit).await {
                Ok(events) if first.is_some() && events.first().map(|event| event.id) == first => {
                    return Ok(events.iter().map(|event| event.cursor).collect());
                }
                Ok(_) => return Err(StoreError::Unavailable(why)),
                Err(StoreError::Unavailable(still)) => {
                    tracing::warn!(%why, %still, "the outcome of a commit is not known yet");
                    self.rest(&mut pause).await;
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Rests before the store is asked again, longer each time.
    pub(super) async fn rest(&self, pause: &mut u64) {
        let clock = &self.shared.clock;
        clock.sleep_until(clock.now().plus(*pause)).await;
        *pause = (*pause * 2).min(5_000);
    }
}

/// The runs that a commit changes.
fn runs(commit: &Commit) -> impl Iterator<Item = &Run> {
    commit.rows.iter().filter_map(|row| match row {
        Row::Run(run) => Some(&**run),
        _ => None,
    })
}
