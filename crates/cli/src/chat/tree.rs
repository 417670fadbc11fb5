//! Commands of a chat on the session's tree: show, branch, navigate, undo.

use mainspring_client::{MessageListQuery, TreeNode};
use mainspring_core::{MessageId, Place, Role};

use super::Talk;
use super::turn::{is_prompt, last_prompt};
use super::wrap::one_line;
use crate::fail::Fail;
use crate::output::{DIM, PLAIN};
use crate::picture;
use crate::tree::whole;

impl Talk<'_, '_> {
    /// Shows the tree and stores which number stands for which message.
    pub(super) async fn tree(&mut self) -> Result<(), Fail> {
        let Some(session) = self.session.clone() else {
            return Ok(self.screen.note("nothing has been said yet")?);
        };
        let nodes = whole(self.home, &session).await?;
        if self.context.output.json {
            return Ok(nodes.iter().try_for_each(|node| self.context.output.object(node))?);
        }
        let width = self.screen.width();
        let lines = picture::lines(&nodes, width);
        self.numbers = lines.iter().map(|line| line.message).collect();
        let active: Vec<bool> = lines
            .iter()
            .map(|line| nodes.iter().any(|node| node.message.id == line.message && node.active))
            .collect();
        let digits = lines.len().to_string().len();
        for (no, (line, active)) in lines.iter().zip(active).enumerate() {
            if line.apart {
                self.screen.plain("", PLAIN)?;
            }
            let cut = cut(&line.text, width.saturating_sub(digits + 2));
            let text = format!("{:>digits$}  {cut}", no + 1);
            self.screen.plain(&text, if active { PLAIN } else { DIM })?;
        }
        Ok(())
    }

    /// Moves the active path to message `no` of the last drawn tree.
    pub(super) async fn go(&mut self, no: usize) -> Result<(), Fail> {
        let (message, session) = (self.numbered(no)?, self.session.clone().unwrap_or_default());
        self.home.ask(async |client| client.session_navigate(&session, Some(message), None).await).await?;
        self.next = None;
        let last = MessageListQuery { limit: Some(1), before: None };
        let path = self.home.ask(async |client| client.session_messages(&session, &last).await).await?;
        let said = path.last().map(|message| one_line(&message.text(), 60)).unwrap_or_default();
        Ok(self.screen.note(&format!("the conversation goes on after: {said}"))?)
    }

    /// Goes back to before the last prompt: the next prompt becomes its sibling.
    pub(super) async fn undo(&mut self) -> Result<(), Fail> {
        let from = match self.next {
            None => self.prompt_above(None).await?,
            Some(Place::Edit { message_id }) => self.prompt_above(Some(message_id)).await?,
            Some(_) => None,
        };
        let Some(prompt) = from else {
            return Ok(self.screen.note("there is nothing to undo")?);
        };
        self.next = Some(self.before(&prompt));
        let undone = one_line(&prompt.message.text(), 60);
        let goes_on = match prompt.parent_id {
            Some(_) => "what you say next goes on before it; /tree shows all",
            None => "what you say next begins anew; /tree shows all",
        };
        self.screen.note(&format!("undone: {undone}"))?;
        Ok(self.screen.note(goes_on)?)
    }

    /// Resolves the place of a branch: message `at` of the last drawn tree, or the last prompt.
    pub(super) async fn branch(&mut self, at: Option<usize>, text: bool) -> Result<Place, Fail> {
        let node = match at {
            Some(no) => {
                let (message, session) = (self.numbered(no)?, self.session.clone().unwrap_or_default());
                Some(
                    self.home.ask(async |client| client.session_message(&session, message).await).await?.node,
                )
            }
            None => self.prompt_above(None).await?,
        };
        let node =
            node.ok_or_else(|| Fail::bad_request("nothing has been said yet that could be branched"))?;
        let message_id = node.message.id;
        match (node.message.role, text) {
            (Role::Assistant, true) => Ok(Place::Edit { message_id }),
            _ if is_prompt(&node.message) && text => Ok(self.before(&node)),
            _ if is_prompt(&node.message) => Ok(Place::Regenerate { message_id }),
            (Role::User, true) => {
                Err(Fail::bad_request("that is a tool's answer: choose what was said or asked"))
            }
            _ => {
                let prompt = self.prompt_above(Some(message_id)).await?;
                let prompt = prompt.ok_or_else(|| Fail::bad_request("that message answers no prompt"))?;
                Ok(Place::Regenerate { message_id: prompt.message.id })
            }
        }
    }

    /// Returns the place of a sibling of `prompt`.
    fn before(&self, prompt: &TreeNode) -> Place {
        prompt.parent_id.map_or(Place::Root, |message_id| Place::Edit { message_id })
    }

    /// Finds the nearest prompt at or above `message`, or above the end of the path.
    async fn prompt_above(&mut self, message: Option<MessageId>) -> Result<Option<TreeNode>, Fail> {
        let Some(session) = self.session.clone() else { return Ok(None) };
        let Some(mut at) = message else {
            return self.last_prompt(&session).await;
        };
        loop {
            let node = self.home.ask(async |client| client.session_message(&session, at).await).await?.node;
            match node.parent_id {
                _ if is_prompt(&node.message) => return Ok(Some(node)),
                Some(parent) => at = parent,
                None => return Ok(None),
            }
        }
    }

    /// Finds the last prompt of the active path.
    async fn last_prompt(&mut self, session: &str) -> Result<Option<TreeNode>, Fail> {
        let mut before = None;
        loop {
            let query = MessageListQuery { limit: Some(50), before };
            let page = self.home.ask(async |client| client.session_messages(session, &query).await).await?;
            if let Some(prompt) = last_prompt(&page) {
                let id = prompt.id;
                let found = self.home.ask(async |client| client.session_message(session, id).await).await?;
                return Ok(Some(found.node));
            }
            let Some(first) = page.first().map(|message| message.id) else { return Ok(None) };
            let first = self.home.ask(async |client| client.session_message(session, first).await).await?;
            before = Some(first.node.depth);
        }
    }

    fn numbered(&self, no: usize) -> Result<MessageId, Fail> {
        let found = no.checked_sub(1).and_then(|at| self.numbers.get(at)).copied();
        found.ok_or_else(|| match self.numbers.len() {
            0 => Fail::bad_request("the numbers are those of /tree: show it first"),
            count => Fail::bad_request(format!("the tree that was shown has the messages 1 to {count}")),
        })
    }
}

/// Cuts a line to `most` columns; the drawing and the role are kept.
fn cut(line: &str, most: usize) -> String {
    let drawing = line.chars().take_while(|char| !char.is_alphanumeric()).count() + "agent  ".len();
    let head: String = line.chars().take(drawing).collect();
    let said: String = line.chars().skip(drawing).collect();
    format!("{head}{}", one_line(&said, most.saturating_sub(drawing).max(8)))
}
