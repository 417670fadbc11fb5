//! Goal types as the store reads and writes them.

use mainspring_core::{GoalType, Time};

/// A goal type of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoalTypeRow {
    /// The owner.
    pub owner: String,
    /// The type.
    pub goal_type: GoalType,
    /// When the owner first made a type of this name.
    pub created_at: Time,
    /// When the owner last changed it.
    pub updated_at: Time,
}
