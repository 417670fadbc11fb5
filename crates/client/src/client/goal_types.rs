//! Goal types, and the goals of sessions.

use mainspring_api::{GoalTypeRecord, GoalsQuery, GoalsSnapshot, Page};
use mainspring_core::GoalType;

use super::Client;
use crate::Error;

impl Client {
    /// Lists the goal types by name: the caller's own and the shared ones.
    pub async fn goal_type_list(&self) -> Result<Page<GoalTypeRecord>, Error> {
        self.get(&["v1", "goal-types"], &()).await
    }

    /// Reads the goals and tasks of a session. `after` is the `cursor` of an earlier snapshot: parts that have not changed
    /// since are `None`.
    pub async fn session_goals(&self, session: &str, after: Option<u64>) -> Result<GoalsSnapshot, Error> {
        self.get(&["v1", "sessions", session, "goals"], &GoalsQuery { after }).await
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
