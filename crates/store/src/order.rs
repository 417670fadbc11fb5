//! The order in which the rows of a commit are written. A commit may hold rows of different kinds in any order. Rows that
//! end something are written before rows that begin something, and rows before those that refer to them, so that no
//! constraint fails on an intermediate state.

use mainspring_core::{BindingStatus, RunStatus, SessionStatus};
use mainspring_kernel::store::Row;

/// The rank of rows that no other row refers to.
pub(crate) const OTHERS: u8 = 13;

/// The rank of a row. The sort by it is stable: lines stay in the order of their creation.
pub(crate) fn rank(row: &Row) -> u8 {
    match row {
        // First, so that a repeated request is reported as a repetition before any other conflict.
        Row::NewId(_) | Row::Request(_) => 0,
        Row::Session(session) => 1 + u8::from(session.status != SessionStatus::Deleted),
        Row::Line(_) => 3,
        Row::Message(..) => 5,
        Row::MessagePlace(..) => 6,
        Row::Run(run) => 7 + u8::from(is_active(run.state.status())),
        Row::Attempt(attempt) => 9 + u8::from(!attempt.status.is_ended()),
        Row::Binding(binding) => 11 + u8::from(binding.status == BindingStatus::Active),
        // Last, because it also erases data that the same commit wrote.
        Row::StepsSeal(_) => u8::MAX,
        _ => OTHERS,
    }
}

/// Returns true if `later` replaces `row`: both have the same id.
pub(crate) fn replaces(later: &Row, row: &Row) -> bool {
    match (later, row) {
        (Row::Session(a), Row::Session(b)) => a.id == b.id,
        (Row::Run(a), Row::Run(b)) => a.id == b.id,
        (Row::Attempt(a), Row::Attempt(b)) => a.id == b.id,
        (Row::Line(a), Row::Line(b)) => a.id == b.id,
        (Row::Message(a, _), Row::Message(b, _)) => a.id == b.id,
        (Row::Binding(a), Row::Binding(b)) => a.id == b.id,
        (Row::Delegation(a), Row::Delegation(b)) => a.id == b.id,
        _ => false,
    }
}

fn is_active(status: RunStatus) -> bool {
    status != RunStatus::Queued && !status.is_ended()
}
