//! The settings of a store.

/// Settings of a [`SqliteStore`](super::SqliteStore).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqliteOptions {
    /// The guarantee if the machine loses power.
    pub durability: Durability,
    /// The number of reads that can run at the same time.
    pub readers: usize,
    /// The size of the largest database that is checked before it is used, if it was not closed normally. A larger one
    /// is checked in the background.
    pub check_at_open_bytes: u64,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { durability: Durability::Full, readers: 4, check_at_open_bytes: 4 << 20 }
    }
}

/// The guarantee if the machine loses power. A crash of the process loses no commit in either mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Every commit that has returned survives.
    #[default]
    Full,
    /// The store stays consistent, but the latest commits may be lost.
    Normal,
}
