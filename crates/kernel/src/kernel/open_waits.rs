//! Open waits of all sessions that a caller may read, and the sessions with unfinished runs.
//!
//! Both are found through the unfinished runs, so their cost grows with the unfinished work and not with the stored data.

use std::collections::HashSet;

use mainspring_api::OpenWait;
use mainspring_core::{Rows, Run, RunId, Session, SessionId, Time, Visibility};

use super::{Caller, Kernel, Scope, SessionQuery};
use crate::error::Error;
use crate::store::SessionRef;

/// Selects open waits to list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitQuery {
    /// Only waits after the wait of this run.
    pub after: Option<(Time, RunId)>,
    /// Page size; 50 if not given.
    pub limit: Option<usize>,
}

impl Kernel {
    /// Lists the open waits of all sessions that the caller may read, oldest first. A wait that was answered is not open,
    /// even if its run has not continued yet.
    pub async fn wait_list(&self, caller: &Caller, query: WaitQuery) -> Result<Rows<OpenWait>, Error> {
        let limit = self.page(query.limit)?;
        let runs = self.shared.store.runs_live(&caller.owner, caller.org.as_deref()).await?;
        let Rows { items: mut runs, damaged } = runs;
        runs.retain(|run| run.state.wait().is_some_and(|wait| wait.answer.is_none()));
        runs.retain(|run| query.after.is_none_or(|after| wait_position(run) > after));
        runs.sort_by_key(wait_position);
        let mut waits = vec![];
        for run in runs {
            if waits.len() == limit {
                break;
            }
            let found = self.shared.session_find(&caller.owner, &SessionRef::Id(run.session)).await?;
            waits.extend(found.and_then(|session| open_wait(caller, session, run)));
        }
        // The order of runs that cannot be read is unknown: each page names them after its items.
        let index = waits.len();
        let damaged = damaged.into_iter().map(|damage| mainspring_core::Damage { index, ..damage });
        Ok(Rows { items: waits, damaged: damaged.collect() })
    }

    /// Lists the sessions with a run that has not ended, by latest activity, each with its latest run.
    pub(super) async fn session_list_live(
        &self,
        caller: &Caller,
        query: &SessionQuery,
    ) -> Result<Rows<(Session, Option<Run>)>, Error> {
        let limit = self.page(query.limit)?;
        let runs = self.shared.store.runs_live(&caller.owner, caller.org.as_deref()).await?;
        let ids: HashSet<SessionId> = runs.iter().map(|run| run.session).collect();
        let mut sessions = vec![];
        for id in ids {
            let Some(found) = self.shared.session_find(&caller.owner, &SessionRef::Id(id)).await? else {
                continue;
            };
            let session = self.shared.marked(caller, found).await?;
            sessions.extend(Some(session).filter(|session| query.admits(caller, session)));
        }
        sessions.sort_by_key(|session| std::cmp::Reverse((session.last_activity_at, session.id)));
        sessions.truncate(limit);
        let mut listed = Rows { items: vec![], damaged: runs.damaged };
        for session in sessions {
            let latest = self.run_latest(&session).await?;
            listed.items.push((session, latest));
        }
        let index = listed.items.len();
        listed.damaged.iter_mut().for_each(|damage| damage.index = index);
        Ok(listed)
    }

    /// Returns the run that was accepted last in a session. Checks no permission: the caller must have read the
    /// session.
    pub async fn run_latest(&self, session: &Session) -> Result<Option<Run>, Error> {
        Ok(self.shared.store.session_load(session.id).await?.and_then(|loaded| loaded.latest))
    }
}

/// The position of a run's wait in the list of waits.
fn wait_position(run: &Run) -> (Time, RunId) {
    (run.updated_at, run.id)
}

impl SessionQuery {
    /// True if a session is one of those that the query selects. Looks neither at its runs nor at memory.
    pub fn admits(&self, caller: &Caller, session: &Session) -> bool {
        let is_in_scope = match self.scope {
            Scope::Own => session.owner == caller.owner,
            Scope::Org => session.visibility == Visibility::Org && session.org == caller.org,
            Scope::All => caller.may_read(session),
        };
        is_in_scope
            && self.pinned.is_none_or(|pinned| session.pinned == pinned)
            && self.status.is_none_or(|status| session.status == status)
            && self.surface_kind.as_ref().is_none_or(|kind| session.surface_kind == *kind)
            && self.before.is_none_or(|before| (session.last_activity_at, session.id) < before)
    }
}

/// Describes the open wait of a run, if the caller may read its session.
fn open_wait(caller: &Caller, session: Session, run: Run) -> Option<OpenWait> {
    let wait = run.state.wait().filter(|_| caller.may_read(&session))?.clone();
    Some(OpenWait {
        run_id: run.id,
        session_id: session.id,
        may_answer: caller.check_changes(&session).is_ok() && caller.check_person().is_ok(),
        owner_id: session.owner,
        title: session.title,
        key: session.key,
        adapter: run.adapter,
        model: run.options.model.or(run.options.model_profile).or(session.model).or(session.model_profile),
        cwd: run.options.cwd.or(session.cwd),
        updated_at: run.updated_at,
        wait,
    })
}
