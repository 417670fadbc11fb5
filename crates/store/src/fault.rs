//! Faults that tests inject: what a disk does on a bad day.

/// What goes wrong with the next group of commits.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The group does not become durable, and every commit of it is told `Unavailable`.
    CommitFails,
    /// The group becomes durable, and every commit of it is told `Unavailable` all the same.
    OutcomeUnknown,
    /// The file cannot grow while the group is written.
    DiskFull,
}

impl Fault {
    pub(crate) fn message(self) -> String {
        match self {
            Self::CommitFails => "injected: the commit failed".into(),
            Self::OutcomeUnknown => "injected: the outcome is not known".into(),
            Self::DiskFull => "injected: the disk is full".into(),
        }
    }
}
