//! Tasks: the only place that spawns, so that shutdown waits for every task.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns tasks and waits for them.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Spawns `future` as a tracked task.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(future)
    }

    /// Resolves once [`Tasks::stop`] was called.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// True once [`Tasks::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Asks every task to stop.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until every task has ended.
    pub async fn wait(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
