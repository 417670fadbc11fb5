//! Unloading: a session that nobody needs leaves memory (`lifetime.rs`).
//!
//! A session that is busy or has a controller stays, whatever was armed before. A session whose run waits for an answer is
//! not busy: it is parked (`parked.rs`).

use super::lifetime::Unload;
use super::{Active, Actor};
use crate::clock::Moment;

impl Actor {
    /// Arms the unload: something has changed, so the idle time starts again.
    pub(super) fn arm(&mut self) {
        let idle_ms = self.hot.session.idle_unload_ms.unwrap_or(self.shared.options.idle_unload_ms);
        let at = self.shared.clock.moment().plus(idle_ms);
        self.lifetime.arm(at, self.feed.controller_joins());
    }

    /// Arms the unload of a session that was loaded only to be read.
    pub(super) fn arm_loaded(&mut self) {
        if self.lifetime.unload().is_none() && !self.lifetime.is_opened() {
            self.arm();
        }
    }

    /// Gives a caller that opened the session time to join; `started` if the session was not in memory.
    pub(super) fn opened(&mut self, started: bool) {
        if started {
            self.lifetime.open();
        } else if self.lifetime.unload().is_some() {
            self.arm();
        }
    }

    /// Returns the moment at which the session is unloaded, if nothing happens until then.
    pub(super) fn unload_at(&self) -> Option<Moment> {
        // A session with a permit on order is not unloaded: it waits for the permit.
        let is_unneeded = self.is_idle() || self.may_park();
        let may_unload = is_unneeded && !self.permit_order.is_open() && self.feed.controllers() == 0;
        self.lifetime.unload().map(|unload| unload.at).filter(|_| may_unload)
    }

    /// Unloads the session if a caller closed it or if it is unneeded; returns false if it stays.
    pub(super) fn unload_if_unneeded(&mut self) -> bool {
        if let Some(status) = self.busy() {
            self.lifetime.refuse_closing(status);
            if !self.may_park() {
                return false;
            }
        }
        if self.lifetime.is_closing() {
            // Controllers keep their streams, which continue when the session is loaded again.
            return self.unload_if(|_| true);
        }
        let Some(Unload { joins, .. }) = self.lifetime.unload().filter(|_| self.is_due()) else {
            return false;
        };
        if self.feed.controller_joins() != joins {
            // A controller has joined since, and perhaps left again: then the idle time starts again.
            self.lifetime.disarm();
            if self.feed.controllers() == 0 {
                self.arm();
            }
            return false;
        }
        self.unload_if(|actor| actor.feed.controllers() == 0 && actor.feed.controller_joins() == joins)
    }

    /// True while the session only waits for an answer, and everything about that is stored.
    fn may_park(&self) -> bool {
        let waits = |active: &Active| active.is_waiting() && active.is_stored();
        self.queue.is_empty() && self.active.as_ref().is_some_and(waits) && self.feed.memory_use().bytes == 0
    }

    fn is_due(&self) -> bool {
        self.unload_at().is_some_and(|at| at <= self.shared.clock.moment())
    }

    fn unload_if(&self, may: impl FnOnce(&Self) -> bool) -> bool {
        let may = || self.inputs.is_empty() && may(self);
        let leaving = || {
            match &self.active {
                Some(_) => {
                    self.expiry().into_iter().for_each(|at| self.shared.parked.add(self.fence.session, at));
                }
                None => self.remove_from_board(),
            }
            self.shared.images.remove(self.fence.session);
        };
        self.shared.unload(&self.feed, self.inputs.sender(), may, leaving)
    }
}
