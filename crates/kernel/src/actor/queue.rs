//! The queue of a session: runs without a live attempt, in the order in which they start.

use std::collections::VecDeque;

use mainspring_core::{Policy, Run, RunId, RunState, Time};

/// The runs that wait for their turn.
#[derive(Default)]
pub(super) struct Queue {
    /// Runs that have begun come first, then runs that steer, then the others.
    runs: VecDeque<Run>,
    /// The number of the run that is accepted next.
    next_no: u32,
}

impl Queue {
    /// Restores the queue of a session whose newest run has the number `latest_no`.
    pub(super) fn restore(mut runs: Vec<Run>, latest_no: u32) -> Self {
        runs.sort_by_key(|run| (run.attempts == 0, !run.steers));
        Self { runs: runs.into(), next_no: latest_no + 1 }
    }

    pub(super) fn next_no(&self) -> u32 {
        self.next_no
    }

    /// Counts a run that was accepted.
    pub(super) fn accepted(&mut self, no: u32) {
        self.next_no = no + 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter()
    }

    /// The run that starts next.
    pub(super) fn first(&self) -> Option<&Run> {
        self.runs.front()
    }

    pub(super) fn get(&self, run: RunId) -> Option<&Run> {
        self.runs.iter().find(|queued| queued.id == run)
    }

    /// Puts a run in front of all others: it is retried.
    pub(super) fn push_first(&mut self, run: Run) {
        self.runs.push_front(run);
    }

    /// Adds a new run. A run that steers comes before runs that do not, after runs that have begun.
    pub(super) fn push(&mut self, run: Run, policy: Policy) {
        let at = match policy {
            Policy::Steer => self.runs.iter().take_while(|run| run.steers || run.attempts > 0).count(),
            _ => self.runs.len(),
        };
        self.runs.insert(at, run);
    }

    /// Replaces a queued run by its new version.
    pub(super) fn update(&mut self, run: Run) {
        if let Some(queued) = self.runs.iter_mut().find(|queued| queued.id == run.id) {
            *queued = run;
        }
    }

    pub(super) fn remove(&mut self, run: RunId) {
        self.runs.retain(|queued| queued.id != run);
    }

    /// The runs whose prompts wait to join the active run.
    pub(super) fn steering(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.steers && run.attempts == 0)
    }

    /// The runs that a new prompt with `policy` replaces. `replace` keeps runs that have begun and pause before a retry;
    /// `interrupt` replaces these too.
    pub(super) fn superseded_by(&self, policy: Policy) -> Vec<RunId> {
        let superseded = |run: &&Run| match policy {
            Policy::Replace => run.attempts == 0,
            Policy::Interrupt => true,
            Policy::Enqueue | Policy::Steer | Policy::Reject => false,
        };
        self.runs.iter().filter(superseded).map(|run| run.id).collect()
    }

    /// The run that starts next, and the earliest time for it.
    pub(super) fn next_start(&self) -> Option<(&Run, Time)> {
        let run = self.runs.front()?;
        match run.state {
            RunState::Queued { retry_at, .. } => Some((run, retry_at.unwrap_or(Time(0)))),
            _ => None,
        }
    }
}
