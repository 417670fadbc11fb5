//! Given messages: the messages that a caller supplies become the active path.

use std::sync::Arc;

use mainspring_core::tree::place;
use mainspring_core::{Body, GivenMessage, Line, Message, MessageStatus, Point, Refusal};

use super::SessionDraft;
use crate::store::Row;

impl SessionDraft {
    /// Makes `given` the active path: a new line from a new root. Existing messages stay in the tree. Without messages,
    /// the path becomes empty.
    pub(crate) fn replace_path(&mut self, given: Vec<GivenMessage>) -> Result<(), Refusal> {
        let placed = place(None, None, true, self.ids.line());
        let Some(mut line) = placed.opened.filter(|_| !given.is_empty()) else {
            return self.navigate(None, None);
        };
        let mut last = None;
        for GivenMessage { role, content } in given {
            let message = Arc::new(Message {
                id: self.ids.message(),
                session: self.hot.session.id,
                run: None,
                role,
                status: MessageStatus::Completed,
                content,
                usage: None,
                created_at: self.at,
                agent: None,
                external_id: None,
            });
            let point = Point { line: line.id, pos: line.end };
            line = Line { end: line.end + 1, ..line };
            self.row(Row::Message(message.clone(), Some(point)));
            let parent_id = last.replace((point, message.id)).map(|(_, parent)| parent);
            self.emit(Body::MessageCompleted { message, parent_id });
        }
        self.navigate(last, Some(line))?;
        self.lines_changed.insert(line.id, line);
        Ok(())
    }
}
