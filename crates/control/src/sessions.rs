//! `list_agent_sessions`.

use mainspring_api::control::{BindingForm, ControlError, ListSessions, ListedSession, SessionList};
use mainspring_core::{SessionId, Time};

use crate::{ControlTools, Input, limit};

impl ControlTools<'_> {
    pub(crate) async fn list(&self, input: Input<ListSessions>) -> Result<SessionList, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let limit = limit(input.limit, 50, 200)?;
        let before = input.before_updated_at_ms.map(Time);
        let listed =
            self.plane.session_list(input.status, input.surface_kind.as_deref(), before, limit).await?;
        let mut sessions = vec![];
        for mainspring_api::ListedSession { session, latest_run } in listed {
            let active_run = match &latest_run {
                Some(run) if !run.state.status().is_ended() => {
                    self.optional_run_form(self.plane.session_active_run(session.id).await?).await?
                }
                _ => None,
            };
            sessions.push(ListedSession {
                latest_run: self.optional_run_form(latest_run).await?,
                active_run,
                adapter_bindings: self.bindings(session.id).await?,
                session: session.into(),
            });
        }
        Ok(SessionList { sessions })
    }

    pub(crate) async fn bindings(&self, session: SessionId) -> Result<Vec<BindingForm>, ControlError> {
        let bindings = self.plane.session_bindings(session).await?;
        Ok(bindings.into_iter().map(BindingForm::from).collect())
    }
}
