//! The processes that turns left running. They belong to an agent's tree and end with it at the latest.

use std::collections::HashMap;

use mainspring_core::AttemptId;
use mainspring_kernel::clock::Clock;
use parking_lot::Mutex;

use crate::process::{ProcessId, end_processes};

/// The processes by the attempt whose turn started them.
#[derive(Default)]
pub(super) struct LeftRunning(Mutex<HashMap<AttemptId, Vec<ProcessId>>>);

impl LeftRunning {
    pub(super) fn insert(&self, attempt: AttemptId, processes: Vec<ProcessId>) {
        let mut all = self.0.lock();
        all.retain(|_, processes| processes.iter().any(|process| process.is_alive()));
        all.insert(attempt, processes);
    }

    /// The processes of an attempt that still run.
    pub(super) fn list(&self, attempt: AttemptId) -> Vec<ProcessId> {
        let mut processes = self.0.lock().get(&attempt).cloned().unwrap_or_default();
        processes.retain(|process| process.is_alive());
        processes
    }

    /// Ends the processes of an attempt.
    pub(super) async fn end(&self, attempt: AttemptId, clock: &Clock) {
        end_processes(|| self.list(attempt), clock).await;
    }
}
