//! The active run of a session: its attempt, its execution and the progress of its stop.

use std::collections::VecDeque;
use std::sync::Arc;

use mainspring_core::{Attempt, AttemptId, Message, Run, RunStatus, Time};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::cancel::Stop;
use super::progress::ProgressWriter;
use crate::adapter::{Ask, AskReply, Record};
use crate::clock::{Clock, Moment};
use crate::scheduler::Permit;

/// The run that has a live attempt.
pub(super) struct Active {
    pub(super) run: Arc<Run>,
    pub(super) attempt: Attempt,
    /// When the run became active in this process, as a stored time and as a moment.
    pub(super) begun: (Time, Moment),
    pub(super) permit: Option<Permit>,
    /// The execution; none while only the store holds a wait.
    pub(super) task: Option<AbortHandle>,
    pub(super) cancel: CancellationToken,
    pub(super) prompt: Arc<Message>,
    /// An execution that waits for an answer.
    pub(super) held: Option<AskReply>,
    /// Further questions of the execution, which are asked one after the other.
    pub(super) next_asks: VecDeque<(Ask, AskReply)>,
    pub(super) stop: Stop,
    /// True when the attempt has recorded a message or a tool call, or has asked a question.
    pub(super) has_output: bool,
    /// Records for the commit that ends the execution.
    pub(super) at_end: Vec<Record>,
    /// True while a prompt waits to join the run; its adapter reads it.
    pub(super) steering: watch::Sender<bool>,
    /// The progress of the run, for the handles of the attempt.
    pub(super) progress: ProgressWriter,
}

impl Active {
    pub(super) fn new(run: Arc<Run>, attempt: Attempt, prompt: Arc<Message>, clock: &Clock) -> Self {
        let progress = ProgressWriter::new(&run);
        Self {
            run,
            attempt,
            begun: (clock.now(), clock.moment()),
            permit: None,
            task: None,
            cancel: CancellationToken::new(),
            prompt,
            held: None,
            next_asks: VecDeque::new(),
            stop: Stop::default(),
            has_output: false,
            at_end: vec![],
            steering: watch::Sender::new(false),
            progress,
        }
    }

    /// The time that counts against the run's time limit from before it became active, in milliseconds.
    pub(super) fn used_before_ms(&self) -> u64 {
        self.begun.0.since(self.run.limited_since_in(&self.attempt))
    }

    pub(super) fn status(&self) -> RunStatus {
        self.run.state.status()
    }

    /// True while the attempt `by` has authority over the run.
    pub(super) fn is_held_by(&self, by: AttemptId) -> bool {
        self.run.state.holder() == Some(by)
    }

    /// True while the run waits for an answer that nobody has given.
    pub(super) fn is_waiting(&self) -> bool {
        self.run.state.wait().is_some_and(|wait| wait.answer.is_none())
    }

    /// True while the run waits, or has got its answer, and the store alone holds everything about that.
    pub(super) fn is_stored(&self) -> bool {
        let is_held = self.run.state.wait().is_none_or(|wait| wait.held);
        !is_held && !self.is_acting() && !self.stop.is_dispatching()
    }

    /// True while something acts for the attempt: its execution, or the adapter that kills it.
    pub(super) fn is_acting(&self) -> bool {
        self.task.is_some() || self.stop.is_killing()
    }
}
