//! Drawing a session's tree.

use std::collections::HashMap;

use mainspring_client::TreeNode;
use mainspring_core::{Block, MessageId, MessageStatus, Role};

use super::output::{BOLD, DIM, RED, excerpt};

/// The tree, a line per message: a straight conversation runs straight down, branches are indented.
pub(super) fn draw(nodes: &[TreeNode]) -> Vec<String> {
    let mut children: HashMap<Option<MessageId>, Vec<&TreeNode>> = HashMap::new();
    for node in nodes {
        children.entry(node.parent_id).or_default().push(node);
    }
    let mut lines = vec![];
    // Depth first without recursion: a conversation may be long.
    let mut stack: Vec<(&TreeNode, String, &str)> = vec![];
    let push = |stack: &mut Vec<_>, parent: Option<MessageId>, indent: &str| {
        let beneath = children.get(&parent).map(Vec::as_slice).unwrap_or_default();
        for (at, child) in beneath.iter().enumerate().rev() {
            let (lead, deeper) = match (beneath.len(), at + 1 == beneath.len()) {
                (1, _) => ("", ""),
                (_, true) => ("└─ ", "   "),
                (_, false) => ("├─ ", "│  "),
            };
            stack.push((*child, format!("{indent}{lead}"), deeper));
        }
    };
    push(&mut stack, None, "");
    while let Some((node, lead, deeper)) = stack.pop() {
        lines.push(format!("{lead}{}", line(node)));
        let indent = match deeper {
            "" => lead.clone(),
            deeper => {
                format!("{}{deeper}", lead.strip_suffix("└─ ").or(lead.strip_suffix("├─ ")).unwrap_or(&lead))
            }
        };
        push(&mut stack, Some(node.message.id), &indent);
    }
    if lines.is_empty() {
        lines.push(format!("{DIM}no messages yet{DIM:#}"));
    }
    lines
}

fn line(node: &TreeNode) -> String {
    let mark = if node.active { "●" } else { "○" };
    let who = match node.message.role {
        Role::User => "user",
        Role::Assistant => "agent",
    };
    let text = match node.message.content.is_empty() {
        true => "(nothing)".to_owned(),
        false => blocks(&node.message.content).join(" "),
    };
    let status = match (node.message.status, node.abandoned) {
        (_, true) => format!(" {RED}abandoned{RED:#}"),
        (MessageStatus::Completed, false) => String::new(),
        (status, false) => format!(" {RED}{status}{RED:#}"),
    };
    let style = if node.active { BOLD } else { DIM };
    format!("{style}{mark} {who}{style:#} {} {DIM}{}{DIM:#}{status}", excerpt(&text, 60), node.message.id)
}

/// The blocks of a message, a line or more each.
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

#[cfg(test)]
mod tests {
    use mainspring_core::{Message, SessionId, Time};

    use super::*;

    fn node(id: u8, parent: Option<u8>, text: &str, active: bool) -> TreeNode {
        let of = |id: u8| MessageId::from_random([id; 16]);
        let message = Message {
            id: of(id),
            session: SessionId::from_random([0; 16]),
            run: None,
            role: if id % 2 == 1 { Role::User } else { Role::Assistant },
            status: MessageStatus::Completed,
            content: vec![Block::text(text)],
            usage: None,
            created_at: Time(0),
        };
        TreeNode { message, parent_id: parent.map(of), depth: 0, active, abandoned: false, cursor: None }
    }

    #[test]
    fn branches_are_indented_and_the_rest_runs_straight_down() {
        let tree = vec![
            node(1, None, "hello", true),
            node(2, Some(1), "hi", false),
            node(4, Some(1), "hey", true),
            node(3, Some(2), "more", false),
            node(5, Some(4), "and now?", true),
            node(6, Some(5), "this", true),
        ];
        let plain: Vec<String> = draw(&tree)
            .iter()
            .map(|line| anstream::adapter::strip_str(line).to_string())
            .map(|line| line.split(" msg_").next().unwrap_or_default().to_owned())
            .collect();
        insta::assert_snapshot!(plain.join("\n"), @r"
        ● user hello
        ├─ ○ agent hi
        │  ○ user more
        └─ ● agent hey
           ● user and now?
           ● agent this
        ");
    }
}
