//! The queue of a session: runs without a live attempt, in the order in which they start, and the permit that the
//! next one needs.

use std::collections::VecDeque;

use mainspring_core::{Policy, Run, RunId, RunState, Time};

use super::patience::{INITIAL_BACKOFF_MS, MAX_BACKOFF_MS};
use super::{Actor, Input, Signal};
use crate::kernel::Shared;

/// The runs that wait for their turn.
#[derive(Default)]
pub(super) struct Queue {
    /// Runs that have begun come first, then runs that steer, then the others.
    runs: VecDeque<Run>,
    /// The number of the run that is accepted next.
    next_no: u32,
}

impl Queue {
    /// Restores the queue of a session whose newest run has the number `latest_no`.
    pub(super) fn restore(mut runs: Vec<Run>, latest_no: u32) -> Self {
        runs.sort_by_key(|run| (run.attempts == 0, !run.steers));
        Self { runs: runs.into(), next_no: latest_no + 1 }
    }

    pub(super) fn next_no(&self) -> u32 {
        self.next_no
    }

    /// Counts a run that was accepted.
    pub(super) fn accepted(&mut self, no: u32) {
        self.next_no = no + 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter()
    }

    /// The run that starts next.
    pub(super) fn first(&self) -> Option<&Run> {
        self.runs.front()
    }

    pub(super) fn get(&self, run: RunId) -> Option<&Run> {
        self.runs.iter().find(|queued| queued.id == run)
    }

    /// Puts a run in front of all others: it is retried.
    pub(super) fn push_first(&mut self, run: Run) {
        self.runs.push_front(run);
    }

    /// Adds a new run. A run that steers comes before runs that do not, after runs that have begun.
    pub(super) fn push(&mut self, run: Run, policy: Policy) {
        let at = match policy {
            Policy::Steer => self.runs.iter().take_while(|run| run.steers || run.attempts > 0).count(),
            _ => self.runs.len(),
        };
        self.runs.insert(at, run);
    }

    /// Replaces a queued run by its new version.
    pub(super) fn update(&mut self, run: Run) {
        if let Some(queued) = self.runs.iter_mut().find(|queued| queued.id == run.id) {
            *queued = run;
        }
    }

    pub(super) fn remove(&mut self, run: RunId) {
        self.runs.retain(|queued| queued.id != run);
    }

    /// The runs whose prompts wait to join the active run.
    pub(super) fn steering(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.steers && run.attempts == 0)
    }

    /// The runs that a new prompt with `policy` replaces. `replace` leaves runs alone that have begun; `interrupt`
    /// does not, even if they pause before a retry.
    pub(super) fn superseded_by(&self, policy: Policy) -> Vec<RunId> {
        let superseded = |run: &&Run| match policy {
            Policy::Replace => run.attempts == 0,
            Policy::Interrupt => true,
            Policy::Enqueue | Policy::Steer | Policy::Reject => false,
        };
        self.runs.iter().filter(superseded).map(|run| run.id).collect()
    }

    /// The run that starts next, and the earliest time for it.
    pub(super) fn next_start(&self) -> Option<(&Run, Time)> {
        let run = self.runs.front()?;
        match run.state {
            RunState::Queued { retry_at, .. } => Some((run, retry_at.unwrap_or(Time(0)))),
            _ => None,
        }
    }
}

/// The order of a permit from the scheduler.
#[derive(Default)]
pub(super) struct PermitOrder {
    is_open: bool,
    /// No permit is ordered before this time, because the last one could not be used; and the length of that pause.
    backoff: Option<(Time, u64)>,
}

impl PermitOrder {
    /// True while a permit is ordered and has not arrived.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    /// Records that the ordered permit has arrived.
    pub(super) fn granted(&mut self) {
        self.is_open = false;
    }

    /// The earliest time to order a permit for work that is due at `at`.
    pub(super) fn not_before(&self, at: Time) -> Time {
        self.backoff.map_or(at, |(until, _)| at.max(until))
    }

    /// Records that the work of a permit has started.
    pub(super) fn succeeded(&mut self) {
        self.backoff = None;
    }

    /// Records that the work of a permit could not be started: the next order waits, longer each time.
    pub(super) fn failed(&mut self, now: Time) {
        let pause = self.backoff.map_or(INITIAL_BACKOFF_MS, |(_, pause)| (pause * 2).min(MAX_BACKOFF_MS));
        self.backoff = Some((now.plus(pause), pause));
    }
}

impl Actor {
    /// The run that needs a permit next, and the earliest time to order it; none while a permit is on order.
    ///
    /// Time passes between two readings of the clock: work that was not due when permits were ordered may be overdue
    /// when the actor waits again, and gets its permit then.
    pub(super) fn next_order(&self) -> Option<(&Run, Time)> {
        let Shared { options, tasks, .. } = &*self.shared;
        let stops = self.lifetime.is_over() || tasks.is_stopping();
        if self.permit_order.is_open() || stops || !options.execute {
            return None;
        }
        let (run, at) = match &self.active {
            Some(active) => {
                let answered = active.run.state.wait().is_some_and(|wait| wait.answer.is_some());
                let needs = answered && !active.has_permit() && !active.stop.is_killing();
                needs.then_some((&*active.run, Time(0)))?
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
        let tx = self.tx.clone();
        self.shared.scheduler.enqueue(&self.hot.session.owner, &adapter, id, lender, move |permit| {
            tx.send(Signal::Granted(permit).into()).map_err(|refused| match *refused.0 {
                Input::Signal(Signal::Granted(permit)) => permit,
                _ => unreachable!("a send that fails returns its input"),
            })
        });
        self.shared.block_want(&self.hot.session.owner);
    }
}
