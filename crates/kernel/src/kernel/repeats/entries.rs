//! The requests that may be repeated, with an index for each kind of lookup, so that no lookup scans all of them.

use std::collections::{BTreeSet, HashMap, HashSet};

use mainspring_core::{SessionId, Time};
use serde::{Deserialize, Serialize};

/// The owner of a caller, and the id of its API key if it uses one.
pub(super) type CallerName = (String, Option<String>);

/// A request that may be repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The sender of the request.
    pub(super) caller: CallerName,
    /// The hash of the operation and the body.
    pub(super) request: String,
    /// The thread that the request concerns or has created.
    pub(super) thread: Option<SessionId>,
    /// True if the request named a thread when it arrived. False if it creates a thread, or concerns an agent.
    pub(super) has_thread: bool,
    /// When the request arrived last.
    pub(super) arrived_at: Time,
    /// The number of arrivals that are being handled.
    #[serde(skip)]
    pub(super) handling: u32,
}

impl Entry {
    fn request_key(&self) -> (CallerName, String) {
        (self.caller.clone(), self.request.clone())
    }
}

/// The requests that may be repeated, by name. The other maps hold the same names.
#[derive(Debug, Default)]
pub(super) struct Entries {
    by_name: HashMap<String, Entry>,
    by_request: HashMap<(CallerName, String), HashSet<String>>,
    by_thread: HashMap<SessionId, HashSet<String>>,
    /// Names by their last arrival, the oldest first.
    by_arrival: BTreeSet<(Time, String)>,
}

impl Entries {
    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name)
    }

    /// Adds a request.
    pub(super) fn insert(&mut self, name: String, entry: Entry) {
        self.by_request.entry(entry.request_key()).or_default().insert(name.clone());
        if let Some(thread) = entry.thread {
            self.by_thread.entry(thread).or_default().insert(name.clone());
        }
        self.by_arrival.insert((entry.arrived_at, name.clone()));
        self.by_name.insert(name, entry);
    }

    /// Removes a request.
    pub(super) fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.by_name.remove(name)?;
        take(&mut self.by_request, &entry.request_key(), name);
        if let Some(thread) = entry.thread {
            take(&mut self.by_thread, &thread, name);
        }
        self.by_arrival.remove(&(entry.arrived_at, name.to_owned()));
        Some(entry)
    }

    /// Changes a request. Returns the changed request.
    pub(super) fn change(&mut self, name: &str, change: impl FnOnce(&mut Entry)) -> Option<Entry> {
        let mut entry = self.remove(name)?;
        change(&mut entry);
        self.insert(name.to_owned(), entry.clone());
        Some(entry)
    }

    /// Ends the handling of one arrival of a request.
    pub(super) fn handled(&mut self, name: &str) {
        if let Some(entry) = self.by_name.get_mut(name) {
            entry.handling = entry.handling.saturating_sub(1);
        }
    }

    /// Finds the name of an equal request of the same caller for which `is_same` returns true.
    pub(super) fn equal(
        &self,
        caller: &CallerName,
        request: &str,
        is_same: impl Fn(&Entry) -> bool,
    ) -> Option<String> {
        let names = self.by_request.get(&(caller.clone(), request.to_owned()))?;
        names.iter().find(|name| self.get(name).is_some_and(&is_same)).cloned()
    }

    /// True if a request concerns the thread or has created it.
    pub(super) fn is_about(&self, thread: SessionId) -> bool {
        self.by_thread.contains_key(&thread)
    }

    /// Removes the requests of a caller about a thread, except the one called `except`.
    pub(super) fn close(
        &mut self,
        caller: &CallerName,
        thread: SessionId,
        except: Option<&str>,
    ) -> Vec<(String, Entry)> {
        let names = self.by_thread.get(&thread).into_iter().flatten();
        let is_closed = |name: &&String| {
            Some(name.as_str()) != except && self.get(name).is_some_and(|entry| entry.caller == *caller)
        };
        let closed: Vec<String> = names.filter(is_closed).cloned().collect();
        closed.into_iter().filter_map(|name| Some((name.clone(), self.remove(&name)?))).collect()
    }

    /// Removes the requests whose last arrival is old, unless they are being handled. `is_old` must be true for every
    /// time before one that is old, because the search stops at the first arrival that is not.
    pub(super) fn forget(&mut self, is_old: impl Fn(Time) -> bool) -> Vec<(String, Entry)> {
        let old = self.by_arrival.iter().take_while(|(arrived_at, _)| is_old(*arrived_at));
        let is_idle = |name: &str| self.get(name).is_some_and(|entry| entry.handling == 0);
        let old: Vec<String> = old.filter(|(_, name)| is_idle(name)).map(|(_, name)| name.clone()).collect();
        old.into_iter().filter_map(|name| Some((name.clone(), self.remove(&name)?))).collect()
    }
}

/// Removes `name` from the names of `key`, and the key itself once it has no names.
fn take<K: Eq + std::hash::Hash>(index: &mut HashMap<K, HashSet<String>>, key: &K, name: &str) {
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(caller: &str, request: &str, thread: Option<u8>, at: i64) -> Entry {
        Entry {
            caller: (caller.into(), None),
            request: request.into(),
            thread: thread.map(|no| SessionId::from_random([no; 16])),
            has_thread: thread.is_some(),
            arrived_at: Time(at),
            handling: 0,
        }
    }

    fn names(found: Vec<(String, Entry)>) -> Vec<String> {
        let mut names: Vec<_> = found.into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_request_is_found_by_its_caller_its_thread_and_its_age() {
        let mut entries = Entries::default();
        entries.insert("a".into(), entry("ada", "x", Some(1), 10));
        entries.insert("b".into(), entry("ada", "x", None, 20));
        entries.insert("c".into(), entry("ben", "x", Some(1), 30));
        let ada = ("ada".to_owned(), None);
        assert_eq!(entries.equal(&ada, "x", |entry| entry.thread.is_none()).as_deref(), Some("b"));
        assert_eq!(entries.equal(&ada, "y", |_| true), None);
        let thread = SessionId::from_random([1; 16]);
        assert_eq!(names(entries.close(&ada, thread, Some("a"))), Vec::<String>::new());
        assert_eq!(names(entries.close(&ada, thread, None)), ["a"]);
        assert!(entries.is_about(thread), "ben's request is still there");
        let moved = entries.change("b", |entry| entry.thread = Some(SessionId::from_random([2; 16])));
        assert!(moved.is_some() && entries.is_about(SessionId::from_random([2; 16])));
        entries.change("c", |entry| entry.handling = 1);
        assert_eq!(names(entries.forget(|at| at <= Time(30))), ["b"], "c is being handled");
        entries.handled("c");
        assert_eq!(names(entries.forget(|at| at < Time(30))), Vec::<String>::new());
        assert_eq!(names(entries.forget(|at| at <= Time(30))), ["c"]);
        assert!(entries.by_request.is_empty() && entries.by_thread.is_empty());
        assert!(entries.by_name.is_empty() && entries.by_arrival.is_empty());
    }
}
