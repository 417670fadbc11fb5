//! The session itself: created, renamed, archived, deleted.

use mainspring_core::session::Command as SessionCommand;
use mainspring_core::{Body, Cursor, Refusal, RunStatus, Session, SessionStatus};

use super::Actor;
use crate::error::{CreateError, Error};
use crate::kernel::Adopted;
use crate::store::{Loaded, Request, Row, StateRow};

/// What a session has from its beginning.
#[derive(Default)]
pub(crate) struct Begins {
    /// State of the session it goes on from.
    pub(crate) state: Vec<StateRow>,
    /// A native session that exists already, and its adapter.
    pub(crate) adopted: Option<Box<(String, Adopted)>>,
}

impl Actor {
    pub(super) async fn create(
        &mut self,
        request: Option<Box<Request>>,
        begins: Begins,
    ) -> Result<Session, CreateError> {
        if self.stored {
            return Ok(self.hot.session.clone());
        }
        let (mut draft, _) = self.draft(false);
        draft.emit(created(&self.hot.session));
        request.into_iter().for_each(|request| draft.row(Row::Request(request)));
        begins.state.into_iter().for_each(|state| draft.row(Row::State(Box::new(state))));
        if let Some(adopted) = begins.adopted {
            let (adapter, adopted) = *adopted;
            if let Err(error) = draft.binding_adopt(adapter, adopted, self.shared.node) {
                self.give_up();
                return Err(error.into());
            }
        }
        self.commit(draft).await?;
        Ok(self.hot.session.clone())
    }

    /// Changes the session, if it still stands at `version` where one is given.
    pub(super) async fn change_session(
        &mut self,
        commands: Vec<SessionCommand>,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        self.check_version(version)?;
        let leaves = |command| matches!(command, &SessionCommand::Archive | &SessionCommand::Delete { .. });
        // Once it is deleted, nobody finds them any more.
        let natives = match commands.iter().any(leaves) {
            true => Box::pin(self.shared.natives(self.fence.session)).await?,
            false => vec![],
        };
        let (mut draft, _) = self.draft(false);
        for command in commands {
            let command = match command {
                SessionCommand::Delete { .. } => SessionCommand::Delete { live: !self.is_idle() },
                other => other,
            };
            if let Err(refusal) = draft.session_command(command) {
                self.give_up();
                return Err(match (self.busy(), refusal) {
                    (Some(status), Refusal::WrongState { .. }) => Error::Busy { status },
                    (_, refusal) => refusal.into(),
                });
            }
        }
        self.commit(draft).await?;
        self.shared.natives_forget(natives.iter());
        if self.hot.session.status == SessionStatus::Deleted {
            self.over = true;
            self.shared.purge(self.fence.session);
        }
        Ok(self.hot.session.clone())
    }

    /// Refuses a change of a version that is not the present one.
    pub(super) fn check_version(&self, expected: Option<u64>) -> Result<(), Error> {
        let now = self.hot.session.version;
        match expected.filter(|expected| *expected != now) {
            Some(expected) => Err(Error::Changed { expected, now }),
            None => Ok(()),
        }
    }

    /// Where the run stands that keeps the session busy.
    pub(super) fn busy(&self) -> Option<RunStatus> {
        let active = self.active.as_ref().map(|active| active.run.state.status());
        active.or_else(|| self.queue.front().map(|run| run.state.status()))
    }
}

/// The event that says what `session` is like.
pub(super) fn created(session: &Session) -> Body {
    Body::SessionCreated {
        key: session.key.clone(),
        title: session.title.clone(),
        adapter: session.adapter.clone(),
        surface_kind: session.surface_kind.clone(),
        external_ref: session.external_ref.clone(),
    }
}

/// What a new session's actor starts from.
pub(crate) fn unborn(session: Session) -> Loaded {
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
