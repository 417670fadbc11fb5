//! Goals and tasks of a run: declared when the run is accepted, changed by records of its attempts.

use mainspring_core::{Body, PlannedTask, goal, task};

use super::draft::QueuedDraft;
use super::{Actor, AttemptDraft};
use crate::error::Error;

impl Actor {
    /// Declares the goals of the draft's run, which was just accepted.
    pub(super) fn declare_goals(&self, draft: &mut QueuedDraft) {
        for declared in draft.subject.run.options.goals.clone() {
            let goal_id = self.shared.ids.goal();
            let (goal_type, data) = (declared.goal_type, declared.data);
            draft.emit(Body::GoalDeclared { goal_id, goal_type, data });
        }
    }
}

impl AttemptDraft {
    /// Applies a command to the run's goals.
    pub(in crate::actor) fn goal_command(&mut self, command: goal::Command) -> Result<(), Error> {
        for body in goal::decide(&self.subject.run.goals, command)? {
            self.emit(body);
        }
        Ok(())
    }

    /// Replaces the plan of the agent, which it made in the run's last message.
    pub(in crate::actor) fn tasks_plan(&mut self, planned: Vec<PlannedTask>) {
        let run = &self.subject.run;
        if let Some(body) = task::plan(&run.tasks, planned, run.final_message) {
            self.emit(body);
        }
    }
}
