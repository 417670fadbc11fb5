//! Operations on streams: snapshots, subscriptions, and the events of all sessions of an owner.

use std::sync::Arc;

use mainspring_api::SessionUsage;
use mainspring_core::{Cursor, Event, Position, RunId, Session, SessionId, history};

use super::{Caller, Kernel, Shared, Snapshot};
use crate::actor::{Command, Instant};
use crate::board::LiveFeed;
use crate::error::Error;
use crate::feed::{Feed, FeedStatus, Subscription, SubscriptionMode};
use crate::owner_events::OwnerEvents;
use crate::store::{SessionRef, StoreError};
use crate::store_health::StoreWatch;

impl Kernel {
    /// Takes a snapshot of a session. A subscription from its position misses nothing and sees nothing twice.
    ///
    /// Does not load a session that is not in memory.
    pub async fn session_snapshot(&self, caller: &Caller, by: &SessionRef) -> Result<Snapshot, Error> {
        let session = self.session_get(caller, by).await?.id;
        let reader = self.shared.subscribe(session, SubscriptionMode::Observer).await?;
        let snapshot = self.shared.snapshot(reader.feed()).await?;
        // The session's visibility may have changed since the lookup.
        if !caller.may_read(&snapshot.session) {
            return Err(Error::not_found("session", session));
        }
        let session = self.shared.marked(caller, snapshot.session).await?;
        Ok(Snapshot { session, ..snapshot })
    }

    /// Sums the usage of all runs of a session, on every branch of its tree, and of the runs that they delegated to.
    pub async fn session_usage(&self, caller: &Caller, by: &SessionRef) -> Result<SessionUsage, Error> {
        let session = self.session_get(caller, by).await?.id;
        let (runs, usage) = self.shared.store.session_usage(session).await?;
        let (delegated_runs, delegated_usage) = self.shared.store.delegated_usage(session).await?;
        Ok(SessionUsage {
            session_id: session,
            runs,
            usage,
            delegated_runs,
            delegated_usage,
            total_usage: usage + delegated_usage,
        })
    }

    /// Subscribes to every event and byte of a session after `from`, each exactly once; from now on if `from` is none.
    ///
    /// The subscription is a controller: it keeps the session in memory. See [`Kernel::session_observe`].
    pub async fn session_subscribe(
        &self,
        caller: &Caller,
        by: &SessionRef,
        from: Option<Position>,
    ) -> Result<Subscription, Error> {
        let session = self.session_get(caller, by).await?;
        self.subscribe(caller, &session, from, SubscriptionMode::Controller).await
    }

    /// Subscribes like [`Kernel::session_subscribe`], but as an observer: neither loads the session nor keeps it in
    /// memory.
    pub async fn session_observe(
        &self,
        caller: &Caller,
        by: &SessionRef,
        from: Option<Position>,
    ) -> Result<Subscription, Error> {
        let session = self.session_get(caller, by).await?;
        self.subscribe(caller, &session, from, SubscriptionMode::Observer).await
    }

    /// Subscribes to the stream of a run's session after `from`; from the run's first event if `from` is none.
    ///
    /// The subscription is an observer, since an unfinished run keeps its session in memory itself.
    pub async fn run_observe(
        &self,
        caller: &Caller,
        run: RunId,
        from: Option<Position>,
    ) -> Result<Subscription, Error> {
        let session = self.run_readable(caller, run).await?.session;
        let session = self.session_get(caller, &SessionRef::Id(session)).await?;
        let from = match from {
            Some(from) => from,
            None => self.run_start(session.id, run).await?,
        };
        self.subscribe(caller, &session, Some(from), SubscriptionMode::Observer).await
    }

    /// The position right before the run's first event.
    async fn run_start(&self, session: SessionId, run: RunId) -> Result<Position, Error> {
        let first = match self.shared.store.events_after(session, Some(run), Cursor::START, 1).await {
            Ok(events) => events.into_iter().next(),
            // The subscription starts with a reset for the pruned events.
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
        let (session, is_owner) = (session.id, caller.owner == session.owner);
        let subscription = self.shared.subscribe(session, mode).await?.with_reader(&caller.owner, !is_owner);
        let now = subscription.feed().position();
        let Some(from) = from else { return Ok(subscription.resume(now)) };
        if self.shared.lost_at(from.cursor).is_some() {
            return Ok(subscription.restart(now));
        }
        // The caller may know an event that is committed but not published yet. A cursor ahead of the session belongs
        // to another session or to another history, for example that of a state directory which an older copy has
        // replaced.
        if from.cursor > now.cursor && from.cursor > self.shared.last_cursor(session).await? {
            return Ok(subscription.restart(now));
        }
        Ok(subscription.resume(from))
    }

    /// Reads the status of each of the caller's sessions on the board, and its changes from now on.
    pub fn live_feed(&self, caller: &Caller) -> LiveFeed {
        self.shared.board.subscribe(&caller.owner, StoreWatch::new(&self.shared.store_health))
    }

    /// Reads every event of the caller's sessions after `after`, in one order; from now on if `after` is none. With
    /// `types`, only events of those types.
    pub async fn owner_events(
        &self,
        caller: &Caller,
        types: Option<Vec<&'static str>>,
        after: Option<Cursor>,
    ) -> Result<OwnerEvents, Error> {
        let last = self.shared.store.event_last().await?;
        let after = after.unwrap_or(last);
        self.check_not_lost(after, last)?;
        if after > last {
            return Err(Error::Lost { cursor: after, last });
        }
        Ok(OwnerEvents::new(self.shared.clone(), &caller.owner, types, after))
    }

    /// The name of the history to which this process adds events; none if the store does not outlive the process.
    pub fn history(&self) -> Option<&str> {
        self.shared.histories.last().map(|history| history.token.as_str())
    }

    /// True unless `history` is given and does not contain `cursor`: then an older copy of the state directory has
    /// replaced the one that the caller read.
    pub fn is_in_history(&self, cursor: Cursor, history: Option<&str>) -> bool {
        history.is_none_or(|token| history::is_known(&self.shared.histories, token, cursor))
    }

    /// Refuses a cursor that is not of `history`.
    pub async fn check_in_history(&self, cursor: Cursor, history: Option<&str>) -> Result<(), Error> {
        match self.is_in_history(cursor, history) {
            true => Ok(()),
            false => Err(Error::Lost { cursor, last: self.shared.store.event_last().await? }),
        }
    }

    /// Refuses a cursor of an event that was lost with a restore. `last` is where the events end now.
    pub(super) fn check_not_lost(&self, cursor: Cursor, last: Cursor) -> Result<(), Error> {
        match self.shared.lost_at(cursor) {
            Some(lost) => Err(Error::Lost { cursor, last: lost.until.max(last) }),
            None => Ok(()),
        }
    }

    /// Lists a page of the events of the caller's sessions after `after`.
    pub async fn owner_history(
        &self,
        caller: &Caller,
        types: Option<Vec<&'static str>>,
        after: Cursor,
        limit: Option<usize>,
    ) -> Result<Vec<Event>, Error> {
        let limit = self.page(limit)?;
        self.check_not_lost(after, after)?;
        let events = OwnerEvents::new(self.shared.clone(), &caller.owner, types, after).page(limit).await?;
        self.check_not_ahead(after, &events).await?;
        Ok(events)
    }

    /// Refuses the empty page of a cursor that lies ahead of all events: nothing would ever follow it.
    pub(super) async fn check_not_ahead(&self, after: Cursor, page: &[Event]) -> Result<(), Error> {
        if !page.is_empty() {
            return Ok(());
        }
        let last = self.shared.store.event_last().await?;
        if after > last { Err(Error::Lost { cursor: after, last }) } else { Ok(()) }
    }
}

impl Shared {
    async fn last_cursor(&self, session: SessionId) -> Result<Cursor, Error> {
        let loaded = self.store.session_load(session).await?;
        Ok(loaded.ok_or_else(|| Error::not_found("session", session))?.cursor)
    }

    /// Reads the present state of the session of `feed`: from its actor, or from the store while it has none.
    pub(super) async fn instant(&self, feed: &Arc<Feed>) -> Result<Instant, Error> {
        let session = feed.session();
        loop {
            let status = feed.loaded().await?;
            if status == FeedStatus::Live {
                return self.call(session, Command::Snapshot).await;
            }
            let loaded = self.store.session_load(session).await?;
            let loaded = loaded.ok_or_else(|| Error::not_found("session", session))?;
            // An actor may have been attached during the read.
            if feed.loaded().await? == status {
                return Ok(Instant::of(loaded));
            }
        }
    }

    /// Takes a snapshot of the session of `feed`: from its actor, or from the store while it has none.
    pub(crate) async fn snapshot(&self, feed: &Arc<Feed>) -> Result<Snapshot, Error> {
        let session = feed.session();
        let instant = self.instant(feed).await?;
        let owner = instant.session.owner.clone();
        match instant.complete(&*self.store).await {
            // The session may have been deleted during the read.
            Err(error) => match self.store.session_find(&owner, &SessionRef::Id(session)).await? {
                None => Err(Error::not_found("session", session)),
                Some(_) => Err(error),
            },
            snapshot => snapshot,
        }
    }
}
