//! Drafts: the changes of one command, made on copies of the actor's state.
//!
//! A draft decides, applies its decisions to the copies and collects their events and rows. The actor takes the copies
//! over once the store has committed them; a draft that is dropped has changed nothing.
//!
//! The type says what a draft changes: [`SessionDraft`] the session alone, [`QueuedDraft`] a run without an attempt,
//! [`AttemptDraft`] a run and its attempt.
//!
//! ```text
//! SessionDraft ──of_run──▶ QueuedDraft ──start──▶ AttemptDraft
//!      └────────────of_attempt───────────────────────▲
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use mainspring_core::tree::{reopened, visit};
use mainspring_core::{
    ArtifactId, Attempt, Body, Line, LineId, MessageId, Point, Refusal, Run, RunId, Spend, StateChange,
    StateScope, StateWriter, Time, day_of, session,
};

use super::cache::PathChange;
use super::hot::Hot;
use crate::ids::Ids;
use crate::store::{Commit, Fence, NewEvent, Row, StateChangeRow, StateHistoryOf, StatePlace, StateRow};

mod append;
mod given;
mod records;
mod run;
pub(crate) use records::check_size;
pub(crate) use run::{AttemptSlot, NoAttempt, OfRun};

/// A draft that changes the session, and no run.
pub(crate) type SessionDraft = Draft<SessionOnly>;

/// A draft that changes a run without an attempt.
pub(crate) type QueuedDraft = Draft<OfRun<NoAttempt>>;

/// A draft that changes a run and its attempt.
pub(crate) type AttemptDraft = Draft<OfRun<Attempt>>;

/// The changes of one command.
pub(crate) struct Draft<S> {
    pub(super) ids: Ids,
    pub(super) at: Time,
    /// The position of the session's stream.
    pos: u64,
    /// Boxed, since a draft is moved often.
    pub(crate) hot: Box<Hot>,
    pub(super) subject: S,
    /// True when the draft completes the text streamed so far.
    completes_text: bool,
    /// The change of the path that comes with a new tip.
    path_change: Option<PathChange>,
    /// The result artifact of the run, for the delegation that the draft settles.
    pub(super) result_artifact: Option<ArtifactId>,
    session_changed: bool,
    lines_changed: BTreeMap<LineId, Line>,
    events: Vec<NewEvent>,
    rows: Vec<Row>,
}

/// The run and the attempt that a draft changes besides its session.
pub(crate) trait Subject {
    fn run(&self) -> Option<&Arc<Run>>;

    fn attempt(&self) -> Option<&Attempt>;

    fn apply(&mut self, body: &Body, at: Time);

    /// Propagates the new status of the draft's run to its parent and its children.
    fn propagate_status(draft: &mut Draft<Self>)
    where
        Self: Sized;
}

/// No run.
pub(crate) struct SessionOnly;

impl Subject for SessionOnly {
    fn run(&self) -> Option<&Arc<Run>> {
        None
    }

    fn attempt(&self) -> Option<&Attempt> {
        None
    }

    fn apply(&mut self, _: &Body, _: Time) {}

    fn propagate_status(_: &mut Draft<Self>) {}
}

impl SessionDraft {
    pub(crate) fn new(ids: Ids, at: Time, pos: u64, hot: Box<Hot>) -> Self {
        Self {
            ids,
            at,
            pos,
            hot,
            subject: SessionOnly,
            completes_text: false,
            path_change: None,
            result_artifact: None,
            session_changed: false,
            lines_changed: BTreeMap::new(),
            events: vec![],
            rows: vec![],
        }
    }

    /// Makes this a draft of `run`, which has no attempt.
    pub(crate) fn of_run(self, run: impl Into<Arc<Run>>) -> QueuedDraft {
        self.with_subject(|_| OfRun::new(run.into(), NoAttempt))
    }

    /// Makes this a draft of `run` and its live attempt.
    pub(crate) fn of_attempt(self, run: Arc<Run>, attempt: Attempt) -> AttemptDraft {
        self.with_subject(|_| OfRun::new(run, attempt))
    }

    /// Moves the path to another leaf. Without `leaf`, the path becomes empty.
    pub(crate) fn navigate(
        &mut self,
        leaf: Option<(Point, MessageId)>,
        line: Option<Line>,
    ) -> Result<(), Refusal> {
        self.session_command(session::Command::Navigate { tip: leaf.map(|(_, message)| message) })?;
        self.change_path();
        self.hot.session.set_tip(leaf.map(|(point, _)| point), line);
        Ok(())
    }
}

impl<S> Draft<S> {
    fn with_subject<T>(self, subject: impl FnOnce(S) -> T) -> Draft<T> {
        Draft {
            ids: self.ids,
            at: self.at,
            pos: self.pos,
            hot: self.hot,
            subject: subject(self.subject),
            completes_text: self.completes_text,
            path_change: self.path_change,
            result_artifact: self.result_artifact,
            session_changed: self.session_changed,
            lines_changed: self.lines_changed,
            events: self.events,
            rows: self.rows,
        }
    }

    /// Sets the change of the path that a new tip brings with it.
    pub(crate) fn with_path_change(mut self, change: Option<PathChange>) -> Self {
        self.path_change = change;
        self
    }

    /// Sets the result artifact of the draft's run.
    pub(crate) fn with_result_artifact(mut self, artifact: Option<ArtifactId>) -> Self {
        self.result_artifact = artifact;
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.rows.is_empty()
    }

    pub(crate) fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Records an event about a run, without applying it.
    pub(crate) fn emit_for_run(&mut self, run: RunId, body: Body) {
        let (id, pos, at) = (self.ids.event(), self.pos, self.at);
        self.events.push(NewEvent { id, pos, run: Some(run), attempt: None, at, body });
    }

    /// Extends the line of `point`, where a message is written. Refused if the draft does not hold that line.
    fn line_extend(&mut self, point: Point) -> Result<(), Refusal> {
        let line = self.hot.session.line(point.line).copied();
        let line = line.ok_or(Refusal::WrongState { what: "line of the path", status: "missing" })?;
        self.line_put(Line { end: point.pos + 1, ..line });
        Ok(())
    }

    fn line_put(&mut self, line: Line) {
        self.hot.session.put_line(line);
        self.lines_changed.insert(line.id, line);
    }

    /// Moves the cursors to the new path, and reopens its abandoned lines.
    fn change_path(&mut self) {
        let Some(change) = self.path_change.take() else { return };
        let cursors = visit(&change.ranges, &change.cursors);
        self.rows.extend(cursors.into_iter().map(|(at, to)| Row::Cursor(at, to)));
        self.lines_changed.extend(reopened(change.lines).map(|line| (line.id, line)));
    }
}

impl<S: Subject> Draft<S> {
    /// Records that `body` happened, and applies it.
    pub(crate) fn emit(&mut self, body: Body) {
        self.subject.apply(&body, self.at);
        self.charge(&body);
        self.session_changed |= self.hot.session.apply(&body, self.at);
        // A change of the session belongs to no run, even if a run causes it.
        let of_run = !matches!(body, Body::SessionUpdated { .. });
        let run = self.subject.run().map(|run| run.id).filter(|_| of_run);
        let attempt = self.subject.attempt().map(|attempt| attempt.id).filter(|_| of_run);
        self.events.push(NewEvent { id: self.ids.event(), pos: self.pos, run, attempt, at: self.at, body });
    }

    /// Applies and records an event. It belongs to the draft's run, or to `run` if the draft has none.
    pub(crate) fn emit_about(&mut self, run: Option<RunId>, body: Body) {
        self.emit(body);
        if let Some(event) = self.events.last_mut() {
            event.run = event.run.or(run);
        }
    }

    /// Adds the cost of usage to the spend of the run's key, if the key has a spend per day.
    fn charge(&mut self, body: &Body) {
        let Body::UsageUpdated { usage } = body else { return };
        let key = self.subject.run().and_then(|run| run.options.key.as_ref());
        if let Some(key) = key.filter(|key| key.spend_per_day.is_some()) {
            let row = Row::Spend(key.key_id, day_of(self.at), Spend::of(usage));
            self.rows.push(row);
        }
    }

    /// Applies a command to the session.
    pub(crate) fn session_command(&mut self, command: session::Command) -> Result<(), Refusal> {
        for body in session::decide(&self.hot.session, command)? {
            self.emit(body);
        }
        Ok(())
    }

    /// Changes state, and records the change as an event and in the history of the key.
    pub(crate) fn state_set(&mut self, row: StateRow, by: StateWriter) {
        let (scope, of) = match row.place {
            StatePlace::Session { .. } => (StateScope::Session, StateHistoryOf::Session(self.hot.session.id)),
            StatePlace::Run(run) => (StateScope::Run, StateHistoryOf::Run(run)),
        };
        let change = StateChange::new(&row.key, row.version, row.value.as_ref(), self.at, by);
        self.rows.push(Row::State(Box::new(row)));
        self.emit_state_change(scope, &change);
        self.rows.push(Row::StateChange(Box::new(StateChangeRow { of, change })));
    }

    /// Records the event of a change of state.
    pub(crate) fn emit_state_change(&mut self, scope: StateScope, change: &StateChange) {
        let StateChange { key, version, deleted, value, by, .. } = change.clone();
        self.emit(Body::StateChanged { scope, key, version, by: by.author(), deleted, value });
    }

    /// Splits the draft into its commit and the state to take over once the commit is durable.
    pub(crate) fn finish(mut self, fence: Fence) -> Finished<S> {
        let mut rows = Vec::with_capacity(self.rows.len() + self.lines_changed.len() + 4);
        if self.session_changed {
            rows.push(Row::Session(self.hot.session.shared()));
        }
        rows.extend(self.subject.run().cloned().map(Row::Run));
        rows.extend(self.subject.attempt().map(|attempt| Row::Attempt(Box::new(attempt.clone()))));
        rows.extend(self.lines_changed.into_values().map(Row::Line));
        rows.extend(self.rows);
        let completed_to = self.completes_text.then_some(self.pos);
        self.hot.session.set_stored();
        rows.extend(completed_to.map(Row::ChunksDrop));
        let commit = Commit { fence, events: self.events, rows };
        Finished { commit, completed_to, hot: self.hot, subject: self.subject }
    }
}

/// A draft that is ready to be committed.
pub(crate) struct Finished<S> {
    pub(crate) commit: Commit,
    /// The position up to which the commit completes the streamed text.
    pub(crate) completed_to: Option<u64>,
    pub(crate) hot: Box<Hot>,
    pub(crate) subject: S,
}
