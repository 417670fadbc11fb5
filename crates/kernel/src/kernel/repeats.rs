//! Requests that clients repeat without a name of their own: each gets a name here, and its repetitions get the same one.
//!
//! The name is the idempotency key under which the request is carried out, so that it is carried out once. Names are
//! durable before the request is carried out; [`mainspring_core::repeat`] decides which arrivals have the same one.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::repeat::{Earlier, REPEAT_MS, repeats};
use mainspring_core::{SessionId, Time};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::idempotency::fingerprint;
use super::{Caller, Kernel, Shared};
use crate::error::Error;
use crate::store::{EdgeChange, EdgeRecord};

/// The kind of the stored records.
const KIND: &str = "repeat";

/// The state that edges of other APIs share.
#[derive(Debug, Default)]
pub(crate) struct EdgeState {
    /// The requests that may be repeated, once they were read.
    repeats: OnceCell<Known>,
    /// Held while agents to launch are compared and written.
    pub(super) launcher_writes: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Known {
    /// When the requests of earlier processes were read.
    started_at: Time,
    entries: Arc<Mutex<HashMap<String, Entry>>>,
}

/// A request, under its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    /// The owner, and the key of the request.
    caller: (String, Option<String>),
    /// The hash of the operation and the body.
    request: String,
    /// The thread that the request concerns or has created.
    thread: Option<SessionId>,
    has_thread: bool,
    arrived_at: Time,
    #[serde(skip)]
    handling: u32,
}

/// A request that is being handled. Dropped when its handler ends, also because its client is gone.
#[derive(Debug)]
pub struct Repeatable {
    /// The idempotency key of the request.
    pub name: String,
    /// True if the request arrived before.
    pub is_repeated: bool,
    entries: Arc<Mutex<HashMap<String, Entry>>>,
}

impl Drop for Repeatable {
    fn drop(&mut self) {
        if let Some(entry) = self.entries.lock().get_mut(&self.name) {
            entry.handling = entry.handling.saturating_sub(1);
        }
    }
}

impl Kernel {
    /// Names a request by its caller, its operation and its body. `thread` is the session that the request concerns, if
    /// it exists already. Other requests of the caller about that session are closed.
    pub async fn repeat_begin(
        &self,
        caller: &Caller,
        operation: &str,
        thread: Option<SessionId>,
        body: &[u8],
    ) -> Result<Repeatable, Error> {
        let known = self.shared.repeats().await?;
        let (now, by) = (self.shared.clock.now(), caller_name(caller));
        let request = hex(fingerprint(&(operation, thread, body)));
        let (name, entry, is_repeated) = {
            let mut entries = known.entries.lock();
            let is_same = |entry: &Entry| {
                let earlier = Earlier {
                    arrived_at: entry.arrived_at,
                    is_handled: entry.handling > 0,
                    has_thread: entry.has_thread,
                };
                entry.caller == by && entry.request == request && repeats(earlier, known.started_at, now)
            };
            let same = entries.iter().find(|(_, entry)| is_same(entry)).map(|(name, _)| name.clone());
            let is_repeated = same.is_some();
            let name = same.unwrap_or_else(|| self.shared.ids.secret());
            let new = || Entry {
                caller: by,
                request,
                thread,
                has_thread: thread.is_some(),
                arrived_at: now,
                handling: 0,
            };
            let entry = entries.entry(name.clone()).or_insert_with(new);
            entry.arrived_at = now;
            entry.handling += 1;
            (name, entry.clone(), is_repeated)
        };
        let repeatable = Repeatable { name: name.clone(), is_repeated, entries: known.entries.clone() };
        if let Some(thread) = thread {
            self.repeat_close(caller, thread, Some(&name)).await?;
        }
        self.shared.repeat_store(&name, &entry).await?;
        self.shared.repeats_forget(known, now).await;
        Ok(repeatable)
    }

    /// Records the session that a request has created: the caller's next call about it closes the request.
    pub async fn repeat_created(&self, request: &Repeatable, thread: SessionId) -> Result<(), Error> {
        let entry = {
            let mut entries = request.entries.lock();
            let Some(entry) = entries.get_mut(&request.name).filter(|entry| entry.thread.is_none()) else {
                return Ok(());
            };
            entry.thread = Some(thread);
            entry.clone()
        };
        self.shared.repeat_store(&request.name, &entry).await
    }

    /// Closes a request that was refused: sent again, it is a new one.
    pub async fn repeat_refused(&self, request: &Repeatable) {
        let removed = request.entries.lock().remove(&request.name);
        if let Some(entry) = removed {
            self.shared.repeat_remove(&request.name, &entry).await;
        }
    }

    /// Closes the requests of a caller about a session, except the one called `except`: the caller asks for something
    /// else, so it has got their answers.
    pub async fn repeat_close(
        &self,
        caller: &Caller,
        thread: SessionId,
        except: Option<&str>,
    ) -> Result<(), Error> {
        let known = self.shared.repeats().await?;
        let by = caller_name(caller);
        let closed: Vec<_> = {
            let mut entries = known.entries.lock();
            let is_closed = |name: &str, entry: &Entry| {
                entry.thread == Some(thread) && entry.caller == by && Some(name) != except
            };
            entries.extract_if(|name, entry| is_closed(name, entry)).collect()
        };
        for (name, entry) in closed {
            self.shared.repeat_remove(&name, &entry).await;
        }
        Ok(())
    }
}

impl Shared {
    /// Reads the requests that earlier processes have left, once.
    async fn repeats(&self) -> Result<&Known, Error> {
        let read = async || {
            let records = self.store.edge_records(KIND, None).await?;
            let entry = |record: EdgeRecord| Some((record.id, serde_json::from_value(record.body).ok()?));
            let entries = records.into_iter().filter_map(entry).collect();
            Ok(Known { started_at: self.clock.now(), entries: Arc::new(Mutex::new(entries)) })
        };
        self.edge.repeats.get_or_try_init(read).await
    }

    async fn repeat_store(&self, name: &str, entry: &Entry) -> Result<(), Error> {
        let body = serde_json::to_value(entry).unwrap_or_default();
        let record = EdgeRecord { kind: KIND, scope: entry.caller.0.clone(), id: name.to_owned(), body };
        self.store.edge_write(&EdgeChange::Put(record)).await?;
        Ok(())
    }

    async fn repeat_remove(&self, name: &str, entry: &Entry) {
        let remove = EdgeChange::Remove { kind: KIND, scope: entry.caller.0.clone(), id: name.to_owned() };
        // A record that stays is forgotten by its time.
        if let Err(error) = self.store.edge_write(&remove).await {
            tracing::warn!(%error, "a request that is not repeated any more is still stored");
        }
    }

    /// Removes requests that are too old to be repeated.
    async fn repeats_forget(&self, known: &Known, now: Time) {
        let is_old = |entry: &Entry| {
            entry.handling == 0 && now.since(entry.arrived_at.max(known.started_at)) > REPEAT_MS
        };
        let old: Vec<_> = known.entries.lock().extract_if(|_, entry| is_old(entry)).collect();
        for (name, entry) in old {
            self.repeat_remove(&name, &entry).await;
        }
    }
}

fn caller_name(caller: &Caller) -> (String, Option<String>) {
    (caller.owner.clone(), caller.key.map(|key| key.to_string()))
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
