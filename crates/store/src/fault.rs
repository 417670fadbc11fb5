//! Disk faults that tests inject.

/// A fault of the next group of commits.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The group is rolled back, and each of its commits returns `Unavailable`.
    CommitFails,
    /// The group becomes durable, but each of its commits returns `Unavailable`.
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
