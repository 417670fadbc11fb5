//! Removal of what a deleted session left, all at once.

use mainspring_core::{LineId, SessionId};

use super::state::State;

impl State {
    pub(super) fn purge(&mut self, gone: SessionId) {
        if !self.sessions.contains_key(&gone) || self.session(gone).is_some() {
            return;
        }
        self.events.retain(|_, event| event.session != gone);
        self.chunks.retain(|(of, _), _| *of != gone);
        self.effects.retain(|(of, _)| *of != gone);
        self.inbox.retain(|(of, _)| *of != gone);
        self.cursors.retain(|(of, _), _| *of != gone);
        self.artifacts.retain(|_, artifact| artifact.session != gone);
        self.grants.retain(|_, grant| grant.session != gone);
        self.bindings.retain(|_, binding| binding.session != gone);
        self.delegations.retain(|_, delegation| delegation.parent_session != gone);
        self.runs.retain(|_, run| run.session != gone);
        let runs = &self.runs;
        self.attempts.retain(|(run, _), _| runs.contains_key(run));
        self.steps.retain(|(run, _, _), _| runs.contains_key(run));
        self.messages.retain(|_, message| message.message.session != gone || message.point.is_some());
        self.sessions.remove(&gone);
        while let Some(line) = self.unread_line() {
            self.lines.retain(|(_, known)| known.id != line);
            self.messages.retain(|_, message| message.point.is_none_or(|point| point.line != line));
        }
    }

    /// A line whose session is gone, beneath which nothing hangs and on which nobody stands.
    fn unread_line(&self) -> Option<LineId> {
        let read = |id: LineId| {
            self.lines.iter().any(|(_, line)| line.parent.is_some_and(|parent| parent.line == id))
                || self.sessions.values().any(|session| session.tip.is_some_and(|tip| tip.line == id))
        };
        let gone = self.lines.iter().filter(|(session, _)| !self.sessions.contains_key(session));
        gone.map(|(_, line)| line.id).find(|id| !read(*id))
    }
}
