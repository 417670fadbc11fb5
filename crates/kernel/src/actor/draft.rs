//! Drafts: what one command changes, on copies, until its commit returns.
//!
//! A draft decides and applies on copies of the actor's state and collects the events and rows of it. Only when the
//! store has said yes does the actor take the copies over; a draft that is dropped has changed nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mainspring_core::run::{self, Command};
use mainspring_core::state::EVENT_VALUE_BYTES;
use mainspring_core::tree::{place, visit};
use mainspring_core::{
    Attempt, AttemptId, Binding, Block, Body, ClientResult, Close, Delegation, Digest, Failure, Line, LineId,
    Message, MessageId, MessageStatus, NodeId, Place, Point, Refusal, Role, Run, RunId, Session,
    SessionChange, StateAuthor, StateScope, Step, Time, TitleSource, ToolOutcome, Usage, Wait, attempt,
    session,
};

use super::Child;
use super::known::Turn;
use super::tree::Base;
use crate::adapter::{Compacted, StepTaken};
use crate::error::Error;
use crate::feed::OpenText;
use crate::ids::Ids;
use crate::store::{Commit, Effect, Fence, NewEvent, Row, StatePlace, StateRow};

/// The part of a session's state that drafts work on copies of.
#[derive(Debug, Clone)]
pub(crate) struct Hot {
    pub(crate) session: Session,
    /// The lines of the tip and of the pen of the run that writes.
    pub(crate) lines: HashMap<LineId, Line>,
    /// Tool calls without an outcome.
    pub(crate) effects: Vec<Effect>,
    /// Tool calls of the last message that have no result: id and name.
    pub(crate) unanswered: Vec<(String, String)>,
    /// Who spoke last in the active run.
    pub(crate) last_role: Option<Role>,
    /// The latest binding of the active run's adapter.
    pub(crate) binding: Option<Box<Binding>>,
    /// Keys of state that the active run has written since its last message.
    pub(crate) state_at_pen: Vec<String>,
    /// Runs whose prompts have joined the run that is at work.
    pub(crate) merged: Vec<Run>,
    /// Delegated work that its runs do, and that has not ended.
    pub(crate) tasks: Vec<Delegation>,
    /// Work that its runs have delegated, and that has not ended.
    pub(crate) children: Vec<Child>,
    /// True when a step may hold what only its run may know.
    pub(crate) keeps_private: bool,
    /// What the active run has used since its last answer: its next one says so.
    pub(crate) turn_usage: Usage,
}

pub(crate) struct Draft {
    pub(super) ids: Ids,
    pub(super) at: Time,
    pos: u64,
    pub(crate) hot: Hot,
    pub(crate) run: Option<Run>,
    pub(crate) attempt: Option<Attempt>,
    wait: Option<Wait>,
    /// Streamed text that this draft completes.
    text: Vec<OpenText>,
    completes: bool,
    /// How the path turns to where the run writes, if that is not the line of the tip.
    turn: Option<Turn>,
    /// What the session is called once this run has succeeded, if nobody has named it.
    title: Option<String>,
    /// Results of tool calls that the run had when it stopped waiting for others.
    given: Vec<ClientResult>,
    /// The next attempt settles the tool calls that this one leaves open.
    leaves_tools: bool,
    session_changed: bool,
    lines_changed: BTreeMap<LineId, Line>,
    events: Vec<NewEvent>,
    rows: Vec<Row>,
}

impl Draft {
    pub(crate) fn new(ids: Ids, at: Time, pos: u64, hot: Hot) -> Self {
        Self {
            ids,
            at,
            pos,
            hot,
            run: None,
            attempt: None,
            wait: None,
            text: vec![],
            completes: false,
            turn: None,
            title: None,
            given: vec![],
            leaves_tools: false,
            session_changed: false,
            lines_changed: BTreeMap::new(),
            events: vec![],
            rows: vec![],
        }
    }

    pub(crate) fn with_run(mut self, run: Run, attempt: Option<Attempt>) -> Self {
        self.run = Some(run);
        self.attempt = attempt;
        self
    }

    /// This draft completes the text streamed so far.
    pub(crate) fn with_text(mut self, text: Vec<OpenText>) -> Self {
        self.completes = !text.is_empty();
        self.text = text;
        self
    }

    pub(crate) fn with_turn(mut self, turn: Option<Turn>) -> Self {
        self.turn = turn;
        self
    }

    pub(crate) fn with_title(mut self, title: Option<String>) -> Self {
        self.title = title;
        self
    }

    /// If the run is tried again, its next attempt settles the tool calls that are open.
    pub(crate) fn leave_tools(&mut self, leaves: bool) {
        self.leaves_tools = leaves;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.rows.is_empty()
    }

    /// True when it says something that search shall find.
    pub(crate) fn is_searched(&self) -> bool {
        let says = |body: &Body| {
            matches!(
                body,
                Body::MessageCompleted { .. }
                    | Body::SessionCreated { .. }
                    | Body::SessionUpdated { change: SessionChange::Title { .. } }
            )
        };
        self.events.iter().any(|event| says(&event.body))
    }

    pub(crate) fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Records that `body` happened, and applies it.
    pub(crate) fn emit(&mut self, body: Body) {
        let attempt = self.attempt.as_ref().map(|attempt| attempt.id);
        if let Some(run) = &mut self.run {
            run::apply(run, &body, attempt, self.wait.as_ref(), self.at);
        }
        if let Some(attempt) = &mut self.attempt {
            attempt::apply(attempt, &body, self.at);
        }
        let before = (self.hot.session.version, self.hot.session.last_activity_at);
        session::apply(&mut self.hot.session, &body, self.at);
        self.session_changed |= matches!(body, Body::SessionCreated { .. })
            || before != (self.hot.session.version, self.hot.session.last_activity_at);
        // A change of the session is no part of a run, even if it comes with one.
        let of_run = !matches!(body, Body::SessionUpdated { .. });
        let run = self.run.as_ref().map(|run| run.id).filter(|_| of_run);
        let attempt = attempt.filter(|_| of_run);
        self.events.push(NewEvent { id: self.ids.event(), pos: self.pos, run, attempt, at: self.at, body });
    }

    /// Lets the session's rules decide.
    pub(crate) fn session_command(&mut self, command: session::Command) -> Result<(), Refusal> {
        for body in session::decide(&self.hot.session, command)? {
            self.emit(body);
        }
        Ok(())
    }

    /// Lets the run's rules decide. Where the run ends, its path is closed; where it is to be tried again, what the
    /// failed attempt left is set aside.
    pub(crate) fn command(&mut self, command: Command) -> Result<(), Refusal> {
        let Some(run) = &self.run else { return Ok(()) };
        if let Command::Wait { wait, .. } = &command {
            self.wait = Some(wait.clone());
        }
        if let Some(wait) = run.state.wait() {
            self.given.clone_from(&wait.results);
        }
        for mut body in run::decide(run, self.attempt.as_ref(), command)? {
            let (status, error) = ending(&body);
            if let Some(close) = body.close_mut() {
                *close = self.close(status, error.as_ref());
            } else if matches!(body, Body::RunQueued { .. }) {
                self.set_aside();
            }
            // Before the end, so that whoever has seen that has seen it all.
            if let (Body::RunSucceeded { .. }, Some(title)) = (&body, self.title.take()) {
                self.session_command(session::Command::Title { title, source: TitleSource::Heuristic })?;
            }
            let followed = (!self.hot.merged.is_empty()).then(|| body.clone());
            self.emit(body);
            followed.iter().for_each(|body| self.follow(body));
        }
        Ok(())
    }

    /// What was merged into the run goes where it goes.
    fn follow(&mut self, body: &Body) {
        let into = self.run.as_ref().map(|run| run.id);
        for mut run in std::mem::take(&mut self.hot.merged) {
            let next = run::follow(&run, body).filter(|_| run.merged_into == into);
            if let Some(body) = next {
                self.emit_of(&mut run, body);
            }
            if !run.state.status().is_ended() {
                self.hot.merged.push(run);
            }
        }
    }

    /// The prompt of `run` joins the run: it is what it reads next.
    pub(crate) fn merge(&mut self, mut run: Run, prompt: Arc<Message>) -> Result<(), Refusal> {
        let Some(into) = self.run.as_ref().map(|run| run.id) else { return Ok(()) };
        for body in run::decide(&run, None, Command::Merge { into })? {
            self.emit_of(&mut run, body);
        }
        self.hot.merged.push(run);
        self.write(prompt, true);
        Ok(())
    }

    /// Records that `body` happened to another run than the draft's own.
    fn emit_of(&mut self, run: &mut Run, body: Body) {
        run::apply(run, &body, None, None, self.at);
        let of = Some(run.id);
        self.events.push(NewEvent {
            id: self.ids.event(),
            pos: self.pos,
            run: of,
            attempt: None,
            at: self.at,
            body,
        });
        self.rows.retain(|row| !matches!(row, Row::Run(earlier) if Some(earlier.id) == of));
        self.rows.push(Row::Run(Box::new(run.clone())));
    }

    /// Records something about a run that it does not change.
    pub(crate) fn about(&mut self, run: RunId, body: Body) {
        let (id, pos, at) = (self.ids.event(), self.pos, self.at);
        self.events.push(NewEvent { id, pos, run: Some(run), attempt: None, at, body });
    }

    /// Starts the next attempt: finds the run's place in the tree, and puts its prompt there the first time.
    pub(crate) fn start(
        &mut self,
        node: NodeId,
        base: &Base,
        prompt: Option<(Arc<Message>, bool)>,
    ) -> Result<(), Refusal> {
        let Some(run) = &mut self.run else { return Ok(()) };
        let attempt = run::new_attempt(run, self.ids.attempt(), node, self.at);
        let first = run.pen.is_none();
        if first {
            let line = base.at.and_then(|base| self.hot.lines.get(&base.line));
            let placed = place(base.at, line, run.place.is_branch(), self.ids.line());
            run.pen = Some(placed.point);
            if let Some(line) = placed.opened {
                self.line_put(line);
            }
        }
        self.attempt = Some(attempt);
        self.command(Command::Start)?;
        if first && !base.owed.is_empty() {
            self.write_results(unanswered(
                base.owed.clone(),
                "no result: the conversation went on without it",
            ));
        }
        match prompt {
            Some((message, stored)) if first => self.write(message, stored),
            // An earlier prompt is answered again: who spoke last elsewhere does not matter.
            _ if first => self.hot.last_role = Some(Role::User),
            _ => self.hot.last_role = self.hot.last_role.or(Some(Role::User)),
        }
        Ok(())
    }

    /// Lets the run write beneath `base` from now on, on a line of its own: it is tried again after it had ended.
    pub(crate) fn reopen(&mut self, base: Option<Point>, message: Option<MessageId>) {
        let Some(run) = &mut self.run else { return };
        let placed = place(base, None, true, self.ids.line());
        run.pen = Some(placed.point);
        run.final_message = message;
        if let Some(line) = placed.opened {
            self.line_put(line);
        }
        self.hot.last_role = Some(Role::User);
    }

    /// Writes a message of the agent: what was streamed, then `blocks`.
    pub(crate) fn write_assistant(&mut self, blocks: Vec<Block>) {
        let mut texts = std::mem::take(&mut self.text);
        let last = texts.pop().unwrap_or_else(|| self.no_text());
        for earlier in texts {
            self.write_text(earlier, vec![], MessageStatus::Completed, None);
        }
        // A call of a tool is the middle of a turn: what it used is told with the answer that ends it.
        let calls = blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        let usage = if calls { None } else { self.turn_used() };
        self.write_text(last, blocks, MessageStatus::Completed, usage);
    }

    /// Tokens and cost were spent.
    pub(crate) fn spend(&mut self, usage: Usage) {
        self.hot.turn_usage += usage;
        self.emit(Body::UsageUpdated { usage });
    }

    /// What the turn that ends here has used.
    fn turn_used(&mut self) -> Option<Usage> {
        let used = std::mem::take(&mut self.hot.turn_usage);
        (!used.is_zero()).then_some(used)
    }

    /// Writes a message of the tools.
    pub(crate) fn write_results(&mut self, blocks: Vec<Block>) {
        let message = self.message(self.ids.message(), Role::User, blocks, MessageStatus::Completed, None);
        self.write(message, false);
    }

    /// Writes what came of a model call.
    pub(crate) fn step(&mut self, by: AttemptId, taken: StepTaken) {
        let Some(run) = &self.run else { return };
        let made = self
            .rows
            .iter()
            .any(|row| matches!(row, Row::Message(made, _) if Some(made.id) == run.final_message));
        let step = Step {
            id: self.ids.step(),
            run: run.id,
            attempt: by,
            no: taken.no,
            agent: taken.agent,
            provider: taken.provider,
            model: taken.model,
            profile: taken.profile,
            prompt: taken.prompt,
            output: run.final_message.filter(|_| made && taken.error.is_none()),
            tool_calls: taken.tool_calls,
            stop_reason: taken.stop_reason,
            error: taken.error,
            usage: taken.usage,
            raw_usage: taken.raw_usage,
            started_at: taken.started_at,
            first_piece_at: taken.first_piece_at,
            completed_at: self.at,
            private: taken.private,
        };
        self.hot.keeps_private |= step.private.is_some();
        let completed = Body::StepCompleted {
            step_id: step.id,
            step_no: step.no,
            provider: step.provider.clone(),
            model: step.model.clone(),
            stop_reason: step.stop_reason,
            message_id: step.output,
            error: step.error.clone(),
            budget: taken.budget,
        };
        self.rows.push(Row::Step(Box::new(step)));
        self.emit(completed);
    }

    /// Writes what stands for older messages of the run's path from now on.
    pub(crate) fn compact(&mut self, compacted: Compacted) -> Result<(), Error> {
        let Compacted { digest, from, messages, by, tokens_before, tokens_after } = compacted;
        let pen = self.run.as_ref().and_then(|run| run.pen);
        if pen.is_none_or(|pen| digest.at.pos >= pen.pos) {
            return Err(Error::Invalid("what a digest stands for must lie on the path".into()));
        }
        let digest = Digest { made_at: self.at, ..digest };
        let compacted = Body::ContextCompacted {
            from_message_id: from,
            to_message_id: digest.message,
            messages,
            total: digest.messages(),
            by,
            tokens_before,
            tokens_after,
            summary: digest.summary.clone(),
        };
        self.rows.push(Row::Digest(Box::new(digest)));
        self.emit(compacted);
        Ok(())
    }

    pub(crate) fn effect_start(&mut self, tool_use_id: String, name: String) {
        let Some(run) = &self.run else { return };
        let effect = Effect { run: run.id, tool_use_id, name };
        self.hot.effects.push(effect.clone());
        self.rows.push(Row::Effect(effect));
    }

    /// Ends a tool call; gives its name, none if it had not begun.
    pub(crate) fn effect_end(&mut self, tool_use_id: &str) -> Option<String> {
        let at = self.hot.effects.iter().position(|effect| effect.tool_use_id == tool_use_id)?;
        let effect = self.hot.effects.remove(at);
        self.rows.push(Row::EffectEnd(effect.run, effect.tool_use_id));
        Some(effect.name)
    }

    /// Changes state, and says so.
    pub(crate) fn state_set(&mut self, row: StateRow, by: StateAuthor) {
        let scope = match row.place {
            StatePlace::Session { .. } => StateScope::Session,
            StatePlace::Run(_) => StateScope::Run,
        };
        let value = row.value.clone().filter(|value| value.to_string().len() <= EVENT_VALUE_BYTES);
        let (key, version, deleted) = (row.key.clone(), row.version, row.value.is_none());
        self.rows.push(Row::State(Box::new(row)));
        self.emit(Body::StateChanged { scope, key, version, by, deleted, value });
    }

    /// What a run wrote after its last message belongs to that message once the run waits or ends.
    pub(crate) fn state_settle(&mut self) {
        let Some(pen) = self.run.as_ref().and_then(|run| run.pen) else {
            return;
        };
        let keys = std::mem::take(&mut self.hot.state_at_pen);
        self.rows.extend(keys.into_iter().map(|key| Row::StateBack(pen, key)));
    }

    /// The commit of all this, and the bytes of the stream that it completes.
    pub(crate) fn commit(&self, fence: Fence) -> (Commit, Option<u64>) {
        let mut rows = vec![];
        if self.session_changed {
            rows.push(Row::Session(Box::new(self.hot.session.clone())));
        }
        rows.extend(self.run.clone().map(|run| Row::Run(Box::new(run))));
        rows.extend(self.attempt.clone().map(|attempt| Row::Attempt(Box::new(attempt))));
        rows.extend(self.lines_changed.values().map(|line| Row::Line(*line)));
        rows.extend(self.rows.iter().cloned());
        let completed = self.completes.then_some(self.pos);
        rows.extend(completed.map(Row::ChunksDrop));
        (Commit { fence, events: self.events.clone(), rows }, completed)
    }

    /// Ends the run's path: tool calls get an outcome, streamed text becomes a message, and the session's tip moves
    /// unless the run was a branch that did not succeed.
    fn close(&mut self, status: MessageStatus, error: Option<&Failure>) -> Close {
        let Some(pen) = self.run.as_ref().and_then(|run| run.pen) else {
            return Close {
                usage: self.run.as_ref().map(|run| run.usage).unwrap_or_default(),
                ..Close::default()
            };
        };
        self.settle_tools();
        if std::mem::take(&mut self.hot.keeps_private) {
            self.rows.extend(self.run.as_ref().map(|run| Row::StepsSeal(run.id)));
        }
        let mut texts = std::mem::take(&mut self.text);
        let needs_last = error.is_some() || self.hot.last_role != Some(Role::Assistant);
        if texts.is_empty() && needs_last {
            texts.push(self.no_text());
        }
        let last = texts.len();
        for (no, text) in texts.into_iter().enumerate() {
            let error = error.filter(|_| no + 1 == last);
            let blocks =
                error.map(|error| Block::Error { code: error.code.clone(), message: error.message.clone() });
            let usage = if no + 1 == last { self.turn_used() } else { None };
            self.write_text(text, blocks.into_iter().collect(), status, usage);
        }
        self.hot.turn_usage = Usage::default();
        self.state_settle();
        let Some(run) = &self.run else {
            return Close::default();
        };
        let mut close = Close { message_id: run.final_message, tip: None, usage: run.usage };
        if run.place.is_branch() && status != MessageStatus::Completed {
            // Nothing is written there any more, so it need not stay in memory.
            if let Some(line) = self.hot.lines.remove(&pen.line) {
                let abandoned = Line { abandoned: true, ..line };
                self.lines_changed.insert(line.id, abandoned);
            }
        } else {
            close.tip = run.final_message;
            self.move_tip();
            self.binding_follows();
        }
        close
    }

    /// What a failed attempt leaves when the run is tried again: its partial text stays in the log, off the path.
    fn set_aside(&mut self) {
        let Some(pen) = self.run.as_ref().and_then(|run| run.pen) else {
            return;
        };
        if !self.leaves_tools {
            self.settle_tools();
        }
        for text in std::mem::take(&mut self.text) {
            let mut line = Line { abandoned: true, ..Line::open(self.ids.line(), self.above()) };
            let point = Point { line: line.id, pos: line.end };
            line.end += 1;
            let blocks = text.blocks.into_iter().map(|open| Block::Text { text: open.text }).collect();
            let message = self.message(text.message_id, Role::Assistant, blocks, MessageStatus::Failed, None);
            let parent_id = self.parent();
            self.lines_changed.insert(line.id, line);
            self.rows.push(Row::Message(message.clone(), Some(point)));
            self.emit(Body::MessageCompleted { message, parent_id });
        }
        debug_assert!(self.run.as_ref().and_then(|run| run.pen).is_some_and(|now| now.line == pen.line));
    }

    /// Gives every open tool call an outcome, and every tool call of the agent's last message a result.
    fn settle_tools(&mut self) {
        for effect in std::mem::take(&mut self.hot.effects) {
            self.rows.push(Row::EffectEnd(effect.run, effect.tool_use_id.clone()));
            self.emit(Body::ToolFailed {
                tool_use_id: effect.tool_use_id,
                name: effect.name,
                outcome: ToolOutcome::Unknown,
                error: Failure::new("outcome_unknown", "the run ended before the tool answered"),
            });
        }
        let calls = std::mem::take(&mut self.hot.unanswered);
        if !calls.is_empty() {
            let given = std::mem::take(&mut self.given);
            let why = "outcome unknown: the run ended before the tool answered";
            let mut blocks = unanswered(calls, why);
            blocks.iter_mut().for_each(|block| fill_in(block, &given));
            self.write_results(blocks);
        }
    }

    fn move_tip(&mut self) {
        let Some(tip) = self.run.as_ref().and_then(|run| run.pen).and_then(before) else {
            return;
        };
        self.turn_path();
        self.hot.session.tip = Some(tip);
        self.hot.lines.retain(|id, _| *id == tip.line);
    }

    /// The path turns: its cursors follow, and what it takes up again is no longer abandoned.
    fn turn_path(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let changes = visit(&turn.ranges, &turn.cursors);
        self.rows.extend(changes.into_iter().map(|(at, to)| Row::Cursor(at, to)));
        for line in turn.lines.into_iter().filter(|line| line.abandoned) {
            self.lines_changed.insert(line.id, Line { abandoned: false, ..line });
        }
    }

    /// Moves the path to another leaf, or to none.
    pub(crate) fn navigate(
        &mut self,
        leaf: Option<(Point, MessageId)>,
        line: Option<Line>,
    ) -> Result<(), Refusal> {
        self.session_command(session::Command::Navigate { tip: leaf.map(|(_, message)| message) })?;
        self.turn_path();
        self.hot.session.tip = leaf.map(|(point, _)| point);
        self.hot.lines = line.into_iter().map(|line| (line.id, line)).collect();
        Ok(())
    }

    fn write_text(
        &mut self,
        text: OpenText,
        blocks: Vec<Block>,
        status: MessageStatus,
        usage: Option<Usage>,
    ) {
        let streamed = text.blocks.into_iter().map(|open| Block::Text { text: open.text });
        let content = streamed.chain(blocks).collect();
        let message = self.message(text.message_id, Role::Assistant, content, status, usage);
        self.write(message, false);
    }

    fn message(
        &self,
        id: MessageId,
        role: Role,
        content: Vec<Block>,
        status: MessageStatus,
        usage: Option<Usage>,
    ) -> Arc<Message> {
        let run = self.run.as_ref().map(|run| run.id);
        Arc::new(Message {
            id,
            session: self.hot.session.id,
            run,
            role,
            status,
            content,
            usage,
            created_at: self.at,
        })
    }

    fn no_text(&self) -> OpenText {
        OpenText { message_id: self.ids.message(), blocks: vec![] }
    }

    /// Puts `message` where the run's pen is and moves the pen on.
    fn write(&mut self, message: Arc<Message>, stored: bool) {
        let parent_id = self.parent();
        let Some(run) = &mut self.run else { return };
        let Some(pen) = run.pen else { return };
        run.pen = Some(Point { pos: pen.pos + 1, ..pen });
        run.final_message = Some(message.id);
        if let Some(line) = self.hot.lines.get(&pen.line).copied() {
            self.line_put(Line { end: pen.pos + 1, ..line });
        }
        self.hot.last_role = Some(message.role);
        self.hot.unanswered = message.tool_calls();
        self.hot.state_at_pen.clear();
        self.rows.push(match stored {
            true => Row::MessagePlace(message.id, pen),
            false => Row::Message(message.clone(), Some(pen)),
        });
        self.emit(Body::MessageCompleted { message, parent_id });
    }

    /// The place of the message above the pen. The first place of a line hangs from another line.
    fn above(&self) -> Option<Point> {
        let above = before(self.run.as_ref()?.pen?)?;
        match self.hot.lines.get(&above.line) {
            Some(line) if above.pos < line.start() => line.parent,
            _ => Some(above),
        }
    }

    /// The message above the pen.
    fn parent(&self) -> Option<MessageId> {
        let run = self.run.as_ref()?;
        match (run.final_message, run.place) {
            (Some(written), _) => Some(written),
            (None, Place::Tip) => self.hot.session.tip_message,
            (None, Place::Regenerate { message_id } | Place::Edit { message_id }) => Some(message_id),
            (None, Place::Root) => None,
        }
    }

    fn line_put(&mut self, line: Line) {
        self.hot.lines.insert(line.id, line);
        self.lines_changed.insert(line.id, line);
    }
}

/// Results for tool calls that nobody answers any more.
fn unanswered(calls: Vec<(String, String)>, why: &str) -> Vec<Block> {
    let result = |(tool_use_id, name)| Block::ToolResult {
        tool_use_id,
        name,
        content: vec![Block::text(why)],
        is_error: true,
    };
    calls.into_iter().map(result).collect()
}

/// Takes the result of a call that has one.
fn fill_in(block: &mut Block, given: &[ClientResult]) {
    if let Block::ToolResult { tool_use_id, content, is_error, .. } = block
        && let Some(result) = given.iter().find(|result| result.tool_use_id == *tool_use_id)
    {
        *content = vec![Block::text(result.text())];
        *is_error = result.is_error;
    }
}

/// The point just before `point` on its path; none before a root. It may lie on the parent line (see
/// `mainspring_core::tree::ranges`).
pub(crate) fn before(point: Point) -> Option<Point> {
    point.pos.checked_sub(1).map(|pos| Point { pos, ..point })
}

/// How the message that closes a run ends, and what its error block says.
fn ending(body: &Body) -> (MessageStatus, Option<Failure>) {
    match body {
        Body::RunCancelled { .. } => {
            (MessageStatus::Cancelled, Some(Failure::new("cancelled", "the run was cancelled")))
        }
        Body::RunFailed { error, .. } | Body::RunTimedOut { error, .. } | Body::RunOrphaned { error, .. } => {
            (MessageStatus::Failed, Some(error.clone()))
        }
        _ => (MessageStatus::Completed, None),
    }
}
