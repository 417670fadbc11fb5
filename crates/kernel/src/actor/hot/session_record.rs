//! The session's record, and the lines of its tree that the next messages extend.
//!
//! Invariant: of the lines of ended runs, the record keeps at most the line of the tip.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use mainspring_core::{Body, Line, LineId, Point, Session, Time, session};

/// A session and the lines that its next messages extend. It reads like the session.
#[derive(Debug, Clone)]
pub(crate) struct SessionRecord {
    /// Shared with the rows of commits, with images and with executions. Copied when it changes.
    session: Arc<Session>,
    /// The line of the tip, and the line that the active run writes.
    lines: HashMap<LineId, Line>,
    /// False until the session's first commit.
    stored: bool,
}

impl Deref for SessionRecord {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl SessionRecord {
    /// Restores the record of a session and its `lines`.
    pub(crate) fn restore(session: Session, lines: &[Line], stored: bool) -> Self {
        let lines = lines.iter().map(|line| (line.id, *line)).collect();
        Self { session: Arc::new(session), lines, stored }
    }

    /// True once the store has the session.
    pub(crate) fn is_stored(&self) -> bool {
        self.stored
    }

    /// Records that the commit with this record stores the session.
    pub(crate) fn set_stored(&mut self) {
        self.stored = true;
    }

    /// The session, to share without a copy.
    pub(crate) fn shared(&self) -> Arc<Session> {
        self.session.clone()
    }

    /// Applies an event to the session. Returns true if its row must be written.
    pub(crate) fn apply(&mut self, body: &Body, at: Time) -> bool {
        let before = (self.session.version, self.session.last_activity_at);
        session::apply(Arc::make_mut(&mut self.session), body, at);
        let is_new = matches!(body, Body::SessionCreated { .. });
        is_new || before != (self.session.version, self.session.last_activity_at)
    }

    /// Moves the tip to a message of a line that the record keeps. The other lines are not written any more.
    pub(crate) fn move_tip(&mut self, tip: Point) {
        Arc::make_mut(&mut self.session).tip = Some(tip);
        self.lines.retain(|id, _| *id == tip.line);
    }

    /// Moves the tip to any message of the tree, or to none. `line` is the message's line if it is the session's own.
    pub(crate) fn set_tip(&mut self, tip: Option<Point>, line: Option<Line>) {
        Arc::make_mut(&mut self.session).tip = tip;
        self.lines = line.into_iter().map(|line| (line.id, line)).collect();
    }

    /// The line `id`, if the record keeps it.
    pub(crate) fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.get(&id)
    }

    /// Adds a line, or replaces its earlier version.
    pub(crate) fn put_line(&mut self, line: Line) {
        self.lines.insert(line.id, line);
    }

    /// Removes a line that is not written any more.
    pub(crate) fn remove_line(&mut self, id: LineId) -> Option<Line> {
        self.lines.remove(&id)
    }
}
