//! Faults that tests inject.

/// A fault that tests inject into the next group of commits, or into the next load.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The group is rolled back, and each of its commits returns `Unavailable`.
    CommitFails,
    /// The group becomes durable, but each of its commits returns `Unavailable`.
    OutcomeUnknown,
    /// The file cannot grow while the group is written.
    DiskFull,
    /// The next commit panics in the task that makes it, before it is written.
    CommitPanics,
    /// The first commit of the group panics while it is written.
    WritePanics,
    /// The next load of a session panics in the task that loads it.
    LoadPanics,
}

impl Fault {
    /// Panics if `injected` holds this fault, and removes it.
    #[track_caller]
    pub fn panic_if_in(self, injected: &mut Option<Self>) {
        if injected.take_if(|fault| *fault == self).is_some() {
            panic!("{}", self.message());
        }
    }

    /// Describes the fault, as the error or the panic that it causes.
    pub fn message(self) -> String {
        match self {
            Self::CommitFails => "injected: the commit failed".into(),
            Self::OutcomeUnknown => "injected: the outcome is not known".into(),
            Self::DiskFull => "injected: the disk is full".into(),
            Self::CommitPanics => "injected: the commit panics".into(),
            Self::WritePanics => "injected: the write panics".into(),
            Self::LoadPanics => "injected: the load panics".into(),
        }
    }
}
