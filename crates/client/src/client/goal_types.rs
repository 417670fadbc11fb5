//! Goal types.

use mainspring_api::{GoalTypeRecord, Page};
use mainspring_core::GoalType;

use super::Client;
use crate::Error;

impl Client {
    /// Lists the goal types by name: the caller's own and the shared ones.
    pub async fn goal_type_list(&self) -> Result<Page<GoalTypeRecord>, Error> {
        self.get(&["v1", "goal-types"], &()).await
    }

    /// Reads one goal type.
    pub async fn goal_type_get(&self, name: &str) -> Result<GoalTypeRecord, Error> {
        self.get(&["v1", "goal-types", name], &()).await
    }

    /// Creates a goal type, or replaces the caller's type of that name.
    pub async fn goal_type_create(&self, goal_type: &GoalType) -> Result<GoalTypeRecord, Error> {
        self.post(&["v1", "goal-types"], goal_type).await
    }
}
