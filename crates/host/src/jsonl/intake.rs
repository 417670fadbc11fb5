//! Intake: accepts queries in the order of their lines, across all sessions, so that their runs start in this order.
//! Once the intake is closed, no more queries are accepted.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The queue of lines that wait to be handled.
#[derive(Default)]
pub(super) struct Intake {
    /// Completes when the last turn in the queue is dropped.
    last: Mutex<Option<oneshot::Receiver<()>>>,
    closed: AtomicBool,
}

/// A turn in the queue; dropping it lets the next one proceed.
pub(super) struct Turn {
    before: Option<oneshot::Receiver<()>>,
    _done: oneshot::Sender<()>,
}

impl Intake {
    /// Joins the end of the queue.
    pub(super) fn enter(&self) -> Turn {
        let (done, after) = oneshot::channel();
        let before = self.last.lock().replace(after);
        Turn { before, _done: done }
    }

    /// Closes the intake: the holder of a turn that begins later must refuse its query. Lines may still enter.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Turn {
    /// Waits until all earlier turns are dropped.
    pub(super) async fn wait(&mut self) {
        if let Some(before) = self.before.take() {
            let _ = before.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn turns_proceed_in_the_order_of_entry() {
        let intake = Intake::default();
        let (mut first, mut second, mut third) = (intake.enter(), intake.enter(), intake.enter());
        assert!(first.wait().now_or_never().is_some());
        let mut waits = Box::pin(second.wait());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(first);
        waits.await;
        drop(second);
        third.wait().await;
        drop(third);
        intake.enter().wait().await;
    }
}
