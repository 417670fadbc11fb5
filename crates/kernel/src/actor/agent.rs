//! Sets the agent of the session: its settings and its path, in one commit.

use mainspring_core::session::{Command as SessionCommand, check_takes_work};
use mainspring_core::{GivenMessage, Session};

use super::Actor;
use crate::error::Error;

/// A checked change of a session's agent.
pub(crate) struct AgentSetting {
    /// Changes of the session's settings.
    pub(crate) commands: Vec<SessionCommand>,
    /// The messages of the new path; none to keep the path.
    pub(crate) messages: Option<Vec<GivenMessage>>,
}

impl Actor {
    /// Changes the settings and the path of an idle session; with `version`, only if the session still has it.
    pub(super) async fn set_agent(
        &mut self,
        setting: AgentSetting,
        version: Option<u64>,
    ) -> Result<Session, Error> {
        self.check_version(version)?;
        if let Some(status) = self.busy() {
            return Err(Error::Busy { status });
        }
        let mut draft = self.draft();
        for command in setting.commands {
            self.give_up_on_error(draft.session_command(command))?;
        }
        if let Some(messages) = setting.messages {
            self.give_up_on_error(check_takes_work(&self.hot.session))?;
            self.give_up_on_error(draft.replace_path(messages))?;
        }
        self.commit(draft).await?;
        Ok(Session::clone(&self.hot.session))
    }
}
