//! The commands `session tree` and `session branch`.

use std::path::Path;

use mainspring_client::{Prompt, PromptContent, SessionTarget, TreeNode, TreeQuery};
use mainspring_core::{Block, Damage, MessageId, Place, Role, Rows, SessionId};
use mainspring_system::ids::Ids;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::CliError;
use super::file::file_error;
use super::ids::{find_message, find_session};
use crate::drawing;

/// Prints the tree as text or JSON, or writes it to an SVG file.
pub(super) async fn print_tree(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    svg: Option<&Path>,
) -> Result<(), CliError> {
    let output = context.output;
    let nodes = fetch_tree(connection, session).await?;
    output.print_damaged(&nodes.damaged)?;
    match svg {
        Some(file) => {
            std::fs::write(file, drawing::to_svg(&nodes)).map_err(|error| file_error(file, &error))?;
        }
        None if output.json => nodes.iter().try_for_each(|node| output.print_json(node))?,
        None => output.print(&drawing::to_text(&nodes))?,
    }
    Ok(())
}

/// Fetches every page of a session's tree.
pub(super) async fn fetch_tree(
    connection: &mut Connection<'_>,
    session: &str,
) -> Result<Rows<TreeNode>, CliError> {
    let (mut nodes, mut query) = (Rows::from(vec![]), TreeQuery::default());
    loop {
        let page = connection.request(async |client| client.session_tree(session, &query).await).await?;
        let before = nodes.len();
        nodes
            .damaged
            .extend(page.damaged.into_iter().map(|damage| Damage { index: damage.index + before, ..damage }));
        nodes.items.extend(page.items);
        query.after = page.next.and_then(|next| next.parse().ok());
        if query.after.is_none() {
            return Ok(nodes);
        }
    }
}

/// Builds the prompt that branches from `message`: another answer to a user message, another prompt after an assistant
/// message, or a new root.
pub(super) async fn branch_prompt(
    context: &Context<'_>,
    session: String,
    message: Option<String>,
    text: String,
    root: Option<String>,
) -> Result<Prompt, CliError> {
    let mut connection = context.connect(Purpose::Records).await?;
    let found = find_branch_point(&mut connection, &session, message.as_deref()).await;
    connection.close().await?;
    let (session, found) = found?;
    let (place, text) = match (found, root) {
        (Some((message, role)), _) => match role {
            Role::User if !text.is_empty() => {
                let message = format!("{message} is a user message: it is answered again and takes no text");
                return Err(CliError::bad_request(message));
            }
            Role::User => (Place::Regenerate { message_id: message }, text),
            Role::Assistant => (Place::Edit { message_id: message }, text),
        },
        (None, root) => (Place::Root, root.unwrap_or_default()),
    };
    let (session_id, key) = match session.starts_with("ses_") {
        true => {
            let id = session.parse::<SessionId>().map_err(|bad| CliError::bad_request(bad.to_string()))?;
            (Some(id), None)
        }
        false => (None, Some(session)),
    };
    Ok(Prompt {
        session: SessionTarget {
            session_id,
            key,
            surface_kind: Some("cli".into()),
            ..SessionTarget::default()
        },
        prompt: (!text.is_empty()).then_some(PromptContent::Text(text)),
        place,
        idempotency_key: Some(Ids::system().secret()),
        ..Prompt::default()
    })
}

/// Resolves the session, and the message at which a branch begins, with the role of its author.
async fn find_branch_point(
    connection: &mut Connection<'_>,
    session: &str,
    message: Option<&str>,
) -> Result<(String, Option<(MessageId, Role)>), CliError> {
    let session = find_session(connection, session).await?;
    let Some(message) = message else { return Ok((session, None)) };
    let message = find_message(connection, &session, message).await?;
    let found = connection.request(async |client| client.session_message(&session, message).await).await?;
    Ok((session, Some((message, found.node.message.role))))
}

/// Formats the blocks of a message, each as one or more lines.
pub(super) fn format_blocks(content: &[Block]) -> Vec<String> {
    let format_block = |block: &Block| match block {
        Block::Text { text } => text.trim_end().to_owned(),
        Block::Thinking {} => "(thought)".into(),
        Block::Attachment { name, mime_type, .. } => {
            format!("[{} {mime_type}]", name.as_deref().unwrap_or("attachment"))
        }
        Block::ToolUse { name, input, .. } => format!("→ {name} {input}"),
        Block::ToolResult { content, is_error, .. } => {
            format!("{} {}", if *is_error { "← error:" } else { "←" }, format_blocks(content).join(" "))
        }
        Block::Diff { path, .. } => format!("± {path}"),
        Block::Error { message, .. } => format!("({message})"),
    };
    content.iter().map(format_block).collect()
}
