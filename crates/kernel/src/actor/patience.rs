//! Waiting for a store that cannot be written, without blocking the session.
//!
//! Some changes have no caller that would repeat them: an attempt has ended, a question has lapsed. The actor
//! retries them until they are recorded. Meanwhile it answers the commands that only read, refuses the others
//! with the error of the store, and keeps the reports of attempts for later.

use std::ops::ControlFlow;

use mainspring_core::Session;

use super::{Actor, Command, Input, Signal};
use crate::clock::Moment;
use crate::error::Error;

/// The delay before the first retry.
pub(super) const INITIAL_BACKOFF_MS: u64 = 50;

/// The maximum delay before a retry.
pub(super) const MAX_BACKOFF_MS: u64 = 5_000;

impl Actor {
    /// Waits before a change that failed with `error` is retried: for `backoff_ms`, which is doubled, or until the
    /// store can be written. Breaks if the process has been stopping for a while: the next start finds the change
    /// missing, and recovers.
    pub(super) async fn wait_for_store(&mut self, backoff_ms: &mut u64, error: &Error) -> ControlFlow<()> {
        let now = self.shared.clock.moment();
        let give_up_at = self.lifetime.give_up_at(now, self.shared.stop_by.get().copied());
        if give_up_at.is_some_and(|at| at <= now) {
            tracing::error!(%error, session = %self.fence.session, "the process stops without recording a change");
            self.lifetime.end();
            return ControlFlow::Break(());
        }
        let (clock, health) = (self.shared.clock.clone(), self.shared.store_health.clone());
        let until = clock.moment().plus(*backoff_ms).min(give_up_at.unwrap_or(Moment::NEVER));
        *backoff_ms = (*backoff_ms * 2).min(MAX_BACKOFF_MS);
        let was_failed = health.failure().is_some();
        loop {
            let input = tokio::select! {
                biased;
                input = self.inputs.receive() => input,
                () = clock.sleep_until_moment(until) => return ControlFlow::Continue(()),
                () = health.recovered(), if was_failed => return ControlFlow::Continue(()),
            };
            match input.map(|input| *input) {
                Some(Input::Command(command)) => self.answer_without_store(command, error),
                Some(Input::Signal(Signal::Shutdown(done))) => {
                    self.lifetime.shut_down(done);
                    *backoff_ms = INITIAL_BACKOFF_MS;
                    return ControlFlow::Continue(());
                }
                // The permit goes back, and is ordered again.
                Some(Input::Signal(Signal::Granted(_))) => self.permit_order.granted(),
                Some(Input::Signal(Signal::Release | Signal::HandOver(_))) | None => {}
                Some(Input::Report(report)) => self.inputs.defer(report.into()),
            }
        }
    }

    /// Answers a command that only reads, defers the processing of the inbox, and refuses any other command.
    fn answer_without_store(&mut self, command: Command, error: &Error) {
        match command {
            Command::Snapshot(reply) => drop(reply.send(Ok(self.instant()))),
            Command::Open { reply, .. } => drop(reply.send(Ok(Session::clone(&self.hot.session)))),
            // The command is sent only once, but the notes are in the store: they are read when the store is back.
            Command::Inbox => self.inputs.defer(Command::Inbox.into()),
            command => command.refuse(error),
        }
    }
}
