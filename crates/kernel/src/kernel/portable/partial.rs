//! The session that an import is building.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_core::{
    AttemptId, Body, EventId, KeyLists, Line, Message, MessageId, MessageStatus, Point, Run, RunId,
    RunOptions, Session, Time,
};
use serde::Deserialize;
use serde_json::Value;

use super::check::{Facts, check_counter, check_message, check_time};
use super::data::OpenArtifact;
use super::import::{ImportClaim, LineError, refuse};
use super::state::order_of;
use super::{MessageLine, RunLine, VERSION};
use crate::error::Error;
use crate::kernel::{Shared, hashed_input, instructions_hash};
use crate::store::{
    Commit, Fence, NewEvent, NewId, Pin, Row, SessionRef, StateHistoryOf, StatePlace, StepInputRow,
    StoreError, Unique,
};

/// Rows and events written at once.
const BATCH_ROWS: usize = 200;
/// Bytes of the file written at once.
const BATCH_BYTES: usize = 1 << 20;

/// A session that is being imported.
pub(super) struct PartialSession {
    claim: ImportClaim,
    pub(super) shared: Arc<Shared>,
    /// The session as the file describes it.
    pub(super) session: Session,
    pub(super) fence: Fence,
    pub(super) rows: Vec<Row>,
    events: Vec<NewEvent>,
    bytes: usize,
    /// Points of the messages that are not written yet.
    unwritten: HashMap<MessageId, Point>,
    /// The line of the tree being read.
    line: Option<OpenLine>,
    /// The facts of the records read so far.
    pub(super) facts: Facts,
    limits: CallerLimits,
    /// The artifact whose bytes are being read.
    pub(super) artifact: Option<OpenArtifact>,
    /// Number of state keys read so far for the current run, or for the session.
    pub(super) keys: usize,
    /// The place of the session's state, once it was looked up.
    pub(super) tip_state_place: Option<StatePlace>,
    /// The points of messages that have state.
    pub(super) state_points: HashMap<MessageId, Point>,
    /// The version of the file.
    version: u32,
    pos: u64,
    section: Section,
}

/// The folders and the lists to which the importing caller is limited.
pub(super) type CallerLimits = (Option<Vec<String>>, Option<Box<KeyLists>>);

struct OpenLine {
    no: u64,
    line: Line,
    last: MessageId,
}

/// The sections of the file, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    Messages,
    Runs,
    Artifacts,
    State,
    StateChanges,
    Events,
}

impl PartialSession {
    /// Makes a session that begins with `rows`, which are not written yet.
    pub(super) fn new(
        claim: ImportClaim,
        limits: CallerLimits,
        (version, session): (u32, Session),
        fence: Fence,
        rows: Vec<Row>,
    ) -> Self {
        Self {
            shared: claim.shared.clone(),
            claim,
            session,
            fence,
            rows,
            events: vec![],
            bytes: 0,
            unwritten: HashMap::new(),
            line: None,
            facts: Facts::default(),
            limits,
            artifact: None,
            keys: 0,
            tip_state_place: None,
            state_points: HashMap::new(),
            version,
            pos: 0,
            section: Section::Messages,
        }
    }

    pub(super) async fn message(&mut self, line: MessageLine, bytes: usize) -> Result<(), LineError> {
        self.enter(Section::Messages)?;
        let (id, message) = (line.message.id, line.message.clone());
        if matches!(message.status, MessageStatus::NotStarted | MessageStatus::Generating) {
            return refuse(format!("{id} is {}: such a message has no place yet", message.status));
        }
        check_message(&message)?;
        let open = match self.line.take() {
            Some(open) if open.no == line.line => {
                if line.parent_id != Some(open.last) {
                    return refuse(format!("the message above {id} on its line is {}", open.last));
                }
                if line.abandoned != open.line.abandoned || line.followed || line.opened.is_some() {
                    return refuse("only the first message of a line says what became of the line");
                }
                open
            }
            earlier => self.open_line(&line, earlier.map_or(0, |open| open.no + 1)).await?,
        };
        let at = Point { line: open.line.id, pos: open.line.end };
        let end = at.pos.checked_add(1).ok_or_else(|| LineError::Line("the tree is too deep".into()))?;
        let grown = Line { end, ..open.line };
        self.rows.push(Row::NewId(NewId::Message(id)));
        self.rows.push(Row::Line(grown));
        self.rows.push(Row::Message(message, Some(at)));
        if self.unwritten.insert(id, at).is_some() {
            return refuse(format!("{id} is there twice"));
        }
        self.line = Some(OpenLine { line: grown, last: id, ..open });
        self.line_done(bytes).await
    }

    /// Opens the line of the tree with number `next`, whose first message is on `line` of the file.
    async fn open_line(&mut self, line: &MessageLine, next: u64) -> Result<OpenLine, LineError> {
        if line.line != next {
            return refuse(format!("the next line of the tree is {next}, not {}", line.line));
        }
        let parent = match line.parent_id {
            None if line.followed => return refuse("no cursor leads to a root"),
            None => None,
            Some(parent) => Some(self.point_of(parent).await?),
        };
        let fresh = self.shared.ids.line();
        let opened = Line { abandoned: line.abandoned, ..Line::open(fresh, parent) };
        if let Some(parent) = parent.filter(|_| line.followed) {
            self.rows.push(Row::Cursor(parent, Some(fresh)));
        }
        match line.opened {
            Some(opened) if self.is_exact() => {
                self.rows.push(Row::LineOrder(fresh, order_of("opened", opened)?));
            }
            None if !self.is_exact() => {}
            _ => return refuse("the first message of a line has `opened` in version 2, and only there"),
        }
        Ok(OpenLine { no: next, line: opened, last: line.message.id })
    }

    /// True if the file has the state of all branches.
    pub(super) fn is_exact(&self) -> bool {
        self.version == VERSION
    }

    /// The point of a message of this file.
    pub(super) async fn point_of(&self, id: MessageId) -> Result<Point, LineError> {
        if let Some(at) = self.unwritten.get(&id) {
            return Ok(*at);
        }
        let found = self.shared.store.message_get(self.session.id, id).await?;
        let at = found.and_then(|(placed, _)| placed.point);
        at.ok_or_else(|| LineError::Line(format!("{id} does not stand above in this file")))
    }

    pub(super) async fn run(&mut self, line: RunLine, bytes: usize) -> Result<(), LineError> {
        self.enter(Section::Runs)?;
        let RunLine { run, fingerprint, attempts, steps, inputs, state, state_changes, prompt } = line;
        let id = run.id;
        if (run.session, &run.owner) != (self.session.id, &self.session.owner) {
            return refuse(format!("{id} is not a run of this session and its owner"));
        }
        if !run.state.status().is_ended() {
            return refuse(format!("{id} is {}: only runs that have ended are imported", run.state.status()));
        }
        self.facts.add_run(&run, &attempts, &steps)?;
        let fingerprint = fingerprint_of(&fingerprint)?;
        // A run that has begun has written messages: its pen is after the last one.
        let pen = match run.final_message {
            Some(last) => self.point_of(last).await.map(|at| Some(Point { pos: at.pos + 1, ..at }))?,
            None => None,
        };
        self.prompt(&run, prompt, pen.is_some()).await?;
        self.rows.push(Row::NewId(NewId::Run(id)));
        self.rows.extend(attempts.into_iter().map(|attempt| Row::Attempt(Box::new(attempt))));
        let system_prompt_hash = instructions_hash(run.options.system_prompt.as_deref());
        let (folders, key) = self.limits.clone();
        let options = RunOptions { folders, key, ..run.options };
        let run = Run { fingerprint, pen, final_text: None, system_prompt_hash, options, ..run };
        self.rows.push(Row::Run(Arc::new(run)));
        for input in inputs {
            let hashed = hashed_input(&input);
            let (hash, json) =
                hashed.ok_or_else(|| LineError::Line("the input of a step is no JSON".into()))?;
            self.rows.push(Row::StepInput(Arc::new(StepInputRow { hash, json })));
        }
        self.rows.extend(steps.into_iter().map(|step| Row::Step(Box::new(step))));
        self.push_state(StatePlace::Run(id), state)?;
        self.keys = 0;
        for change in state_changes {
            self.push_state_change(StateHistoryOf::Run(id), change)?;
        }
        self.line_done(bytes).await
    }

    /// Checks the prompt of a run: it is in the tree, or comes with a run that never began.
    async fn prompt(
        &mut self,
        run: &Run,
        prompt: Option<Arc<Message>>,
        began: bool,
    ) -> Result<(), LineError> {
        match (run.prompt, prompt) {
            (Some(id), Some(prompt)) if prompt.id == id && !began => {
                let own = prompt.session == self.session.id && prompt.status == MessageStatus::NotStarted;
                if !own {
                    return refuse(format!("{id} is not a prompt of this session that waits"));
                }
                check_message(&prompt)?;
                self.rows.push(Row::NewId(NewId::Message(id)));
                self.rows.push(Row::Message(prompt, None));
                Ok(())
            }
            // Earlier programs also wrote the prompt of a merged run here. It is in the tree.
            (Some(id), Some(prompt)) if prompt.id == id && run.merged_into.is_some() => {
                self.point_of(id).await.map(drop)
            }
            (Some(id), None) => self.point_of(id).await.map(drop),
            (None, None) => Ok(()),
            (_, Some(prompt)) => refuse(format!("{} is not the prompt of a run that never began", prompt.id)),
        }
    }

    pub(super) async fn event(&mut self, event: Value, bytes: usize) -> Result<(), LineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Envelope {
            event_id: EventId,
            pos: u64,
            run_id: Option<RunId>,
            attempt_id: Option<AttemptId>,
            timestamp_ms: Time,
        }
        self.enter(Section::Events)?;
        let unfit = |error: serde_json::Error| LineError::Line(error.to_string());
        let Envelope { event_id: id, pos, run_id: run, attempt_id: attempt, timestamp_ms: at } =
            Envelope::deserialize(&event).map_err(unfit)?;
        let body = match event["type"].as_str() {
            Some(Body::MESSAGE_COMPLETED) => self.message_completed(&event["payload"]).await?,
            _ => Body::deserialize(&event).map_err(unfit)?,
        };
        if body.is_transient() {
            return refuse(format!("{} is never stored", body.kind()));
        }
        if let Some(run) = run.filter(|run| !self.facts.has_run(*run)) {
            return refuse(format!("{run} does not stand above in this file"));
        }
        if let Some(attempt) = attempt.filter(|attempt| !self.facts.has_attempt(*attempt)) {
            return refuse(format!("{attempt} does not stand above in this file"));
        }
        if pos < self.pos {
            return refuse(format!("the stream stood at {} before, not later than {pos}", self.pos));
        }
        check_counter(&format!("pos of {id}"), pos)?;
        check_time(&format!("timestampMs of {id}"), at)?;
        self.facts.add_event(run, &body)?;
        self.pos = pos;
        self.events.push(NewEvent { id, pos, run, attempt, at, body });
        self.line_done(bytes).await
    }

    /// The body of a `message.completed` event, whose message has its own line in the file.
    async fn message_completed(&self, payload: &Value) -> Result<Body, LineError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Completed {
            message_id: MessageId,
            parent_id: Option<MessageId>,
        }
        let unfit = |error: serde_json::Error| LineError::Line(error.to_string());
        let Completed { message_id, parent_id } = Completed::deserialize(payload).map_err(unfit)?;
        let found = self.shared.store.message_get(self.session.id, message_id).await?;
        let (placed, _) = found
            .ok_or_else(|| LineError::Line(format!("{message_id} does not stand above in this file")))?;
        Ok(Body::MessageCompleted { message: placed.message, parent_id })
    }

    /// Ends the file: compares the rows with their last events.
    pub(super) fn end(&mut self) -> Result<(), LineError> {
        self.enter(Section::Events)?;
        self.facts.check_end(&self.session)
    }

    /// Enters a section of the file. Sections come in a fixed order.
    pub(super) fn enter(&mut self, section: Section) -> Result<(), LineError> {
        if section < self.section {
            return refuse("a file holds messages, then runs, artifacts, state, its changes and events");
        }
        if let Some(open) = &self.artifact {
            return refuse(format!("bytes of {} are missing", open.artifact.id));
        }
        self.section = section;
        Ok(())
    }

    /// Counts a line of the file, and writes the pending rows if the batch is full.
    pub(super) async fn line_done(&mut self, bytes: usize) -> Result<(), LineError> {
        self.bytes += bytes;
        // Events look up the messages they refer to, so all rows are written when the events begin.
        let full = self.rows.len() + self.events.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES;
        if full || (self.section == Section::Events && !self.rows.is_empty()) {
            self.write().await?;
        }
        Ok(())
    }

    /// Commits the pending rows and events.
    pub(super) async fn write(&mut self) -> Result<(), LineError> {
        if self.rows.is_empty() && self.events.is_empty() {
            return Ok(());
        }
        let (rows, events) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.events));
        self.bytes = 0;
        self.unwritten.clear();
        let commit = Commit { fence: self.fence, events, rows };
        match self.shared.store.commit(Arc::new(commit)).await {
            Ok(_) => Ok(()),
            Err(StoreError::Conflict(Unique::Id)) => {
                refuse("what it names exists already: a message, a run or an artifact")
            }
            Err(StoreError::Conflict(Unique::RunRequest)) => {
                refuse("a run was asked for under the same client and request id before")
            }
            Err(StoreError::Conflict(Unique::SessionName)) => {
                let key = self.session.key.as_ref();
                let name = key.map_or("its reference or alias".into(), |key| format!("{key:?}"));
                Err(LineError::Kernel(Error::AlreadyExists { name }))
            }
            Err(StoreError::Conflict(_)) => refuse("this line, or one before it, contradicts another"),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the last commit, which sets the session's real status.
    pub(super) async fn finish(&mut self) -> Result<Session, LineError> {
        self.write().await?;
        let tip = match self.session.tip_message {
            Some(tip) => Some(self.point_of(tip).await?),
            None => None,
        };
        if let Some(tip) = tip {
            let path = self.shared.store.lines_to_root(self.session.id, tip.line, usize::MAX).await?;
            if path.iter().any(|above| above.line.abandoned) {
                return refuse("the active path goes through what was rolled back");
            }
        }
        self.check_keys(tip).await?;
        let pin = self.session.pinned.then(|| Pin {
            owner: self.session.owner.clone(),
            session: self.session.id,
            at: Some(self.session.pinned_at.unwrap_or(self.session.updated_at)),
        });
        // A pin belongs to its reader and is not part of the session.
        let stored = Session { pinned: false, pinned_at: None, tip, base: None, ..self.session.clone() };
        self.rows.push(Row::Session(Arc::new(stored)));
        self.rows.extend(pin.iter().map(|pin| Row::Pin(Box::new(pin.clone()))));
        let session = Session { tip, base: None, ..self.session.clone() };
        self.shared.usage_sums.forget(session.id);
        if let Err(error) = self.write().await {
            // The outcome may be unknown: look it up.
            let found = SessionRef::Id(session.id);
            let found = self.shared.store.session_find(&session.owner, &found).await;
            if !matches!(found, Ok(Some(_))) {
                return Err(error);
            }
        }
        pin.iter().for_each(|pin| self.shared.pins.note(pin, false));
        self.shared.search_stale.notify_one();
        self.claim.begun = false;
        self.shared.lease_release(self.fence).await;
        Ok(session)
    }
}

fn fingerprint_of(text: &str) -> Result<[u8; 16], LineError> {
    let mut fingerprint = [0; 16];
    let digits = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    for (at, byte) in fingerprint.iter_mut().enumerate() {
        let pair = text.get(at * 2..at * 2 + 2).filter(|_| digits);
        let read = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        *byte = read.ok_or_else(|| LineError::Line("a fingerprint has 32 hexadecimal digits".into()))?;
    }
    Ok(fingerprint)
}
