//! The active run of a session: its attempt, its execution and the progress of its stop.

use std::sync::Arc;

use mainspring_core::{Attempt, AttemptId, Message, Run, RunStatus, Time};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::progress::{Progress, ProgressWriter};
use super::questions::Questions;
use super::stop::Stop;
use crate::adapter::{AskReply, Record};
use crate::clock::{Clock, Moment};
use crate::scheduler::Permit;
use crate::store::Row;

/// The run that has a live attempt.
pub(super) struct Active {
    run: Arc<Run>,
    attempt: Attempt,
    prompt: Arc<Message>,
    pub(super) stop: Stop,
    pub(super) questions: Questions,
    /// When the run became active in this process, as a stored time and as a moment.
    begun: (Time, Moment),
    permit: Option<Permit>,
    /// The execution; none while only the store holds a wait.
    task: Option<AbortHandle>,
    cancel: CancellationToken,
    /// True when the attempt has recorded a message or a tool call, or has asked a question.
    has_output: bool,
    /// True once the execution is stopped because the run has reached a limit.
    stopped_at_limit: bool,
    /// Records for the commit that ends the execution.
    at_end: Vec<Record>,
    /// True while a prompt waits to join the run; its adapter reads it.
    steering: watch::Sender<bool>,
    /// The progress of the run, for the handles of the attempt.
    progress: ProgressWriter,
}

impl Active {
    pub(super) fn new(run: Arc<Run>, attempt: Attempt, prompt: Arc<Message>, clock: &Clock) -> Self {
        let progress = ProgressWriter::new(&run);
        Self {
            run,
            attempt,
            prompt,
            stop: Stop::default(),
            questions: Questions::default(),
            begun: (clock.now(), clock.moment()),
            permit: None,
            task: None,
            cancel: CancellationToken::new(),
            has_output: false,
            stopped_at_limit: false,
            at_end: vec![],
            steering: watch::Sender::new(false),
            progress,
        }
    }

    pub(super) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    pub(super) fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// The user message that the run answers.
    pub(super) fn prompt(&self) -> &Arc<Message> {
        &self.prompt
    }

    /// The time up to `now` that counts against the run's time limit, in milliseconds.
    pub(super) fn time_used_ms(&self, now: Moment) -> u64 {
        now.since(self.begun.1).saturating_add(self.used_before_ms())
    }

    /// The moment at which the run will have used `max_ms` milliseconds of its time limit.
    pub(super) fn time_limit(&self, max_ms: u64) -> Moment {
        self.begun.1.plus(max_ms.saturating_sub(self.used_before_ms()))
    }

    /// The time before the run became active here that counts against its time limit, in milliseconds.
    fn used_before_ms(&self) -> u64 {
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

    /// True while the run waits or has got its answer, no execution holds the wait, and nothing acts for the attempt.
    pub(super) fn is_stored(&self) -> bool {
        let is_held = self.run.state.wait().is_none_or(|wait| wait.held);
        !is_held && !self.is_acting() && !self.stop.is_dispatching()
    }

    /// True while something acts for the attempt: its execution, or the adapter that kills it.
    pub(super) fn is_acting(&self) -> bool {
        self.is_executing() || self.stop.is_killing()
    }

    /// True while the attempt executes; false while only the store holds a wait.
    pub(super) fn is_executing(&self) -> bool {
        self.task.is_some()
    }

    pub(super) fn has_permit(&self) -> bool {
        self.permit.is_some()
    }

    pub(super) fn has_output(&self) -> bool {
        self.has_output
    }

    /// Remembers that the execution is stopped because the run has reached a limit.
    pub(super) fn stop_at_limit(&mut self) {
        self.stopped_at_limit = true;
    }

    pub(super) fn is_stopped_at_limit(&self) -> bool {
        self.stopped_at_limit
    }

    /// True once the execution is signalled to stop.
    pub(super) fn is_signalled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// The signal to stop, for the execution.
    pub(super) fn stop_signal(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Returns the receiver that tells the execution whether a prompt waits to join the run.
    pub(super) fn steered(&self) -> watch::Receiver<bool> {
        self.steering.subscribe()
    }

    /// The progress of the run, for the handles of the attempt.
    pub(super) fn progress(&self) -> Arc<Progress> {
        self.progress.reader()
    }

    /// Records for the commit that ends the execution.
    pub(super) fn records_at_end(&self) -> &[Record] {
        &self.at_end
    }
}

/// The changes of an active run, one method for each thing that happens.
impl Active {
    /// Gives the run the permit to use a worker.
    pub(super) fn grant(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Frees the worker for other runs.
    pub(super) fn release_permit(&mut self) {
        self.permit = None;
    }

    /// Records that the execution has begun.
    pub(super) fn launched(&mut self, task: AbortHandle) {
        self.task = Some(task);
    }

    /// Records that the execution has returned.
    pub(super) fn executed(&mut self) {
        self.task = None;
        self.progress.forget();
    }

    /// Aborts the execution, if there is one. Its end is still reported.
    pub(super) fn abort(&self) {
        self.task.iter().for_each(AbortHandle::abort);
    }

    /// Takes over the run and its attempt from a commit.
    pub(super) fn committed(&mut self, run: Arc<Run>, attempt: Attempt) {
        (self.run, self.attempt) = (run, attempt);
    }

    /// Adds the rows of a durable commit of the session to the run's progress.
    pub(super) fn rows_committed(&self, rows: &[Row]) {
        self.progress.committed(rows);
    }

    /// Adds records to the commit that ends the execution.
    pub(super) fn record_at_end(&mut self, records: Vec<Record>) {
        self.at_end.extend(records);
    }

    /// Records whether the attempt has now recorded a message or a tool call, or asked a question.
    pub(super) fn add_output(&mut self, is_output: bool) {
        self.has_output |= is_output;
    }

    /// Tells the execution whether a prompt waits to join the run.
    pub(super) fn set_steered(&self, is_steered: bool) {
        self.steering.send_replace(is_steered);
    }

    /// Makes the run wait for an answer. With `held`, its execution holds the wait, otherwise only the store does. Frees
    /// the worker for other runs meanwhile.
    pub(super) fn wait(&mut self, held: Option<AskReply>) {
        self.questions.hold(held);
        self.release_permit();
    }

    /// Signals the execution to stop, and refuses its questions.
    pub(super) fn signal_stop(&mut self) {
        self.cancel.cancel();
        self.questions.refuse_all();
    }
}
