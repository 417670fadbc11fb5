//! Export: a session that rests is read out, page by page.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainspring_core::{ArtifactId, Cursor, LineId, Point, RunId, Session, Time};
use tokio::io::AsyncReadExt;

use super::super::{Caller, Kernel, Shared};
use super::{FORMAT, Line, MessageLine, RunLine, VERSION};
use crate::blobs::BlobReader;
use crate::error::Error;
use crate::store::{ArtifactPage, Loaded, RunPage, SessionRef, StateAt};

/// How much is read at once: messages may be large.
const PAGE: usize = 64;
/// How many bytes of an artifact a line holds.
const BYTES: usize = 48 << 10;

/// A session on its way out.
pub struct Export {
    shared: Arc<Shared>,
    session: Session,
    /// The session's last event when the export began: it must be the last one when it ends.
    cursor: Cursor,
    next: Next,
    lines: u64,
    /// The line of the tree that is being written, and its number.
    line: Option<(LineId, u64)>,
}

/// What is written next.
enum Next {
    Session,
    Messages(Option<Point>),
    Runs(Option<(Time, RunId)>),
    /// Those before this one.
    Artifacts(Option<(Time, ArtifactId)>),
    /// What is left of the bytes of one, and where it stands among them.
    Bytes(Box<BlobReader>, (Time, ArtifactId)),
    State(String),
    Events(Cursor),
    End,
    Nothing,
}

impl Kernel {
    /// Begins to export a session. It must rest, and go on resting until the end.
    pub async fn session_export(&self, caller: &Caller, by: &SessionRef) -> Result<Export, Error> {
        let session = self.session_get(caller, by).await?;
        let Loaded { session, cursor, .. } = rests(&self.shared, &session).await?;
        let shared = self.shared.clone();
        Ok(Export { shared, session, cursor, next: Next::Session, lines: 0, line: None })
    }
}

/// The session as it is stored, if no run of it lives.
async fn rests(shared: &Shared, session: &Session) -> Result<Loaded, Error> {
    let loaded = shared.store.session_load(session.id).await?;
    let loaded = loaded.ok_or_else(|| Error::not_found("session", session.id))?;
    match loaded.runs.first() {
        Some((run, _)) => Err(Error::Busy { status: run.state.status() }),
        None => Ok(loaded),
    }
}

impl Export {
    /// The session, as it was when the export began.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The next lines of the file; none after the last. An error means that what came so far is no whole file.
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        loop {
            // Whoever goes on after an error is told that there is nothing more.
            let (lines, next) = match std::mem::replace(&mut self.next, Next::Nothing) {
                Next::Session => {
                    let session = Box::new(self.session.clone());
                    let head = Line::Session { format: FORMAT.into(), version: VERSION, session };
                    (vec![head], Next::Messages(None))
                }
                Next::Messages(after) => self.messages(after).await?,
                Next::Runs(before) => self.runs(before).await?,
                Next::Artifacts(before) => self.artifact(before).await?,
                Next::Bytes(left, at) => bytes(left, at).await?,
                Next::State(after) => self.state(after).await?,
                Next::Events(after) => self.events(after).await?,
                Next::End => {
                    let now = rests(&self.shared, &self.session).await?;
                    if (now.cursor, now.session.version) != (self.cursor, self.session.version) {
                        return Err(Error::Changed {
                            expected: self.session.version,
                            now: now.session.version,
                        });
                    }
                    (vec![Line::End { lines: self.lines }], Next::Nothing)
                }
                Next::Nothing => return Ok(None),
            };
            self.next = next;
            self.lines += lines.len() as u64;
            if !lines.is_empty() {
                return written(&lines).map(Some);
            }
        }
    }

    async fn messages(&mut self, after: Option<Point>) -> Result<(Vec<Line>, Next), Error> {
        let page = self.page();
        let rows = self.shared.store.tree_page(self.session.id, after, page).await?;
        let next = match rows.last() {
            Some(last) => Next::Messages(Some(last.point)),
            None => Next::Runs(None),
        };
        let mut lines = vec![];
        for row in rows {
            let no = match self.line {
                Some((line, no)) if line == row.point.line => no,
                Some((_, no)) => no + 1,
                None => 0,
            };
            self.line = Some((row.point.line, no));
            lines.push(Line::Message(Box::new(MessageLine {
                line: no,
                parent_id: row.parent,
                abandoned: row.abandoned,
                followed: row.followed,
                message: row.message,
            })));
        }
        Ok((lines, next))
    }

    async fn runs(&self, before: Option<(Time, RunId)>) -> Result<(Vec<Line>, Next), Error> {
        let store = &self.shared.store;
        let page = RunPage {
            owner: self.session.owner.clone(),
            session: Some(self.session.id),
            status: None,
            before,
            limit: self.page(),
        };
        let runs = store.run_page(&page).await?;
        let next = match runs.last() {
            Some(last) => Next::Runs(Some((last.created_at, last.id))),
            None => Next::Artifacts(None),
        };
        let mut lines = vec![];
        for run in runs {
            let prompt = match run.prompt.filter(|_| run.pen.is_none()) {
                Some(prompt) => store.message_get(self.session.id, prompt).await?,
                None => None,
            };
            lines.push(Line::Run(Box::new(RunLine {
                fingerprint: run.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect(),
                attempts: store.attempts(run.id).await?,
                steps: store.steps(run.id).await?,
                state: store.state_page(&StateAt::Run(run.id), None, usize::MAX).await?,
                prompt: prompt.map(|(placed, _)| placed.message),
                run,
            })));
        }
        Ok((lines, next))
    }

    async fn artifact(&self, before: Option<(Time, ArtifactId)>) -> Result<(Vec<Line>, Next), Error> {
        let page = ArtifactPage { session: self.session.id, run: None, before, limit: 1 };
        let Some(artifact) = self.shared.store.artifact_page(&page).await?.pop() else {
            return Ok((vec![], Next::State(String::new())));
        };
        let at = (artifact.created_at, artifact.id);
        let next = match artifact.content_hash {
            Some(_) => Next::Bytes(Box::new(self.shared.artifact_open(&artifact, 0, None).await?), at),
            None => Next::Artifacts(Some(at)),
        };
        Ok((vec![Line::Artifact { artifact: Box::new(artifact) }], next))
    }

    async fn state(&self, after: String) -> Result<(Vec<Line>, Next), Error> {
        let at = StateAt::Session { session: self.session.id, at: self.session.tip };
        let entries = self.shared.store.state_page(&at, Some(&after), self.page()).await?;
        let next = entries.last().map_or(Next::Events(Cursor::START), |last| Next::State(last.key.clone()));
        Ok((entries.into_iter().map(|entry| Line::State { entry }).collect(), next))
    }

    async fn events(&self, after: Cursor) -> Result<(Vec<Line>, Next), Error> {
        let events = self.shared.store.events_after(self.session.id, None, after, self.page()).await?;
        let next = events.last().map_or(Next::End, |last| Next::Events(last.cursor));
        Ok((events.iter().map(Line::event).collect(), next))
    }

    fn page(&self) -> usize {
        self.shared.options.limits.page.min(PAGE)
    }
}

/// The next bytes of an artifact.
async fn bytes(mut left: Box<BlobReader>, at: (Time, ArtifactId)) -> Result<(Vec<Line>, Next), Error> {
    let mut buffer = Vec::with_capacity(BYTES);
    let read = (&mut left).take(BYTES as u64).read_to_end(&mut buffer).await;
    read.map_err(|error| Error::Corrupt(format!("the bytes of {}: {error}", at.1)))?;
    match buffer.is_empty() {
        true => Ok((vec![], Next::Artifacts(Some(at)))),
        false => Ok((vec![Line::Bytes { data: STANDARD.encode(buffer) }], Next::Bytes(left, at))),
    }
}

fn written(lines: &[Line]) -> Result<String, Error> {
    let mut text = String::new();
    for line in lines {
        let json = serde_json::to_string(line);
        text += &json.map_err(|error| Error::Corrupt(format!("this cannot be written as JSON: {error}")))?;
        text.push('\n');
    }
    Ok(text)
}
