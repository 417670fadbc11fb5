//! The state that an actor has last reported about its session, so that it reports only changes.

use crate::board::LiveStatus;
use crate::kernel::Work;

/// The session's work, its entry on the board, and its failure.
pub(super) struct Reported {
    work: Work,
    /// Status and title on the board.
    board: Option<(LiveStatus, Option<String>)>,
    /// True if the session has failed, and has not worked since.
    has_failed: bool,
}

impl Reported {
    /// Starts with nothing reported. `has_failed` is true if an earlier actor of the session has failed.
    pub(super) fn restore(has_failed: bool) -> Self {
        Self { work: Work::default(), board: None, has_failed }
    }

    pub(super) fn work(&self) -> Work {
        self.work
    }

    /// Replaces the reported work. Returns the work that was reported before.
    pub(super) fn set_work(&mut self, work: Work) -> Work {
        std::mem::replace(&mut self.work, work)
    }

    /// True if the board has this status and title of the session.
    pub(super) fn is_on_board(&self, status: LiveStatus, title: Option<&String>) -> bool {
        self.board.as_ref().is_some_and(|(known, named)| *known == status && named.as_ref() == title)
    }

    pub(super) fn set_board(&mut self, status: LiveStatus, title: Option<String>) {
        self.board = Some((status, title));
    }

    /// True if the session has failed, and has not worked since.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    pub(super) fn clear_failure(&mut self) {
        self.has_failed = false;
    }
}
