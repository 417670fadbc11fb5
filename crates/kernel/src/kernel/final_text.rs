//! The text of a run that has ended: all that its agent wrote on the run's path.
//!
//! The text is stored only in the messages and read from them, so it outlives the events of the run. The short text of a
//! loaded session's latest run is in its image.
//!
//! Within the turn of one agent the parts are joined as they were streamed. The answers of different members of a network,
//! and of different calls of one member, are paragraphs.

use mainspring_core::{Message, MessageStatus, Point, Role, Rows, Run};

use super::Shared;
use crate::error::Error;
use crate::store::SessionRef;

/// Messages that are read at once. Most runs have fewer.
const PAGE: usize = 32;

impl Shared {
    /// Adds the agent's text to a run that has ended.
    pub(crate) async fn with_final_text(&self, mut run: Run) -> Result<Run, Error> {
        if run.state.status().is_ended() {
            run.final_text = Some(Box::pin(self.final_text(&run)).await?);
        }
        Ok(run)
    }

    /// The point of the run's last message.
    async fn final_point(&self, run: &Run) -> Result<Option<Point>, Error> {
        let Some(message) = run.final_message else { return Ok(None) };
        // The last message of a run that has just succeeded is its session's tip.
        let session = self.images.session(&run.owner, &SessionRef::Id(run.session));
        if let Some(session) = session.filter(|session| session.tip_message == Some(message)) {
            return Ok(session.tip);
        }
        let found = self.store.message_get(run.session, message).await?;
        Ok(found.and_then(|(placed, _)| placed.point))
    }

    /// Reads the text of the agent, from the run's last message back to its prompt.
    pub(crate) async fn final_text(&self, run: &Run) -> Result<String, Error> {
        if let Some(text) = self.images.final_text(run) {
            return Ok(text);
        }
        let Some(tip) = self.final_point(run).await? else { return Ok(String::new()) };
        // The answer to a prompt that joined another run is in messages of that run.
        let author = Some(run.merged_into.unwrap_or(run.id));
        let (mut parts, mut before) = (vec![], None);
        let mut is_followed = false;
        loop {
            let Rows { items: page, mut damaged } = self.store.path(tip, before, PAGE).await?;
            let (full, first) = (page.len() == PAGE, page.first().and_then(|placed| placed.point));
            for (index, placed) in page.into_iter().enumerate().rev() {
                // A damaged message of the run hides a part of its text; one before the run does not matter.
                if let Some(damage) = damaged.pop_if(|damage| damage.index > index) {
                    return Err(damage.into());
                }
                let message = placed.message;
                match message.role {
                    Role::Assistant if message.run == author => {
                        parts.push(TextPart::new(&message, is_followed));
                        is_followed = false;
                    }
                    // The answer of an earlier run.
                    Role::Assistant => return Ok(in_order(parts)),
                    _ if Some(message.id) == run.prompt => return Ok(in_order(parts)),
                    // A tool's result, or a prompt that joined the run.
                    _ => is_followed = true,
                }
            }
            if let Some(damage) = damaged.pop() {
                return Err(damage.into());
            }
            match first {
                Some(first) if full => before = Some(first.pos),
                _ => return Ok(in_order(parts)),
            }
        }
    }
}

/// Joins parts that were read from the last to the first.
fn in_order(mut parts: Vec<TextPart>) -> String {
    parts.reverse();
    join_text(&parts)
}

/// The text of one message of an agent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TextPart {
    pub(crate) text: String,
    /// The agent, if the message names it.
    agent: Option<String>,
    /// False if the message was interrupted.
    is_completed: bool,
    /// True if a message of the user's side follows, such as a tool's result.
    pub(crate) is_followed: bool,
}

impl TextPart {
    pub(crate) fn new(message: &Message, is_followed: bool) -> Self {
        let is_completed = message.status == MessageStatus::Completed;
        Self { text: message.text(), agent: message.agent.clone(), is_completed, is_followed }
    }

    /// True if `next` begins the answer of another call.
    fn ends_before(&self, next: &Self) -> bool {
        let is_named = self.agent.is_some() && next.agent.is_some();
        is_named && (self.agent != next.agent || self.is_completed && !self.is_followed)
    }
}

/// Joins the parts of a run's text.
pub(crate) fn join_text<'a>(parts: impl IntoIterator<Item = &'a TextPart>) -> String {
    let mut joined = String::new();
    let mut last: Option<&TextPart> = None;
    for part in parts {
        let is_new = last.is_some_and(|last| last.ends_before(part));
        if is_new && !part.text.is_empty() && !joined.is_empty() {
            let missing = 2 - joined.chars().rev().take(2).take_while(|last| *last == '\n').count();
            joined.extend(std::iter::repeat_n('\n', missing));
        }
        joined.push_str(&part.text);
        last = Some(part);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(agent: Option<&str>, text: &str, is_followed: bool) -> TextPart {
        TextPart { text: text.into(), agent: agent.map(str::to_owned), is_completed: true, is_followed }
    }

    #[test]
    fn answers_of_different_calls_are_paragraphs_and_parts_of_one_are_joined() {
        let (a, b) = (Some("a@1"), Some("b@1"));
        for (parts, wanted) in [
            (vec![part(None, "one", false), part(None, "two", false)], "onetwo"),
            (vec![part(a, "one", true), part(a, "two", false)], "onetwo"),
            (vec![part(a, "one", false), part(a, "two", false)], "one\n\ntwo"),
            (vec![part(a, "one", true), part(b, "two", false)], "one\n\ntwo"),
            (vec![part(a, "one\n", false), part(b, "two\n", false)], "one\n\ntwo\n"),
            (vec![part(a, "", true), part(b, "two", false)], "two"),
            (vec![part(a, "one", false), part(b, "", true), part(a, "two", false)], "one\n\ntwo"),
            (vec![TextPart { is_completed: false, ..part(a, "on", false) }, part(a, "e", false)], "one"),
        ] {
            assert_eq!(join_text(&parts), wanted, "{parts:?}");
        }
    }
}
