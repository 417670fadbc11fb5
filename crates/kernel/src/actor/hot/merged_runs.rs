//! Runs whose prompts have joined the active run. They follow that run until it ends.

use mainspring_core::Run;

/// Merged runs that have not ended, in the order in which they joined.
#[derive(Debug, Clone, Default)]
pub(crate) struct MergedRuns(Vec<Run>);

impl MergedRuns {
    /// Restores runs that were merged earlier. They may have ended: a retry of the run that they joined reopens them.
    pub(crate) fn restore(runs: Vec<Run>) -> Self {
        Self(runs)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.0.iter()
    }

    /// Takes all runs; those that have not ended are put back.
    pub(crate) fn take(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.0)
    }

    /// Adds a run, unless it has ended.
    pub(crate) fn put(&mut self, run: Run) {
        if !run.state.status().is_ended() {
            self.0.push(run);
        }
    }
}
