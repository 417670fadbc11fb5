//! The commands `session tree` and `session branch`.

use std::path::Path;

use mainspring_client::{Prompt, PromptContent, SessionTarget, TreeNode, TreeQuery};
use mainspring_core::{Block, MessageId, Place, Role, SessionId};
use mainspring_system::ids::Ids;

use super::Context;
use super::fail::Fail;
use super::file::unusable;
use super::home::{Home, Purpose};
use crate::picture;

/// Shows the tree: as text, as JSON, or as a picture in a file.
pub(super) async fn show(
    context: &Context<'_>,
    home: &mut Home<'_>,
    session: &str,
    svg: Option<&Path>,
) -> Result<(), Fail> {
    let (output, nodes) = (context.output, whole(home, session).await?);
    match svg {
        Some(file) => std::fs::write(file, picture::svg(&nodes)).map_err(|error| unusable(file, &error))?,
        None if output.json => nodes.iter().try_for_each(|node| output.object(node))?,
        None => output.part(&picture::text(&nodes))?,
    }
    Ok(())
}

/// Fetches every page of a session's tree.
pub(super) async fn whole(home: &mut Home<'_>, session: &str) -> Result<Vec<TreeNode>, Fail> {
    let (mut nodes, mut query): (Vec<TreeNode>, _) = (vec![], TreeQuery::default());
    loop {
        let page = home.ask(async |client| client.session_tree(session, &query).await).await?;
        nodes.extend(page.items);
        query.after = page.next.and_then(|next| next.parse().ok());
        if query.after.is_none() {
            return Ok(nodes);
        }
    }
}

/// Builds the prompt that branches from `message`: another answer to a user message, another prompt after an assistant
/// message, or a new root.
pub(super) async fn branch(
    context: &Context<'_>,
    session: String,
    message: Option<MessageId>,
    text: String,
    root: Option<String>,
) -> Result<Prompt, Fail> {
    let (place, text) = match (message, root) {
        (Some(message), _) => {
            let mut home = context.home(Purpose::Records).await?;
            let found = home.ask(async |client| client.session_message(&session, message).await).await;
            home.leave().await?;
            match found?.node.message.role {
                Role::User if !text.is_empty() => {
                    let said = format!("{message} is a user message: it is answered again, with no text");
                    return Err(Fail::bad_request(said));
                }
                Role::User => (Place::Regenerate { message_id: message }, text),
                Role::Assistant => (Place::Edit { message_id: message }, text),
            }
        }
        (None, root) => (Place::Root, root.unwrap_or_default()),
    };
    let (session_id, key) = match session.starts_with("ses_") {
        true => {
            let id = session.parse::<SessionId>().map_err(|bad| Fail::bad_request(bad.to_string()))?;
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

/// Formats the blocks of a message, each as one or more lines.
pub(super) fn blocks(content: &[Block]) -> Vec<String> {
    let shown = |block: &Block| match block {
        Block::Text { text } => text.trim_end().to_owned(),
        Block::Thinking {} => "(thought)".into(),
        Block::Attachment { name, mime_type, .. } => {
            format!("[{} {mime_type}]", name.as_deref().unwrap_or("attachment"))
        }
        Block::ToolUse { name, input, .. } => format!("→ {name} {input}"),
        Block::ToolResult { content, is_error, .. } => {
            format!("{} {}", if *is_error { "← error:" } else { "←" }, blocks(content).join(" "))
        }
        Block::Error { message, .. } => format!("({message})"),
    };
    content.iter().map(shown).collect()
}
