//! The goal types of owners, and the runs of a session that have goals or tasks.

use mainspring_core::{Run, SessionId};
use mainspring_kernel::store::GoalTypeRow;

use super::tables::Tables;

impl Tables {
    pub(super) fn goal_type_write(&mut self, row: &GoalTypeRow) -> bool {
        let key = (row.owner.clone(), row.goal_type.name.clone());
        let created_at = self.goal_types.get(&key).map(|known| known.created_at);
        let row = GoalTypeRow { created_at: created_at.unwrap_or(row.created_at), ..row.clone() };
        self.goal_types.insert(key, row);
        created_at.is_none()
    }

    pub(super) fn runs_planned(&self, session: SessionId, limit: usize) -> Vec<Run> {
        let is_planned =
            |run: &&Run| run.session == session && !(run.goals.is_empty() && run.tasks.is_empty());
        let mut runs: Vec<Run> = self.runs.values().filter(is_planned).cloned().collect();
        runs.sort_by_key(|run| run.no);
        runs.split_off(runs.len().saturating_sub(limit))
    }

    pub(super) fn goal_types(&self, owner: &str) -> Vec<GoalTypeRow> {
        self.goal_types.values().filter(|row| row.owner == owner).cloned().collect()
    }
}
