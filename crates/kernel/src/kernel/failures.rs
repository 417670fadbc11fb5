//! Sessions that have failed: mainspring panicked in their work, or could not load or recover them.
//!
//! ```text
//! intact ──fails──▶ failed ──asked again, or after a while──▶ loading ──a command succeeds──▶ intact
//!                     ▲                                          │
//!                     └─────────────── fails again ──────────────┘
//! ```
//!
//! A failure concerns its session alone: the server starts and serves the others. From the second failure in a row on,
//! the session is not loaded again before a pause is over, which doubles each time. Even if no caller asks for the
//! session, it is loaded again a few times. Neither applies to a session whose stored data is damaged: each call for it
//! reads it again, at once.

use std::collections::BTreeMap;

pub use mainspring_api::FailedSession;
use mainspring_core::{SessionId, Time};
use mainspring_system::contain::Panic;
use parking_lot::Mutex;

use super::{Caller, Kernel, Shared};
use crate::actor::Command;
use crate::clock::Moment;
use crate::error::Error;
use crate::store::SessionRef;

/// The pause after the second failure in a row.
const FIRST_PAUSE_MS: u64 = 1_000;

/// The longest pause after a failure.
const MAX_PAUSE_MS: u64 = 60_000;

/// How often in a row a session is loaded again without a caller that asks for it.
const MAX_UNASKED_RETRIES: u32 = 5;

/// The most failed sessions that are listed.
const MAX_LISTED: usize = 100;

/// The sessions that have failed in this process and have not worked since.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<BTreeMap<SessionId, Failure>>);

#[derive(Debug)]
struct Failure {
    error: Error,
    /// Failures in a row.
    count: u32,
    at: Time,
    /// The session is not loaded again before this moment.
    paused_until: Option<Moment>,
}

impl Failures {
    /// Records a failure at `at`. The session is paused from `now` on; without `now`, it is not paused. Returns the
    /// number of failures in a row, and the pause in milliseconds.
    fn record(&self, session: SessionId, error: &Error, at: Time, now: Option<Moment>) -> (u32, u64) {
        let mut known = self.0.lock();
        let count = known.get(&session).map_or(0, |failure| failure.count).saturating_add(1);
        let pause_ms = pause_ms(count);
        let paused_until = now.map(|now| now.plus(pause_ms));
        known.insert(session, Failure { error: error.clone(), count, at, paused_until });
        (count, pause_ms)
    }

    /// True if the session has failed and has not worked since.
    pub(crate) fn contains(&self, session: SessionId) -> bool {
        self.0.lock().contains_key(&session)
    }

    /// Forgets the failures of a session that works.
    pub(crate) fn clear(&self, session: SessionId) {
        self.0.lock().remove(&session);
    }

    /// The error of a session whose pause is not over.
    fn paused(&self, session: SessionId, now: Moment) -> Option<Error> {
        let known = self.0.lock();
        let failure = known.get(&session)?;
        failure.paused_until.filter(|until| now < *until).map(|_| failure.error.clone())
    }

    fn list(&self) -> Vec<FailedSession> {
        let known = self.0.lock();
        let failed = known.iter().take(MAX_LISTED).map(|(session, failure)| FailedSession {
            session_id: *session,
            code: failure.error.code().into(),
            message: failure.error.to_string(),
            failures: failure.count,
            failed_at: failure.at,
        });
        failed.collect()
    }
}

/// The pause after this many failures in a row.
fn pause_ms(count: u32) -> u64 {
    match count.checked_sub(2) {
        None => 0,
        Some(doublings) => FIRST_PAUSE_MS.saturating_mul(1 << doublings.min(16)).min(MAX_PAUSE_MS),
    }
}

impl Kernel {
    /// Number of sessions that have failed and have not worked since.
    pub fn failed_session_count(&self) -> usize {
        self.shared.failures.0.lock().len()
    }

    /// Lists sessions that have failed and have not worked since, for an admin of the server.
    pub fn failed_sessions(&self, caller: &Caller) -> Result<Vec<FailedSession>, Error> {
        caller.check_server_admin()?;
        Ok(self.shared.failures.list())
    }
}

impl Shared {
    /// Records that mainspring has panicked in the work of a session. Returns the error for its callers.
    pub(crate) fn session_panicked(&self, session: SessionId, panic: &Panic) -> Error {
        let error = Error::session_panicked(session);
        tracing::error!(%session, %panic, "mainspring panicked in the work of a session; it is loaded again when asked for");
        self.record_failure(session, &error);
        error
    }

    /// Records that the interrupted run of a session could not be recovered. Returns the error for the callers of the
    /// session: `error` itself if the whole server has failed or the stored data is damaged, else
    /// [`Error::SessionFailed`].
    pub(super) fn recovery_failed(&self, session: SessionId, error: Error) -> Error {
        tracing::error!(%error, %session, "cannot recover the run that an earlier process left");
        if error.is_of_server() || matches!(error, Error::Corrupt(_)) {
            self.load_refused(session, &error);
            return error;
        }
        let error = Error::SessionFailed { session, why: format!("its interrupted run: {error}") };
        self.record_failure(session, &error);
        error
    }

    /// Records a session that could not be loaded because its stored data is damaged. Forgets the failures of a session
    /// that does not exist. Other errors are not recorded. A parked session stays parked only after an error of the whole
    /// server.
    pub(super) fn load_refused(&self, session: SessionId, error: &Error) {
        if !error.is_of_server() {
            self.parked.remove(session);
        }
        match error {
            // The session was deleted, or its first commit has failed.
            Error::NotFound { .. } => self.failures.clear(session),
            Error::Corrupt(_) => {
                if !self.failures.contains(session) {
                    tracing::error!(%error, %session, "cannot load a session: its stored data is damaged");
                }
                // A damaged session is read again with each call, without a pause: that costs no more than the call
                // itself.
                self.failures.record(session, error, self.clock.now(), None);
            }
            _ => {}
        }
    }

    /// Refuses to load a session while the process is stopping, and for a while after the session has failed.
    pub(super) fn check_loadable(&self, session: SessionId) -> Result<(), Error> {
        if self.tasks.is_stopping() {
            return Err(Error::ShuttingDown);
        }
        self.failures.paused(session, self.clock.moment()).map_or(Ok(()), Err)
    }

    /// The error of a command that an actor has dropped without a reply: the actor panicked, or its session is gone.
    pub(super) async fn unanswered(&self, session: SessionId) -> Error {
        if self.tasks.is_stopping() {
            return Error::ShuttingDown;
        }
        // An actor that panics drops the command first, then records the failure, and then leaves its slot.
        if self.is_live(session) || self.failures.contains(session) {
            return Error::session_panicked(session);
        }
        match self.store.session_find("", &SessionRef::Id(session)).await {
            Ok(Some(_)) => Error::session_panicked(session),
            Ok(None) => Error::not_found("session", session),
            Err(error) => error.into(),
        }
    }

    fn record_failure(&self, session: SessionId, error: &Error) {
        self.parked.remove(session);
        let (now, moment) = (self.clock.now(), self.clock.moment());
        let (count, pause_ms) = self.failures.record(session, error, now, Some(moment));
        let Some(me) = self.me.upgrade().filter(|_| count <= MAX_UNASKED_RETRIES) else { return };
        let retry_at = moment.plus(pause_ms.max(FIRST_PAUSE_MS));
        self.tasks.spawn(async move {
            tokio::select! {
                () = me.clock.sleep_until_moment(retry_at) => me.dispatch(session, Command::Inbox),
                () = me.tasks.stopping() => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_a_minute() {
        let pauses: Vec<u64> = (1..=9).map(pause_ms).collect();
        assert_eq!(pauses, [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(pause_ms(u32::MAX), MAX_PAUSE_MS);
    }
}
