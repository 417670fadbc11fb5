//! Removes deleted sessions and pruned events in one step.

use mainspring_core::{Line, LineId, Point, SessionId};

use super::tables::Tables;

impl Tables {
    pub(super) fn purge(&mut self, session: SessionId) {
        if !self.sessions.contains_key(&session) || self.session(session).is_some() {
            return;
        }
        self.events.retain(|_, event| event.session != session);
        self.floors.remove(&session);
        self.chunks.retain(|(id, _), _| *id != session);
        self.effects.retain(|(id, _)| *id != session);
        self.inbox.retain(|(id, _)| *id != session);
        self.cursors.retain(|(id, _), _| *id != session);
        let artifacts = self.artifacts.values().filter(|artifact| artifact.session == session);
        for id in artifacts.map(|artifact| artifact.id).collect::<Vec<_>>() {
            self.artifact_remove(id);
        }
        self.digests.retain(|(_, id), _| *id != session);
        self.step_inputs.retain(|(id, _), _| *id != session);
        self.grants.retain(|_, grant| grant.session != session);
        self.feedback.retain(|(id, ..), _| *id != session);
        self.inherited_purge(session);
        self.pins.retain(|(_, id), _| *id != session);
        self.bindings.retain(|_, binding| binding.session != session);
        self.delegations.retain(|_, delegation| delegation.parent_session != session);
        self.runs.retain(|_, run| run.session != session);
        let runs = &self.runs;
        self.created_seq.retain(|run, _| runs.contains_key(run));
        self.attempts.retain(|(run, _), _| runs.contains_key(run));
        self.run_states.retain(|(run, _), _| runs.contains_key(run));
        self.state_history_purge(session);
        let runs = &self.runs;
        self.steps.retain(|(run, _, _), _| runs.contains_key(run));
        self.messages.retain(|_, message| message.message.session != session || message.point.is_some());
        let base = self.sessions.get(&session).and_then(|session| session.base);
        self.adopt_line(session, base);
        while let Some(line) = self.unread_line(session) {
            self.lines.retain(|(_, known)| known.id != line.id);
            self.messages.retain(|_, message| message.point.is_none_or(|point| point.line != line.id));
            self.digests.retain(|(point, _), _| point.line != line.id);
            self.adopt_line(session, line.parent);
        }
        self.trim(session);
        self.sessions.remove(&session);
        let messages = &self.messages;
        self.message_order.retain(|message, _| messages.contains_key(message));
        self.away_state_purge();
    }

    /// Removes the pruned events of a session except its first event, which marks the creation of the session.
    pub(super) fn prune(&mut self, session: SessionId) {
        let Some((floor, pruned)) = self.floors.get_mut(&session) else { return };
        *pruned = true;
        let floor = floor.cursor;
        let first = self.events.values().find(|event| event.session == session).map(|event| event.cursor);
        self.events.retain(|_, event| {
            event.session != session || event.cursor > floor || Some(event.cursor) == first
        });
    }

    /// Assigns the line of `point` to `session` if the line's own session is gone, so that the purge removes the line.
    fn adopt_line(&mut self, session: SessionId, point: Option<Point>) {
        let Self { lines, sessions, .. } = self;
        for (id, line) in lines {
            if point.is_some_and(|point| point.line == line.id) && !sessions.contains_key(id) {
                *id = session;
            }
        }
    }

    /// Finds a line of `session` that no session reads.
    fn unread_line(&self, session: SessionId) -> Option<Line> {
        let own = self.lines.iter().filter(|(id, _)| *id == session);
        own.map(|(_, line)| *line).find(|line| self.last_read_pos(session, line.id).is_none())
    }

    /// Returns the last position of a line that child lines or forks still need.
    fn last_read_pos(&self, session: SessionId, id: LineId) -> Option<u32> {
        let lines = self.lines.iter().filter_map(|(_, line)| line.parent);
        let others = self.sessions.values().filter(|other| other.id != session);
        let forks = others.filter_map(|other| other.base);
        lines.chain(forks).filter(|point| point.line == id).map(|point| point.pos).max()
    }

    /// Trims each line of `session` that child lines or forks still need: removes the messages after the last
    /// one that they need.
    fn trim(&mut self, session: SessionId) {
        let own = self.lines.iter().filter(|(id, _)| *id == session);
        let ends: Vec<(LineId, u32)> = own
            .filter_map(|(_, line)| Some((line, self.last_read_pos(session, line.id)? + 1)))
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
