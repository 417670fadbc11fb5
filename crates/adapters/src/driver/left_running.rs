//! The processes that turns left running, and those that they start later. They belong to an agent's tree and end with it
//! at the latest.

use std::collections::{HashMap, HashSet};

use mainspring_core::AttemptId;
use mainspring_kernel::clock::Clock;
use parking_lot::Mutex;
use rustix::process::Signal;

use crate::process::{ProcessId, Reading, end_processes};

/// The processes by the attempt whose turn started them.
#[derive(Default)]
pub(super) struct LeftRunning(Mutex<HashMap<AttemptId, HashSet<ProcessId>>>);

impl LeftRunning {
    pub(super) fn insert(&self, attempt: AttemptId, processes: Vec<ProcessId>) {
        let mut all = self.0.lock();
        all.retain(|_, processes| processes.iter().any(|process| process.is_alive()));
        all.insert(attempt, processes.into_iter().collect());
    }

    /// The processes of an attempt that still run, with their descendants.
    pub(super) fn list(&self, attempt: AttemptId) -> Vec<ProcessId> {
        self.read(attempt).living().collect()
    }

    /// Ends the processes of an attempt and their descendants.
    pub(super) async fn end(&self, attempt: AttemptId, clock: &Clock) {
        end_processes(|| self.stop(attempt), clock).await;
    }

    /// Reads the processes of an attempt, and remembers their descendants: those stay when their parents end.
    fn read(&self, attempt: AttemptId) -> Reading {
        let mut all = self.0.lock();
        let Some(known) = all.get_mut(&attempt) else { return Reading::default() };
        known.retain(|process| process.is_alive());
        let mut reading = Reading::below(known.iter().copied());
        known.extend(reading.living());
        known.iter().for_each(|process| reading.insert(*process));
        reading
    }

    /// Stops the processes of an attempt until none of them can start another one.
    fn stop(&self, attempt: AttemptId) -> Reading {
        let mut stopped = HashSet::new();
        loop {
            let reading = self.read(attempt);
            let started: Vec<_> = reading.living().filter(|process| stopped.insert(*process)).collect();
            if started.is_empty() {
                return reading;
            }
            started.into_iter().for_each(|process| process.signal(Signal::STOP));
        }
    }
}
