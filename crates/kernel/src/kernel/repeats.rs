//! Names for requests that clients may repeat without an idempotency key: a repetition gets the name of the first request.
//!
//! The name is the idempotency key under which the request is carried out, so that it is carried out once. Names are
//! durable before the request is carried out; [`mainspring_core::repeat`] decides which requests share a name.

use std::sync::Arc;

use mainspring_core::repeat::{EarlierRequest, REPEAT_MS, repeats};
use mainspring_core::{SessionId, Time};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use self::entries::{CallerName, Entries, Entry};
use super::idempotency::fingerprint;
use super::launchers::LauncherCache;
use super::{Caller, Kernel, Shared};
use crate::error::Error;
use crate::store::{EdgeChange, EdgeRecord};

mod entries;

/// The kind of the stored records.
const KIND: &str = "repeat";

/// State that the edges for other systems' APIs share.
#[derive(Debug, Default)]
pub(crate) struct EdgeState {
    /// The requests that may be repeated, once they were read.
    repeats: OnceCell<Known>,
    /// The names of agents to launch. Locked while agents are compared and written.
    pub(super) launchers: tokio::sync::Mutex<LauncherCache>,
}

#[derive(Debug)]
struct Known {
    /// When the requests of earlier processes were read.
    started_at: Time,
    entries: Arc<Mutex<Entries>>,
    /// Records of earlier processes that cannot be read.
    damaged: Mutex<Vec<Unreadable>>,
}

/// A stored record that cannot be read. It may be of any request of its owner.
#[derive(Debug, Clone)]
struct Unreadable {
    owner: String,
    name: String,
}

impl Unreadable {
    fn error(&self) -> Error {
        let Self { owner, name } = self;
        Error::Corrupt(format!(
            "the record {name} of a request of {owner} that may be repeated cannot be read, so whether this request \
             repeats it is not known: send it again {} s after the start of the server, when the record has expired",
            REPEAT_MS / 1000
        ))
    }
}

/// A request that is being handled. Dropped when its handler ends, also because its client is gone.
#[derive(Debug)]
pub struct Repeatable {
    /// The idempotency key of the request.
    pub name: String,
    /// True if the request arrived before.
    pub is_repeated: bool,
    entries: Arc<Mutex<Entries>>,
}

impl Drop for Repeatable {
    fn drop(&mut self) {
        self.entries.lock().handled(&self.name);
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
        let now = self.shared.clock.now();
        self.shared.repeats_forget(known, now).await;
        if let Some(unreadable) = known.damaged.lock().iter().find(|record| record.owner == caller.owner) {
            return Err(unreadable.error());
        }
        let request = hex(fingerprint(&(operation, thread, blake3::hash(body).as_bytes())));
        let (repeatable, entry) = self.repeat_name(known, caller_name(caller), request, thread, now);
        if let Some(thread) = thread {
            self.repeat_close(caller, thread, Some(&repeatable.name)).await?;
        }
        self.shared.repeat_store(&repeatable.name, &entry).await?;
        Ok(repeatable)
    }

    /// Names a request: with the name of the earlier request that it repeats, or with a new name.
    fn repeat_name(
        &self,
        known: &Known,
        caller: CallerName,
        request: String,
        thread: Option<SessionId>,
        now: Time,
    ) -> (Repeatable, Entry) {
        let is_same = |entry: &Entry| {
            let earlier = EarlierRequest {
                arrived_at: entry.arrived_at,
                is_handled: entry.handling > 0,
                has_thread: entry.has_thread,
            };
            repeats(earlier, known.started_at, now)
        };
        let mut entries = known.entries.lock();
        let same = entries.equal(&caller, &request, is_same);
        let arrives = |entry: &mut Entry| {
            entry.arrived_at = now;
            entry.handling += 1;
        };
        let repeated = same.and_then(|name| Some((entries.change(&name, arrives)?, name)));
        let is_repeated = repeated.is_some();
        let (entry, name) = repeated.unwrap_or_else(|| {
            let has_thread = thread.is_some();
            let entry = Entry { caller, request, thread, has_thread, arrived_at: now, handling: 1 };
            let name = self.shared.ids.secret();
            entries.insert(name.clone(), entry.clone());
            (entry, name)
        });
        drop(entries);
        (Repeatable { name, is_repeated, entries: known.entries.clone() }, entry)
    }

    /// Records the session that a request has created: the caller's next call about it closes the request.
    pub async fn repeat_created(&self, request: &Repeatable, thread: SessionId) -> Result<(), Error> {
        let entry = {
            let mut entries = request.entries.lock();
            if entries.get(&request.name).is_none_or(|entry| entry.thread.is_some()) {
                return Ok(());
            }
            entries.change(&request.name, |entry| entry.thread = Some(thread))
        };
        match entry {
            Some(entry) => self.shared.repeat_store(&request.name, &entry).await,
            None => Ok(()),
        }
    }

    /// Closes a request that was refused: sent again, it is a new one.
    pub async fn repeat_refused(&self, request: &Repeatable) {
        let removed = request.entries.lock().remove(&request.name);
        if let Some(entry) = removed {
            self.shared.repeat_remove(&request.name, &entry.caller.0).await;
        }
    }

    /// Closes the requests of a caller about a session, except the one called `except`: a caller that sends another
    /// request has received their answers.
    pub async fn repeat_close(
        &self,
        caller: &Caller,
        thread: SessionId,
        except: Option<&str>,
    ) -> Result<(), Error> {
        let known = self.shared.repeats().await?;
        let closed = {
            let mut entries = known.entries.lock();
            // Most calls are polls of a thread that no request concerns any more.
            match entries.is_about(thread) {
                true => entries.close(&caller_name(caller), thread, except),
                false => return Ok(()),
            }
        };
        for (name, entry) in closed {
            self.shared.repeat_remove(&name, &entry.caller.0).await;
        }
        Ok(())
    }
}

impl Shared {
    /// Reads the requests that earlier processes have left, once.
    async fn repeats(&self) -> Result<&Known, Error> {
        let read = async || {
            let (mut entries, mut damaged) = (Entries::default(), vec![]);
            for record in self.store.edge_records(KIND, None).await? {
                let EdgeRecord { scope, id, body, .. } = record;
                match serde_json::from_value(body) {
                    Ok(entry) => entries.insert(id, entry),
                    Err(error) => {
                        tracing::error!(%error, owner = %scope, name = %id, "the record of a request that may be \
                            repeated cannot be read; requests of its owner are refused until it has expired");
                        damaged.push(Unreadable { owner: scope, name: id });
                    }
                }
            }
            let (entries, damaged) = (Arc::new(Mutex::new(entries)), Mutex::new(damaged));
            Ok(Known { started_at: self.clock.now(), entries, damaged })
        };
        self.edge.repeats.get_or_try_init(read).await
    }

    async fn repeat_store(&self, name: &str, entry: &Entry) -> Result<(), Error> {
        let body = serde_json::to_value(entry).unwrap_or_default();
        let record = EdgeRecord { kind: KIND, scope: entry.caller.0.clone(), id: name.to_owned(), body };
        self.store.edge_write(&EdgeChange::Put(record)).await?;
        Ok(())
    }

    async fn repeat_remove(&self, name: &str, owner: &str) {
        let remove = EdgeChange::Remove { kind: KIND, scope: owner.to_owned(), id: name.to_owned() };
        // A record that cannot be removed expires by its time.
        if let Err(error) = self.store.edge_write(&remove).await {
            tracing::warn!(%error, "a request that is not repeated any more is still stored");
        }
    }

    /// Removes requests that are too old to be repeated, and unreadable records once these are equally old.
    async fn repeats_forget(&self, known: &Known, now: Time) {
        if now.since(known.started_at) <= REPEAT_MS {
            return;
        }
        let unreadable = std::mem::take(&mut *known.damaged.lock());
        let old = known.entries.lock().forget(|arrived_at| now.since(arrived_at) > REPEAT_MS);
        let old = old.into_iter().map(|(name, entry)| (name, entry.caller.0));
        let unreadable = unreadable.into_iter().map(|record| (record.name, record.owner));
        for (name, owner) in old.chain(unreadable) {
            self.repeat_remove(&name, &owner).await;
        }
    }
}

fn caller_name(caller: &Caller) -> CallerName {
    (caller.owner.clone(), caller.key.map(|key| key.to_string()))
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
