//! The progress of stopping the active run.
//!
//! ```text
//! running ──dispatch──▶ dispatching ──dispatched──▶ grace period ──kill──▶ killing ──take_outcome──▶ ended
//! ```
//!
//! An attempt that reaches a limit, or whose question has expired, is killed without a dispatch.

use mainspring_core::run::Outcome;

use super::Reply;
use crate::clock::Moment;
use crate::error::Error;
use crate::kernel::CancelOutcome;

/// The progress of stopping the active run.
#[derive(Default)]
pub(super) struct Stop {
    /// Callers that wait until the cancellation is dispatched.
    replies: Vec<Reply<CancelOutcome>>,
    /// True while the adapter is asked to stop and its answer is not recorded.
    dispatching: bool,
    /// When the attempt is killed unless it has stopped by then.
    kill_at: Option<Moment>,
    /// The outcome of the attempt once nothing acts for it; set when its execution is given up.
    killing: Option<Outcome>,
}

impl Stop {
    /// True once the execution is given up.
    pub(super) fn is_killing(&self) -> bool {
        self.killing.is_some()
    }

    pub(super) fn is_dispatching(&self) -> bool {
        self.dispatching
    }

    /// Begins to ask the adapter to stop.
    pub(super) fn dispatch(&mut self, kill_at: Moment) {
        self.dispatching = true;
        self.kill_at = Some(kill_at);
    }

    /// Adds a caller that waits until the cancellation is dispatched.
    pub(super) fn add_waiting(&mut self, reply: Reply<CancelOutcome>) {
        self.replies.push(reply);
    }

    /// Records that the adapter was asked to stop, and answers every caller that waits for that.
    pub(super) fn dispatched(&mut self, outcome: &CancelOutcome) {
        self.dispatching = false;
        self.answer(outcome);
    }

    /// When the attempt is killed unless it has stopped by then.
    pub(super) fn kill_at(&self) -> Option<Moment> {
        self.kill_at
    }

    /// Ends the grace period at `stop_by` if it would last longer.
    pub(super) fn hurry(&mut self, stop_by: Moment) {
        self.kill_at = self.kill_at.map(|kill_at| kill_at.min(stop_by));
    }

    /// Gives the execution up; the attempt is to end as `outcome`.
    pub(super) fn kill(&mut self, outcome: Outcome) {
        self.kill_at = None;
        self.killing = Some(outcome);
    }

    /// Takes the outcome of an attempt that was given up: nothing acts for it any more.
    pub(super) fn take_outcome(&mut self) -> Option<Outcome> {
        self.killing.take()
    }

    /// Answers every caller that waits for the dispatch.
    pub(super) fn answer(&mut self, outcome: &CancelOutcome) {
        for reply in self.replies.drain(..) {
            let _ = reply.send(Ok(outcome.clone()));
        }
    }

    /// Refuses every caller that waits for the dispatch.
    pub(super) fn refuse(&mut self, error: &Error) {
        for reply in self.replies.drain(..) {
            let _ = reply.send(Err(error.clone()));
        }
    }
}
