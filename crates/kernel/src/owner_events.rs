//! The events of all sessions of an owner, in one order.
//!
//! Readers pull: each keeps its position in the order of all events, reads pages from the store, and is woken after a
//! commit to a session of its owner. Nobody waits for a slow reader.
//!
//! Invariant: a reader gets each event once and in order. When it has caught up, it has received every
//! event committed before.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainspring_core::{Body, Cursor, Event};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::Error;
use crate::feed::StoreChange;
use crate::kernel::Shared;
use crate::store_health::StoreWatch;

/// Events read at a time.
const PAGE_EVENTS: usize = 256;
/// Deletions remembered per owner for its readers: a deleted session may be purged before they have read its
/// deletion.
const DELETED_MAX: usize = 1_024;

/// Wakes the readers of owners after commits.
#[derive(Debug, Default)]
pub(crate) struct OwnerWakers {
    readers: AtomicUsize,
    owners: Mutex<HashMap<String, OwnerReaders>>,
}

#[derive(Debug, Default)]
struct OwnerReaders {
    readers: usize,
    wake: Arc<Notify>,
    deleted: VecDeque<Arc<Event>>,
}

impl OwnerWakers {
    /// Wakes the readers of `owner`: `events` are committed and can be read.
    pub(crate) fn notify(&self, owner: &str, events: &[Arc<Event>]) {
        // Usually there are no readers: return without taking the lock.
        if self.readers.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut owners = self.owners.lock();
        let Some(owner) = owners.get_mut(owner) else { return };
        let deleted = events.iter().filter(|event| matches!(event.body, Body::SessionDeleted {}));
        owner.deleted.extend(deleted.cloned());
        let excess = owner.deleted.len().saturating_sub(DELETED_MAX);
        owner.deleted.drain(..excess);
        owner.wake.notify_waiters();
    }

    /// Wakes the readers of all owners: another process may have committed events.
    pub(crate) fn wake_all(&self) {
        if self.readers.load(Ordering::Acquire) > 0 {
            self.owners.lock().values().for_each(|owner| owner.wake.notify_waiters());
        }
    }

    fn add_reader(&self, owner: &str) -> Arc<Notify> {
        self.readers.fetch_add(1, Ordering::AcqRel);
        let mut owners = self.owners.lock();
        let owner = owners.entry(owner.to_owned()).or_default();
        owner.readers += 1;
        owner.wake.clone()
    }

    fn remove_reader(&self, owner: &str) {
        let mut owners = self.owners.lock();
        if let Some(known) = owners.get_mut(owner) {
            known.readers -= 1;
            if known.readers == 0 {
                owners.remove(owner);
            }
        }
        self.readers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Deletions in the range (after, until].
    fn deleted(&self, owner: &str, after: Cursor, until: Cursor) -> Vec<Arc<Event>> {
        let owners = self.owners.lock();
        let deleted = owners.get(owner).into_iter().flat_map(|owner| &owner.deleted);
        deleted.filter(|event| event.cursor > after && event.cursor <= until).cloned().collect()
    }
}

/// A reader of the events of all sessions of an owner.
pub struct OwnerEvents {
    shared: Arc<Shared>,
    owner: String,
    types: Option<Vec<&'static str>>,
    wake: Arc<Notify>,
    at: Cursor,
    page: VecDeque<Event>,
    /// The cursor of the last [`OwnerItem::CaughtUp`].
    caught_up: Option<Cursor>,
    store: StoreWatch,
}

/// One item of an owner's events.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnerItem {
    /// An event.
    Event(Box<Event>),
    /// Every event up to this cursor has been returned. Resume from here.
    CaughtUp(Cursor),
    /// The store cannot be written, or can be written again. Sent live only. Resume from the cursor.
    Store(Cursor, StoreChange),
}

impl OwnerEvents {
    pub(crate) fn new(
        shared: Arc<Shared>,
        owner: &str,
        types: Option<Vec<&'static str>>,
        after: Cursor,
    ) -> Self {
        let wake = shared.owner_wakers.add_reader(owner);
        let (owner, page) = (owner.to_owned(), VecDeque::new());
        let store = StoreWatch::new(&shared.store_health);
        Self { shared, owner, types, wake, at: after, page, caught_up: None, store }
    }

    /// Waits for the next item. Cancel-safe.
    pub async fn next(&mut self) -> Result<OwnerItem, Error> {
        loop {
            if let Some(event) = self.page.pop_front() {
                return Ok(OwnerItem::Event(Box::new(event)));
            }
            // Only between two pages: during a page, `at` is past events that are not returned yet.
            if let Some(change) = self.store.change() {
                return Ok(OwnerItem::Store(self.at, change));
            }
            let wake = self.wake.clone();
            let notified = wake.notified();
            if self.read_page(PAGE_EVENTS).await? {
                continue;
            }
            if self.caught_up != Some(self.at) {
                self.caught_up = Some(self.at);
                return Ok(OwnerItem::CaughtUp(self.at));
            }
            tokio::select! {
                () = notified => {}
                () = self.store.changed() => {}
            }
        }
    }

    /// Reads at most `limit` stored events, without waiting for new ones.
    pub(crate) async fn page(&mut self, limit: usize) -> Result<Vec<Event>, Error> {
        while self.page.len() < limit && self.read_page(limit - self.page.len()).await? {}
        Ok(std::mem::take(&mut self.page).into_iter().take(limit).collect())
    }

    /// Reads the next page; false at the end.
    async fn read_page(&mut self, limit: usize) -> Result<bool, Error> {
        let store = &self.shared.store;
        let (events, until) = store.owner_events(&self.owner, self.types.as_deref(), self.at, limit).await?;
        if until <= self.at {
            return Ok(false);
        }
        let mut events = VecDeque::from(events);
        let wanted = self.types.as_ref().is_none_or(|types| types.contains(&"session.deleted"));
        let deletions = self.shared.owner_wakers.deleted(&self.owner, self.at, until);
        for deletion in deletions.iter().filter(|_| wanted) {
            let index = events.partition_point(|event| event.cursor < deletion.cursor);
            if events.get(index).is_none_or(|event| event.cursor != deletion.cursor) {
                events.insert(index, Event::clone(deletion));
            }
        }
        self.at = until;
        self.page.extend(events);
        Ok(true)
    }
}

impl Drop for OwnerEvents {
    fn drop(&mut self) {
        self.shared.owner_wakers.remove_reader(&self.owner);
    }
}
