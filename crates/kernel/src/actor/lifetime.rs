//! The lifetime of an actor: when its session is unloaded from memory, and why it ends before.
//!
//! ```text
//!            a change, the end of a run, the last controller leaves
//! unarmed ────────────────────────────────────────────────────────▶ armed ──idle_unload_ms──▶ unloaded
//!    ▲                                                                │
//!    └──────────────── a controller joins, a run starts ──────────────┘
//! ```
//!
//! A session that was only opened is unarmed: it waits for the caller that opened it.

use mainspring_core::{NodeId, RunStatus};
use tokio::sync::oneshot;

use super::Reply;
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

/// An armed unload.
#[derive(Clone, Copy)]
pub(super) struct Unload {
    pub(super) at: Moment,
    /// The number of controllers that had ever joined when the unload was armed.
    pub(super) joins: u64,
}

impl Lifetime {
    /// Arms the unload: the session is unloaded at `at` if no controller has joined since.
    pub(super) fn arm(&mut self, at: Moment, joins: u64) {
        self.opened = false;
        self.unload = Some(Unload { at, joins });
    }

    /// Disarms the unload: the session stays until it is armed again.
    pub(super) fn disarm(&mut self) {
        self.unload = None;
    }

    /// Disarms the unload for a caller that opened the session, so that it can join.
    pub(super) fn open(&mut self) {
        self.disarm();
        self.opened = true;
    }

    /// The armed unload.
    pub(super) fn unload(&self) -> Option<Unload> {
        self.unload
    }

    /// True when a caller has opened the session and nothing has happened since.
    pub(super) fn is_opened(&self) -> bool {
        self.opened
    }

    /// Ends the actor: another writer has taken over, the session is deleted or was never stored, or the
    /// process stops.
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

    /// True while a caller wants the session unloaded now.
    pub(super) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Refuses to unload the session, which is busy.
    pub(super) fn refuse_closing(&mut self, status: RunStatus) {
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

    /// Returns the moment at which a stopping actor gives up a change that cannot be stored: a while after
    /// the first try has failed, and not after `stop_by`. `None` if the actor is not stopping.
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
