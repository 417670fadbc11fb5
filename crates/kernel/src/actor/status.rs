//! The status that an actor reports: its share of the kernel's work, and its entry on the board of live sessions.

use mainspring_core::{RunStatus, SessionStatus};

use super::{Active, Actor};
use crate::board::{LiveSession, LiveStatus};
use crate::error::Error;
use crate::kernel::Work;

impl Actor {
    /// Reports the session's work and status, if they have changed.
    pub(crate) fn report_status(&mut self) {
        let work = match &self.active {
            Some(active) if active.is_waiting() => Work { blocked: self.queue.len(), ..Work::default() },
            active => Work { queued: self.queue.len(), active: active.is_some().into(), blocked: 0 },
        };
        self.report_work(work);
        self.report_to_board();
    }

    /// Counts one more queued run before it is committed, or refuses it. If the commit fails, the next report corrects the
    /// count.
    pub(super) async fn take_queue_place(&mut self) -> Result<(), Error> {
        let (owner, before) = (&self.hot.session.owner, self.reported.work());
        let now = Work { queued: before.queued + 1, ..before };
        let place = self.shared.queue_place(owner, before, now)?;
        self.reported.set_work(now);
        self.shared.check_queue_of_all(owner, place).await
    }

    /// Takes the session's work out of the kernel's count.
    pub(super) fn report_no_work(&mut self) {
        self.report_work(Work::default());
    }

    fn report_work(&mut self, work: Work) {
        let before = self.reported.set_work(work);
        self.shared.work_changed(&self.hot.session.owner, before, work);
    }

    fn report_to_board(&mut self) {
        if !self.hot.session.is_stored() || self.hot.session.status == SessionStatus::Deleted {
            return;
        }
        let status = match &self.active {
            Some(active) if active.is_waiting() => LiveStatus::Paused,
            None if self.queue.is_empty() => LiveStatus::Idle,
            _ => LiveStatus::Busy,
        };
        let session = &self.hot.session;
        if self.reported.is_on_board(status, session.title.as_ref()) {
            return;
        }
        let (session_id, key, title) = (session.id, session.key.clone(), session.title.clone());
        self.shared.board.put(&session.owner, LiveSession { session_id, key, title: title.clone(), status });
        self.reported.set_board(status, title);
    }

    /// Takes the session off the board: it leaves memory.
    pub(super) fn remove_from_board(&self) {
        let session = &self.hot.session;
        self.shared.board.remove(&session.owner, session.id, session.status == SessionStatus::Deleted);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.active.is_none() && self.queue.is_empty()
    }

    /// The status of the run that keeps the session busy.
    pub(super) fn busy(&self) -> Option<RunStatus> {
        let active = self.active.as_ref().map(Active::status);
        active.or_else(|| self.queue.first().map(|run| run.state.status()))
    }
}
