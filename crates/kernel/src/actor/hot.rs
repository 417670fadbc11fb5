//! The part of a session's state that drafts copy and change. Each field has an owner: its private fields change only in
//! its methods.

use mainspring_core::Run;

use super::binding::LatestBinding;
use super::delegations::Delegations;
use crate::store::Loaded;

mod merged_runs;
mod next_answer;
mod open_calls;
mod open_path;
mod session_record;
mod stored_steps;
pub(super) use merged_runs::MergedRuns;
use next_answer::NextAnswer;
use open_calls::OpenCalls;
use open_path::OpenPath;
use session_record::SessionRecord;
use stored_steps::StoredSteps;

/// The state that a commit replaces as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Hot {
    pub(super) session: SessionRecord,
    pub(super) path: OpenPath,
    pub(super) calls: OpenCalls,
    pub(super) answer: NextAnswer,
    pub(super) steps: StoredSteps,
    pub(super) binding: LatestBinding,
    pub(super) merged: MergedRuns,
    pub(super) delegations: Delegations,
}

impl Hot {
    /// Restores the state of a loaded session; `stored` is false before the session's first commit.
    pub(super) fn restore(loaded: Loaded, stored: bool) -> Self {
        let runs = || loaded.runs.iter().map(|(run, _)| run);
        let merged = runs().filter(|run| run.merged_into.is_some()).cloned().collect();
        let has_started = |run: &Run| run.pen.is_some();
        Self {
            // The steps of an earlier process are not read: their private data is erased when the run ends.
            steps: StoredSteps::restore(runs().any(has_started)),
            path: OpenPath::default(),
            calls: OpenCalls::restore(loaded.open_tool_calls),
            answer: NextAnswer::default(),
            binding: LatestBinding::default(),
            merged: MergedRuns::restore(merged),
            delegations: Delegations::restore(loaded.delegations, loaded.session.id),
            session: SessionRecord::restore(loaded.session, &loaded.lines, stored),
        }
    }
}
