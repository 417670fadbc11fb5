//! Reads of sessions, runs, delegations and events.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use mainspring_core::{
    Attempt, Binding, BindingStatus, Body, Cursor, Delegation, Event, Position, Run, RunId, Session,
    SessionId, SessionStatus, Usage, Visibility,
};
use mainspring_kernel::store::{
    Chunk, DelegationsOf, Fence, InboxItem, Loaded, RunPage, SessionPage, SessionRef, SessionsOf, StoreError,
    Unfinished,
};

use super::tables::Tables;

impl Tables {
    pub(super) fn unfinished(&self) -> Unfinished {
        let runs = self.runs.values().filter(|run| !run.state.status().is_ended()).map(|run| run.session);
        let live = runs.chain(self.inbox.iter().map(|(session, _)| *session));
        let deleted = self.sessions.values().filter(|session| session.status == SessionStatus::Deleted);
        let mut live: Vec<SessionId> = live.collect::<HashSet<_>>().into_iter().collect();
        live.sort();
        let unpruned = self.floors.iter().filter(|(_, (_, pruned))| !pruned);
        let compacted = unpruned.map(|(id, _)| *id).collect();
        let is_bound = |binding: &&Binding| {
            binding.status == BindingStatus::Active && binding.fidelity.is_process_local()
        };
        let bound = self.bindings.values().filter(is_bound).map(|binding| binding.session);
        let mut bound: Vec<SessionId> = bound.collect::<HashSet<_>>().into_iter().collect();
        bound.sort();
        Unfinished { live, deleted: deleted.map(|session| session.id).collect(), compacted, bound }
    }

    pub(super) fn session_load(&self, fence: Fence) -> Option<Loaded> {
        let session = self.session(fence.session)?.clone();
        let mut runs: Vec<(Run, Option<Attempt>)> = self
            .runs
            .values()
            .filter(|run| run.session == session.id && !run.state.status().is_ended())
            .map(|run| (run.clone(), self.attempt_latest(run.id)))
            .collect();
        runs.sort_by_key(|(run, _)| run.no);
        let own_chunks = self.chunks.values().filter(|chunk| chunk.fence.session == session.id);
        let chunks: Vec<Chunk> = own_chunks.map(|chunk| Chunk { fence, ..chunk.clone() }).collect();
        let floor = self.floor(session.id);
        let last = self.events.values().rfind(|event| event.session == session.id);
        let last = last.map_or(Position::START, Event::position).max(floor.unwrap_or_default());
        let chunk_end = chunks.last().map_or(0, |chunk| chunk.pos + chunk.text.len() as u64);
        let points = session.tip.into_iter().chain(runs.iter().filter_map(|(run, _)| run.pen));
        let mut seen = HashSet::new();
        Some(Loaded {
            latest: self.run_latest(session.id),
            lines: points
                .filter(|point| seen.insert(point.line))
                .filter_map(|point| self.line_own(session.id, point.line))
                .collect(),
            open_tool_calls: self
                .effects
                .iter()
                .filter(|(id, _)| *id == session.id)
                .map(|(_, effect)| effect.clone())
                .collect(),
            inbox: self.inbox(session.id),
            delegations: self.unsettled(&runs),
            cursor: last.cursor,
            pos: last.pos.max(chunk_end),
            floor,
            session,
            runs,
            chunks,
        })
    }

    pub(super) fn inbox(&self, session: SessionId) -> Vec<InboxItem> {
        self.inbox.iter().filter(|(id, _)| *id == session).map(|(_, item)| item.clone()).collect()
    }

    pub(super) fn delegations(&self, of: DelegationsOf) -> Vec<Delegation> {
        let matches = |delegation: &&Delegation| match of {
            DelegationsOf::Id(id) => delegation.id == id,
            DelegationsOf::Parent(session, run) => {
                (delegation.parent_session, delegation.parent_run) == (session, run)
            }
            DelegationsOf::Child(run) => delegation.child_run == run,
        };
        let mut found: Vec<Delegation> = self.delegations.values().filter(matches).cloned().collect();
        found.sort_by_key(|delegation| (delegation.created_at, delegation.id));
        found
    }

    pub(super) fn delegated_usage(&self, session: SessionId) -> (u64, Usage) {
        let mut below: BTreeSet<(SessionId, RunId)> = BTreeSet::new();
        let own = self.delegations.values().filter(|delegation| delegation.parent_session == session);
        let mut found: Vec<(SessionId, RunId)> = own.map(|one| (one.child_session, one.child_run)).collect();
        while let Some(child) = found.pop() {
            if below.insert(child) {
                let of_child = self.delegations(DelegationsOf::Parent(child.0, child.1));
                found.extend(of_child.iter().map(|one| (one.child_session, one.child_run)));
            }
        }
        below.retain(|(child, _)| *child != session);
        let usage = |run: &RunId| self.run_get(*run).map_or(Usage::UNKNOWN, |run| run.usage);
        let sum = below.iter().fold(Usage::default(), |sum, (_, run)| sum + usage(run));
        (below.len() as u64, sum)
    }

    /// Lists the delegations that are not settled and have one of `runs` as parent or child.
    fn unsettled<T>(&self, runs: &[(Run, T)]) -> Vec<Delegation> {
        let delegations_of = |run: &Run| {
            let child = run.parent.map(|_| self.delegations(DelegationsOf::Child(run.id)));
            child.into_iter().flatten().chain(self.delegations(DelegationsOf::Parent(run.session, run.id)))
        };
        let all = runs.iter().flat_map(|(run, _)| delegations_of(run));
        all.filter(|delegation| !delegation.status.is_settled()).collect()
    }

    fn attempt_latest(&self, run: RunId) -> Option<Attempt> {
        self.attempts.range((run, 0)..=(run, u32::MAX)).next_back().map(|(_, attempt)| attempt.clone())
    }

    fn run_latest(&self, session: SessionId) -> Option<Run> {
        self.runs.values().filter(|run| run.session == session).max_by_key(|run| run.no).cloned()
    }

    pub(super) fn session_find(&self, owner: &str, by: &SessionRef) -> Option<Session> {
        let matches = |session: &Session| match by {
            SessionRef::Id(id) => session.id == *id,
            _ if session.owner != owner => false,
            SessionRef::Key(key) => session.key.as_ref() == Some(key),
            SessionRef::External(external) => session.external_ref.as_ref() == Some(external),
            SessionRef::Legacy(alias) => session.legacy_alias.as_ref() == Some(alias),
        };
        let exists = |session: &&Session| session.status != SessionStatus::Deleted;
        self.sessions.values().filter(exists).find(|session| matches(session)).cloned()
    }

    pub(super) fn session_page(&self, page: &SessionPage) -> Vec<(Session, Option<Run>)> {
        let sort_key = |session: &Session| (session.last_activity_at, session.id);
        let matches = |session: &&Session| {
            let is_listed = match &page.of {
                SessionsOf::Owner(owner) => session.owner == *owner,
                SessionsOf::Org(org) => {
                    session.visibility == Visibility::Org && session.org.as_ref() == Some(org)
                }
            };
            is_listed
                && { page.pinned.as_ref() }
                    .is_none_or(|by| self.is_pinned(&by.owner, session.id) == by.is_pinned)
                && session.status != SessionStatus::Deleted
                && page.status.is_none_or(|status| session.status == status)
                && page.surface_kind.as_ref().is_none_or(|kind| session.surface_kind == *kind)
                && page.before.is_none_or(|before| sort_key(session) < before)
        };
        let mut found: Vec<&Session> = self.sessions.values().filter(matches).collect();
        found.sort_by_key(|session| std::cmp::Reverse(sort_key(session)));
        found
            .into_iter()
            .take(page.limit)
            .map(|session| (session.clone(), self.run_latest(session.id)))
            .collect()
    }

    pub(super) fn run_get(&self, run: RunId) -> Option<Run> {
        let run = self.runs.get(&run)?;
        self.session(run.session).map(|_| run.clone())
    }

    pub(super) fn runs_live(&self, owner: &str, org: Option<&str>) -> Vec<Run> {
        let is_readable = |session: &Session| {
            let is_shared = session.visibility == Visibility::Org && session.org.is_some();
            session.owner == owner || (is_shared && session.org.as_deref() == org)
        };
        let matches =
            |run: &&Run| !run.state.status().is_ended() && self.session(run.session).is_some_and(is_readable);
        let mut found: Vec<Run> = self.runs.values().filter(matches).cloned().collect();
        found.sort_by_key(|run| (run.created_at, run.id));
        found
    }

    pub(super) fn run_by_request(&self, owner: &str, client: &str, request: &str) -> Option<Run> {
        let matches = |run: &&Run| {
            run.owner == owner
                && run.request.client_id.as_deref() == Some(client)
                && run.request.request_id.as_deref() == Some(request)
        };
        self.runs.values().find(matches).cloned()
    }

    pub(super) fn run_page(&self, page: &RunPage) -> Vec<Run> {
        let sort_key = |run: &Run| (run.created_at, run.id);
        let matches = |run: &&Run| {
            run.owner == page.owner
                && self.session(run.session).is_some()
                && page.session.is_none_or(|session| run.session == session)
                && page.status.is_none_or(|status| run.state.status() == status)
                && page.before.is_none_or(|before| sort_key(run) < before)
        };
        let mut found: Vec<&Run> = self.runs.values().filter(matches).collect();
        found.sort_by_key(|run| std::cmp::Reverse(sort_key(run)));
        found.into_iter().take(page.limit).cloned().collect()
    }

    pub(super) fn events_after(
        &self,
        session: SessionId,
        run: Option<RunId>,
        after: Cursor,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        let created = run.and_then(|run| self.created_seq.get(&run).copied()).unwrap_or(0);
        if let Some(floor) = self.floor(session).filter(|floor| after.0.max(created) < floor.cursor.0) {
            return Err(StoreError::Pruned(floor));
        }
        let matches = |event: &&Event| {
            event.session == session && event.cursor > after && (run.is_none() || event.run == run)
        };
        self.events.values().filter(matches).take(limit).map(|event| self.hydrate(event)).collect()
    }

    pub(super) fn owner_events(
        &self,
        owner: &str,
        types: Option<&[&'static str]>,
        after: Cursor,
        limit: usize,
    ) -> Result<(Vec<Event>, Cursor), StoreError> {
        let matches = |event: &&Event| {
            let is_deletion = matches!(event.body, Body::SessionDeleted {});
            let is_visible = self.sessions.get(&event.session).is_some_and(|session| {
                session.owner == owner && (is_deletion || session.status != SessionStatus::Deleted)
            });
            let is_kept = self.floor(event.session).is_none_or(|floor| event.cursor > floor.cursor);
            let has_type = types.is_none_or(|types| types.contains(&event.body.kind()));
            event.cursor > after && is_visible && is_kept && has_type
        };
        let events = self.events.values().filter(matches).take(limit).map(|event| self.hydrate(event));
        let events = events.collect::<Result<Vec<Event>, StoreError>>()?;
        let is_full = events.len() >= limit;
        let scanned_to =
            events.last().filter(|_| is_full).map_or(Cursor(self.seq).max(after), |event| event.cursor);
        Ok((events, scanned_to))
    }

    pub(super) fn event_before(&self, session: SessionId, before: Cursor) -> Option<Position> {
        let floor = self.floor(session).unwrap_or_default().cursor;
        let earlier = self.events.values().rfind(|event| event.session == session && event.cursor < before);
        earlier.map(Event::position).filter(|found| found.cursor > floor)
    }

    /// Adds the request id and the current message, which are not stored in the event.
    fn hydrate(&self, event: &Event) -> Result<Event, StoreError> {
        let mut event = event.clone();
        if let Some(run) = event.run.and_then(|run| self.runs.get(&run)) {
            event.request.clone_from(&run.request.request_id);
        }
        if let Body::MessageCompleted { message, .. } = &mut event.body {
            let known = self.messages.get(&message.id);
            let missing = || StoreError::Corrupt(format!("the completed message {} is missing", message.id));
            *message = Arc::clone(&known.ok_or_else(missing)?.message);
        }
        Ok(event)
    }
}
