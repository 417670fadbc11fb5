//! Seats: which sessions are in memory, and who reads them.
//!
//! A session has a seat while an actor serves it or somebody reads it. Whoever joins, leaves or unloads does so under
//! one lock, so that nobody joins a session that is leaving, and a reader's feed is always the one that is written.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use mainspring_core::{Session, SessionId};
use tokio::sync::{mpsc, oneshot};

use super::{Opening, Shared};
use crate::actor::{Actor, Command, Receiver, Reply, Sender, Signal};
use crate::error::Error;
use crate::feed::{Feed, FeedMemory, Subscription, SubscriptionMode};

/// How many sessions stay in memory for no other reason than that somebody opened them; beyond, the first one goes.
const OPENED: usize = 1_000;

type Ready = oneshot::Sender<Result<(), Error>>;

/// A session that is in memory, or that somebody reads.
pub(super) struct Seat {
    actor: Option<Sender>,
    feed: Arc<Feed>,
}

impl Shared {
    /// True while the session is in memory.
    pub(crate) fn is_live(&self, session: SessionId) -> bool {
        self.actor(session).is_some()
    }

    /// The session's actor, if it is in memory.
    pub(crate) fn actor(&self, session: SessionId) -> Option<Sender> {
        self.seats.lock().get(&session)?.actor.clone()
    }

    /// Every actor.
    pub(super) fn actors(&self) -> Vec<Sender> {
        self.seats.lock().values().filter_map(|seat| seat.actor.clone()).collect()
    }

    /// What all feeds hold.
    pub(super) fn feed_memory(&self) -> FeedMemory {
        let feeds: Vec<Arc<Feed>> = self.seats.lock().values().map(|seat| seat.feed.clone()).collect();
        feeds.iter().map(|feed| feed.memory_use()).fold(FeedMemory::default(), |sum, held| FeedMemory {
            events: sum.events + held.events,
            bytes: sum.bytes + held.bytes,
            thoughts: sum.thoughts + held.thoughts,
            readers: sum.readers + held.readers,
        })
    }

    /// Ends every stream: the process stops, and nothing comes any more.
    pub(super) fn seats_clear(&self) {
        let seats: Vec<Seat> = self.seats.lock().drain().map(|(_, seat)| seat).collect();
        seats.iter().for_each(|seat| seat.feed.close());
    }

    /// Passes `command` to the session's actor, loading it if it is not in memory.
    pub(crate) fn dispatch(&self, session: SessionId, command: Command) {
        let mut command = command;
        loop {
            let Some((actor, _)) = self.load(session, None) else {
                command.refuse(&Error::ShuttingDown);
                return;
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

    /// Calls the session's actor and waits for its answer.
    pub(crate) async fn call<T, E: From<Error>>(
        &self,
        session: SessionId,
        command: impl FnOnce(Reply<T, E>) -> Command,
    ) -> Result<T, E> {
        let (reply, answer) = oneshot::channel();
        self.dispatch(session, command(reply));
        // Whoever drops a command unanswered is a session that is gone.
        answer.await.unwrap_or_else(|_| Err(Error::not_found("session", session).into()))
    }

    /// An actor for a new session, which its first commit creates.
    ///
    /// The type is spelled out because actors make actors: a fork is born by its source.
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
            let unborn = crate::actor::unborn(session);
            let actor = Box::new(Actor::new(me, fence, feed.clone(), unborn, false, (tx.clone(), rx)));
            let mut seats = self.seats.lock();
            if self.tasks.is_stopping() {
                return Err(Error::ShuttingDown);
            }
            seats.insert(id, Seat { actor: Some(tx), feed });
            drop(seats);
            self.tasks.spawn(actor.serve());
            Ok(())
        })
    }

    /// The session's actor, and whether it was not in memory and starts to load now: then commands wait in its channel,
    /// and `ready` learns when it has taken up what was left. None once the process stops: whoever came now would not
    /// be told to stop.
    pub(super) fn load(&self, session: SessionId, ready: Option<Ready>) -> Option<(Sender, bool)> {
        let mut seats = self.seats.lock();
        if let Some(actor) = seats.get(&session).and_then(|seat| seat.actor.clone()) {
            if let Some(ready) = ready {
                let _ = ready.send(Ok(()));
            }
            return Some((actor, false));
        }
        if self.tasks.is_stopping() {
            return None;
        }
        let seat = self.seat(&mut seats, session);
        Some((self.start(seat, ready), true))
    }

    fn seat<'a>(&self, seats: &'a mut HashMap<SessionId, Seat>, session: SessionId) -> &'a mut Seat {
        seats.entry(session).or_insert_with(|| Seat { actor: None, feed: self.feed_new(session) })
    }

    fn feed_new(&self, session: SessionId) -> Arc<Feed> {
        Feed::new(session, self.dirty.clone(), self.options.limits.message_bytes, self.meters.clone())
    }

    /// Gives a seat its actor, which begins to load.
    fn start(&self, seat: &mut Seat, ready: Option<Ready>) -> Sender {
        let (tx, rx) = mpsc::unbounded_channel();
        seat.actor = Some(tx.clone());
        if let Some(me) = self.me.upgrade() {
            let (tx, feed) = (tx.clone(), seat.feed.clone());
            self.tasks.spawn(Box::pin(async move { me.wake(feed, (tx, rx), ready).await }));
        }
        tx
    }

    async fn wake(self: Arc<Self>, feed: Arc<Feed>, mut channel: (Sender, Receiver), ready: Option<Ready>) {
        let session = feed.session();
        let woken = async {
            let fence = self.store.lease_take(session, self.node).await?;
            let loaded = self.store.session_load(session).await?;
            Ok::<_, Error>((fence, loaded.ok_or_else(|| Error::not_found("session", session))?))
        };
        let (fence, loaded) = match woken.await {
            Ok(woken) => woken,
            Err(error) => {
                self.remove_actor(session, &channel.0);
                feed.fail(&error);
                channel.1.close();
                while let Some(input) = channel.1.recv().await {
                    input.refuse(&error);
                }
                ready.map(|ready| ready.send(Err(error)));
                return;
            }
        };
        let lost = loaded.runs.iter().find(|(run, _)| run.state.holder().is_some()).cloned();
        let mut actor = Box::new(Actor::new(self, fence, feed, loaded, true, channel));
        let recovered = match lost {
            Some((run, Some(attempt))) => Box::pin(actor.recover(run, attempt)).await,
            _ => Ok(()),
        };
        match recovered {
            Ok(()) => {
                // Counted before anybody is told that the kernel has started.
                actor.report_status();
                ready.map(|ready| ready.send(Ok(())));
                actor.serve().await;
            }
            Err(error) => {
                // Nothing may start in a session whose last run is not known to be over. The next call tries again.
                tracing::error!(%error, %session, "what an earlier process left could not be taken up");
                actor.abandon(&error).await;
                ready.map(|ready| ready.send(Err(error)));
            }
        }
    }

    /// Takes an actor that is gone out of its seat, and the seat with it: its feed has ended too.
    pub(crate) fn remove_actor(&self, session: SessionId, actor: &Sender) {
        let mut seats = self.seats.lock();
        if seats.get(&session).is_some_and(|seat| seat.is_of(actor)) {
            seats.remove(&session);
        }
    }

    /// Lets an idle session leave memory, if `may` still says so; its readers keep their feed.
    pub(crate) fn unload(
        &self,
        feed: &Feed,
        actor: &Sender,
        may: impl FnOnce() -> bool,
        leaving: impl FnOnce(),
    ) -> bool {
        let mut seats = self.seats.lock();
        let session = feed.session();
        let Some(seat) = seats.get_mut(&session).filter(|seat| seat.is_of(actor)) else { return false };
        if !may() {
            return false;
        }
        leaving();
        feed.leave();
        seat.actor = None;
        if !feed.is_read() {
            seats.remove(&session);
        }
        true
    }

    /// One more reader of the session. It is loaded for a controller, and only looked up for an observer.
    pub(super) async fn attach(
        &self,
        session: SessionId,
        mode: SubscriptionMode,
    ) -> Result<Subscription, Error> {
        let subscription = self.join(session, mode)?;
        match subscription.feed().ready().await {
            Ok(_) => Ok(subscription),
            Err(_) if self.tasks.is_stopping() => Err(Error::ShuttingDown),
            Err(error) => Err(error),
        }
    }

    fn join(&self, session: SessionId, mode: SubscriptionMode) -> Result<Subscription, Error> {
        let me = self.me.upgrade().ok_or(Error::ShuttingDown)?;
        let mut seats = self.seats.lock();
        if self.tasks.is_stopping() {
            return Err(Error::ShuttingDown);
        }
        let is_new = !seats.contains_key(&session);
        let seat = self.seat(&mut seats, session);
        seat.feed.join(mode);
        let feed = seat.feed.clone();
        match mode {
            SubscriptionMode::Controller if seat.actor.is_none() => drop(self.start(seat, None)),
            SubscriptionMode::Observer if is_new => {
                drop(self.tasks.spawn(me.clone().look(feed.clone())));
            }
            _ => {}
        }
        drop(seats);
        Ok(Subscription::new(feed, me, mode))
    }

    /// Finds out where the stream of a session stands that is not in memory.
    async fn look(self: Arc<Self>, feed: Arc<Feed>) {
        let session = feed.session();
        let error = match self.store.session_load(session).await {
            Ok(Some(loaded)) => return feed.found(&loaded),
            Ok(None) => Error::not_found("session", session),
            Err(error) => error.into(),
        };
        let mut seats = self.seats.lock();
        // An actor that came meanwhile finds out itself.
        if seats.get(&session).is_some_and(|seat| seat.actor.is_none() && Arc::ptr_eq(&seat.feed, &feed)) {
            seats.remove(&session);
            feed.fail(&error);
        }
    }

    /// One reader less.
    pub(crate) fn detach(&self, feed: &Arc<Feed>, mode: SubscriptionMode) {
        let mut seats = self.seats.lock();
        feed.part(mode);
        let session = feed.session();
        let unused = |seat: &Seat| seat.actor.is_none() && Arc::ptr_eq(&seat.feed, feed) && !feed.is_read();
        if seats.get(&session).is_some_and(unused) {
            seats.remove(&session);
        }
    }

    /// A reader changes what it does to the session's stay in memory.
    pub(crate) fn mode_change(&self, feed: &Arc<Feed>, before: SubscriptionMode, now: SubscriptionMode) {
        let mut seats = self.seats.lock();
        feed.join(now);
        feed.part(before);
        let seat = seats.get_mut(&feed.session()).filter(|seat| Arc::ptr_eq(&seat.feed, feed));
        if let Some(seat) = seat.filter(|seat| seat.actor.is_none())
            && now == SubscriptionMode::Controller
            && !self.tasks.is_stopping()
        {
            self.start(seat, None);
        }
    }

    /// Brings a session into memory for whoever opens it.
    pub(super) async fn open(&self, session: SessionId) -> Result<(Session, Opening), Error> {
        let Some((_, started)) = self.load(session, None) else { return Err(Error::ShuttingDown) };
        let session = self.call(session, |reply| Command::Open { started, reply }).await?;
        if started {
            self.note_opened(session.id);
        }
        Ok((session, if started { Opening::Started } else { Opening::Existing }))
    }

    /// Notes that a session came into memory because somebody opened it; there are never too many of those.
    pub(super) fn note_opened(&self, session: SessionId) {
        let mut opened = self.opened.lock();
        opened.push_back(session);
        let first = if opened.len() > OPENED { opened.pop_front() } else { None };
        drop(opened);
        if let Some(actor) = first.and_then(|first| self.actor(first)) {
            // One that is gone needs no release.
            let _ = actor.send(Signal::Release.into());
        }
    }
}

impl Seat {
    fn is_of(&self, actor: &Sender) -> bool {
        self.actor.as_ref().is_some_and(|known| known.same_channel(actor))
    }
}
