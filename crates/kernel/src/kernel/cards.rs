//! Cards: the facts of each session that a board shows, read with the list of sessions.

use std::collections::HashMap;
use std::sync::Arc;

use mainspring_api::{CardLine, ListedSession, SessionCard};
use mainspring_core::{
    Block, Cost, Message, MessageId, Role, Rows, Run, RunStatus, Session, SessionId, Usage,
};

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::StoreError;

/// Characters of a card's line.
const LINE_CHARS: usize = 200;

impl Kernel {
    /// Adds a card to each listed session.
    pub async fn session_cards(
        &self,
        caller: &Caller,
        listed: Rows<(Session, Option<Run>)>,
    ) -> Result<Rows<ListedSession>, Error> {
        let mut active = self.active_runs(caller).await?;
        let mut items = vec![];
        for (session, latest_run) in listed.items {
            let active_run = active.remove(&session.id);
            let last_no = latest_run.as_ref().map_or(0, |run| run.no);
            let usage = self.total_usage(&session, last_no);
            let last = self.last_line(&session, active_run.as_ref().or(latest_run.as_ref()));
            let prompt = self.prompt_line(&session, latest_run.as_ref());
            let (last, prompt, usage) = tokio::join!(last, prompt, usage);
            let (last, prompt, mut usage) = (last?, prompt?, usage?);
            if active_run.as_ref().is_some_and(|run| !self.usage_of(run).cost.is_known()) {
                usage.cost = Cost::UNKNOWN;
            }
            let is_latest = |run: &Run| latest_run.as_ref().is_some_and(|latest| latest.id == run.id);
            let active_run = active_run.filter(|run| !is_latest(run)).map(Box::new);
            let live_status = self.session_live_status(&session, latest_run.as_ref()).await?;
            items.push(ListedSession {
                session,
                latest_run,
                live_status,
                card: Some(SessionCard { active_run, last, prompt, usage }),
            });
        }
        Ok(Rows { items, damaged: listed.damaged })
    }

    /// Finds each session's run that executes or waits. The session's latest run may be queued behind it.
    async fn active_runs(&self, caller: &Caller) -> Result<HashMap<SessionId, Run>, Error> {
        let runs = self.shared.store.runs_live(&caller.owner, caller.org.as_deref()).await?;
        let active = runs.items.into_iter().filter(|run| run.state.status() != RunStatus::Queued);
        Ok(active.map(|run| (run.session, run)).collect())
    }

    /// The last line of `run` if it has not ended, else of the path. A run's messages join the path when it ends.
    async fn last_line(&self, session: &Session, run: Option<&Run>) -> Result<Option<CardLine>, Error> {
        let unfinished = run.filter(|run| !run.state.status().is_ended());
        if let Some(message) = unfinished.and_then(|run| run.final_message.or(run.answered_message())) {
            let message = self.readable_message(session, message).await?;
            return Ok(message.and_then(|message| line_of(&message)));
        }
        let Some(tip) = session.tip else { return Ok(None) };
        let path = self.shared.store.path(tip, None, 1).await?;
        Ok(path.last().and_then(|placed| line_of(&placed.message)))
    }

    /// The first line of the prompt of `run`, for a session without a title.
    async fn prompt_line(&self, session: &Session, run: Option<&Run>) -> Result<Option<String>, Error> {
        let Some(prompt) = run.and_then(Run::answered_message).filter(|_| session.title.is_none()) else {
            return Ok(None);
        };
        let message = self.readable_message(session, prompt).await?;
        Ok(message.and_then(|message| first_line(&message)))
    }

    /// A message of `session`; `None` if it is damaged: the rest of the board is still shown.
    async fn readable_message(
        &self,
        session: &Session,
        message: MessageId,
    ) -> Result<Option<Arc<Message>>, Error> {
        match self.shared.store.message_get(session.id, message).await {
            Ok(found) => Ok(found.map(|(placed, _)| placed.message)),
            Err(StoreError::Corrupt(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The usage of all runs of a session and of the runs that they delegated to. Unknown if a run cannot be read.
    async fn total_usage(&self, session: &Session, last: u32) -> Result<Usage, Error> {
        let delegated = self.shared.store.delegated_usage(session.id);
        let read = async {
            let (own, (_, delegated)) = tokio::try_join!(self.own_usage(session, last), delegated)?;
            Ok(own + delegated)
        };
        match read.await {
            Err(StoreError::Corrupt(_)) => Ok(Usage { cost: Cost::UNKNOWN, ..Usage::UNKNOWN }),
            usage => Ok(usage?),
        }
    }
}

/// The last tool call of a message, or the last line of its text.
fn line_of(message: &Message) -> Option<CardLine> {
    let tool = message.content.iter().rev().find_map(|block| match block {
        Block::ToolUse { name, title, .. } => Some(title.as_ref().unwrap_or(name)),
        Block::ToolResult { name, .. } => Some(name),
        _ => None,
    });
    if let Some(tool) = tool {
        return Some(CardLine::Tool { tool: shorten(tool) });
    }
    let text = message.text();
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(CardLine::Text { text: shorten(line), user: message.role == Role::User })
}

/// The first line of a message's text.
fn first_line(message: &Message) -> Option<String> {
    message.text().lines().map(str::trim).find(|line| !line.is_empty()).map(shorten)
}

fn shorten(line: &str) -> String {
    match line.char_indices().nth(LINE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use mainspring_core::{MessageId, MessageStatus, Time};

    use super::*;

    fn message(role: Role, content: Vec<Block>) -> Message {
        let (id, session) = (MessageId::from_random([1; 16]), SessionId::from_random([2; 16]));
        let status = MessageStatus::Completed;
        Message {
            id,
            session,
            run: None,
            role,
            status,
            content,
            usage: None,
            created_at: Time(1),
            agent: None,
            external_id: None,
        }
    }

    #[test]
    fn a_card_shows_the_last_tool_or_the_last_line() {
        let text = |text: &str| Block::text(text);
        let call = Block::tool_use("t1", "write", serde_json::json!({}));
        let line = |role, content| line_of(&message(role, content));
        assert_eq!(
            line(Role::Assistant, vec![text("first\nlast one \n\n")]),
            Some(CardLine::Text { text: "last one".into(), user: false })
        );
        assert_eq!(
            line(Role::Assistant, vec![text("I write"), call]),
            Some(CardLine::Tool { tool: "write".into() })
        );
        assert_eq!(
            line(Role::User, vec![text("go")]),
            Some(CardLine::Text { text: "go".into(), user: true })
        );
        assert_eq!(line(Role::Assistant, vec![Block::Thinking {}]), None);
        let prompt = message(Role::User, vec![text("\n mend it \nand more")]);
        assert_eq!(first_line(&prompt).as_deref(), Some("mend it"));
        assert_eq!(first_line(&message(Role::User, vec![])), None);
        let long = "é".repeat(LINE_CHARS + 1);
        let Some(CardLine::Text { text, .. }) = line(Role::Assistant, vec![text(&long)]) else { panic!() };
        assert_eq!(text.chars().count(), LINE_CHARS + 1, "{text}");
    }
}
