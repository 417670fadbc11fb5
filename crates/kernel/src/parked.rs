//! Parked sessions: their run waits for an answer that the store alone holds, so they need no memory until it arrives.
//!
//! ```text
//! loaded ──idle_unload_ms──▶ parked ──an answer, a prompt, a controller──▶ loaded
//!                               └──────────the question expires──────────▶ loaded, and the run times out
//! ```
//!
//! A session stays parked until it is loaded. If the store fails, the load is tried again after a pause. After an error of
//! the session itself it is no longer parked: `kernel/failures.rs` says when such a session is loaded again.
//!
//! Any command loads a session. Only the expiry of its question has to be remembered here. A parked session stays on the
//! board of live sessions, where people look for runs that wait for them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use mainspring_core::{SessionId, Time};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::kernel::Shared;

/// The pause before a session is loaded again whose load has failed.
const RETRY_MS: u64 = 5_000;

/// The sessions that are parked, by the time at which they are loaded again.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    order: BTreeSet<(Time, SessionId)>,
    times: HashMap<SessionId, Time>,
}

impl Parked {
    /// Adds a session that must be loaded at `at`.
    pub(crate) fn add(&self, session: SessionId, at: Time) {
        let mut state = self.state.lock();
        state.put(session, at);
        if state.order.first() == Some(&(at, session)) {
            self.changed.notify_one();
        }
    }

    /// Removes a session that is loaded, has failed or has left this process.
    pub(crate) fn remove(&self, session: SessionId) {
        self.state.lock().remove(session);
    }

    /// The sessions that are parked.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.state.lock().times.keys().copied().collect()
    }

    /// The time of the first session.
    fn next(&self) -> Option<Time> {
        self.state.lock().order.first().map(|(at, _)| *at)
    }

    /// Returns the sessions that are due at `now`. They are due again after a pause, unless they are loaded by then.
    fn take_due(&self, now: Time) -> Vec<SessionId> {
        let mut state = self.state.lock();
        let due: Vec<SessionId> =
            state.order.iter().take_while(|(at, _)| *at <= now).map(|(_, session)| *session).collect();
        due.iter().for_each(|session| state.put(*session, now.plus(RETRY_MS)));
        due
    }
}

impl State {
    fn put(&mut self, session: SessionId, at: Time) {
        self.remove(session);
        self.order.insert((at, session));
        self.times.insert(session, at);
    }

    fn remove(&mut self, session: SessionId) {
        if let Some(at) = self.times.remove(&session) {
            self.order.remove(&(at, session));
        }
    }
}

/// Loads parked sessions when their questions expire, until the kernel stops.
pub(crate) async fn watch(shared: Weak<Shared>, parked: Arc<Parked>) {
    loop {
        let (clock, tasks) = match shared.upgrade() {
            Some(shared) => (shared.clock.clone(), shared.tasks.clone()),
            None => return,
        };
        let next = parked.next();
        tokio::select! {
            () = tasks.stopping() => return,
            () = parked.changed.notified() => {}
            () = clock.sleep_until(next.unwrap_or_default()), if next.is_some() => {}
        }
        let Some(shared) = shared.upgrade() else { return };
        for session in parked.take_due(clock.now()) {
            // The actor finds that the question has expired.
            let _ = shared.load(session, None);
        }
    }
}
