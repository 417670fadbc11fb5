//! Commands of a chat on the session's tree: show, branch, navigate, undo.

use mainspring_client::{MessageListQuery, TreeNode};
use mainspring_core::{MessageId, Place, Role};

use super::Conversation;
use super::turn::{is_prompt, last_prompt};
use super::wrap::one_line;
use crate::drawing;
use crate::error::CliError;
use crate::output::{DIM, PLAIN};
use crate::tree::fetch_tree;

impl Conversation<'_, '_> {
    /// Shows the tree with numbered messages, and stores the message of each number.
    pub(super) async fn print_tree(&mut self) -> Result<(), CliError> {
        let Some(session) = self.session.clone() else {
            return Ok(self.screen.print_note("the session has no messages yet")?);
        };
        let nodes = fetch_tree(self.connection, &session).await?;
        if self.context.output.json {
            return Ok(nodes.iter().try_for_each(|node| self.context.output.print_json(node))?);
        }
        let width = self.screen.width();
        let lines = drawing::text_lines(&nodes, width);
        self.tree_messages = lines.iter().map(|line| line.message).collect();
        let active: Vec<bool> = lines
            .iter()
            .map(|line| nodes.iter().any(|node| node.message.id == line.message && node.active))
            .collect();
        let digits = lines.len().to_string().len();
        for (no, (line, active)) in lines.iter().zip(active).enumerate() {
            if line.new_root {
                self.screen.print_line("", PLAIN)?;
            }
            let line_text = truncate_line(&line.text, width.saturating_sub(digits + 2));
            let text = format!("{:>digits$}  {line_text}", no + 1);
            self.screen.print_line(&text, if active { PLAIN } else { DIM })?;
        }
        Ok(())
    }

    /// Moves the active path to message `no` of the last drawn tree.
    pub(super) async fn navigate(&mut self, no: usize) -> Result<(), CliError> {
        let (message, session) = (self.message_by_number(no)?, self.session.clone().unwrap_or_default());
        self.connection
            .request(async |client| client.session_navigate(&session, Some(message), None).await)
            .await?;
        self.next_place = None;
        let last = MessageListQuery { limit: Some(1), before: None };
        let path =
            self.connection.request(async |client| client.session_messages(&session, &last).await).await?;
        let last_text = path.items.last().map(|message| one_line(&message.text(), 60)).unwrap_or_default();
        Ok(self.screen.print_note(&format!("the conversation continues after: {last_text}"))?)
    }

    /// Goes back to before the last prompt: the next prompt becomes its sibling.
    pub(super) async fn undo(&mut self) -> Result<(), CliError> {
        let prompt = match self.next_place {
            None => self.prompt_above(None).await?,
            Some(Place::Edit { message_id }) => self.prompt_above(Some(message_id)).await?,
            Some(_) => None,
        };
        let Some(prompt) = prompt else {
            return Ok(self.screen.print_note("nothing to undo")?);
        };
        self.next_place = Some(self.sibling_place(&prompt));
        let undone = one_line(&prompt.message.text(), 60);
        let hint = match prompt.parent_id {
            Some(_) => "your next prompt becomes a branch beside it; /tree shows all branches",
            None => "your next prompt starts a new conversation; /tree shows all branches",
        };
        self.screen.print_note(&format!("undone: {undone}"))?;
        Ok(self.screen.print_note(hint)?)
    }

    /// Resolves the place of a branch: message `at` of the last drawn tree, or the last prompt.
    pub(super) async fn branch_place(
        &mut self,
        at: Option<usize>,
        has_text: bool,
    ) -> Result<Place, CliError> {
        let node = match at {
            Some(no) => {
                let (message, session) =
                    (self.message_by_number(no)?, self.session.clone().unwrap_or_default());
                Some(
                    self.connection
                        .request(async |client| client.session_message(&session, message).await)
                        .await?
                        .node,
                )
            }
            None => self.prompt_above(None).await?,
        };
        let node = node.ok_or_else(|| CliError::bad_request("the session has no prompt to branch from"))?;
        let message_id = node.message.id;
        match (node.message.role, has_text) {
            (Role::Assistant, true) => Ok(Place::Edit { message_id }),
            _ if is_prompt(&node.message) && has_text => Ok(self.sibling_place(&node)),
            _ if is_prompt(&node.message) => Ok(Place::Regenerate { message_id }),
            (Role::User, true) => {
                Err(CliError::bad_request("that is a tool result: choose a prompt or an answer"))
            }
            _ => {
                let prompt = self.prompt_above(Some(message_id)).await?;
                let prompt =
                    prompt.ok_or_else(|| CliError::bad_request("that message has no prompt above it"))?;
                Ok(Place::Regenerate { message_id: prompt.message.id })
            }
        }
    }

    /// Returns the place of a sibling of `prompt`.
    fn sibling_place(&self, prompt: &TreeNode) -> Place {
        prompt.parent_id.map_or(Place::Root, |message_id| Place::Edit { message_id })
    }

    /// Finds the nearest prompt at or above `message`, or above the end of the path.
    async fn prompt_above(&mut self, message: Option<MessageId>) -> Result<Option<TreeNode>, CliError> {
        let Some(session) = self.session.clone() else { return Ok(None) };
        let Some(mut at) = message else {
            return self.last_prompt(&session).await;
        };
        loop {
            let node = self
                .connection
                .request(async |client| client.session_message(&session, at).await)
                .await?
                .node;
            match node.parent_id {
                _ if is_prompt(&node.message) => return Ok(Some(node)),
                Some(parent) => at = parent,
                None => return Ok(None),
            }
        }
    }

    /// Finds the last prompt of the active path.
    async fn last_prompt(&mut self, session: &str) -> Result<Option<TreeNode>, CliError> {
        let mut before = None;
        loop {
            let query = MessageListQuery { limit: Some(50), before };
            let page = self
                .connection
                .request(async |client| client.session_messages(session, &query).await)
                .await?;
            if let Some(prompt) = last_prompt(&page.items) {
                let id = prompt.id;
                let found =
                    self.connection.request(async |client| client.session_message(session, id).await).await?;
                return Ok(Some(found.node));
            }
            before = page.next.and_then(|next| next.parse().ok());
            if before.is_none() {
                return Ok(None);
            }
        }
    }

    fn message_by_number(&self, no: usize) -> Result<MessageId, CliError> {
        let found = no.checked_sub(1).and_then(|at| self.tree_messages.get(at)).copied();
        found.ok_or_else(|| match self.tree_messages.len() {
            0 => CliError::bad_request("run /tree first: it numbers the messages"),
            count => CliError::bad_request(format!("the tree has messages 1 to {count}")),
        })
    }
}

/// Cuts a line to `max_columns` columns; the drawing and the role are kept.
fn truncate_line(line: &str, max_columns: usize) -> String {
    let drawing = line.chars().take_while(|char| !char.is_alphanumeric()).count() + "agent  ".len();
    let head: String = line.chars().take(drawing).collect();
    let text: String = line.chars().skip(drawing).collect();
    format!("{head}{}", one_line(&text, max_columns.saturating_sub(drawing).max(8)))
}
