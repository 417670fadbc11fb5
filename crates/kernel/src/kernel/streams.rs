//! Verbs on streams: a snapshot, what comes after it, and what all sessions do.

use std::sync::Arc;

use mainspring_core::{Cursor, Event, Position, RunId, Session, SessionId};

use super::{Caller, Kernel, Shared, Snapshot};
use crate::actor::{Command, Instant};
use crate::board::LiveFeed;
use crate::error::Error;
use crate::feed::{Feed, Standing, Subscription, SubscriptionMode};
use crate::owner_events::OwnerEvents;
use crate::store::{SessionRef, StoreError};

impl Kernel {
    /// The session at one instant. Subscribe from its position and nothing is missed or seen twice.
    ///
    /// A session that is not in memory stays so.
    pub async fn session_snapshot(&self, caller: &Caller, by: &SessionRef) -> Result<Snapshot, Error> {
        let session = self.session_get(caller, by).await?.id;
        let reader = self.shared.attach(session, SubscriptionMode::Observer).await?;
        let snapshot = self.shared.snapshot(reader.feed()).await?;
        // It may have been shown to others a moment ago, and not any more.
        match caller.reads(&snapshot.session) {
            true => Ok(snapshot),
            false => Err(Error::not_found("session", session)),
        }
    }

    /// Every event and byte of the session after `from`, exactly once; from now on if none is given.
    ///
    /// The subscription is a controller: the session stays in memory for it. See [`Kernel::session_observe`].
    pub async fn session_subscribe(
        &self,
        caller: &Caller,
        by: &SessionRef,
        from: Option<Position>,
    ) -> Result<Subscription, Error> {
        let session = self.session_get(caller, by).await?;
        self.subscribe(caller, &session, from, SubscriptionMode::Controller).await
    }

    /// Like [`Kernel::session_subscribe`], but as an observer: the session neither comes into memory nor stays there
    /// for it.
    pub async fn session_observe(
        &self,
        caller: &Caller,
        by: &SessionRef,
        from: Option<Position>,
    ) -> Result<Subscription, Error> {
        let session = self.session_get(caller, by).await?;
        self.subscribe(caller, &session, from, SubscriptionMode::Observer).await
    }

    /// The stream of a run's session after `from`; from the run's first event if none is given. As an observer: a run
    /// that has not ended keeps its session in memory itself.
    pub async fn run_observe(
        &self,
        caller: &Caller,
        run: RunId,
        from: Option<Position>,
    ) -> Result<Subscription, Error> {
        let session = self.run_get(caller, run).await?.session;
        let session = self.session_get(caller, &SessionRef::Id(session)).await?;
        let from = match from {
            Some(from) => from,
            None => self.run_start(session.id, run).await?,
        };
        self.subscribe(caller, &session, Some(from), SubscriptionMode::Observer).await
    }

    /// Right before the run's first event.
    async fn run_start(&self, session: SessionId, run: RunId) -> Result<Position, Error> {
        let first = match self.shared.store.events_after(session, Some(run), Cursor::START, 1).await {
            Ok(events) => events.into_iter().next(),
            // The reader is told of what is gone.
            Err(StoreError::Pruned(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let before = |cursor: Cursor| Cursor(cursor.0.saturating_sub(1));
        Ok(first.map_or(Position::START, |first| Position { cursor: before(first.cursor), pos: first.pos }))
    }

    async fn subscribe(
        &self,
        caller: &Caller,
        session: &Session,
        from: Option<Position>,
        mode: SubscriptionMode,
    ) -> Result<Subscription, Error> {
        let (session, guest) = (session.id, caller.owner != session.owner);
        let subscription = self.shared.attach(session, mode).await?.guest(guest);
        let now = subscription.feed().position();
        let Some(from) = from else { return Ok(subscription.resume(now)) };
        // What was committed a moment ago may be known to the caller before it is published.
        if from.cursor > now.cursor && from.cursor > self.shared.last_cursor(session).await? {
            return Err(Error::Invalid(format!(
                "the cursor {from} lies ahead of the session, which stands at {now}"
            )));
        }
        Ok(subscription.resume(from))
    }

    /// The caller's sessions that are in memory, and from then on what becomes of each.
    pub fn live_feed(&self, caller: &Caller) -> LiveFeed {
        self.shared.board.read(&caller.owner)
    }

    /// Every event of the caller's sessions after `after`, in one order; from now on if none is given. Of these `types` alone
    /// if they are given.
    pub async fn owner_events(
        &self,
        caller: &Caller,
        types: Option<Vec<&'static str>>,
        after: Option<Cursor>,
    ) -> Result<OwnerEvents, Error> {
        let last = self.shared.store.event_last().await?;
        let after = after.unwrap_or(last);
        if after > last {
            let (after, last) = (after.0, last.0);
            return Err(Error::Invalid(format!(
                "the cursor {after} lies ahead of all events, which end at {last}"
            )));
        }
        Ok(OwnerEvents::new(self.shared.clone(), &caller.owner, types, after))
    }

    /// A page of the caller's events after `after`.
    pub async fn owner_history(
        &self,
        caller: &Caller,
        types: Option<Vec<&'static str>>,
        after: Cursor,
        limit: Option<usize>,
    ) -> Result<Vec<Event>, Error> {
        let limit = self.page(limit)?;
        OwnerEvents::new(self.shared.clone(), &caller.owner, types, after).some(limit).await
    }
}

impl Shared {
    async fn last_cursor(&self, session: SessionId) -> Result<Cursor, Error> {
        let loaded = self.store.session_load(session).await?;
        Ok(loaded.ok_or_else(|| Error::not_found("session", session))?.cursor)
    }

    /// The session of `feed` at one instant: told by its actor, or read from the store while there is none.
    pub(crate) async fn snapshot(&self, feed: &Arc<Feed>) -> Result<Snapshot, Error> {
        let session = feed.session();
        let instant = loop {
            let standing = feed.ready().await?;
            if standing == Standing::Live {
                break self.call(session, Command::Snapshot).await?;
            }
            let loaded = self.store.session_load(session).await?;
            let loaded = loaded.ok_or_else(|| Error::not_found("session", session))?;
            // Somebody may have begun to write while this was read.
            if feed.ready().await? == standing {
                break Instant::of(loaded);
            }
        };
        let owner = instant.session.owner.clone();
        match instant.complete(&*self.store).await {
            // What cannot be read any more may have been deleted meanwhile.
            Err(error) => match self.store.session_find(&owner, &SessionRef::Id(session)).await? {
                None => Err(Error::not_found("session", session)),
                Some(_) => Err(error),
            },
            snapshot => snapshot,
        }
    }
}
