//! Session slots: which sessions are in memory, and which have readers.
//!
//! A session has a slot while it has an actor or a reader. Subscribing, unsubscribing and unloading happen under one
//! lock, so that no reader subscribes to a session being unloaded, and a reader's feed is always the one its actor writes.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use mainspring_core::{NodeId, Run, RunId, Session, SessionId};
use mainspring_system::contain::contain;
use tokio::sync::{mpsc, oneshot};

use super::{Opening, Shared};
use crate::actor::{Actor, Command, Reply, Sender, Signal};
use crate::error::Error;
use crate::feed::{Feed, FeedMemory, Subscription, SubscriptionMode};
use crate::store::{SessionRef, StoreError};

/// Sessions kept in memory only because they were opened explicitly. Beyond that, the oldest is released.
const MAX_OPENED: usize = 1_000;

pub(crate) type Ready = oneshot::Sender<Result<(), Error>>;

/// A session that has an actor or a reader.
pub(super) struct SessionSlot {
    actor: Option<Sender>,
    feed: Arc<Feed>,
}

impl Shared {
    /// Finds a session by its id or by a name that `owner` has given it: in memory, or else in the store.
    pub(super) async fn session_find(
        &self,
        owner: &str,
        by: &SessionRef,
    ) -> Result<Option<Session>, StoreError> {
        match self.images.session(owner, by) {
            Some(session) => Ok(Some(Session::clone(&session))),
            None => self.store.session_find(owner, by).await,
        }
    }

    /// Finds a run: in memory, or else in the store.
    pub(super) async fn run_find(&self, run: RunId) -> Result<Option<Run>, StoreError> {
        match self.images.run(run) {
            Some(run) => Ok(Some(Run::clone(&run))),
            None => self.store.run_get(run).await,
        }
    }

    /// True while the session has an actor.
    pub(crate) fn is_live(&self, session: SessionId) -> bool {
        self.actor(session).is_some()
    }

    /// The session's actor, if the session is in memory.
    pub(crate) fn actor(&self, session: SessionId) -> Option<Sender> {
        self.slots.lock().get(&session)?.actor.clone()
    }

    pub(super) fn actors(&self) -> Vec<Sender> {
        self.slots.lock().values().filter_map(|slot| slot.actor.clone()).collect()
    }

    /// True while the session has an actor or a reader.
    pub(super) fn has_slot(&self, session: SessionId) -> bool {
        self.slots.lock().contains_key(&session)
    }

    /// The sessions that have an actor or a reader.
    pub(super) fn slot_sessions(&self) -> Vec<SessionId> {
        self.slots.lock().keys().copied().collect()
    }

    /// The sessions that have readers and no actor.
    pub(super) fn unloaded_sessions(&self) -> Vec<SessionId> {
        let slots = self.slots.lock();
        slots.iter().filter(|(_, slot)| slot.actor.is_none()).map(|(session, _)| *session).collect()
    }

    /// Ends the readers of a session that is not in memory and has moved to the process `to`.
    pub(super) fn end_readers(&self, session: SessionId, to: NodeId) {
        let mut slots = self.slots.lock();
        // An actor that was started meanwhile cannot load the session, and ends the readers itself.
        if slots.get(&session).is_some_and(|slot| slot.actor.is_none())
            && let Some(slot) = slots.remove(&session)
        {
            slot.feed.moved(to);
        }
    }

    /// Memory held by all feeds.
    pub(super) fn feed_memory(&self) -> FeedMemory {
        let feeds: Vec<Arc<Feed>> = self.slots.lock().values().map(|slot| slot.feed.clone()).collect();
        feeds.iter().map(|feed| feed.memory_use()).fold(FeedMemory::default(), |sum, held| FeedMemory {
            events: sum.events + held.events,
            bytes: sum.bytes + held.bytes,
            thoughts: sum.thoughts + held.thoughts,
            readers: sum.readers + held.readers,
        })
    }

    /// Wakes all readers because of a change that is not in their feeds.
    pub(super) fn wake_readers(&self) {
        self.slots.lock().values().for_each(|slot| slot.feed.wake_readers());
    }

    /// Removes every slot and ends its feed, when the process stops.
    pub(super) fn clear_slots(&self) {
        let slots: Vec<SessionSlot> = self.slots.lock().drain().map(|(_, slot)| slot).collect();
        slots.iter().for_each(|slot| slot.feed.close());
    }

    /// Sends `command` to the session's actor, loading the session if it is not in memory.
    pub(crate) fn dispatch(&self, session: SessionId, command: Command) {
        let mut command = command;
        loop {
            let actor = match self.load(session, None) {
                Ok((actor, _)) => actor,
                Err(error) => return command.refuse(&error),
            };
            match actor.send(command.into()) {
                Ok(()) => return,
                Err(refused) => {
                    // The actor is stopping: retry on its successor.
                    self.remove_actor(session, &actor);
                    let Some(refused) = refused.0.into_command() else { return };
                    command = refused;
                }
            }
        }
    }

    /// Unloads the session if it is in memory and idle.
    pub(super) fn unload_idle(&self, session: SessionId) {
        if let Some(actor) = self.actor(session) {
            // The reply is not needed.
            let _ = actor.send(Command::Close(oneshot::channel().0).into());
        }
    }

    /// Sends a command to the session's actor and waits for the reply.
    pub(crate) async fn call<T, E: From<Error>>(
        &self,
        session: SessionId,
        command: impl FnOnce(Reply<T, E>) -> Command,
    ) -> Result<T, E> {
        let (reply, answer) = oneshot::channel();
        self.dispatch(session, command(reply));
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.unanswered(session).await.into()),
        }
    }

    /// Starts an actor for a new session. The session is created by the actor's first commit.
    ///
    /// Returns a boxed future because actors start actors: a fork is started by the actor of its source.
    pub(crate) fn start_new_actor(
        &self,
        session: Session,
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + '_>> {
        Box::pin(async move {
            let Some(me) = self.me.upgrade() else {
                return Err(Error::ShuttingDown);
            };
            let id = session.id;
            let fence = self.store.lease_take(id, self.node).await?;
            let (tx, rx) = mpsc::unbounded_channel();
            let feed = self.feed_new(id);
            let loaded = crate::actor::new_loaded(session);
            let actor = Box::new(Actor::new(me, fence, feed.clone(), loaded, false, (tx.clone(), rx)));
            let mut slots = self.slots.lock();
            if self.tasks.is_stopping() {
                return Err(Error::ShuttingDown);
            }
            slots.insert(id, SessionSlot { actor: Some(tx), feed });
            drop(slots);
            self.tasks.spawn(actor.serve());
            Ok(())
        })
    }

    /// Returns the session's actor, and whether it was started by this call. A started actor queues commands while it
    /// loads and recovers the session, then reports to `ready`. Refused once the process is stopping, and for a while
    /// after the session has failed.
    pub(crate) fn load(&self, session: SessionId, ready: Option<Ready>) -> Result<(Sender, bool), Error> {
        let mut slots = self.slots.lock();
        if let Some(actor) = slots.get(&session).and_then(|slot| slot.actor.clone()) {
            if let Some(ready) = ready {
                let _ = ready.send(Ok(()));
            }
            return Ok((actor, false));
        }
        self.check_loadable(session)?;
        let slot = self.slot(&mut slots, session);
        Ok((self.start(slot, ready), true))
    }

    fn slot<'a>(
        &self,
        slots: &'a mut HashMap<SessionId, SessionSlot>,
        session: SessionId,
    ) -> &'a mut SessionSlot {
        slots.entry(session).or_insert_with(|| SessionSlot { actor: None, feed: self.feed_new(session) })
    }

    fn feed_new(&self, session: SessionId) -> Arc<Feed> {
        Feed::new(session, self.dirty.clone(), self.options.limits.message_bytes, self.meters.clone())
    }

    /// Starts the actor of a slot, which begins to load the session.
    fn start(&self, slot: &mut SessionSlot, ready: Option<Ready>) -> Sender {
        let (tx, rx) = mpsc::unbounded_channel();
        slot.actor = Some(tx.clone());
        if let Some(me) = self.me.upgrade() {
            let (tx, feed) = (tx.clone(), slot.feed.clone());
            self.tasks.spawn(Box::pin(async move { me.run_actor(feed, (tx, rx), ready).await }));
        }
        tx
    }

    /// Removes the slot of an actor that has ended. Its feed has ended too.
    pub(crate) fn remove_actor(&self, session: SessionId, actor: &Sender) {
        let mut slots = self.slots.lock();
        if slots.get(&session).is_some_and(|slot| slot.is_of(actor)) {
            slots.remove(&session);
        }
    }

    /// Unloads an idle session if `is_allowed` returns true. Both functions are called under the lock, `before_unload` only
    /// if the session is then unloaded. Readers keep their feed.
    pub(crate) fn unload(
        &self,
        feed: &Feed,
        actor: &Sender,
        is_allowed: impl FnOnce() -> bool,
        before_unload: impl FnOnce(),
    ) -> bool {
        let mut slots = self.slots.lock();
        let session = feed.session();
        let Some(slot) = slots.get_mut(&session).filter(|slot| slot.is_of(actor)) else { return false };
        if !is_allowed() {
            return false;
        }
        before_unload();
        feed.detach_actor();
        slot.actor = None;
        if !feed.has_readers() {
            slots.remove(&session);
        }
        true
    }

    /// Subscribes to a session. It is loaded for a controller; for an observer only its stored position is read.
    pub(super) async fn subscribe(
        &self,
        session: SessionId,
        mode: SubscriptionMode,
    ) -> Result<Subscription, Error> {
        if self.options.homes.is_some() {
            // A reader follows the events of the session's actor, so the actor must be in this process.
            Box::pin(self.check_home(session)).await?;
        }
        let subscription = self.add_subscription(session, mode)?;
        if self.options.homes.is_some() && mode == SubscriptionMode::Observer {
            // The session may have moved before this reader was added, so the move has not ended it.
            Box::pin(self.check_home(session)).await?;
        }
        match subscription.feed().loaded().await {
            Ok(_) => Ok(subscription),
            Err(_) if self.tasks.is_stopping() => Err(Error::ShuttingDown),
            Err(error) => Err(error),
        }
    }

    fn add_subscription(&self, session: SessionId, mode: SubscriptionMode) -> Result<Subscription, Error> {
        let me = self.me.upgrade().ok_or(Error::ShuttingDown)?;
        let mut slots = self.slots.lock();
        if self.tasks.is_stopping() {
            return Err(Error::ShuttingDown);
        }
        if mode == SubscriptionMode::Controller && slots.get(&session).is_none_or(|slot| slot.actor.is_none())
        {
            self.check_loadable(session)?;
        }
        let is_new = !slots.contains_key(&session);
        let slot = self.slot(&mut slots, session);
        slot.feed.add_reader(mode);
        let feed = slot.feed.clone();
        match mode {
            SubscriptionMode::Controller if slot.actor.is_none() => drop(self.start(slot, None)),
            SubscriptionMode::Observer if is_new => {
                drop(self.tasks.spawn(me.clone().read_position(feed.clone())));
            }
            _ => {}
        }
        drop(slots);
        Ok(Subscription::new(feed, me, mode))
    }

    /// Reads the stored position of a session that is not in memory, for its feed.
    async fn read_position(self: Arc<Self>, feed: Arc<Feed>) {
        let session = feed.session();
        let error = match contain(self.store.session_load(session)).await {
            Ok(Ok(Some(loaded))) => return feed.set_stored_position(&loaded),
            Ok(Ok(None)) => Error::not_found("session", session),
            Ok(Err(error)) => error.into(),
            Err(panic) => self.session_panicked(session, &panic),
        };
        let mut slots = self.slots.lock();
        // An actor started in the meantime reports its own errors.
        if slots.get(&session).is_some_and(|slot| slot.actor.is_none() && Arc::ptr_eq(&slot.feed, &feed)) {
            slots.remove(&session);
            feed.fail(&error);
        }
    }

    /// Removes a reader, and the slot of its session if the slot is unused now.
    pub(crate) fn unsubscribe(&self, feed: &Arc<Feed>, mode: SubscriptionMode) {
        let mut slots = self.slots.lock();
        feed.remove_reader(mode);
        let session = feed.session();
        let unused =
            |slot: &SessionSlot| slot.actor.is_none() && Arc::ptr_eq(&slot.feed, feed) && !feed.has_readers();
        if slots.get(&session).is_some_and(unused) {
            slots.remove(&session);
        }
    }

    /// Changes whether a reader keeps the session in memory. Loads the session for a new controller.
    pub(crate) fn change_mode(&self, feed: &Arc<Feed>, before: SubscriptionMode, now: SubscriptionMode) {
        let mut slots = self.slots.lock();
        feed.add_reader(now);
        feed.remove_reader(before);
        let slot = slots.get_mut(&feed.session()).filter(|slot| Arc::ptr_eq(&slot.feed, feed));
        if let Some(slot) = slot.filter(|slot| slot.actor.is_none())
            && now == SubscriptionMode::Controller
            && self.check_loadable(feed.session()).is_ok()
        {
            self.start(slot, None);
        }
    }

    /// Loads a session because a caller opens it.
    pub(super) async fn open(&self, session: SessionId) -> Result<(Session, Opening), Error> {
        let (_, started) = self.load(session, None)?;
        let session = self.call(session, |reply| Command::Open { started, reply }).await?;
        if started {
            self.note_opened(session.id);
        }
        Ok((session, if started { Opening::Started } else { Opening::Existing }))
    }

    /// Records that a session was loaded because a caller opened it, and releases the oldest such session beyond
    /// [`MAX_OPENED`].
    pub(super) fn note_opened(&self, session: SessionId) {
        let mut opened = self.opened.lock();
        opened.push_back(session);
        let oldest = if opened.len() > MAX_OPENED { opened.pop_front() } else { None };
        drop(opened);
        if let Some(actor) = oldest.and_then(|oldest| self.actor(oldest)) {
            // An actor that has ended needs no release.
            let _ = actor.send(Signal::Release.into());
        }
    }
}

impl SessionSlot {
    fn is_of(&self, actor: &Sender) -> bool {
        self.actor.as_ref().is_some_and(|known| known.same_channel(actor))
    }
}
