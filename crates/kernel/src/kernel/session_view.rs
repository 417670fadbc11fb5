//! The present state of a session: its activity, its current step and its usage; and the sessions in memory.

use std::sync::Arc;

use mainspring_api::{ListedSession, LiveStatus, SessionDetails};
use mainspring_core::{Cost, Rows, Run, RunState, Session, SessionId, Usage};

use super::{Caller, Kernel, Scope, SessionQuery};
use crate::error::Error;
use crate::store::{RunPage, SessionRef, StoreError};

impl Kernel {
    /// Gets a session with its activity, the step of its active run, and the usage of all its runs.
    pub async fn session_view(&self, caller: &Caller, by: &SessionRef) -> Result<SessionDetails, Error> {
        let session = self.session_get(caller, by).await?;
        let (live, latest_no) = self.unfinished_runs(&session).await?;
        let usage = match latest_no {
            Some(latest_no) => self.own_usage(&session, latest_no).await,
            None => self.shared.store.session_usage(session.id).await.map(|(_, usage)| usage),
        };
        let usage = match usage {
            // A damaged run does not hide its session.
            Err(StoreError::Corrupt(_)) => Usage { cost: Cost::UNKNOWN, ..Usage::UNKNOWN },
            usage => usage?,
        };
        let active = live.iter().find(|run| !matches!(run.state, RunState::Queued { .. }));
        let current_step = match active {
            Some(run) => {
                let steps = self.shared.store.steps(run.id).await?;
                let numbers = steps.iter().filter(|step| step.output.is_some()).map(|step| step.no);
                Some(numbers.max().unwrap_or(0))
            }
            None => None,
        };
        let live_status = live_status(&live);
        Ok(SessionDetails { session, live_status, current_step, usage })
    }

    /// Adds the activity of each listed session.
    pub async fn session_items(
        &self,
        listed: Rows<(Session, Option<Run>)>,
    ) -> Result<Rows<ListedSession>, Error> {
        let mut items = vec![];
        for (session, latest_run) in listed.items {
            let live_status = self.session_live_status(&session, latest_run.as_ref()).await?;
            items.push(ListedSession::plain((session, latest_run), live_status));
        }
        Ok(Rows { items, damaged: listed.damaged })
    }

    /// The activity of a session whose latest run is `latest`.
    pub async fn session_live_status(
        &self,
        session: &Session,
        latest: Option<&Run>,
    ) -> Result<LiveStatus, Error> {
        match latest.filter(|run| !run.state.status().is_ended()) {
            Some(_) => Ok(live_status(&self.unfinished_runs(session).await?.0)),
            // The latest run may have been cancelled while an earlier one works: then the session is in memory.
            None => Ok(self.shared.board.status(&session.owner, session.id).unwrap_or_default()),
        }
    }

    /// The runs of a session that have not ended, and the number of its latest run, 0 if it has none. If a run is damaged,
    /// it is left out and the number is unknown.
    async fn unfinished_runs(&self, session: &Session) -> Result<(Vec<Arc<Run>>, Option<u32>), Error> {
        if let Some((unfinished, latest_no)) = self.shared.images.unfinished(session.id) {
            return Ok((unfinished, Some(latest_no)));
        }
        match self.shared.store.session_load(session.id).await {
            Ok(Some(loaded)) => {
                let latest_no = loaded.latest.map_or(0, |run| run.no);
                Ok((loaded.runs.into_iter().map(|(run, _)| Arc::new(run)).collect(), Some(latest_no)))
            }
            Ok(None) => Ok((vec![], Some(0))),
            Err(StoreError::Corrupt(_)) => Ok((self.readable_unfinished(session).await?, None)),
            Err(error) => Err(error.into()),
        }
    }

    async fn readable_unfinished(&self, session: &Session) -> Result<Vec<Arc<Run>>, Error> {
        let page = RunPage {
            owner: session.owner.clone(),
            session: Some(session.id),
            status: None,
            before: None,
            // The queue of a session is bounded; the active run and merged ones come with it.
            limit: self.shared.options.limits.page,
        };
        let runs = self.shared.store.run_page(&page).await?.items.into_iter();
        Ok(runs.filter(|run| !run.state.status().is_ended()).map(Arc::new).collect())
    }

    /// Lists the caller's own sessions that are in memory, by latest activity, each with its latest run.
    pub(super) async fn session_list_open(
        &self,
        caller: &Caller,
        query: &SessionQuery,
    ) -> Result<Rows<(Session, Option<Run>)>, Error> {
        if query.scope != Scope::Own {
            let reason = "only your own sessions are listed by `open`: leave the scope out";
            return Err(Error::Invalid(reason.into()));
        }
        let limit = self.page(query.limit)?;
        let mut sessions = vec![];
        // The board also has sessions that left memory while their run waits.
        let on_board = self.shared.board.sessions(&caller.owner).into_iter();
        for id in on_board.filter(|id| self.is_in_memory(*id)) {
            if let Some(found) = self.shared.session_find(&caller.owner, &SessionRef::Id(id)).await? {
                sessions.push(self.shared.marked(caller, found).await?);
            }
        }
        let status =
            |session: &Session| self.shared.board.status(&session.owner, session.id).unwrap_or_default();
        sessions.retain(|session| {
            (!query.live || status(session) != LiveStatus::Idle)
                && query.pinned.is_none_or(|pinned| pinned == session.pinned)
                && query.status.is_none_or(|status| status == session.status)
                && query.surface_kind.as_ref().is_none_or(|kind| *kind == session.surface_kind)
                && query.before.is_none_or(|before| (session.last_activity_at, session.id) < before)
        });
        sessions.sort_by_key(|session| std::cmp::Reverse((session.last_activity_at, session.id)));
        sessions.truncate(limit);
        let mut listed = vec![];
        for session in sessions {
            let latest = self.run_latest(&session).await?;
            listed.push((session, latest));
        }
        Ok(listed.into())
    }

    /// True if a session is one of the caller's own that are in memory.
    pub fn session_is_open(&self, caller: &Caller, session: &Session) -> bool {
        session.owner == caller.owner
            && self.shared.board.status(&session.owner, session.id).is_some()
            && self.is_in_memory(session.id)
    }

    /// True if this server or another one has the session in memory.
    fn is_in_memory(&self, session: SessionId) -> bool {
        self.shared.is_live(session) || self.shared.elsewhere.contains(session)
    }
}

/// Paused if a run waits for a person, busy if one is executed or queued, else idle.
fn live_status(live: &[Arc<Run>]) -> LiveStatus {
    match live {
        [] => LiveStatus::Idle,
        live if live.iter().any(|run| run.state.wait().is_some()) => LiveStatus::Paused,
        _ => LiveStatus::Busy,
    }
}
