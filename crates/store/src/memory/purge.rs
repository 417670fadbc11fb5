//! Removal of what a deleted session left, all at once.

use mainspring_core::{Line, LineId, Point, SessionId};

use super::state::State;

impl State {
    pub(super) fn purge(&mut self, gone: SessionId) {
        if !self.sessions.contains_key(&gone) || self.session(gone).is_some() {
            return;
        }
        self.events.retain(|_, event| event.session != gone);
        self.floors.remove(&gone);
        self.chunks.retain(|(of, _), _| *of != gone);
        self.effects.retain(|(of, _)| *of != gone);
        self.inbox.retain(|(of, _)| *of != gone);
        self.cursors.retain(|(of, _), _| *of != gone);
        let artifacts = self.artifacts.values().filter(|artifact| artifact.session == gone);
        for id in artifacts.map(|artifact| artifact.id).collect::<Vec<_>>() {
            self.artifact_remove(id);
        }
        self.grants.retain(|_, grant| grant.session != gone);
        self.bindings.retain(|_, binding| binding.session != gone);
        self.delegations.retain(|_, delegation| delegation.parent_session != gone);
        self.runs.retain(|_, run| run.session != gone);
        let runs = &self.runs;
        self.created.retain(|run, _| runs.contains_key(run));
        self.attempts.retain(|(run, _), _| runs.contains_key(run));
        self.run_states.retain(|(run, _), _| runs.contains_key(run));
        self.messages.retain(|_, message| message.message.session != gone || message.point.is_some());
        let stood = self.sessions.remove(&gone).and_then(|session| session.tip);
        self.adopt(gone, stood);
        while let Some(line) = self.unread_line(gone) {
            self.lines.retain(|(_, known)| known.id != line.id);
            self.messages.retain(|_, message| message.point.is_none_or(|point| point.line != line.id));
            self.adopt(gone, line.parent);
        }
        self.away_purge();
    }

    /// Makes the line of a point this session's own if its session is gone, so that it can go as well.
    fn adopt(&mut self, by: SessionId, at: Option<Point>) {
        let Self { lines, sessions, .. } = self;
        let line = at.and_then(|at| lines.iter_mut().find(|(_, line)| line.id == at.line));
        if let Some((of, _)) = line.filter(|(of, _)| !sessions.contains_key(of)) {
            *of = by;
        }
    }

    /// Removes the events that a session has pruned.
    pub(super) fn prune(&mut self, session: SessionId) {
        let Some((floor, pruned)) = self.floors.get_mut(&session) else { return };
        *pruned = true;
        let floor = floor.cursor;
        self.events.retain(|_, event| event.session != session || event.cursor > floor);
    }

    /// A line of this session, which is gone, beneath which nothing hangs and on which nobody stands.
    fn unread_line(&self, gone: SessionId) -> Option<Line> {
        let read = |id: LineId| {
            self.lines.iter().any(|(_, line)| line.parent.is_some_and(|parent| parent.line == id))
                || self.sessions.values().any(|session| session.tip.is_some_and(|tip| tip.line == id))
        };
        let own = self.lines.iter().filter(|(session, _)| *session == gone);
        own.map(|(_, line)| *line).find(|line| !read(line.id))
    }
}
