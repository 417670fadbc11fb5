//! The events of all of an owner's sessions, in one order, for whoever follows them all.
//!
//! A reader pulls: it keeps its place in the order of all events, reads pages from the store, and is woken when a session of its
//! owner's has committed. Nobody waits for it, and a slow one only reads later.
//!
//! Invariant: a reader gets each event once and in order; where it is told that it has caught up, it was given everything that
//! had happened.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainspring_core::{Body, Cursor, Event};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::Error;
use crate::kernel::Shared;

/// How many events are read at a time.
const PAGE: usize = 256;
/// How many deletions are remembered for readers: what is deleted is purged, perhaps before they have read it.
const DELETED: usize = 1_024;

/// Wakes the readers of owners.
#[derive(Debug, Default)]
pub(crate) struct OwnerWakers {
    readers: AtomicUsize,
    owners: Mutex<HashMap<String, Owner>>,
}

#[derive(Debug, Default)]
struct Owner {
    readers: usize,
    wake: Arc<Notify>,
    deleted: VecDeque<Arc<Event>>,
}

impl OwnerWakers {
    /// Something of the owner's has happened, and can be read.
    pub(crate) fn notify(&self, owner: &str, events: &[Arc<Event>]) {
        // Most of the time nobody reads, and nothing is to be done.
        if self.readers.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut owners = self.owners.lock();
        let Some(owner) = owners.get_mut(owner) else { return };
        let deleted = events.iter().filter(|event| matches!(event.body, Body::SessionDeleted {}));
        owner.deleted.extend(deleted.cloned());
        let over = owner.deleted.len().saturating_sub(DELETED);
        owner.deleted.drain(..over);
        owner.wake.notify_waiters();
    }

    fn join(&self, owner: &str) -> Arc<Notify> {
        self.readers.fetch_add(1, Ordering::AcqRel);
        let mut owners = self.owners.lock();
        let owner = owners.entry(owner.to_owned()).or_default();
        owner.readers += 1;
        owner.wake.clone()
    }

    fn leave(&self, owner: &str) {
        let mut owners = self.owners.lock();
        if let Some(known) = owners.get_mut(owner) {
            known.readers -= 1;
            if known.readers == 0 {
                owners.remove(owner);
            }
        }
        self.readers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Deletions within a stretch of the order.
    fn deleted(&self, owner: &str, after: Cursor, until: Cursor) -> Vec<Arc<Event>> {
        let owners = self.owners.lock();
        let deleted = owners.get(owner).into_iter().flat_map(|owner| &owner.deleted);
        deleted.filter(|event| event.cursor > after && event.cursor <= until).cloned().collect()
    }
}

/// A reader of an owner's events.
pub struct OwnerEvents {
    shared: Arc<Shared>,
    owner: String,
    types: Option<Vec<&'static str>>,
    wake: Arc<Notify>,
    at: Cursor,
    page: VecDeque<Event>,
    /// Where it was told last that it had caught up.
    told: Option<Cursor>,
}

/// What a reader of an owner's events gets.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnerItem {
    /// An event.
    Event(Box<Event>),
    /// Everything up to here has been given: come back with it.
    CaughtUp(Cursor),
}

impl OwnerEvents {
    pub(crate) fn new(
        shared: Arc<Shared>,
        owner: &str,
        types: Option<Vec<&'static str>>,
        after: Cursor,
    ) -> Self {
        let wake = shared.owner_wakers.join(owner);
        Self { shared, owner: owner.to_owned(), types, wake, at: after, page: VecDeque::new(), told: None }
    }

    /// The next thing. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<OwnerItem, Error> {
        loop {
            if let Some(event) = self.page.pop_front() {
                return Ok(OwnerItem::Event(Box::new(event)));
            }
            let wake = self.wake.clone();
            let notified = wake.notified();
            if self.pull(PAGE).await? {
                continue;
            }
            if self.told != Some(self.at) {
                self.told = Some(self.at);
                return Ok(OwnerItem::CaughtUp(self.at));
            }
            notified.await;
        }
    }

    /// At most `limit` events that are there.
    pub(crate) async fn some(&mut self, limit: usize) -> Result<Vec<Event>, Error> {
        while self.page.len() < limit && self.pull(limit - self.page.len()).await? {}
        Ok(std::mem::take(&mut self.page).into_iter().take(limit).collect())
    }

    /// Reads what comes next; false at the end.
    async fn pull(&mut self, limit: usize) -> Result<bool, Error> {
        let store = &self.shared.store;
        let (events, looked) = store.owner_events(&self.owner, self.types.as_deref(), self.at, limit).await?;
        if looked <= self.at {
            return Ok(false);
        }
        let mut events = VecDeque::from(events);
        let wants = self.types.as_ref().is_none_or(|types| types.contains(&"session.deleted"));
        for gone in self.shared.owner_wakers.deleted(&self.owner, self.at, looked).iter().filter(|_| wants) {
            let place = events.partition_point(|event| event.cursor < gone.cursor);
            if events.get(place).is_none_or(|event| event.cursor != gone.cursor) {
                events.insert(place, Event::clone(gone));
            }
        }
        self.at = looked;
        self.page.extend(events);
        Ok(true)
    }
}

impl Drop for OwnerEvents {
    fn drop(&mut self) {
        self.shared.owner_wakers.leave(&self.owner);
    }
}
