//! `list_agent_sessions`.

use mainspring_api::control::{BindingForm, ControlError, ListSessions, ListedSession, SessionList};
use mainspring_core::{Damage, SessionId, Time};

use crate::bounds::{self, PageBudget};
use crate::damaged::DamagedRows;
use crate::{ControlTools, Input, cursor, limit};

impl ControlTools<'_> {
    pub(crate) async fn list(&self, input: Input<ListSessions>) -> Result<SessionList, ControlError> {
        let input = input?;
        self.check_owner(input.owner_id.as_deref())?;
        let limit = limit(input.limit, 50, 200)?;
        // With the smallest id, the position excludes every session of this same time.
        let before_time = input.before_updated_at_ms.map(|at| (Time(at), SessionId::from_bytes([0; 16])));
        let before = input.cursor.as_deref().map(cursor).transpose()?.or(before_time);
        let listed =
            self.plane.session_list(input.status, input.surface_kind.as_deref(), before, limit).await?;
        let mut has_more = listed.len() == limit;
        let (mut sessions, mut last, mut budget) = (vec![], None, PageBudget::after(0));
        let (mut damaged, mut unlisted) = (vec![], DamagedRows::default());
        unlisted.next_page(listed.damaged);
        for (place, listed) in listed.items.into_iter().enumerate() {
            let (id, at) = (listed.session.id, listed.session.last_activity_at.0);
            let position = format!("{at}.{id}");
            let listed = match self.listed_session(listed).await {
                Err(error) if error.is_corrupt() => {
                    damaged.extend(unlisted.before(place, sessions.len()));
                    damaged.push(unreadable(id, sessions.len(), error.message));
                    last = Some(position);
                    continue;
                }
                listed => listed?,
            };
            if !budget.admits(bounds::SESSIONS.size_of(&listed)) {
                has_more = true;
                break;
            }
            damaged.extend(unlisted.before(place, sessions.len()));
            sessions.push(listed);
            last = Some(position);
        }
        if !has_more {
            damaged.extend(unlisted.rest(sessions.len()));
        }
        Ok(SessionList { sessions, next_cursor: last.filter(|_| has_more), truncated: vec![], damaged })
    }

    async fn listed_session(
        &self,
        listed: mainspring_api::ListedSession,
    ) -> Result<ListedSession, ControlError> {
        let mainspring_api::ListedSession { session, latest_run, .. } = listed;
        let active_run = match &latest_run {
            Some(run) if !run.state.status().is_ended() => {
                self.optional_run_form(self.plane.session_active_run(session.id).await?).await?
            }
            _ => None,
        };
        Ok(ListedSession {
            latest_run: self.optional_run_form(latest_run).await?,
            active_run,
            adapter_bindings: self.bindings(session.id).await?,
            session: session.into(),
        })
    }

    pub(crate) async fn bindings(&self, session: SessionId) -> Result<Vec<BindingForm>, ControlError> {
        let bindings = self.plane.session_bindings(session).await?;
        Ok(bindings.into_iter().map(BindingForm::from).collect())
    }
}

/// Describes a session as damaged because a part of it cannot be read.
fn unreadable(session: SessionId, index: usize, message: String) -> Damage {
    Damage { kind: "session".into(), id: Some(session.to_string()), index, message }
}
