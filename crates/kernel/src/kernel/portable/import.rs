//! Import: a file becomes a session, all of it or nothing.
//!
//! The session is written as one that is deleted, page by page, and becomes what it is in the last commit. So nobody
//! sees it before it is whole, and whatever ends an import early leaves something that is purged: at once, or by the
//! next start.
//!
//! Nothing in a file is believed: what it names must be in it, its ids must be new, and it is its owner's own.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mainspring_core::limits::{check_key, check_text};
use mainspring_core::{
    Body, EventId, Message, MessageId, MessageStatus, Point, Run, RunId, Session, SessionId, SessionStatus,
    Time, Visibility,
};
use serde::Deserialize;
use serde_json::Value;

use super::super::sessions::{check_metadata, check_title};
use super::super::{Caller, Kernel, Shared};
use super::data::OpenArtifact;
use super::{FORMAT, Line, MessageLine, RunLine, VERSION};
use crate::error::Error;
use crate::store::{Commit, Fence, NewEvent, NewId, Row, SessionRef, StatePlace, StoreError, Unique};

/// How much is written at once: lines, and bytes.
const STEP: (usize, usize) = (200, 1 << 20);

/// A session on its way in. Dropped before it is finished, it leaves nothing.
pub struct Import {
    kernel: Kernel,
    caller: Caller,
    /// What has come of the line that is not whole yet.
    rest: Vec<u8>,
    /// The number of the line that is read.
    no: u64,
    ended: bool,
    staged: Option<Staged>,
}

/// What is known of the session so far.
pub(super) struct Staged {
    claim: Claim,
    pub(super) shared: Arc<Shared>,
    /// What it will be.
    pub(super) session: Session,
    pub(super) fence: Fence,
    pub(super) rows: Vec<Row>,
    events: Vec<NewEvent>,
    bytes: usize,
    /// Where the messages stand that are not written yet.
    unwritten: HashMap<MessageId, Point>,
    /// The line of the tree that is being read.
    line: Option<OpenLine>,
    pub(super) runs: HashSet<RunId>,
    /// The artifact whose bytes are being read.
    pub(super) artifact: Option<OpenArtifact>,
    /// How many keys of state there are so far where some are read.
    pub(super) keys: usize,
    /// Where the session's state is, once that was needed.
    pub(super) tip_state: Option<StatePlace>,
    pos: u64,
    stage: Stage,
}

struct OpenLine {
    no: u64,
    line: mainspring_core::Line,
    last: MessageId,
}

/// The parts of the file, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Messages,
    Runs,
    Artifacts,
    State,
    Events,
}

/// Why a line is refused.
pub(super) enum Fault {
    /// It makes no sense.
    Line(String),
    /// The kernel says no, whatever the line.
    Kernel(Error),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Kernel(error.into())
    }
}

impl From<mainspring_core::BadName> for Fault {
    fn from(bad: mainspring_core::BadName) -> Self {
        Self::Line(bad.to_string())
    }
}

pub(super) fn refuse<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Line(reason.into()))
}

impl Kernel {
    /// Begins to import a session for `caller`.
    pub fn session_import(&self, caller: &Caller) -> Result<Import, Error> {
        caller.check_makes()?;
        let (kernel, caller) = (self.clone(), caller.clone());
        Ok(Import { kernel, caller, rest: vec![], no: 0, ended: false, staged: None })
    }
}

impl Import {
    /// Takes the next bytes of the file in.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.rest);
            self.line(&line).await?;
        }
        self.rest.extend_from_slice(bytes);
        self.check_size()
    }

    /// Ends the file: the session is there now, or it never was.
    pub async fn finish(mut self) -> Result<Session, Error> {
        if !self.rest.is_empty() {
            let line = std::mem::take(&mut self.rest);
            self.line(&line).await?;
        }
        self.no += 1;
        let Some(staged) = self.staged.as_mut().filter(|_| self.ended) else {
            return Err(
                self.refused(Fault::Line("the file is cut off: it has no line of the kind end".into()))
            );
        };
        match staged.finish().await {
            Ok(session) => {
                self.staged = None;
                Ok(session)
            }
            Err(fault) => Err(self.refused(fault)),
        }
    }

    /// No line is longer than the largest message, escaped.
    fn check_size(&self) -> Result<(), Error> {
        let limit = self.kernel.limits().message_bytes.saturating_mul(6).saturating_add(64 << 10);
        match self.rest.len() {
            size if size > limit => Err(Error::TooLarge { what: "a line", size, limit }),
            _ => Ok(()),
        }
    }

    async fn line(&mut self, line: &[u8]) -> Result<(), Error> {
        self.no += 1;
        let read = Box::pin(self.read(line)).await;
        read.map_err(|fault| self.refused(fault))
    }

    fn refused(&self, fault: Fault) -> Error {
        match fault {
            Fault::Line(reason) => Error::BadImport { line: self.no, reason },
            Fault::Kernel(error) => error,
        }
    }

    async fn read(&mut self, line: &[u8]) -> Result<(), Fault> {
        if self.ended {
            return refuse("nothing stands after the line of the kind end");
        }
        let parsed = serde_json::from_slice(line).map_err(|error| Fault::Line(error.to_string()))?;
        match (parsed, &mut self.staged) {
            (Line::Session { format, version, session }, None) => {
                if (format.as_str(), version) != (FORMAT, VERSION) {
                    return refuse(format!(
                        "this reads {FORMAT} in version {VERSION}, not {format} in version {version}"
                    ));
                }
                self.staged = Some(self.stage(*session).await?);
                Ok(())
            }
            (_, None) => refuse("the first line is of the kind session"),
            (Line::Session { .. }, Some(_)) => refuse("only the first line is of the kind session"),
            (Line::Message(message), Some(staged)) => staged.message(*message, line.len()).await,
            (Line::Run(run), Some(staged)) => staged.run(*run, line.len()).await,
            (Line::Artifact { artifact }, Some(staged)) => staged.artifact(*artifact).await,
            (Line::Bytes { data }, Some(staged)) => staged.bytes(&data).await,
            (Line::State { entry }, Some(staged)) => staged.state(entry, line.len()).await,
            (Line::Event { event }, Some(staged)) => staged.event(event, line.len()).await,
            (Line::End { lines }, Some(staged)) if lines + 1 == self.no => {
                self.ended = true;
                staged.enter(Stage::Events)
            }
            (Line::End { lines }, Some(_)) => {
                refuse(format!("{lines} lines stood above in the file that was written, not {}", self.no - 1))
            }
        }
    }

    /// Begins the session, as one that is deleted.
    async fn stage(&self, session: Session) -> Result<Staged, Fault> {
        self.check(&session)?;
        let shared = &self.kernel.shared;
        let taken = || Fault::Kernel(Error::AlreadyExists { name: session.id.to_string() });
        let mut claim = Claim::take(shared, session.id).ok_or_else(taken)?;
        // What a deletion has left of it is being removed: not to wait for that, it is done here.
        while shared.store.session_purge(session.id).await? {}
        // Looked up before the right to write it is taken from whoever has it.
        if shared.store.session_exists(session.id).await? {
            return Err(taken());
        }
        let fence = shared.store.lease_take(session.id, shared.node).await?;
        claim.begun = true;
        let hidden = Session {
            status: SessionStatus::Deleted,
            tip: None,
            tip_message: None,
            base: None,
            ..session.clone()
        };
        let rows = vec![Row::NewId(NewId::Session(session.id)), Row::Session(Box::new(hidden))];
        let mut staged = Staged {
            claim,
            shared: shared.clone(),
            session,
            fence,
            rows,
            events: vec![],
            bytes: 0,
            unwritten: HashMap::new(),
            line: None,
            runs: HashSet::new(),
            artifact: None,
            keys: 0,
            tip_state: None,
            pos: 0,
            stage: Stage::Messages,
        };
        staged.write().await?;
        Ok(staged)
    }

    /// Refuses a session that is not the caller's own, or that nobody could have made.
    fn check(&self, session: &Session) -> Result<(), Fault> {
        if session.owner != self.caller.owner {
            return refuse(format!("the session belongs to {:?}, not to you", session.owner));
        }
        if session.org != self.caller.org || (session.org.is_none() && session.visibility == Visibility::Org)
        {
            return refuse("the session belongs to another org than you");
        }
        if session.status == SessionStatus::Deleted {
            return refuse("the session is deleted");
        }
        session.key.as_deref().map_or(Ok(()), check_key)?;
        for (what, text) in [
            ("a surface kind", &session.surface_kind),
            ("an agent definition", &session.agent_definition),
            ("an adapter", &session.adapter),
        ] {
            check_text(what, text)?;
        }
        if let Some(external) = &session.external_ref {
            check_text("an external reference's kind", &external.kind)?;
            check_text("an external reference's id", &external.id)?;
        }
        if let Some(alias) = &session.legacy_alias {
            check_text("an alias's scope", &alias.scope)?;
            check_text("an alias's key", &alias.key)?;
        }
        let checks = [
            check_title(&self.kernel, session.title.as_deref()),
            self.kernel.check_options(&session.run_defaults()),
            check_metadata(&self.kernel, Some(&session.metadata)),
        ];
        checks.into_iter().try_for_each(|check| check.map_err(|error| Fault::Line(error.to_string())))
    }
}

impl Staged {
    async fn message(&mut self, line: MessageLine, bytes: usize) -> Result<(), Fault> {
        self.enter(Stage::Messages)?;
        let (id, message) = (line.message.id, line.message.clone());
        if matches!(message.status, MessageStatus::NotStarted | MessageStatus::Generating) {
            return refuse(format!("{id} is {}: such a message has no place yet", message.status));
        }
        let open = match self.line.take() {
            Some(open) if open.no == line.line => {
                if line.parent_id != Some(open.last) {
                    return refuse(format!("the message above {id} on its line is {}", open.last));
                }
                if line.abandoned != open.line.abandoned || line.followed {
                    return refuse("only the first message of a line says what became of the line");
                }
                open
            }
            earlier => self.line_opened(&line, earlier.map_or(0, |open| open.no + 1)).await?,
        };
        let at = Point { line: open.line.id, pos: open.line.end };
        let end = at.pos.checked_add(1).ok_or_else(|| Fault::Line("the tree is too deep".into()))?;
        let grown = mainspring_core::Line { end, ..open.line };
        self.rows.push(Row::NewId(NewId::Message(id)));
        self.rows.push(Row::Line(grown));
        self.rows.push(Row::Message(message, Some(at)));
        if self.unwritten.insert(id, at).is_some() {
            return refuse(format!("{id} is there twice"));
        }
        self.line = Some(OpenLine { line: grown, last: id, ..open });
        self.took(bytes).await
    }

    async fn line_opened(&mut self, line: &MessageLine, next: u64) -> Result<OpenLine, Fault> {
        if line.line != next {
            return refuse(format!("the next line of the tree is {next}, not {}", line.line));
        }
        let parent = match line.parent_id {
            None if line.followed => return refuse("no cursor leads to a root"),
            None => None,
            Some(parent) => Some(self.place(parent).await?),
        };
        let fresh = self.shared.ids.line();
        let opened =
            mainspring_core::Line { abandoned: line.abandoned, ..mainspring_core::Line::open(fresh, parent) };
        if let Some(parent) = parent.filter(|_| line.followed) {
            self.rows.push(Row::Cursor(parent, Some(fresh)));
        }
        Ok(OpenLine { no: next, line: opened, last: line.message.id })
    }

    /// Where a message of this file stands.
    pub(super) async fn place(&self, id: MessageId) -> Result<Point, Fault> {
        if let Some(at) = self.unwritten.get(&id) {
            return Ok(*at);
        }
        let found = self.shared.store.message_get(self.session.id, id).await?;
        let at = found.and_then(|(placed, _)| placed.point);
        at.ok_or_else(|| Fault::Line(format!("{id} does not stand above in this file")))
    }

    async fn run(&mut self, line: RunLine, bytes: usize) -> Result<(), Fault> {
        self.enter(Stage::Runs)?;
        let RunLine { run, fingerprint, attempts, steps, state, prompt } = line;
        let id = run.id;
        if (run.session, &run.owner) != (self.session.id, &self.session.owner) {
            return refuse(format!("{id} is not a run of this session and its owner"));
        }
        if !run.state.status().is_ended() {
            return refuse(format!("{id} is {}: only runs that have ended are imported", run.state.status()));
        }
        if !self.runs.insert(id) {
            return refuse(format!("{id} is there twice"));
        }
        let fingerprint = fingerprint_of(&fingerprint)?;
        // A run that has begun has written: its pen stands after its last message.
        let pen = match run.final_message {
            Some(last) => self.place(last).await.map(|at| Some(Point { pos: at.pos + 1, ..at }))?,
            None => None,
        };
        self.prompt(&run, prompt, pen.is_some()).await?;
        self.rows.push(Row::NewId(NewId::Run(id)));
        for attempt in attempts {
            if attempt.run != id || !attempt.status.is_ended() {
                return refuse(format!("{} is not an ended attempt of {id}", attempt.id));
            }
            self.rows.push(Row::Attempt(Box::new(attempt)));
        }
        self.rows.push(Row::Run(Box::new(Run { fingerprint, pen, ..run })));
        for step in steps {
            if step.run != id {
                return refuse(format!("{} is not a step of {id}", step.id));
            }
            self.rows.push(Row::Step(Box::new(step)));
        }
        self.state_rows(StatePlace::Run(id), state)?;
        self.keys = 0;
        self.took(bytes).await
    }

    /// The prompt of a run stands in the tree; that of one that never began comes with it.
    async fn prompt(&mut self, run: &Run, prompt: Option<Arc<Message>>, began: bool) -> Result<(), Fault> {
        match (run.prompt, prompt) {
            (Some(id), Some(prompt)) if prompt.id == id && !began => {
                let own = prompt.session == self.session.id && prompt.status == MessageStatus::NotStarted;
                if !own {
                    return refuse(format!("{id} is not a prompt of this session that waits"));
                }
                self.rows.push(Row::NewId(NewId::Message(id)));
                self.rows.push(Row::Message(prompt, None));
                Ok(())
            }
            (Some(id), None) => self.place(id).await.map(drop),
            (None, None) => Ok(()),
            (_, Some(prompt)) => refuse(format!("{} is not the prompt of a run that never began", prompt.id)),
        }
    }

    async fn event(&mut self, event: Value, bytes: usize) -> Result<(), Fault> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Envelope {
            event_id: EventId,
            pos: u64,
            run_id: Option<RunId>,
            attempt_id: Option<mainspring_core::AttemptId>,
            timestamp_ms: Time,
        }
        self.enter(Stage::Events)?;
        let unfit = |error: serde_json::Error| Fault::Line(error.to_string());
        let Envelope { event_id: id, pos, run_id: run, attempt_id: attempt, timestamp_ms: at } =
            Envelope::deserialize(&event).map_err(unfit)?;
        let body = match event["type"].as_str() {
            Some("message.completed") => self.completed(&event["payload"]).await?,
            _ => Body::deserialize(&event).map_err(unfit)?,
        };
        if body.is_transient() {
            return refuse(format!("{} is never stored", body.kind()));
        }
        if let Some(run) = run.filter(|run| !self.runs.contains(run)) {
            return refuse(format!("{run} does not stand above in this file"));
        }
        if pos < self.pos {
            return refuse(format!("the stream stood at {} before, not later than {pos}", self.pos));
        }
        self.pos = pos;
        self.events.push(NewEvent { id, pos, run, attempt, at, body });
        self.took(bytes).await
    }

    /// A completed message, by its name: what it says has its own line.
    async fn completed(&self, payload: &Value) -> Result<Body, Fault> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Completed {
            message_id: MessageId,
            parent_id: Option<MessageId>,
        }
        let unfit = |error: serde_json::Error| Fault::Line(error.to_string());
        let Completed { message_id, parent_id } = Completed::deserialize(payload).map_err(unfit)?;
        let found = self.shared.store.message_get(self.session.id, message_id).await?;
        let (placed, _) =
            found.ok_or_else(|| Fault::Line(format!("{message_id} does not stand above in this file")))?;
        Ok(Body::MessageCompleted { message: placed.message, parent_id })
    }

    /// The parts of a file come in order. What an earlier part holds is written before the next refers to it.
    pub(super) fn enter(&mut self, stage: Stage) -> Result<(), Fault> {
        if stage < self.stage {
            return refuse("a file holds messages, then runs, artifacts, state and events");
        }
        if let Some(open) = &self.artifact {
            return refuse(format!("bytes of {} are missing", open.artifact.id));
        }
        self.stage = stage;
        Ok(())
    }

    pub(super) async fn took(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes += bytes;
        // Events look up what they refer to, so all of it is written when they begin.
        let full = self.rows.len() + self.events.len() >= STEP.0 || self.bytes >= STEP.1;
        if full || (self.stage == Stage::Events && !self.rows.is_empty()) {
            self.write().await?;
        }
        Ok(())
    }

    pub(super) async fn write(&mut self) -> Result<(), Fault> {
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
                Err(Fault::Kernel(Error::AlreadyExists { name }))
            }
            Err(StoreError::Conflict(_)) => refuse("this line, or one before it, contradicts another"),
            Err(error) => Err(error.into()),
        }
    }

    /// The last commit: the session becomes what it is.
    async fn finish(&mut self) -> Result<Session, Fault> {
        self.write().await?;
        let tip = match self.session.tip_message {
            Some(tip) => Some(self.place(tip).await?),
            None => None,
        };
        if let Some(tip) = tip {
            let path = self.shared.store.lines_to_root(self.session.id, tip.line, usize::MAX).await?;
            if path.iter().any(|strand| strand.line.abandoned) {
                return refuse("the active path goes through what was rolled back");
            }
        }
        let session = Session { tip, base: None, ..self.session.clone() };
        self.rows.push(Row::Session(Box::new(session.clone())));
        if let Err(fault) = self.write().await {
            // Where the outcome is not known, it is looked up.
            let found = SessionRef::Id(session.id);
            let found = self.shared.store.session_find(&session.owner, &found).await;
            if !matches!(found, Ok(Some(_))) {
                return Err(fault);
            }
        }
        self.shared.search_stale.notify_one();
        self.claim.begun = false;
        Ok(session)
    }
}

/// One import at a time has an id. Dropped, it leaves nothing of what was begun.
struct Claim {
    shared: Arc<Shared>,
    session: SessionId,
    /// Something of it may be stored, and is not a session yet.
    begun: bool,
}

impl Claim {
    fn take(shared: &Arc<Shared>, session: SessionId) -> Option<Self> {
        let free = shared.importing.lock().insert(session);
        free.then(|| Self { shared: shared.clone(), session, begun: false })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        match self.begun {
            true => self.shared.discard(self.session),
            false => drop(self.shared.importing.lock().remove(&self.session)),
        }
    }
}

fn fingerprint_of(text: &str) -> Result<[u8; 16], Fault> {
    let mut fingerprint = [0; 16];
    let digits = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    for (at, byte) in fingerprint.iter_mut().enumerate() {
        let pair = text.get(at * 2..at * 2 + 2).filter(|_| digits);
        let read = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        *byte = read.ok_or_else(|| Fault::Line("a fingerprint has 32 hexadecimal digits".into()))?;
    }
    Ok(fingerprint)
}
