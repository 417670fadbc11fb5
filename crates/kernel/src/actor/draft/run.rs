//! Drafts of a run: its commands, its messages and the end of its path.

use std::sync::Arc;

use mainspring_core::run::close::{self, Ending, NewMessage, Open, PathEnd};
use mainspring_core::run::{self, Command, round};
use mainspring_core::tree::{self, place};
use mainspring_core::{
    ArtifactId, Attempt, Block, Body, ClientResult, Close, Line, Message, MessageId, MessageStatus, NodeId,
    Point, Refusal, Role, Run, RunId, Time, TitleSource, Usage, Wait, attempt, session,
};

use super::{AttemptDraft, Draft, QueuedDraft, Subject};
use crate::actor::tree::Base;
use crate::feed::OpenText;
use crate::store::{NewEvent, OpenToolCall, Row};

/// A run, and its attempt if `A` is one.
pub(crate) struct OfRun<A> {
    pub(crate) run: Arc<Run>,
    pub(crate) attempt: A,
    /// The wait that the run enters.
    wait: Option<Wait>,
    /// Streamed text that this draft completes.
    streamed: Vec<OpenText>,
    /// The title that the session gets when the run succeeds, unless it has one.
    title: Option<String>,
    /// Tool results that the caller had given when the run stopped waiting for the others.
    given: Vec<ClientResult>,
    /// True when the next attempt settles the open tool calls.
    leaves_tools: bool,
}

/// The place of a run's attempt in a draft: an [`Attempt`] or [`NoAttempt`].
pub(crate) trait AttemptSlot {
    fn get(&self) -> Option<&Attempt>;

    fn get_mut(&mut self) -> Option<&mut Attempt>;
}

/// The run has no attempt that the draft could change.
pub(crate) struct NoAttempt;

impl AttemptSlot for NoAttempt {
    fn get(&self) -> Option<&Attempt> {
        None
    }

    fn get_mut(&mut self) -> Option<&mut Attempt> {
        None
    }
}

impl AttemptSlot for Attempt {
    fn get(&self) -> Option<&Attempt> {
        Some(self)
    }

    fn get_mut(&mut self) -> Option<&mut Attempt> {
        Some(self)
    }
}

impl<A> OfRun<A> {
    pub(super) fn new(run: Arc<Run>, attempt: A) -> Self {
        Self { run, attempt, wait: None, streamed: vec![], title: None, given: vec![], leaves_tools: false }
    }
}

impl<A: AttemptSlot> Subject for OfRun<A> {
    fn run(&self) -> Option<&Arc<Run>> {
        Some(&self.run)
    }

    fn attempt(&self) -> Option<&Attempt> {
        self.attempt.get()
    }

    fn apply(&mut self, body: &Body, at: Time) {
        let by = self.attempt.get().map(|attempt| attempt.id);
        run::apply(Arc::make_mut(&mut self.run), body, by, self.wait.as_ref(), at);
        if let Some(attempt) = self.attempt.get_mut() {
            attempt::apply(attempt, body, at);
        }
    }

    fn propagate_status(draft: &mut Draft<Self>) {
        draft.propagate_run_status();
    }
}

impl QueuedDraft {
    /// Starts the next attempt. The first attempt finds the run's place in the tree and writes the prompt there;
    /// `prompt` is the run's own prompt, and whether it is stored already.
    pub(crate) fn start(
        mut self,
        node: NodeId,
        base: &Base,
        prompt: Option<(Arc<Message>, bool)>,
        checkpoint: Option<ArtifactId>,
    ) -> Result<AttemptDraft, Refusal> {
        let run = Arc::make_mut(&mut self.subject.run);
        let attempt = run::new_attempt(run, self.ids.attempt(), checkpoint, node, self.at);
        let is_first = run.pen.is_none();
        if is_first {
            let line = base.at.and_then(|base| self.hot.session.line(base.line));
            let placed = place(base.at, line, run.place.is_branch(), self.ids.line());
            run.pen = Some(placed.point);
            if let Some(line) = placed.opened {
                self.line_put(line);
            }
        }
        let mut draft = self.with_subject(|of| OfRun::new(of.run, attempt));
        draft.hot.answer.forget_agent();
        draft.command(Command::Start { checkpoint })?;
        let start =
            round::path_start(is_first, &base.unanswered, prompt.is_some(), draft.hot.path.last_role());
        if let Some(results) = start.results {
            draft.write_results(results)?;
        }
        if let Some((message, stored)) = prompt.filter(|_| start.writes_prompt) {
            draft.write(message, stored)?;
        }
        draft.hot.path.start(is_first, start.last_role);
        Ok(draft)
    }

    /// Places the pen of a retried run beneath `base`, on a new line.
    pub(crate) fn reopen(&mut self, base: Option<Point>, message: Option<MessageId>) {
        let placed = place(base, None, true, self.ids.line());
        let run = Arc::make_mut(&mut self.subject.run);
        run.pen = Some(placed.point);
        run.final_message = message;
        if let Some(line) = placed.opened {
            self.line_put(line);
        }
        self.hot.path.reopen();
    }
}

impl AttemptDraft {
    /// Completes the text streamed so far.
    pub(crate) fn with_text(mut self, text: Vec<OpenText>) -> Self {
        self.completes_text = !text.is_empty();
        self.subject.streamed = text;
        self
    }

    /// Sets the title that the session gets if the run succeeds and the session has no title.
    pub(crate) fn with_title(mut self, title: Option<String>) -> Self {
        self.subject.title = title;
        self
    }

    /// Leaves open tool calls to the next attempt, if the run is retried and `leaves` is true.
    pub(crate) fn leaving_tools(mut self, leaves: bool) -> Self {
        self.subject.leaves_tools = leaves;
        self
    }

    /// Makes the prompt of the queued `run` the next message of this run.
    pub(crate) fn merge(&mut self, mut run: Run, prompt: Arc<Message>) -> Result<(), Refusal> {
        let into = self.subject.run.id;
        self.turn_completed();
        for body in run::decide(&run, None, Command::Merge { into })? {
            self.emit_of(&mut run, body);
        }
        self.hot.merged.put(run);
        self.write(prompt, true)
    }

    /// Takes the streamed text of earlier messages, and of the last one.
    pub(super) fn take_streamed(&mut self) -> (Vec<NewMessage>, NewMessage) {
        let mut texts = std::mem::take(&mut self.subject.streamed);
        let last = match texts.pop() {
            Some(last) => new_message(last),
            None => NewMessage { id: self.ids.message(), content: vec![] },
        };
        (texts.into_iter().map(new_message).collect(), last)
    }
}

impl<A: AttemptSlot> Draft<OfRun<A>> {
    /// Applies a command to the run. Closes the run's path where the run ends, and sets aside the rest of a failed
    /// attempt where the run is retried.
    pub(crate) fn command(&mut self, command: Command) -> Result<(), Refusal> {
        if let Command::Wait { wait, .. } = &command {
            self.subject.wait = Some(wait.clone());
        }
        if let Some(wait) = self.subject.run.state.wait() {
            self.subject.given.clone_from(&wait.results);
        }
        for mut body in run::decide(&self.subject.run, self.subject.attempt.get(), command)? {
            if body.ends_run() {
                let close = self.close(&Ending::of(&body))?;
                if let Some(slot) = body.close_mut() {
                    *slot = close;
                }
            } else if matches!(body, Body::RunQueued { .. }) {
                self.set_aside()?;
            }
            // The title comes before the end: a reader that has seen the end has seen everything.
            if let (Body::RunSucceeded { .. }, Some(title)) = (&body, self.subject.title.take()) {
                self.session_command(session::Command::Title { title, source: TitleSource::Heuristic })?;
            }
            let followed = (!self.hot.merged.is_empty()).then(|| body.clone());
            self.emit(body);
            followed.iter().for_each(|body| self.propagate_to_merged(body));
        }
        Ok(())
    }

    /// Applies an event of this run to the runs that were merged into it.
    fn propagate_to_merged(&mut self, body: &Body) {
        let into = Some(self.subject.run.id);
        for mut run in self.hot.merged.take() {
            let next = run::follow(&run, body).filter(|_| run.merged_into == into);
            if let Some(body) = next {
                self.emit_of(&mut run, body);
            }
            self.hot.merged.put(run);
        }
    }

    /// Records the event `body` of a run that is not the draft's own, and applies it to that run.
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
        self.rows.push(Row::Run(Arc::new(run.clone())));
    }

    /// Moves the state that the run wrote after its last message to that message: the run waits or ends.
    pub(crate) fn state_settle(&mut self) {
        if let Some(pen) = self.subject.run.pen {
            let keys = self.hot.path.take_state_keys();
            self.rows.extend(keys.into_iter().map(|key| Row::StateBack(pen, key)));
        }
    }

    /// Closes the run's path (see [`close`]). A run that never started has no path.
    fn close(&mut self, ending: &Ending) -> Result<Close, Refusal> {
        if self.subject.run.pen.is_none() {
            return Ok(Close { usage: self.subject.run.usage, ..Close::default() });
        }
        self.fail_open_tools();
        let known = self.hot.calls.known_results(&std::mem::take(&mut self.subject.given));
        let open = Open {
            unanswered: self.hot.path.take_unanswered(),
            known: &known,
            last_role: self.hot.path.last_role(),
            streamed: std::mem::take(&mut self.subject.streamed).into_iter().map(new_message).collect(),
        };
        let closing = close::close(open, ending.error.as_ref(), || self.ids.message());
        if let Some(content) = closing.results {
            self.write_results(content)?;
        }
        if self.hot.steps.take_private() {
            self.rows.push(Row::StepsSeal(self.subject.run.id));
        }
        let last = closing.messages.len();
        for (no, NewMessage { id, content }) in closing.messages.into_iter().enumerate() {
            let usage = if no + 1 == last { self.hot.answer.take_usage() } else { None };
            let message = self.message(id, Role::Assistant, content, ending.status, usage);
            self.write(message, false)?;
        }
        self.hot.answer.drop_usage();
        self.state_settle();
        self.end_path(ending.status)
    }

    /// Moves the session's tip to the run's last message, or abandons the run's line.
    fn end_path(&mut self, status: MessageStatus) -> Result<Close, Refusal> {
        let run = &self.subject.run;
        let mut close = Close { message_id: run.final_message, tip: None, usage: run.usage };
        match close::path_end(run.place, status) {
            PathEnd::Tip => {
                close.tip = run.final_message;
                self.move_tip()?;
                self.binding_advance();
            }
            PathEnd::Unmoved => {
                // An abandoned line is not written any more and need not stay in memory.
                let line = run.pen.and_then(|pen| self.hot.session.remove_line(pen.line));
                self.lines_changed.extend(line.map(|line| (line.id, Line { abandoned: true, ..line })));
            }
        }
        Ok(close)
    }

    /// Moves the session's tip to the run's last message, which is above the pen. Refused if the path is empty, which is a
    /// bug: `close` makes every path end with a message of the agent.
    fn move_tip(&mut self) -> Result<(), Refusal> {
        let tip = self.subject.run.pen.and_then(tree::before);
        let tip = tip.ok_or(Refusal::WrongState { what: "path of the run", status: "empty" })?;
        self.change_path();
        self.hot.session.move_tip(tip);
        Ok(())
    }

    /// Keeps the partial text of a failed attempt in the log, off the path: the run is tried again. A run without a pen
    /// has nothing to set aside: its first attempt gets the pen before it streams text or calls tools.
    fn set_aside(&mut self) -> Result<(), Refusal> {
        let Some(pen) = self.subject.run.pen else { return Ok(()) };
        if !self.subject.leaves_tools {
            self.fail_open_tools();
            let calls = self.hot.path.take_unanswered();
            if !calls.is_empty() {
                let given = std::mem::take(&mut self.subject.given);
                let known = self.hot.calls.known_results(&given);
                self.write_results(close::settle(calls, &known))?;
            }
        }
        for text in std::mem::take(&mut self.subject.streamed) {
            let NewMessage { id, content } = new_message(text);
            let (line, point) = tree::aside(self.ids.line(), self.point_above_pen());
            let message = self.message(id, Role::Assistant, content, MessageStatus::Failed, None);
            let parent_id = self.subject.run.parent_message(self.hot.session.tip_message);
            self.lines_changed.insert(line.id, line);
            self.rows.push(Row::Message(message.clone(), Some(point)));
            self.emit(Body::MessageCompleted { message, parent_id });
        }
        debug_assert!(self.subject.run.pen.is_some_and(|now| now.line == pen.line));
        Ok(())
    }

    /// Ends every unfinished tool call: its outcome is unknown.
    fn fail_open_tools(&mut self) {
        for OpenToolCall { run, tool_use_id, name, .. } in self.hot.calls.take_unfinished() {
            self.remove_call_row(run, tool_use_id.clone());
            self.emit(close::outcome_unknown(tool_use_id, name));
        }
    }

    /// Removes the row of a tool call.
    pub(super) fn remove_call_row(&mut self, run: RunId, tool_use_id: String) {
        let is_same = |call: &OpenToolCall| call.run == run && call.tool_use_id == tool_use_id;
        self.rows.retain(|row| !matches!(row, Row::ToolCall(call) if is_same(call)));
        self.rows.push(Row::ToolCallSettled(run, tool_use_id));
    }

    /// Records that the turn is complete if the run's last message completes it: another turn of the run follows.
    pub(super) fn turn_completed(&mut self) {
        let is_complete = self.hot.path.is_turn_complete();
        if let Some(message_id) = self.subject.run.final_message.filter(|_| is_complete) {
            self.emit(Body::TurnCompleted { message_id });
        }
    }

    /// Writes a message with tool results: `blocks`, completed with the results of the calls that have ended and with how
    /// long they took.
    pub(crate) fn write_results(&mut self, mut blocks: Vec<Block>) -> Result<(), Refusal> {
        let (id, ended) = self.hot.calls.take_ended();
        let id = id.unwrap_or_else(|| self.ids.message());
        round::complete_results(&mut blocks, &ended);
        for OpenToolCall { run, tool_use_id, .. } in ended {
            self.remove_call_row(run, tool_use_id);
        }
        let message = self.message(id, Role::User, blocks, MessageStatus::Completed, None);
        self.write(message, false)
    }

    /// Writes a message of the user's side that holds no tool results.
    pub(super) fn write_user(&mut self, blocks: Vec<Block>) -> Result<(), Refusal> {
        let message = self.message(self.ids.message(), Role::User, blocks, MessageStatus::Completed, None);
        self.write(message, false)
    }

    pub(super) fn message(
        &self,
        id: MessageId,
        role: Role,
        content: Vec<Block>,
        status: MessageStatus,
        usage: Option<Usage>,
    ) -> Arc<Message> {
        Arc::new(Message {
            id,
            session: self.hot.session.id,
            run: Some(self.subject.run.id),
            role,
            status,
            content,
            usage,
            created_at: self.at,
            agent: self.hot.answer.agent().filter(|_| role == Role::Assistant).cloned(),
            external_id: None,
        })
    }

    /// Writes `message` at the run's pen and advances the pen. Refused for a run that has never started.
    pub(super) fn write(&mut self, message: Arc<Message>, stored: bool) -> Result<(), Refusal> {
        let run = &self.subject.run;
        let parent_id = run.parent_message(self.hot.session.tip_message);
        let pen = run.pen.ok_or(Refusal::WrongState { what: "run", status: run.state.status().name() })?;
        self.line_extend(pen)?;
        let run = Arc::make_mut(&mut self.subject.run);
        run.pen = Some(Point { pos: pen.pos + 1, ..pen });
        run.final_message = Some(message.id);
        self.hot.path.add_message(&message);
        self.rows.push(match stored {
            true => Row::MessagePlace(message.id, pen),
            false => Row::Message(message.clone(), Some(pen)),
        });
        self.emit(Body::MessageCompleted { message, parent_id });
        Ok(())
    }

    /// Returns the position of the message above the pen.
    fn point_above_pen(&self) -> Option<Point> {
        let pen = self.subject.run.pen?;
        tree::above(pen, self.hot.session.line(pen.line))
    }
}

fn new_message(text: OpenText) -> NewMessage {
    let content = text.blocks.into_iter().map(|block| Block::Text { text: block.text }).collect();
    NewMessage { id: text.message_id, content }
}
