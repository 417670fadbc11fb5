//! Import: creates a session from a file, completely or not at all.
//!
//! The session is written page by page with the status deleted, and gets its real status in the last commit. So it
//! is invisible until it is complete, and an import that ends early leaves a deleted session, which is purged at once
//! or by the next start.
//!
//! The file is not trusted: everything it refers to must be in it, its ids must be new, and the session must belong to
//! the caller.

use std::sync::Arc;

use mainspring_core::limits::{check_key, check_text};
use mainspring_core::placement::check_labels;
use mainspring_core::{Artifact, Session, SessionId, SessionStatus, StateChange, StateEntry, Visibility};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::check::check_session;
use super::partial::PartialSession;
use super::{FORMAT, FileLine, MessageLine, RunLine, StateLine, VERSION, VERSION_TIP};
use crate::error::Error;
use crate::kernel::sessions::{check_idle_unload, check_metadata, check_title};
use crate::kernel::{Caller, Kernel, Shared};
use crate::policy::{Rule, Verdict, check_session_rules};
use crate::store::{NewId, Row, StoreError};

/// An import in progress. Dropping an unfinished import removes the data that it has written.
pub struct Import {
    kernel: Kernel,
    caller: Caller,
    /// Received bytes of the current, incomplete line.
    partial_line: Vec<u8>,
    /// Number of the current line.
    line_no: u64,
    ended: bool,
    partial: Option<PartialSession>,
}

/// Why a line was not imported.
pub(super) enum LineError {
    /// The line is invalid. The error is reported with the line number.
    Line(String),
    /// The import failed independently of the line.
    Kernel(Error),
}

impl From<StoreError> for LineError {
    fn from(error: StoreError) -> Self {
        Self::Kernel(error.into())
    }
}

impl From<mainspring_core::BadName> for LineError {
    fn from(bad: mainspring_core::BadName) -> Self {
        Self::Line(bad.to_string())
    }
}

/// Parses a line. The error names the field.
fn parse(line: &[u8]) -> Result<FileLine, LineError> {
    fn at_field<T: DeserializeOwned>(value: Value) -> Option<String> {
        let error = serde_path_to_error::deserialize::<_, T>(value).err()?;
        Some(format!("{}: {}", error.path(), error.inner()))
    }
    let error = match serde_json::from_slice(line) {
        Ok(parsed) => return Ok(parsed),
        Err(error) => error.to_string(),
    };
    // Parses the line again as its kind: parsing the enum of all kinds loses the path of an error.
    let mut value = serde_json::from_slice(line).unwrap_or(Value::Null);
    let field = match value["kind"].as_str() {
        Some("session") => at_field::<Session>(value["session"].take()).map(|at| format!("session.{at}")),
        Some("message") => at_field::<MessageLine>(value),
        Some("run") => at_field::<RunLine>(value),
        Some("artifact") => at_field::<Artifact>(value["artifact"].take()).map(|at| format!("artifact.{at}")),
        Some("state_at") => at_field::<StateLine>(value),
        Some("state_change") => {
            at_field::<StateChange>(value["change"].take()).map(|at| format!("change.{at}"))
        }
        Some("state") => at_field::<StateEntry>(value["entry"].take()).map(|at| format!("entry.{at}")),
        _ => None,
    };
    Err(LineError::Line(field.unwrap_or(error)))
}

pub(super) fn refuse<T>(reason: impl Into<String>) -> Result<T, LineError> {
    Err(LineError::Line(reason.into()))
}

impl Kernel {
    /// Begins the import of a session for `caller`.
    pub fn session_import(&self, caller: &Caller) -> Result<Import, Error> {
        caller.check_writes()?;
        let (kernel, caller) = (self.clone(), caller.clone());
        Ok(Import { kernel, caller, partial_line: vec![], line_no: 0, ended: false, partial: None })
    }
}

impl Import {
    /// Imports the next bytes of the file.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut bytes = bytes;
        self.kernel.shared.check_storage(&self.caller.owner, bytes.len() as u64, 0).await?;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.partial_line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.partial_line);
            self.import_line(&line).await?;
        }
        self.partial_line.extend_from_slice(bytes);
        self.check_size()
    }

    /// Ends the file and makes the session visible.
    pub async fn finish(mut self) -> Result<Session, Error> {
        if !self.partial_line.is_empty() {
            let line = std::mem::take(&mut self.partial_line);
            self.import_line(&line).await?;
        }
        self.line_no += 1;
        let Some(partial) = self.partial.as_mut().filter(|_| self.ended) else {
            return Err(
                self.error(LineError::Line("the file is cut off: it has no line of the kind end".into()))
            );
        };
        match partial.finish().await {
            Ok(session) => {
                self.partial = None;
                Ok(session)
            }
            Err(error) => Err(self.error(error)),
        }
    }

    /// Refuses a line that is longer than the largest message with every byte escaped.
    fn check_size(&self) -> Result<(), Error> {
        let limit = self.kernel.limits().message_bytes.saturating_mul(6).saturating_add(64 << 10);
        match self.partial_line.len() {
            size if size > limit => Err(Error::TooLarge { what: "a line", size, limit }),
            _ => Ok(()),
        }
    }

    async fn import_line(&mut self, line: &[u8]) -> Result<(), Error> {
        self.line_no += 1;
        let read = Box::pin(self.read_line(line)).await;
        read.map_err(|error| self.error(error))
    }

    fn error(&self, error: LineError) -> Error {
        match error {
            LineError::Line(reason) => Error::BadImport { line: self.line_no, reason },
            LineError::Kernel(error) => error,
        }
    }

    async fn read_line(&mut self, line: &[u8]) -> Result<(), LineError> {
        if self.ended {
            return refuse("nothing stands after the line of the kind end");
        }
        let parsed = parse(line)?;
        match (parsed, &mut self.partial) {
            (FileLine::Session { format, version, session }, None) => {
                if format != FORMAT || !(VERSION_TIP..=VERSION).contains(&version) {
                    return refuse(format!(
                        "this reads {FORMAT} up to version {VERSION}, not {format} in version {version}"
                    ));
                }
                self.partial = Some(self.begin(version, *session).await?);
                Ok(())
            }
            (_, None) => refuse("the first line is of the kind session"),
            (FileLine::Session { .. }, Some(_)) => refuse("only the first line is of the kind session"),
            (FileLine::Message(message), Some(partial)) => partial.message(*message, line.len()).await,
            (FileLine::Run(run), Some(partial)) => partial.run(*run, line.len()).await,
            (FileLine::Artifact { artifact }, Some(partial)) => partial.artifact(*artifact).await,
            (FileLine::Bytes { data }, Some(partial)) => partial.bytes(&data).await,
            (FileLine::State { entry }, Some(partial)) if !partial.is_exact() => {
                partial.state(entry, line.len()).await
            }
            (FileLine::StateAt(entry), Some(partial)) if partial.is_exact() => {
                partial.state_at(*entry, line.len()).await
            }
            (FileLine::StateChange { change }, Some(partial)) if partial.is_exact() => {
                partial.state_change(change, line.len()).await
            }
            (FileLine::State { .. } | FileLine::StateAt(_) | FileLine::StateChange { .. }, Some(_)) => {
                refuse("state is of the kind state in version 1, state_at and state_change in version 2")
            }
            (FileLine::Event { event }, Some(partial)) => partial.event(event, line.len()).await,
            (FileLine::End { lines }, Some(partial)) if lines.checked_add(1) == Some(self.line_no) => {
                self.ended = true;
                partial.end()
            }
            (FileLine::End { lines }, Some(_)) => refuse(format!(
                "{lines} lines stood above in the file that was written, not {}",
                self.line_no - 1
            )),
        }
    }

    /// Writes the session with the status deleted.
    async fn begin(&self, version: u32, mut session: Session) -> Result<PartialSession, LineError> {
        self.check(&session)?;
        // A file is not trusted: its rules may deny and ask, but not allow.
        session.rules.retain(|rule| rule.parse::<Rule>().is_ok_and(|rule| rule.verdict != Verdict::Allow));
        let shared = &self.kernel.shared;
        let taken = || LineError::Kernel(Error::AlreadyExists { name: session.id.to_string() });
        let mut claim = ImportClaim::take(shared, session.id).ok_or_else(taken)?;
        // The background purge of a deleted session of this id may not be complete: complete it here.
        while shared.store.session_purge(session.id).await? {}
        // Checked before the lease is taken, so that a live session keeps its lease.
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
        let rows = vec![Row::NewId(NewId::Session(session.id)), Row::Session(Arc::new(hidden))];
        // A run gets the limits of the importing caller, not those in the file.
        let limits = (self.caller.folders.clone(), self.caller.lists.clone());
        let mut partial = PartialSession::new(claim, limits, (version, session), fence, rows);
        partial.write().await?;
        Ok(partial)
    }

    /// Refuses a session that does not belong to the caller, or that is invalid.
    fn check(&self, session: &Session) -> Result<(), LineError> {
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
        check_session(session)?;
        session.key.as_deref().map_or(Ok(()), check_key)?;
        check_session_rules(&session.rules)?;
        check_idle_unload(session.idle_unload_ms)?;
        check_labels(&session.labels).map_err(LineError::Line)?;
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
            self.kernel.shared.check_settings_allowed(&self.caller, session),
        ];
        checks.into_iter().try_for_each(|check| check.map_err(|error| LineError::Line(error.to_string())))
    }
}

/// Reserves a session id for one import at a time. On drop, purges the data of an incomplete import.
pub(super) struct ImportClaim {
    pub(super) shared: Arc<Shared>,
    session: SessionId,
    /// True while an incomplete session may be stored.
    pub(super) begun: bool,
}

impl ImportClaim {
    fn take(shared: &Arc<Shared>, session: SessionId) -> Option<Self> {
        let free = shared.importing.lock().insert(session);
        free.then(|| Self { shared: shared.clone(), session, begun: false })
    }
}

impl Drop for ImportClaim {
    fn drop(&mut self) {
        match self.begun {
            true => self.shared.discard(self.session),
            false => drop(self.shared.importing.lock().remove(&self.session)),
        }
    }
}
