//! The goal types of owners.

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

    pub(super) fn goal_types(&self, owner: &str) -> Vec<GoalTypeRow> {
        self.goal_types.values().filter(|row| row.owner == owner).cloned().collect()
    }
}
