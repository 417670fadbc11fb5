//! The writer's queue: lifecycle work first, then streamed text, and background work in the pauses.
//!
//! Invariant: waiting text and background work get their turn after a limited number of groups of lifecycle work.
//! Invariant: work queued before the queue was closed is still taken.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The number of groups of commits that may run before waiting streamed text.
const MAX_GROUPS_BEFORE_LAZY: u32 = 20;
/// The number of groups of commits that may run before a waiting step of background work.
const MAX_GROUPS_BEFORE_BACKGROUND: u32 = 3;

/// Three queues with one reader.
#[derive(Debug)]
pub(super) struct Queue<U, L, B> {
    inner: Mutex<Inner<U, L, B>>,
    filled: Condvar,
}

#[derive(Debug)]
struct Inner<U, L, B> {
    urgent: VecDeque<U>,
    lazy: VecDeque<L>,
    background: VecDeque<B>,
    /// The number of groups since lazy work was last taken, counted while some is queued.
    groups_since_lazy: u32,
    /// The number of groups since the last step of background work.
    groups_since_background: u32,
    /// Set by tests to control the contents of a group.
    paused: bool,
    closed: bool,
}

/// Work for the writer: the urgent part in one transaction, then the lazy part in another, then the background work.
#[derive(Debug)]
pub(super) struct Batch<U, L, B> {
    pub(super) urgent: VecDeque<U>,
    pub(super) lazy: VecDeque<L>,
    pub(super) background: Option<Background<B>>,
}

/// A step of background work.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Background<B> {
    pub(super) work: B,
    /// True if the work should stop early when urgent work arrives; false if it has waited for long enough.
    pub(super) yields: bool,
}

impl<U, L, B> Default for Queue<U, L, B> {
    fn default() -> Self {
        let inner = Inner {
            urgent: VecDeque::new(),
            lazy: VecDeque::new(),
            background: VecDeque::new(),
            groups_since_lazy: 0,
            groups_since_background: 0,
            paused: false,
            closed: false,
        };
        Self { inner: Mutex::new(inner), filled: Condvar::new() }
    }
}

impl<U, L, B> Queue<U, L, B> {
    /// Queues urgent work. Returns it if the queue is closed.
    pub(super) fn push_urgent(&self, work: U) -> Result<(), U> {
        self.push(|inner| &mut inner.urgent, work)
    }

    /// Queues lazy work. Returns it if the queue is closed.
    pub(super) fn push_lazy(&self, work: L) -> Result<(), L> {
        self.push(|inner| &mut inner.lazy, work)
    }

    /// Queues background work. Returns it if the queue is closed.
    pub(super) fn push_background(&self, work: B) -> Result<(), B> {
        self.push(|inner| &mut inner.background, work)
    }

    /// Puts background work back that has stopped early, before all other background work.
    pub(super) fn resume_background(&self, work: B) {
        self.inner.lock().background.push_front(work);
    }

    fn push<W>(&self, queue: impl FnOnce(&mut Inner<U, L, B>) -> &mut VecDeque<W>, work: W) -> Result<(), W> {
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

    /// Returns the amount of queued background work.
    pub(super) fn background_len(&self) -> usize {
        self.inner.lock().background.len()
    }

    /// Refuses new work from now on.
    pub(super) fn close(&self) {
        self.inner.lock().closed = true;
        self.filled.notify_one();
    }

    /// Waits until there is work or the queue is closed. Returns false if neither happens within `timeout`.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let mut inner = self.inner.lock();
        let is_idle = |inner: &mut Inner<U, L, B>| inner.is_empty() && !inner.closed;
        !self.filled.wait_while_for(&mut inner, is_idle, timeout).timed_out()
    }

    /// Waits for work and takes all that may run now. Returns `None` when the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Batch<U, L, B>> {
        let mut inner = self.inner.lock();
        while inner.paused || inner.is_empty() {
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
        let background = inner.take_background(urgent.is_empty() && lazy.is_empty());
        Some(Batch { urgent, lazy, background })
    }
}

impl<U, L, B> Inner<U, L, B> {
    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.lazy.is_empty() && self.background.is_empty()
    }

    /// Takes a step of background work if the queue `is_idle` otherwise, or if the work has waited for long enough.
    fn take_background(&mut self, is_idle: bool) -> Option<Background<B>> {
        if self.background.is_empty() {
            self.groups_since_background = 0;
            return None;
        }
        self.groups_since_background += 1;
        let has_waited = self.groups_since_background > MAX_GROUPS_BEFORE_BACKGROUND;
        if !is_idle && !has_waited {
            return None;
        }
        self.groups_since_background = 0;
        self.background.pop_front().map(|work| Background { work, yields: !has_waited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_text_waits_for_a_limited_number_of_groups() {
        let queue = Queue::<u32, &str, char>::default();
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
        let queue = Queue::<u32, &str, char>::default();
        queue.push_lazy("text").unwrap();
        assert_eq!(queue.take().unwrap().lazy, ["text"]);
    }

    #[test]
    fn work_in_a_closed_queue_is_still_taken() {
        let queue = Queue::<u32, &str, char>::default();
        queue.push_urgent(1).unwrap();
        queue.close();
        assert_eq!(queue.push_urgent(2), Err(2));
        assert_eq!(queue.take().unwrap().urgent, [1]);
        assert!(queue.take().is_none());
    }

    #[test]
    fn waiting_ends_when_work_arrives_at_the_close_and_at_the_timeout() {
        let queue = Queue::<u32, &str, char>::default();
        assert!(!queue.wait(Duration::ZERO));
        queue.push_lazy("text").unwrap();
        assert!(queue.wait(Duration::MAX));
        queue.take().unwrap();
        queue.close();
        assert!(queue.wait(Duration::MAX));
    }

    #[test]
    fn background_work_waits_for_a_limited_number_of_groups() {
        let queue = Queue::<u32, &str, char>::default();
        queue.push_background('a').unwrap();
        queue.push_background('b').unwrap();
        for group in 0..MAX_GROUPS_BEFORE_BACKGROUND {
            queue.push_urgent(group).unwrap();
            assert_eq!(queue.take().unwrap().background, None, "group {group}");
        }
        queue.push_urgent(9).unwrap();
        let batch = queue.take().unwrap();
        assert_eq!(
            (batch.urgent.len(), batch.background),
            (1, Some(Background { work: 'a', yields: false }))
        );
        queue.push_urgent(10).unwrap();
        assert_eq!(queue.take().unwrap().background, None, "the next step waits again");
        assert_eq!(queue.take().unwrap().background, Some(Background { work: 'b', yields: true }));
    }

    #[test]
    fn background_work_that_stopped_early_continues_before_other_background_work() {
        let queue = Queue::<u32, &str, char>::default();
        queue.push_background('a').unwrap();
        queue.push_background('b').unwrap();
        let stopped = queue.take().unwrap().background.unwrap();
        queue.resume_background(stopped.work);
        queue.push_lazy("text").unwrap();
        assert_eq!(queue.take().unwrap().lazy, ["text"]);
        assert_eq!(queue.take().unwrap().background, Some(Background { work: 'a', yields: true }));
    }
}
