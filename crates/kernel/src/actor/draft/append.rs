//! Drafts of messages that another program has written: at the tip, and of no run.

use std::sync::Arc;

use mainspring_core::tree::{before, place};
use mainspring_core::{Body, Message, Refusal, session};

use super::SessionDraft;
use crate::store::{NewId, Row};

impl SessionDraft {
    /// Writes `messages` beneath the tip and moves the tip to the last of them.
    pub(crate) fn append(&mut self, messages: &[Arc<Message>]) -> Result<(), Refusal> {
        let Some(last) = messages.last() else { return Ok(()) };
        let above = self.hot.session.tip;
        let line = above.and_then(|above| self.hot.session.line(above.line));
        let placed = place(above, line, false, self.ids.line());
        if let Some(line) = placed.opened {
            self.line_put(line);
        }
        self.rows.extend(placed.cursor().map(|(at, line)| Row::Cursor(at, Some(line))));
        let (mut next, mut parent_id) = (placed.point, self.hot.session.tip_message);
        for message in messages {
            self.line_extend(next)?;
            self.rows.push(Row::NewId(NewId::Message(message.id)));
            self.rows.push(Row::Message(message.clone(), Some(next)));
            self.emit(Body::MessageCompleted { message: message.clone(), parent_id });
            (next.pos, parent_id) = (next.pos + 1, Some(message.id));
        }
        self.session_command(session::Command::Navigate { tip: Some(last.id) })?;
        if let Some(tip) = before(next) {
            self.hot.session.move_tip(tip);
        }
        Ok(())
    }
}
