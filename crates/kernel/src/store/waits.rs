//! Waits that kernels that share a store announce to each other.

use mainspring_core::{SessionId, WaitId};

/// A session that is going to wait for another one. Announced before the deadlock check, and withdrawn once the wait is
/// committed or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncedWait {
    /// The id of the announcement.
    pub id: WaitId,
    /// The session that waits.
    pub waiting: SessionId,
    /// The session that it waits for.
    pub awaited: SessionId,
}
