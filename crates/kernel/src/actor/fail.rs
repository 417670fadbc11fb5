//! Ends an actor that has failed, either before it served its session or by a panic.

use mainspring_system::contain::Panic;

use super::{Actor, Input, Report};
use crate::error::Error;

impl Actor {
    /// Stops before the session is served, and refuses every command with `error`.
    pub(crate) async fn abandon(mut self, error: &Error) {
        self.shared.images.remove(self.fence.session);
        self.shared.remove_actor(self.fence.session, self.inputs.sender());
        self.feed.fail(error);
        self.inputs.refuse_all(error).await;
        self.shared.lease_release(self.fence).await;
    }

    /// Ends after a panic. The state in memory may be half changed, so it is dropped; the stored state is whole.
    /// Everything that acts for the session is stopped before the session is loaded again.
    pub(super) async fn fail(mut self, panic: &Panic) {
        let session = self.fence.session;
        let error = self.shared.session_panicked(session, panic);
        self.remove_from_board();
        self.report_no_work();
        self.shared.images.remove(session);
        self.feed.authorize(None);
        self.feed.fail(&error);
        if let Some(active) = self.active.as_ref().filter(|active| active.is_acting()) {
            let by = active.attempt().id;
            active.abort();
            self.kill_remains(&active.run().adapter, by);
            while let Some(input) = self.inputs.next().await {
                let is_over = matches!(&*input, Input::Report(Report::Killed(killed, _)) if *killed == by);
                input.refuse(&error);
                if is_over {
                    break;
                }
            }
        }
        self.shared.lease_release(self.fence).await;
        self.shared.remove_actor(session, self.inputs.sender());
        self.inputs.refuse_all(&error).await;
        self.lifetime.answer_waiting();
    }

    /// Records that the session works again.
    pub(super) fn clear_failure(&mut self) {
        self.reported.clear_failure();
        self.shared.failures.clear(self.fence.session);
        tracing::info!(session = %self.fence.session, "a session that had failed works again");
    }
}
