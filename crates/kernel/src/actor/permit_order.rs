//! The order of a permit from the scheduler.
//!
//! Invariant: at most one permit is on order. If its work cannot be started, the next order waits, longer each time.

use mainspring_core::Time;

use super::patience::{INITIAL_BACKOFF_MS, MAX_BACKOFF_MS};

/// The order of a permit from the scheduler.
#[derive(Default)]
pub(super) struct PermitOrder {
    /// True while a permit is ordered and has not arrived.
    is_open: bool,
    /// No permit is ordered before this time, because the last one could not be used; and the length of that pause.
    backoff: Option<(Time, u64)>,
}

impl PermitOrder {
    /// True while a permit is ordered and has not arrived.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    /// Records that the ordered permit has arrived.
    pub(super) fn granted(&mut self) {
        self.is_open = false;
    }

    /// The earliest time to order a permit for work that is due at `at`.
    pub(super) fn not_before(&self, at: Time) -> Time {
        self.backoff.map_or(at, |(until, _)| at.max(until))
    }

    /// Records that the work of a permit has started.
    pub(super) fn succeeded(&mut self) {
        self.backoff = None;
    }

    /// Records that the work of a permit could not be started: the next order waits, longer each time.
    pub(super) fn failed(&mut self, now: Time) {
        let pause = self.backoff.map_or(INITIAL_BACKOFF_MS, |(_, pause)| (pause * 2).min(MAX_BACKOFF_MS));
        self.backoff = Some((now.plus(pause), pause));
    }
}
