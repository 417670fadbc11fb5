//! The session itself: created, renamed, archived, closed, deleted.

use mainspring_core::session::Command as SessionCommand;
use mainspring_core::{Artifact, Body, Cursor, Refusal, Session, SessionStatus};

use super::{Actor, Adoption};
use crate::error::{CreateError, Error};
use crate::store::{Loaded, Pin, Request, Row, StateRow};

/// Data that a new session starts with.
#[derive(Default)]
pub(crate) struct SessionSeed {
    /// State of the session it was forked from.
    pub(crate) state: Vec<StateRow>,
    /// The artifacts that a fork inherits.
    pub(crate) artifacts: Vec<Artifact>,
    /// An existing native session.
    pub(crate) adopted: Option<Box<Adoption>>,
}

impl Actor {
    pub(super) async fn create(
        &mut self,
        request: Option<Box<Request>>,
        seed: SessionSeed,
    ) -> Result<Session, CreateError> {
        if self.hot.session.is_stored() {
            return Ok(Session::clone(&self.hot.session));
        }
        let mut draft = self.draft();
        draft.emit(created(&self.hot.session));
        request.into_iter().for_each(|request| draft.row(Row::Request(request)));
        seed.state.into_iter().for_each(|state| draft.row(Row::State(Box::new(state))));
        for artifact in seed.artifacts {
            draft.row(Row::InheritedArtifact(Box::new(artifact)));
        }
        if let Some(adopted) = seed.adopted {
            self.give_up_on_error(draft.binding_adopt(*adopted, self.shared.node))?;
        }
        self.commit(draft).await?;
        Ok(Session::clone(&self.hot.session))
    }

    /// Changes the session, and a reader's pins with it; with `version`, only if the session still has it.
    pub(super) async fn change_session(
        &mut self,
        commands: Vec<SessionCommand>,
        version: Option<u64>,
        pin: Option<Box<Pin>>,
    ) -> Result<Session, Error> {
        self.check_version(version)?;
        let leaves = |command: &SessionCommand| {
            matches!(command, SessionCommand::Archive | SessionCommand::Close | SessionCommand::Delete { .. })
        };
        // The bindings of a deleted session cannot be read any more.
        let natives = match commands.iter().any(leaves) {
            true => Box::pin(self.shared.active_bindings(self.fence.session)).await?,
            false => vec![],
        };
        let mut draft = self.draft();
        for command in commands {
            let command = match command {
                SessionCommand::Delete { .. } => SessionCommand::Delete { live: !self.is_idle() },
                other => other,
            };
            if let Err(refusal) = self.give_up_on_error(draft.session_command(command)) {
                return Err(match (self.busy(), refusal) {
                    (Some(status), Refusal::WrongState { .. }) => Error::Busy { status },
                    (_, refusal) => refusal.into(),
                });
            }
        }
        pin.iter().for_each(|pin| draft.row(Row::Pin(pin.clone())));
        let committed = self.commit(draft).await;
        pin.iter().for_each(|pin| self.shared.pins.note(pin, committed.is_ok()));
        committed?;
        self.shared.forget_native_sessions(natives.iter());
        if self.hot.session.status == SessionStatus::Deleted {
            self.lifetime.end();
            self.shared.purge(self.fence.session);
        }
        Ok(Session::clone(&self.hot.session))
    }

    /// Refuses a version that is not the present one.
    pub(super) fn check_version(&self, expected: Option<u64>) -> Result<(), Error> {
        let now = self.hot.session.version;
        match expected.filter(|expected| *expected != now) {
            Some(expected) => Err(Error::Changed { expected, now }),
            None => Ok(()),
        }
    }
}

/// The event that creates `session`.
pub(super) fn created(session: &Session) -> Body {
    Body::SessionCreated {
        key: session.key.clone(),
        title: session.title.clone(),
        adapter: session.adapter.clone(),
        surface_kind: session.surface_kind.clone(),
        external_ref: session.external_ref.clone(),
    }
}

/// Builds the stored state of a new session, before its first commit.
pub(crate) fn new_loaded(session: Session) -> Loaded {
    Loaded {
        session,
        runs: vec![],
        latest: None,
        lines: vec![],
        chunks: vec![],
        open_tool_calls: vec![],
        inbox: vec![],
        delegations: vec![],
        cursor: Cursor::START,
        pos: 0,
        floor: None,
    }
}
