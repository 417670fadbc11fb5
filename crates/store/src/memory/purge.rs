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
        self.digests.retain(|(_, of), _| *of != gone);
        self.grants.retain(|_, grant| grant.session != gone);
        self.bindings.retain(|_, binding| binding.session != gone);
        self.delegations.retain(|_, delegation| delegation.parent_session != gone);
        self.runs.retain(|_, run| run.session != gone);
        let runs = &self.runs;
        self.created.retain(|run, _| runs.contains_key(run));
        self.attempts.retain(|(run, _), _| runs.contains_key(run));
        self.run_states.retain(|(run, _), _| runs.contains_key(run));
        self.steps.retain(|(run, _, _), _| runs.contains_key(run));
        self.messages.retain(|_, message| message.message.session != gone || message.point.is_some());
        let base = self.sessions.get(&gone).and_then(|session| session.base);
        self.adopt(gone, base);
        while let Some(line) = self.unread_line(gone) {
            self.lines.retain(|(_, known)| known.id != line.id);
            self.messages.retain(|_, message| message.point.is_none_or(|point| point.line != line.id));
            self.digests.retain(|(point, _), _| point.line != line.id);
            self.adopt(gone, line.parent);
        }
        self.trim(gone);
        self.sessions.remove(&gone);
        let messages = &self.messages;
        self.arrivals.retain(|message, _| messages.contains_key(message));
        self.away_purge();
    }

    /// Removes the events that a session has pruned, but its first one: it tells when the session was made.
    pub(super) fn prune(&mut self, session: SessionId) {
        let Some((floor, pruned)) = self.floors.get_mut(&session) else { return };
        *pruned = true;
        let floor = floor.cursor;
        let first = self.events.values().find(|event| event.session == session).map(|event| event.cursor);
        self.events.retain(|_, event| {
            event.session != session || event.cursor > floor || Some(event.cursor) == first
        });
    }

    /// Makes the line of `point` this session's own if its session is gone, so that it can go as well.
    fn adopt(&mut self, gone: SessionId, point: Option<Point>) {
        let Self { lines, sessions, .. } = self;
        for (session, line) in lines {
            if point.is_some_and(|point| point.line == line.id) && !sessions.contains_key(session) {
                *session = gone;
            }
        }
    }

    /// A line of `gone` that nobody reads.
    fn unread_line(&self, gone: SessionId) -> Option<Line> {
        let own = self.lines.iter().filter(|(session, _)| *session == gone);
        own.map(|(_, line)| *line).find(|line| self.read_to(gone, line.id).is_none())
    }

    /// How far a line is still read: by lines that hang beneath, and by other sessions' bases.
    fn read_to(&self, gone: SessionId, id: LineId) -> Option<u32> {
        let lines = self.lines.iter().filter_map(|(_, line)| line.parent);
        let others = self.sessions.values().filter(|session| session.id != gone);
        let forks = others.filter_map(|session| session.base);
        lines.chain(forks).filter(|point| point.line == id).map(|point| point.pos).max()
    }

    /// Of the lines of `gone` that are still read, only what is read stays.
    fn trim(&mut self, gone: SessionId) {
        let own = self.lines.iter().filter(|(session, _)| *session == gone);
        let ends: Vec<(LineId, u32)> = own
            .filter_map(|(_, line)| Some((line, self.read_to(gone, line.id)? + 1)))
            .filter(|(line, end)| line.end > *end)
            .map(|(line, end)| (line.id, end))
            .collect();
        for (id, end) in ends {
            let beyond = |point: Point| point.line == id && point.pos >= end;
            self.messages.retain(|_, message| !message.point.is_some_and(beyond));
            for (_, line) in self.lines.iter_mut().filter(|(_, line)| line.id == id) {
                line.end = end;
            }
        }
    }
}
