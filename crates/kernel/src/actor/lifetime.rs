//! The lifetime of an actor: when its session is unloaded from memory.
//!
//! ```text
//!            a change, the end of a run, the last controller leaves
//! unarmed ────────────────────────────────────────────────────────▶ armed ──idle_unload_ms──▶ unloaded
//!    ▲                                                                │
//!    └──────────────── a controller joins, a run starts ──────────────┘
//! ```
//!
//! A session that was only opened is unarmed: it waits for the caller that opened it. A session that is busy or has a
//! controller stays, whatever was armed before. A session whose run waits for an answer is not busy: it is parked
//! (`parked.rs`).

use mainspring_core::{NodeId, RunStatus};
use tokio::sync::oneshot;

use super::{Active, Actor, Reply};
use crate::clock::Moment;
use crate::error::Error;
use crate::kernel::STOP_WITHOUT_STORE_MS;

/// When the actor ends.
#[derive(Default)]
pub(super) struct Lifetime {
    unload: Option<Unload>,
    /// True when a caller has opened the session and nothing has happened since.
    opened: bool,
    /// Callers that want the session unloaded now.
    closing: Vec<Reply<()>>,
    over: bool,
    /// The process that the session was handed over to.
    moved_to: Option<NodeId>,
    shutdown: Option<oneshot::Sender<()>>,
    /// When a stopping actor gives up a change that cannot be stored.
    give_up_at: Option<Moment>,
}

#[derive(Clone, Copy)]
struct Unload {
    at: Moment,
    /// The number of controllers that had ever joined when the unload was armed.
    joins: u64,
}

impl Lifetime {
    fn arm(&mut self, at: Moment, joins: u64) {
        self.opened = false;
        self.unload = Some(Unload { at, joins });
    }

    fn disarm(&mut self) {
        self.unload = None;
    }

    /// Ends the actor: another writer has taken over, or the session is deleted.
    pub(super) fn end(&mut self) {
        self.over = true;
    }

    /// Ends the actor: the session was handed over to the process `to`.
    pub(super) fn move_to(&mut self, to: NodeId) {
        self.moved_to = Some(to);
        self.end();
    }

    pub(super) fn moved_to(&self) -> Option<NodeId> {
        self.moved_to
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Unloads the session as soon as it is idle, or refuses while it is busy.
    pub(super) fn close(&mut self, reply: Reply<()>) {
        self.closing.push(reply);
    }

    fn refuse_closing(&mut self, status: RunStatus) {
        for reply in self.closing.drain(..) {
            let _ = reply.send(Err(Error::Busy { status }));
        }
    }

    /// Ends the actor once nothing is executed any more, and then answers `done`.
    pub(super) fn shut_down(&mut self, done: oneshot::Sender<()>) {
        self.shutdown = Some(done);
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutdown.is_some()
    }

    /// Returns when a stopping actor gives up a change that cannot be stored: a while after the first try has failed,
    /// and not after `stop_by`.
    pub(super) fn give_up_at(&mut self, now: Moment, stop_by: Option<Moment>) -> Option<Moment> {
        self.shutdown.as_ref()?;
        let latest = now.plus(STOP_WITHOUT_STORE_MS).min(stop_by.unwrap_or(Moment::NEVER));
        Some(*self.give_up_at.get_or_insert(latest))
    }

    /// Answers all callers that wait for the end of the actor.
    pub(super) fn answer_waiting(self) {
        for reply in self.closing {
            let _ = reply.send(Ok(()));
        }
        if let Some(done) = self.shutdown {
            let _ = done.send(());
        }
    }
}

impl Actor {
    /// Arms the unload: something has changed, so the idle time starts again.
    pub(super) fn arm(&mut self) {
        let idle_ms = self.hot.session.idle_unload_ms.unwrap_or(self.shared.options.idle_unload_ms);
        let at = self.shared.clock.moment().plus(idle_ms);
        self.lifetime.arm(at, self.feed.controller_joins());
    }

    /// Arms the unload of a session that was loaded only to be read.
    pub(super) fn arm_loaded(&mut self) {
        if self.lifetime.unload.is_none() && !self.lifetime.opened {
            self.arm();
        }
    }

    /// Gives a caller that opened the session time to join; `started` if the session was not in memory.
    pub(super) fn opened(&mut self, started: bool) {
        if started {
            self.lifetime.disarm();
            self.lifetime.opened = true;
        } else if self.lifetime.unload.is_some() {
            self.arm();
        }
    }

    /// Returns when the session is unloaded, if nothing happens until then.
    pub(super) fn unload_at(&self) -> Option<Moment> {
        // A session with a permit on order is not unloaded: it waits for the permit.
        let is_unneeded = self.is_idle() || self.may_park();
        let may_unload = is_unneeded && !self.permit_order.is_open() && self.feed.controllers() == 0;
        self.lifetime.unload.map(|unload| unload.at).filter(|_| may_unload)
    }

    /// Unloads the session if a caller closed it or if it is unneeded; returns false if it stays.
    pub(super) fn unload_if_unneeded(&mut self) -> bool {
        if let Some(status) = self.busy() {
            self.lifetime.refuse_closing(status);
            if !self.may_park() {
                return false;
            }
        }
        if !self.lifetime.closing.is_empty() {
            // Controllers keep their streams, which continue when the session is loaded again.
            return self.unload_if(|_| true);
        }
        let Some(Unload { joins, .. }) = self.lifetime.unload.filter(|_| self.is_due()) else { return false };
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
        let may = || self.rx.is_empty() && self.deferred.is_empty() && may(self);
        let leaving = || {
            match &self.active {
                Some(_) => {
                    self.expiry().into_iter().for_each(|at| self.shared.parked.add(self.fence.session, at));
                }
                None => self.remove_from_board(),
            }
            self.shared.images.remove(self.fence.session);
        };
        self.shared.unload(&self.feed, &self.tx, may, leaving)
    }
}
