//! The writer's queue: lifecycle work first, streamed text when nothing else waits.
//!
//! Invariant: whatever was queued before the queue was closed is still handed out.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

/// Streamed text waits for at most this many groups of commits.
const PATIENCE: u32 = 20;

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
    /// Groups since lazy work was last handed out, counted while some waits.
    passed_over: u32,
    /// Tests hold the reader back to see what makes up a group.
    held: bool,
    closed: bool,
}

/// What the writer does next: the urgent part in one transaction, then the lazy part in another.
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
            passed_over: 0,
            held: false,
            closed: false,
        };
        Self { inner: Mutex::new(inner), filled: Condvar::new() }
    }
}

impl<U, L> Queue<U, L> {
    /// Queues urgent work; gives it back once the queue is closed.
    pub(super) fn push_urgent(&self, work: U) -> Result<(), U> {
        self.push(|inner| &mut inner.urgent, work)
    }

    /// Queues lazy work; gives it back once the queue is closed.
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

    /// Holds the reader back, or lets it go on.
    pub(super) fn hold(&self, held: bool) {
        self.inner.lock().held = held;
        self.filled.notify_one();
    }

    /// How much urgent work waits.
    pub(super) fn waiting(&self) -> usize {
        self.inner.lock().urgent.len()
    }

    /// Takes no more work.
    pub(super) fn close(&self) {
        self.inner.lock().closed = true;
        self.filled.notify_one();
    }

    /// Waits for work and takes all that may run now; none once the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Batch<U, L>> {
        let mut inner = self.inner.lock();
        while inner.held || (inner.urgent.is_empty() && inner.lazy.is_empty()) {
            if inner.closed && !inner.held {
                return None;
            }
            self.filled.wait(&mut inner);
        }
        let urgent = std::mem::take(&mut inner.urgent);
        inner.passed_over += 1;
        let lazy = if urgent.is_empty() || inner.passed_over >= PATIENCE || inner.lazy.is_empty() {
            inner.passed_over = 0;
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
    fn streamed_text_waits_for_commits_but_not_for_ever() {
        let queue = Queue::<u32, &str>::default();
        queue.push_lazy("text").unwrap();
        for group in 1..PATIENCE {
            queue.push_urgent(group).unwrap();
            assert!(queue.take().unwrap().lazy.is_empty(), "group {group}");
        }
        queue.push_urgent(PATIENCE).unwrap();
        assert_eq!(queue.take().unwrap().lazy, ["text"]);
    }

    #[test]
    fn streamed_text_runs_when_nothing_else_waits() {
        let queue = Queue::<u32, &str>::default();
        queue.push_lazy("text").unwrap();
        assert_eq!(queue.take().unwrap().lazy, ["text"]);
    }

    #[test]
    fn a_closed_queue_hands_out_what_it_holds() {
        let queue = Queue::<u32, &str>::default();
        queue.push_urgent(1).unwrap();
        queue.close();
        assert_eq!(queue.push_urgent(2), Err(2));
        assert_eq!(queue.take().unwrap().urgent, [1]);
        assert!(queue.take().is_none());
    }
}
