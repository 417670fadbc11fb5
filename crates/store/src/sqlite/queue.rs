//! The writer's queue: lifecycle work first, streamed text when no such work is queued.
//!
//! Invariant: work queued before the queue was closed is still taken.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

/// The number of groups of commits that may run before waiting streamed text.
const MAX_GROUPS_BEFORE_LAZY: u32 = 20;

/// Two queues with one reader.
#[derive(Debug)]
pub(super) struct Queue<U, L> {
    inner: Mutex<Inner<U, L>>,
    filled: Condvar,
}

#[derive(Debug)]
struct Inner<U, L> {
    urgent: VecDeque<U>,
    lazy: VecDeque<L>,
    /// The number of groups since lazy work was last taken, counted while some is queued.
    groups_since_lazy: u32,
    /// Set by tests to control the contents of a group.
    paused: bool,
    closed: bool,
}

/// Work for the writer: the urgent part in one transaction, then the lazy part in another.
#[derive(Debug)]
pub(super) struct Batch<U, L> {
    pub(super) urgent: VecDeque<U>,
    pub(super) lazy: VecDeque<L>,
}

impl<U, L> Default for Queue<U, L> {
    fn default() -> Self {
        let inner = Inner {
            urgent: VecDeque::new(),
            lazy: VecDeque::new(),
            groups_since_lazy: 0,
            paused: false,
            closed: false,
        };
        Self { inner: Mutex::new(inner), filled: Condvar::new() }
    }
}

impl<U, L> Queue<U, L> {
    /// Queues urgent work. Returns it if the queue is closed.
    pub(super) fn push_urgent(&self, work: U) -> Result<(), U> {
        self.push(|inner| &mut inner.urgent, work)
    }

    /// Queues lazy work. Returns it if the queue is closed.
    pub(super) fn push_lazy(&self, work: L) -> Result<(), L> {
        self.push(|inner| &mut inner.lazy, work)
    }

    fn push<W>(&self, queue: impl FnOnce(&mut Inner<U, L>) -> &mut VecDeque<W>, work: W) -> Result<(), W> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(work);
        }
        queue(&mut inner).push_back(work);
        drop(inner);
        self.filled.notify_one();
        Ok(())
    }

    /// Pauses or resumes [`Self::take`].
    pub(super) fn set_paused(&self, paused: bool) {
        self.inner.lock().paused = paused;
        self.filled.notify_one();
    }

    /// Returns the amount of queued urgent work.
    pub(super) fn urgent_len(&self) -> usize {
        self.inner.lock().urgent.len()
    }

    /// Refuses new work from now on.
    pub(super) fn close(&self) {
        self.inner.lock().closed = true;
        self.filled.notify_one();
    }

    /// Waits for work and takes all that may run now. Returns `None` when the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Batch<U, L>> {
        let mut inner = self.inner.lock();
        while inner.paused || (inner.urgent.is_empty() && inner.lazy.is_empty()) {
            if inner.closed && !inner.paused {
                return None;
            }
            self.filled.wait(&mut inner);
        }
        let urgent = std::mem::take(&mut inner.urgent);
        inner.groups_since_lazy += 1;
        let lazy = if urgent.is_empty()
            || inner.groups_since_lazy >= MAX_GROUPS_BEFORE_LAZY
            || inner.lazy.is_empty()
        {
            inner.groups_since_lazy = 0;
            std::mem::take(&mut inner.lazy)
        } else {
            VecDeque::new()
        };
        Some(Batch { urgent, lazy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_text_waits_for_a_limited_number_of_groups() {
        let queue = Queue::<u32, &str>::default();
        queue.push_lazy("text").unwrap();
        for group in 1..MAX_GROUPS_BEFORE_LAZY {
            queue.push_urgent(group).unwrap();
            assert!(queue.take().unwrap().lazy.is_empty(), "group {group}");
        }
        queue.push_urgent(MAX_GROUPS_BEFORE_LAZY).unwrap();
        assert_eq!(queue.take().unwrap().lazy, ["text"]);
    }

    #[test]
    fn streamed_text_is_taken_when_nothing_else_is_queued() {
        let queue = Queue::<u32, &str>::default();
        queue.push_lazy("text").unwrap();
        assert_eq!(queue.take().unwrap().lazy, ["text"]);
    }

    #[test]
    fn work_in_a_closed_queue_is_still_taken() {
        let queue = Queue::<u32, &str>::default();
        queue.push_urgent(1).unwrap();
        queue.close();
        assert_eq!(queue.push_urgent(2), Err(2));
        assert_eq!(queue.take().unwrap().urgent, [1]);
        assert!(queue.take().is_none());
    }
}
