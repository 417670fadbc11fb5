//! Loading: a session is read from the store, its interrupted run is recovered, and its actor serves it.
//!
//! An error or a panic of one session is an error of that session alone: its callers get it, and it is recorded
//! (`failures.rs`).

use std::sync::Arc;

use mainspring_core::SessionId;
use mainspring_system::contain::{contain, contain_call};

use super::Shared;
use super::slots::Ready;
use crate::actor::{Actor, Receiver, Sender};
use crate::error::Error;
use crate::feed::Feed;
use crate::store::{Commit, Fence, Loaded, Row, StoreError};

impl Shared {
    /// Loads and recovers a session, then runs its actor.
    pub(super) async fn run_actor(
        self: Arc<Self>,
        feed: Arc<Feed>,
        (tx, mut rx): (Sender, Receiver),
        ready: Option<Ready>,
    ) {
        let session = feed.session();
        let loaded = match contain(Box::pin(self.load_session(session))).await {
            Ok(loaded) => loaded,
            Err(panic) => Err(self.session_panicked(session, &panic)),
        };
        let (fence, loaded) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                self.load_failed(&feed, &tx, &error);
                rx.close();
                while let Some(input) = rx.recv().await {
                    input.refuse(&error);
                }
                ready.map(|ready| ready.send(Err(error)));
                return;
            }
        };
        let lost = loaded.runs.iter().find(|(run, _)| run.state.holder().is_some()).cloned();
        let channel = (tx.clone(), rx);
        let made = contain_call(|| Actor::new(self.clone(), fence, feed.clone(), loaded, true, channel));
        let mut actor = match made {
            Ok(actor) => Box::new(actor),
            // The waiting commands were dropped with their channel: `Shared::unanswered` builds the error for their callers.
            Err(panic) => {
                let error = self.session_panicked(session, &panic);
                self.images.remove(session);
                self.load_failed(&feed, &tx, &error);
                self.lease_release(fence).await;
                ready.map(|ready| ready.send(Err(error)));
                return;
            }
        };
        let recovered = match lost {
            Some((run, Some(attempt))) => contain(Box::pin(actor.recover(run, attempt))).await,
            _ => Ok(Ok(())),
        };
        match recovered {
            Ok(Ok(())) => {
                self.parked.remove(session);
                // The work is counted before the kernel reports that it has started.
                actor.report_status();
                ready.map(|ready| ready.send(Ok(())));
                actor.serve().await;
            }
            // No run may start before the interrupted one is recovered. The next call retries.
            Ok(Err(error)) => {
                let error = self.recovery_failed(session, error);
                actor.abandon(&error).await;
                ready.map(|ready| ready.send(Err(error)));
            }
            Err(panic) => {
                let error = self.session_panicked(session, &panic);
                actor.abandon(&error).await;
                ready.map(|ready| ready.send(Err(error)));
            }
        }
    }

    /// Takes the lease of a session and reads it.
    async fn load_session(&self, session: SessionId) -> Result<(Fence, Loaded), Error> {
        self.check_may_load(session).await?;
        let fence = self.store.lease_take(session, self.node).await?;
        let error = match self.store.session_load(session).await {
            Ok(Some(mut loaded)) => match self.keep_deadlines(fence, &mut loaded).await {
                Ok(()) => return Ok((fence, loaded)),
                Err(error) => error.into(),
            },
            Ok(None) => Error::not_found("session", session),
            Err(error) => error.into(),
        };
        self.lease_release(fence).await;
        Err(error)
    }

    /// Ends the slot and the feed of a session that could not be loaded.
    fn load_failed(&self, feed: &Feed, actor: &Sender, error: &Error) {
        self.load_refused(feed.session(), error);
        self.remove_actor(feed.session(), actor);
        feed.fail(error);
    }

    /// Adjusts and stores the deadlines of a loaded session's runs, if the clock was set back since they were stored: a
    /// retry or a question would otherwise wait longer by the step of the clock.
    async fn keep_deadlines(&self, fence: Fence, loaded: &mut Loaded) -> Result<(), StoreError> {
        let now = self.clock.now();
        let runs = loaded.runs.iter_mut().map(|(run, _)| run);
        let changed = runs.filter_map(|run| run.keep_deadlines(now).then(|| Row::Run(Arc::new(run.clone()))));
        let rows: Vec<Row> = changed.collect();
        match rows.is_empty() {
            true => Ok(()),
            false => self.store.commit(Arc::new(Commit { fence, events: vec![], rows })).await.map(drop),
        }
    }
}
