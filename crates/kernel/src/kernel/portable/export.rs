//! Export: reads an idle session page by page.

use std::collections::HashSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::{ArtifactId, Cursor, LineId, Point, RunId, Session, Time};
use tokio::io::AsyncReadExt;

use super::state::Openings;
use super::{FORMAT, FileLine, MessageLine, RunLine, VERSION, VERSION_TIP};
use crate::blobs::BlobReader;
use crate::error::Error;
use crate::kernel::{Caller, Kernel, Shared};
use crate::store::{ArtifactPage, Loaded, RunPage, SessionRef, StateAt, StateHistoryOf, all_readable};

/// Rows read at once. Small, since messages may be large.
const PAGE_ROWS: usize = 64;
/// Bytes of an artifact in one line.
const LINE_BYTES: usize = 48 << 10;

/// An export in progress.
pub struct Export {
    pub(super) shared: Arc<Shared>,
    pub(super) session: Session,
    /// The session's last event when the export began. It must still be the last one at the end.
    cursor: Cursor,
    next: NextPart,
    lines: u64,
    /// The line of the tree being written, and its number.
    line: Option<(LineId, u64)>,
    /// Hashes of the inputs of steps that are written.
    inputs: HashSet<String>,
    /// The openings of the lines of the tree, if the session has state.
    pub(super) openings: Option<Openings>,
}

/// The part of the file written next.
pub(super) enum NextPart {
    Session,
    Messages(Option<Point>),
    Runs(Option<(Time, RunId)>),
    /// The artifacts before this one.
    Artifacts(Option<(Time, ArtifactId)>),
    /// The remaining bytes of an artifact, and the artifact.
    Bytes(Box<BlobReader>, (Time, ArtifactId)),
    /// The entries of state after this key and version.
    State(Option<(String, u64)>),
    /// The changes of state after this key and version.
    StateChanges(Option<(String, u64)>),
    Events(Cursor),
    End,
    Nothing,
}

impl Kernel {
    /// Begins the export of a session, which must stay idle until the end.
    pub async fn session_export(&self, caller: &Caller, by: &SessionRef) -> Result<Export, Error> {
        let session = self.session_get(caller, by).await?;
        let Loaded { session, cursor, .. } = load_idle(&self.shared, &session).await?;
        let session = self.shared.marked(caller, session).await?;
        let shared = self.shared.clone();
        Ok(Export {
            shared,
            session,
            cursor,
            next: NextPart::Session,
            lines: 0,
            line: None,
            inputs: HashSet::new(),
            openings: None,
        })
    }
}

/// Loads a session that has no unfinished run.
async fn load_idle(shared: &Shared, session: &Session) -> Result<Loaded, Error> {
    let loaded = shared.store.session_load(session.id).await?;
    let loaded = loaded.ok_or_else(|| Error::not_found("session", session.id))?;
    match loaded.runs.first() {
        Some((run, _)) => Err(Error::Busy { status: run.state.status() }),
        None => Ok(loaded),
    }
}

impl Export {
    /// The session as it was when the export began.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Reads the next lines of the file; none after the last. After an error the file is incomplete.
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        loop {
            // After an error the export ends.
            let (lines, next) = match std::mem::replace(&mut self.next, NextPart::Nothing) {
                NextPart::Session => {
                    self.openings = self.read_openings().await?;
                    let version = if self.openings.is_some() { VERSION } else { VERSION_TIP };
                    let session = Box::new(self.session.clone());
                    let head = FileLine::Session { format: FORMAT.into(), version, session };
                    (vec![head], NextPart::Messages(None))
                }
                NextPart::Messages(after) => self.messages(after).await?,
                NextPart::Runs(before) => self.runs(before).await?,
                NextPart::Artifacts(before) => self.artifact(before).await?,
                NextPart::Bytes(left, at) => bytes(left, at).await?,
                NextPart::State(after) => self.state(after).await?,
                NextPart::StateChanges(after) => self.state_changes(after).await?,
                NextPart::Events(after) => self.events(after).await?,
                NextPart::End => {
                    self.check_unchanged().await?;
                    (vec![FileLine::End { lines: self.lines }], NextPart::Nothing)
                }
                NextPart::Nothing => return Ok(None),
            };
            self.next = next;
            self.lines += lines.len() as u64;
            if !lines.is_empty() {
                return encode(&lines).map(Some);
            }
        }
    }

    /// Fails if the session has changed since the export began.
    async fn check_unchanged(&self) -> Result<(), Error> {
        let now = load_idle(&self.shared, &self.session).await?;
        match (now.cursor, now.session.version) == (self.cursor, self.session.version) {
            true => Ok(()),
            false => Err(Error::Changed { expected: self.session.version, now: now.session.version }),
        }
    }

    async fn messages(&mut self, after: Option<Point>) -> Result<(Vec<FileLine>, NextPart), Error> {
        let page = self.page();
        let rows = self.shared.store.tree_page(self.session.id, after, page).await?.intact()?;
        let next = match rows.last() {
            Some(last) => NextPart::Messages(Some(last.point)),
            None => NextPart::Runs(None),
        };
        let mut lines = vec![];
        for row in rows {
            let (no, is_first) = match self.line {
                Some((line, no)) if line == row.point.line => (no, false),
                Some((_, no)) => (no + 1, true),
                None => (0, true),
            };
            let opened = self.openings.as_ref().filter(|_| is_first);
            self.line = Some((row.point.line, no));
            lines.push(FileLine::Message(Box::new(MessageLine {
                line: no,
                parent_id: row.parent,
                abandoned: row.abandoned,
                followed: row.followed,
                opened: opened.map(|openings| openings.of_line(row.point.line)),
                message: row.message,
            })));
        }
        Ok((lines, next))
    }

    async fn runs(&mut self, before: Option<(Time, RunId)>) -> Result<(Vec<FileLine>, NextPart), Error> {
        let store = self.shared.store.clone();
        let page = RunPage {
            owner: self.session.owner.clone(),
            session: Some(self.session.id),
            status: None,
            before,
            limit: self.page(),
        };
        let runs = store.run_page(&page).await?.intact()?;
        let next = match runs.last() {
            Some(last) => NextPart::Runs(Some((last.created_at, last.id))),
            None => NextPart::Artifacts(None),
        };
        let mut lines = vec![];
        for run in runs {
            let prompt = match run.prompt.filter(|_| run.pen.is_none()) {
                Some(prompt) => store.message_get(self.session.id, prompt).await?,
                None => None,
            };
            // The prompt of a merged run, which has no pen either, is in the tree.
            let waiting = prompt.filter(|(placed, _)| placed.point.is_none());
            let run = self.shared.with_final_text(run).await?;
            let steps = store.steps(run.id).await?.intact()?;
            let mut inputs = vec![];
            for hash in steps.iter().filter_map(|step| step.input_hash.as_ref()) {
                if self.inputs.insert(hash.clone()) {
                    inputs.extend(self.shared.step_input(self.session.id, hash).await?);
                }
            }
            lines.push(FileLine::Run(Box::new(RunLine {
                fingerprint: run.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect(),
                attempts: store.attempts(run.id).await?.intact()?,
                steps,
                inputs,
                state: store.state_page(&StateAt::Run(run.id), None, usize::MAX).await?.intact()?,
                state_changes: store
                    .state_changes(&StateHistoryOf::Run(run.id), None, usize::MAX)
                    .await?
                    .intact()?,
                prompt: waiting.map(|(placed, _)| placed.message),
                run,
            })));
        }
        Ok((lines, next))
    }

    async fn artifact(&self, before: Option<(Time, ArtifactId)>) -> Result<(Vec<FileLine>, NextPart), Error> {
        let page = ArtifactPage { session: self.session.id, run: None, before, limit: 1 };
        let Some(artifact) = self.shared.store.artifact_page(&page).await?.intact()?.pop() else {
            return Ok((vec![], NextPart::State(None)));
        };
        let at = (artifact.created_at, artifact.id);
        let next = match artifact.content_hash {
            Some(_) => NextPart::Bytes(Box::new(self.shared.artifact_open(&artifact, 0, None).await?), at),
            None => NextPart::Artifacts(Some(at)),
        };
        Ok((vec![FileLine::Artifact { artifact: Box::new(artifact) }], next))
    }

    async fn events(&self, after: Cursor) -> Result<(Vec<FileLine>, NextPart), Error> {
        let events =
            all_readable(self.shared.store.events_after(self.session.id, None, after, self.page()).await?)?;
        let next = events.last().map_or(NextPart::End, |last| NextPart::Events(last.cursor));
        Ok((events.iter().map(FileLine::event).collect(), next))
    }

    pub(super) fn page(&self) -> usize {
        self.shared.options.limits.page.min(PAGE_ROWS)
    }
}

/// Reads the next bytes of an artifact.
async fn bytes(
    mut left: Box<BlobReader>,
    at: (Time, ArtifactId),
) -> Result<(Vec<FileLine>, NextPart), Error> {
    let mut buffer = Vec::with_capacity(LINE_BYTES);
    let read = (&mut left).take(LINE_BYTES as u64).read_to_end(&mut buffer).await;
    read.map_err(|error| Error::Corrupt(format!("the bytes of {}: {error}", at.1)))?;
    match buffer.is_empty() {
        true => Ok((vec![], NextPart::Artifacts(Some(at)))),
        false => Ok((vec![FileLine::Bytes { data: STANDARD.encode(buffer) }], NextPart::Bytes(left, at))),
    }
}

fn encode(lines: &[FileLine]) -> Result<String, Error> {
    let mut text = String::new();
    for line in lines {
        let json = serde_json::to_string(line);
        text += &json.map_err(|error| Error::Corrupt(format!("this cannot be written as JSON: {error}")))?;
        text.push('\n');
    }
    Ok(text)
}
