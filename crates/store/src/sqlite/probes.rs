//! Access to a store that only tests need.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SqliteStore;
use super::writer::Shared;
use crate::Fault;

impl SqliteStore {
    /// Injects `fault` into the next group of commits; [`Fault::LoadPanics`] into the next load of a session.
    #[doc(hidden)]
    pub fn inject_fault(&self, fault: Fault) {
        *self.shared.fault.lock() = Some(fault);
    }

    /// Simulates a full disk until it is called with false.
    #[doc(hidden)]
    pub fn set_full(&self, is_full: bool) {
        self.shared.is_full.store(is_full, Ordering::Release);
    }

    /// Returns the pragmas in force on the write connection.
    #[doc(hidden)]
    pub fn pragmas(&self) -> &[(&'static str, i64)] {
        &self.pragmas
    }

    /// Pauses the writer until the returned guard is dropped, so that all queued commits form one group.
    #[doc(hidden)]
    pub fn pause_writer(&self) -> impl Drop + use<> {
        struct Paused(Arc<Shared>);
        impl Drop for Paused {
            fn drop(&mut self) {
                self.0.queue.set_paused(false);
            }
        }
        self.shared.queue.set_paused(true);
        Paused(Arc::clone(&self.shared))
    }

    /// Returns the number of leases in memory.
    #[doc(hidden)]
    pub fn leases(&self) -> usize {
        self.shared.leases.lock().len()
    }

    /// Returns the number of queued commits.
    #[doc(hidden)]
    pub fn queued(&self) -> usize {
        self.shared.queue.urgent_len()
    }

    /// Returns the number of queued steps of background work.
    #[doc(hidden)]
    pub fn queued_background(&self) -> usize {
        self.shared.queue.background_len()
    }
}
