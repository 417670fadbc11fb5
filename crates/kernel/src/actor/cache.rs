//! Stored data that the actor remembers, so that it need not ask the store again.
//!
//! Only the actor changes these rows of its session. The cache stays correct because the actor applies each of its own
//! writes to it.

mod state_counts;
mod tree;
use state_counts::StateCounts;
use tree::TreeCache;
pub(super) use tree::{NotCached, PathChange};

/// The caches of an actor.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) tree: TreeCache,
    pub(super) state_counts: StateCounts,
}
