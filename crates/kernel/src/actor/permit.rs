//! Permits: ordering one for the run that starts or continues next, using it, and giving it back.

use mainspring_core::{Run, Time};

use super::{Actor, Input, Signal};
use crate::kernel::Shared;
use crate::scheduler::Permit;

impl Actor {
    /// The run that needs a permit next, and the earliest time to order it; none while a permit is on order.
    ///
    /// The time may be in the past: work that was not due when permits were last ordered may be due when the actor waits
    /// again.
    pub(super) fn next_order(&self) -> Option<(&Run, Time)> {
        let Shared { options, tasks, .. } = &*self.shared;
        let stops = self.lifetime.is_over() || tasks.is_stopping();
        if self.permit_order.is_open() || stops || !options.execute {
            return None;
        }
        let (run, at) = match &self.active {
            Some(active) => {
                let answered = active.run().state.wait().is_some_and(|wait| wait.answer.is_some());
                let needs = answered && !active.has_permit() && !active.stop.is_killing();
                needs.then_some((active.run().as_ref(), Time(0)))?
            }
            None => self.queue.next_start()?,
        };
        Some((run, self.permit_order.not_before(at)))
    }

    /// Orders a permit if a run could use one now.
    pub(super) fn order_permit(&mut self) {
        let now = self.shared.clock.now();
        let Some((run, _)) = self.next_order().filter(|(_, at)| *at <= now) else { return };
        let (id, adapter, lender) = (run.id, run.adapter.clone(), self.hot.delegations.lender(run.id));
        self.permit_order.open();
        let tx = self.inputs.sender().clone();
        self.shared.scheduler.enqueue(&self.hot.session.owner, &adapter, id, lender, move |permit| {
            tx.send(Signal::Granted(permit).into()).map_err(|refused| match *refused.0 {
                Input::Signal(Signal::Granted(permit)) => permit,
                _ => unreachable!("a send that fails returns its input"),
            })
        });
        self.shared.block_want(&self.hot.session.owner);
    }

    /// Uses a permit: the waiting run continues, or the next run starts.
    pub(super) async fn granted(&mut self, mut permit: Permit) {
        self.permit_order.granted();
        if self.shared.tasks.is_stopping() {
            return;
        }
        let now = self.shared.clock.now();
        let next = match &self.active {
            Some(active) => Some(active.run().as_ref()),
            // The run that the permit was ordered for may have failed meanwhile, and pause before its retry.
            None => self.queue.next_start().filter(|(_, at)| *at <= now).map(|(run, _)| run),
        };
        // The run that the permit was ordered for may have ended, and the next one may need another adapter's permit.
        let Some(run) = next.filter(|run| permit.is_for(&run.adapter)).cloned() else {
            return;
        };
        permit.assign(run.id, self.hot.delegations.lender(run.id));
        let started = match self.active {
            Some(_) => Box::pin(self.resume(permit)).await,
            None => self.begin(run, permit).await.map(|()| true),
        };
        match started {
            Ok(true) => self.permit_order.succeeded(),
            // The permit goes back: nothing needs it any more.
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, session = %self.fence.session, "a run could not be started or go on");
                self.permit_order.failed(self.shared.clock.now());
            }
        }
    }

    /// Releases the worker of an attempt that has ended, before the end is recorded.
    pub(super) fn release_permit(&mut self) {
        if let Some(active) = &mut self.active {
            active.release_permit();
        }
    }
}
