//! Whether the store can be written.
//!
//! ```text
//!              a commit failed, and so did a write that changes nothing
//! writable ───────────────────────────────────────────────────────────▶ failed
//!     ▲                                                                    │
//!     └────────────────── such a write succeeds (every 500 ms) ────────────┘
//! ```
//!
//! Subscribers are notified of both changes. While the store has failed, the process is not ready.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::clock::Clock;
use crate::error::Error;
use crate::feed::StoreChange;
use crate::store::{Store, StoreError};
use crate::tasks::Tasks;

/// Time between two writes that test a failed store.
const PROBE_INTERVAL_MS: u64 = 500;

/// Whether the store can be written, shared by the whole process.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    failure: watch::Sender<Option<Error>>,
    /// Notified when a write has failed.
    suspect: Notify,
}

impl Default for StoreHealth {
    fn default() -> Self {
        Self { failure: watch::Sender::new(None), suspect: Notify::new() }
    }
}

impl StoreHealth {
    /// Reports the error of a write. The store is tested before subscribers are notified.
    pub(crate) fn report(&self, error: &StoreError) {
        if error.is_outcome_unknown() {
            self.suspect.notify_one();
        }
    }

    /// The error of the last test, while the store cannot be written.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    /// Watches the failure.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Error>> {
        self.failure.subscribe()
    }

    /// Resolves when the store can be written again, or at once if it can.
    pub(crate) async fn recovered(&self) {
        // The sender lives as long as `self`.
        let _ = self.subscribe().wait_for(Option::is_none).await;
    }

    /// Resolves when the store cannot be written, or at once if it cannot be already.
    pub(crate) async fn failed(&self) {
        // The sender lives as long as `self`.
        let _ = self.subscribe().wait_for(Option::is_some).await;
    }

    /// Sets the failure. Returns true if that is a change.
    fn set(&self, failure: Option<Error>) -> bool {
        let was_failed = self.failure.borrow().is_some();
        match &failure {
            Some(error) if !was_failed => tracing::error!(%error, "the store cannot be written"),
            None if was_failed => tracing::info!("the store can be written again"),
            _ => {}
        }
        self.failure.send_if_modified(|known| {
            let changes = known.is_some() != failure.is_some();
            *known = failure;
            changes
        })
    }
}

/// A reader of whether the store can be written.
#[derive(Debug)]
pub(crate) struct StoreWatch {
    failure: watch::Receiver<Option<Error>>,
    /// True if a failure was reported to the reader.
    failure_reported: bool,
}

impl StoreWatch {
    /// Creates a reader. If the store cannot be written at this time, [`StoreWatch::change`] reports that.
    pub(crate) fn new(health: &StoreHealth) -> Self {
        let mut failure = health.subscribe();
        failure.mark_changed();
        Self { failure, failure_reported: false }
    }

    /// Returns the change that was not reported to the reader yet, if there is one.
    pub(crate) fn change(&mut self) -> Option<StoreChange> {
        if !self.failure.has_changed().unwrap_or(false) {
            return None;
        }
        let failure = self.failure.borrow_and_update();
        if failure.is_some() == self.failure_reported {
            return None;
        }
        self.failure_reported = failure.is_some();
        Some(match &*failure {
            Some(error) => StoreChange::Failed { code: error.code(), message: error.to_string() },
            None => StoreChange::Recovered,
        })
    }

    /// Waits until [`StoreWatch::change`] may return something. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        if self.failure.wait_for(|failure| failure.is_some() != self.failure_reported).await.is_err() {
            // The kernel is gone: nothing changes any more.
            std::future::pending::<()>().await;
        }
        self.failure.mark_changed();
    }
}

/// Tests the store after each report, until it can be written or the kernel stops. `wake_readers` is called after each
/// change: readers wait only for their feeds, so that the health of the store adds no cost to a delta.
pub(crate) async fn watch(
    store: Arc<dyn Store>,
    clock: Clock,
    health: Arc<StoreHealth>,
    tasks: Tasks,
    wake_readers: impl Fn() + Send,
) {
    let set = |failure| {
        if health.set(failure) {
            wake_readers();
        }
    };
    loop {
        tokio::select! {
            () = health.suspect.notified() => {}
            () = tasks.stopping() => return,
        }
        while let Err(error) = store.check_writable().await {
            set(Some(error.into()));
            tokio::select! {
                () = clock.sleep_for(PROBE_INTERVAL_MS) => {}
                () = tasks.stopping() => return,
            }
        }
        set(None);
    }
}
