//! The processes that turns left running, and the processes that these start later. They belong to an agent's tree and end
//! with it at the latest.
//!
//! A process whose parent has ended is a child of the guard. It belongs to the last turn of its agent that left processes,
//! if it was started after that turn began and before the next one.

use std::collections::{HashMap, HashSet};

use mainspring_core::AttemptId;
use mainspring_kernel::clock::Clock;
use parking_lot::Mutex;
use rustix::process::Signal;

use crate::process::{Process, ProcessId, Reading, Snapshot, Tree, end_processes};

/// The maximum number of times that the processes of an attempt are suspended before they are killed.
const MAX_STOPS: u32 = 20;

/// The processes by the attempt whose turn started them.
#[derive(Default)]
pub(super) struct LeftRunning(Mutex<HashMap<AttemptId, Left>>);

/// The processes of one attempt.
struct Left {
    tree: Tree,
    /// The processes of the tree when the turn began.
    before: Snapshot,
    known: HashSet<ProcessId>,
    /// True until the agent begins another turn.
    is_last: bool,
}

impl Left {
    /// Reads the processes with their descendants, and remembers the descendants: they remain when their parents end.
    fn read(&mut self) -> Reading {
        if self.is_last {
            self.known.extend(self.tree.orphans_since(&self.before));
        }
        self.known.retain(|process| process.is_alive());
        let mut reading = Reading::below(self.known.iter().copied());
        self.known.extend(reading.living());
        self.known.iter().for_each(|process| reading.insert(*process));
        reading
    }

    fn is_over(&self) -> bool {
        !self.tree.is_alive() || (!self.is_last && !self.known.iter().any(|process| process.is_alive()))
    }
}

impl LeftRunning {
    /// Records that an agent begins another turn: processes that are started from now on belong to that turn.
    pub(super) fn begin_turn(&self, agent: &Process) {
        let mut all = self.0.lock();
        for left in all.values_mut().filter(|left| left.is_last && left.tree == agent.tree()) {
            left.read();
            left.is_last = false;
        }
        all.retain(|_, left| !left.is_over());
    }

    /// Records the processes that a turn of the agent has left.
    pub(super) fn insert(
        &self,
        attempt: AttemptId,
        agent: &Process,
        before: Snapshot,
        processes: Vec<ProcessId>,
    ) {
        let known = processes.into_iter().collect();
        let left = Left { tree: agent.tree(), before, known, is_last: true };
        self.0.lock().insert(attempt, left);
    }

    /// The processes of an attempt that still run, with their descendants.
    pub(super) fn list(&self, attempt: AttemptId) -> Vec<ProcessId> {
        self.read(attempt).living().collect()
    }

    /// Ends the processes of an attempt and their descendants.
    pub(super) async fn end(&self, attempt: AttemptId, clock: &Clock) {
        end_processes(|| self.stop(attempt), clock).await;
    }

    fn read(&self, attempt: AttemptId) -> Reading {
        self.0.lock().get_mut(&attempt).map(Left::read).unwrap_or_default()
    }

    /// Suspends the processes of an attempt with SIGSTOP until none of them can start another one.
    fn stop(&self, attempt: AttemptId) -> Reading {
        let mut stopped = HashSet::new();
        let mut reading = self.read(attempt);
        for _ in 0..MAX_STOPS {
            let started: Vec<_> = reading.living().filter(|process| stopped.insert(*process)).collect();
            if started.is_empty() {
                break;
            }
            started.into_iter().for_each(|process| process.signal(Signal::STOP));
            reading = self.read(attempt);
        }
        reading
    }
}
