//! How long a session stays in memory.
//!
//! ```text
//!            a change, a turn's end, the last controller gone
//! unarmed ────────────────────────────────────────────────────▶ armed ──idle_unload_ms──▶ away
//!    ▲                                                            │
//!    └──────────── a controller joins, a turn begins ─────────────┘
//! ```
//!
//! A session that was only opened is unarmed: it waits for whoever opened it. One that is busy or has a controller does
//! not leave, whatever was armed before.

use mainspring_core::{SessionStatus, Time};

use super::{Active, Actor, Reply};
use crate::board::{LiveSession, LiveStatus};
use crate::error::Error;

/// What a session's stay in memory depends on.
#[derive(Default)]
pub(super) struct Stay {
    /// When it leaves, and how many controllers had ever joined when that was decided.
    until: Option<(Time, u64)>,
    /// Somebody opened it, and nothing has happened since.
    opened: bool,
    /// Who wants it to leave now.
    pub(super) closing: Vec<Reply<()>>,
}

impl Actor {
    /// Something happened: from now on the session may leave after a while.
    pub(crate) fn arm(&mut self) {
        self.stay.opened = false;
        self.stay.until = Some((
            self.shared.clock.now().plus(self.shared.options.idle_unload_ms),
            self.feed.controller_joins(),
        ));
    }

    /// Somebody looked. A session that came into memory for that alone leaves again.
    pub(super) fn arm_loaded(&mut self) {
        if self.stay.until.is_none() && !self.stay.opened {
            self.arm();
        }
    }

    /// Somebody opened the session; `started` if it was not in memory. Who opens it is given the time to join.
    pub(super) fn opened(&mut self, started: bool) {
        match started {
            true => self.stay = Stay { until: None, opened: true, ..std::mem::take(&mut self.stay) },
            false if self.stay.until.is_some() => self.arm(),
            false => {}
        }
    }

    /// When the session leaves, if nothing happens until then.
    pub(super) fn unload_at(&self) -> Option<Time> {
        // With a permit on order it cannot leave, so it waits for the permit, not for the time.
        let may = self.is_idle() && !self.ordered && self.feed.controllers() == 0;
        self.stay.until.map(|(at, _)| at).filter(|_| may)
    }

    /// Leaves memory if it was told to, or if nobody needs the session; false if it stays.
    pub(super) fn leave(&mut self) -> bool {
        if let Some(status) = self.busy() {
            for reply in self.stay.closing.drain(..) {
                let _ = reply.send(Err(Error::Busy { status }));
            }
            return false;
        }
        if !self.stay.closing.is_empty() {
            // Controllers keep their streams, which go on when the session is back.
            return self.leave_if(|_| true);
        }
        let Some((_, joins)) = self.stay.until.filter(|_| self.is_due()) else { return false };
        if self.feed.controller_joins() != joins {
            // A controller has come since, and perhaps gone: then the time begins anew.
            self.stay.until = None;
            if self.feed.controllers() == 0 {
                self.arm();
            }
            return false;
        }
        self.leave_if(|actor| actor.feed.controllers() == 0 && actor.feed.controller_joins() == joins)
    }

    fn is_due(&self) -> bool {
        self.unload_at().is_some_and(|at| at <= self.shared.clock.now())
    }

    fn leave_if(&self, may: impl FnOnce(&Self) -> bool) -> bool {
        let may = || self.rx.is_empty() && may(self);
        self.shared.unload(&self.feed, &self.tx, may, || self.unshow())
    }

    /// Tells the board what the session is doing.
    pub(super) fn show(&mut self) {
        if !self.stored || self.hot.session.status == SessionStatus::Deleted {
            return;
        }
        let waits = |active: &Active| active.run.state.wait().is_some_and(|wait| wait.answer.is_none());
        let status = match &self.active {
            Some(active) if waits(active) => LiveStatus::Paused,
            None if self.queue.is_empty() => LiveStatus::Idle,
            _ => LiveStatus::Busy,
        };
        let session = &self.hot.session;
        if self.shown.as_ref().is_some_and(|(known, title)| *known == status && *title == session.title) {
            return;
        }
        let (session_id, key, title) = (session.id, session.key.clone(), session.title.clone());
        self.shared.board.put(&session.owner, LiveSession { session_id, key, title: title.clone(), status });
        self.shown = Some((status, title));
    }

    /// Tells the board that the session leaves memory.
    pub(super) fn unshow(&self) {
        let session = &self.hot.session;
        self.shared.board.remove(&session.owner, session.id, session.status == SessionStatus::Deleted);
    }
}
