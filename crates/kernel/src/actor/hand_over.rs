//! Hands a session over to another process that shares the store (`kernel/moves.rs`).

use mainspring_core::Run;

use super::{Active, Actor};

impl Actor {
    /// Hands the session over and ends this actor, if this process drains, nothing acts for the session, and another
    /// process can execute its runs.
    pub(super) async fn hand_over(&mut self) {
        if !self.shared.is_draining() || !self.may_move() {
            return;
        }
        let session = self.fence.session;
        let Some(to) = self.shared.successor(&self.hot.session, self.unfinished()) else { return };
        if let Err(error) = self.shared.pass_hosts(to, self.unfinished()).await {
            tracing::warn!(%error, %session, "a session stays: its next home does not know the host of its runs");
            return;
        }
        let has_work = self.unfinished().next().is_some();
        match self.shared.store.home_give(self.fence, to, has_work).await {
            Ok(true) => self.lifetime.move_to(to),
            // The process `to` has ended or drains too, or an earlier call that returned an error did take effect.
            Ok(false) => match self.shared.store.home_find(session).await {
                Ok(Some(home)) if home != self.shared.node => self.lifetime.move_to(home),
                _ => return,
            },
            Err(error) => match self.shared.store.home_find(session).await {
                Ok(Some(home)) if home == to => self.lifetime.move_to(to),
                _ => {
                    tracing::warn!(%error, %session, "a session could not be handed over");
                    return;
                }
            },
        }
        self.shared.count_given(to);
        for run in self.unfinished() {
            self.shared.scheduler.withdraw(&self.hot.session.owner, run.id);
        }
        let released = self.shared.active_bindings(session).await.unwrap_or_default();
        self.shared.forget_native_sessions(released.iter());
    }

    /// True if the store has everything about the session, and nothing acts for it here.
    fn may_move(&self) -> bool {
        self.hot.session.is_stored()
            && !self.lifetime.is_over()
            && !self.lifetime.is_shutting_down()
            && !self.inputs.has_deferred()
            && self.active.as_ref().is_none_or(Active::is_stored)
            && self.feed.is_stored()
    }

    /// The active run and the queued runs.
    fn unfinished(&self) -> impl Iterator<Item = &Run> {
        self.active.iter().map(|active| active.run().as_ref()).chain(self.queue.iter())
    }
}
