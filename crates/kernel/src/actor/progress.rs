//! The progress of the active run: the end of its path, the messages and steps that it has written since its adapter took
//! them last, and how often its state has changed.
//!
//! The actor and the handles of the attempt share it. An adapter that reads its path before each model call therefore asks
//! neither the store nor the actor, which would cost two wakes. Messages and steps are collected only for adapters that take
//! them, and until they take them again.

use std::sync::Arc;

use mainspring_core::tree::before;
use mainspring_core::{Message, Point, Run, RunId, Step};
use parking_lot::Mutex;

use crate::store::{Row, StatePlace};

/// Messages and steps of a run, in the order of their commits.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) messages: Vec<(Point, Arc<Message>)>,
    pub(crate) steps: Vec<Step>,
}

impl Written {
    /// Adds the rows of a commit. Returns `None` if the path has changed by more than new messages at its end: the
    /// adapter then reads the path from the store.
    fn with(mut self: Box<Self>, rows: &[Row]) -> Option<Box<Self>> {
        for row in rows {
            match row {
                Row::Message(message, Some(point)) => self.messages.push((*point, message.clone())),
                Row::Step(step) => self.steps.push(Step::clone(step)),
                Row::MessagePlace(..) | Row::Digest(_) => return None,
                _ => {}
            }
        }
        Some(self)
    }
}

/// The progress of a run, as the handles of its attempt read it.
#[derive(Debug)]
pub(crate) struct Progress {
    run: RunId,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// False once the attempt has lost its authority.
    is_held: bool,
    head: Option<Point>,
    /// `None` until an adapter takes the messages and steps for the first time, and when they are not known.
    written: Option<Box<Written>>,
    state_changes: u64,
}

impl Progress {
    /// Returns the end of the run's path; `None` if the attempt has lost its authority.
    pub(crate) fn head(&self) -> Option<Option<Point>> {
        let state = self.state.lock();
        state.is_held.then_some(state.head)
    }

    /// Returns the end of the run's path, and the messages and steps that the run has written since the last call;
    /// these are `None` at the first call, and if they are not known. Returns `None` if the attempt has lost its
    /// authority.
    pub(crate) fn take_written(&self) -> Option<(Option<Point>, Option<Box<Written>>)> {
        let mut state = self.state.lock();
        state.is_held.then(|| (state.head, state.written.replace(Box::default())))
    }

    /// Returns how often the state of the run has changed since its attempt was launched.
    pub(crate) fn state_changes(&self) -> u64 {
        self.state.lock().state_changes
    }
}

/// The actor's half of a run's progress. Dropping it ends the authority of the handles.
#[derive(Debug)]
pub(super) struct ProgressWriter(Arc<Progress>);

impl ProgressWriter {
    pub(super) fn new(run: &Run) -> Self {
        let state = State { is_held: true, head: run.pen.and_then(before), written: None, state_changes: 0 };
        Self(Arc::new(Progress { run: run.id, state: Mutex::new(state) }))
    }

    pub(super) fn reader(&self) -> Arc<Progress> {
        self.0.clone()
    }

    /// Adds the rows of a durable commit of the session.
    pub(super) fn committed(&self, rows: &[Row]) {
        let Progress { run, state } = &*self.0;
        let mut state = state.lock();
        for row in rows {
            match row {
                Row::Run(changed) if changed.id == *run => state.head = changed.pen.and_then(before),
                Row::State(entry) if entry.place == StatePlace::Run(*run) => state.state_changes += 1,
                _ => {}
            }
        }
        state.written = state.written.take().and_then(|written| written.with(rows));
    }

    /// Stops collecting: the execution has returned.
    pub(super) fn forget(&self) {
        self.0.state.lock().written = None;
    }
}

impl Drop for ProgressWriter {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.is_held, state.written) = (false, None);
    }
}
