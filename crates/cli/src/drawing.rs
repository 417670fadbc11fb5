//! Drawings of a session's tree: as text here, as an SVG image in `svg`.
//!
//! Both use the same layout: the child that a message's cursor leads to stands straight below the message, after all
//! other children, which stand to the right. So the active path runs straight down, and so does every branch below its
//! first message.

use std::collections::HashMap;
use std::fmt::Write as _;

use mainspring_client::TreeNode;
use mainspring_core::{Block, MessageId, MessageStatus, Role};

mod network;
mod route;
mod svg;

pub(crate) use network::{network_svg, network_text};
pub(crate) use route::{route_svg, route_text};
pub(crate) use svg::to_svg;

/// A message in the drawing.
struct Row<'a> {
    node: &'a TreeNode,
    /// Column: the number of steps to the right on the way from the root.
    lane: usize,
    /// Index of the parent's row.
    parent: Option<usize>,
    /// True when the message stands straight below its parent.
    straight: bool,
    /// True for the last child of the parent.
    last: bool,
    /// Index of the message's root.
    root: usize,
}

/// Lays out the rows from top to bottom. Iterative, since a conversation may be long.
fn layout(nodes: &[TreeNode]) -> Vec<Row<'_>> {
    let mut children_of: HashMap<Option<MessageId>, Vec<&TreeNode>> = HashMap::new();
    for node in nodes {
        children_of.entry(node.parent_id).or_default().push(node);
    }
    let mut rows: Vec<Row<'_>> = vec![];
    let roots = children_of.remove(&None).unwrap_or_default().into_iter().rev();
    let count = roots.len();
    let root =
        |(at, node)| Row { node, lane: 0, parent: None, straight: true, last: true, root: count - 1 - at };
    let mut stack: Vec<Row<'_>> = roots.enumerate().map(root).collect();
    while let Some(row) = stack.pop() {
        let (parent, lane, root, index) = (row.node, row.lane, row.root, rows.len());
        rows.push(row);
        let mut children = children_of.remove(&Some(parent.message.id)).unwrap_or_default();
        let is_next =
            |node: &TreeNode| parent.cursor.map_or(!node.abandoned, |cursor| cursor == node.message.id);
        children.sort_by_key(|node| is_next(node));
        let count = children.len();
        for (at, node) in children.into_iter().enumerate().rev() {
            let last = at + 1 == count;
            let straight = last && is_next(node);
            let lane = lane + usize::from(!straight);
            stack.push(Row { node, lane, parent: Some(index), straight, last, root });
        }
    }
    rows
}

/// One message of a tree drawn as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) message: MessageId,
    /// True for a root below another tree.
    pub(crate) new_root: bool,
    /// The drawing, without colours.
    pub(crate) text: String,
}

/// Draws the tree as text, one line per message, with at most `max_chars` characters of its content.
///
/// `●` is on the active path, `○` is not, `✗` was rolled back. The message that a cursor leads to stands straight below
/// its parent; other branches stand to the right of their branching point.
pub(crate) fn text_lines(nodes: &[TreeNode], max_chars: usize) -> Vec<Line> {
    let rows = layout(nodes);
    // The lanes that pass a row on their way from a parent above it to a child below it.
    let mut passing_lanes = vec![vec![]; rows.len()];
    for (at, row) in rows.iter().enumerate() {
        let Some(parent) = row.parent else { continue };
        let lane = rows[parent].lane;
        for passed in &mut passing_lanes[parent + 1..at] {
            passed.push(lane);
        }
    }
    let draw = |(at, (row, lanes)): (usize, (&Row<'_>, &Vec<usize>))| {
        let mut text = String::new();
        for lane in 0..row.lane {
            let branches = !row.straight && lane + 1 == row.lane;
            let open = lanes.contains(&lane);
            text.push_str(match (branches, open || !row.last) {
                (true, true) => "├─",
                (true, false) => "└─",
                (false, _) if open => "│ ",
                (false, _) => "  ",
            });
        }
        let status = match (row.node.abandoned, row.node.message.status) {
            (true, _) => "  rolled back",
            (false, MessageStatus::Completed) => "",
            (false, status) => &format!("  {status}"),
        };
        let (marker, role) = (marker(row.node), role_label(row.node));
        // Writing to a string cannot fail.
        let content = excerpt(&row.node.message.content, max_chars);
        let _ = write!(text, "{marker} {role:5}  {content}{status}");
        Line { message: row.node.message.id, new_root: row.parent.is_none() && at > 0, text }
    };
    rows.iter().zip(&passing_lanes).enumerate().map(draw).collect()
}

/// Draws the tree as text, one line per message with its id.
pub(crate) fn to_text(nodes: &[TreeNode]) -> String {
    let mut text = String::new();
    for line in text_lines(nodes, 60) {
        let gap = if line.new_root { "\n" } else { "" };
        let _ = writeln!(text, "{gap}{}  {}", line.text, line.message);
    }
    match text.is_empty() {
        true => "no messages yet\n".into(),
        false => text,
    }
}

fn marker(node: &TreeNode) -> char {
    match (node.active, node.abandoned) {
        (true, _) => '●',
        (false, false) => '○',
        (false, true) => '✗',
    }
}

fn role_label(node: &TreeNode) -> &'static str {
    let results = node.message.content.iter().any(|block| matches!(block, Block::ToolResult { .. }));
    match node.message.role {
        Role::Assistant => "agent",
        Role::User if results => "tool",
        Role::User => "user",
    }
}

/// Returns the beginning of a message's content, on one line.
fn excerpt(content: &[Block], max_chars: usize) -> String {
    let format_block = |block: &Block| match block {
        Block::Text { text } => text.clone(),
        Block::Thinking {} => "(thought)".into(),
        Block::Attachment { name, mime_type, .. } => format!("[{}]", name.as_ref().unwrap_or(mime_type)),
        Block::ToolUse { name, input, .. } => format!("→ {name} {input}"),
        Block::ToolResult { content, is_error, .. } => {
            format!("{}{}", if *is_error { "error: " } else { "" }, excerpt(content, max_chars))
        }
        Block::Diff { path, .. } => format!("± {path}"),
        Block::Error { message, .. } => format!("({message})"),
    };
    let text = content.iter().map(format_block).collect::<Vec<_>>().join(" ");
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(max_chars) {
        Some((cut, _)) => format!("{}…", line[..cut].trim_end()),
        None if line.is_empty() => "(nothing)".into(),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainspring_core::{Message, SessionId, Time};

    use super::*;

    fn id(n: u8) -> MessageId {
        MessageId::from_random([n; 16])
    }

    /// Nodes with an odd number are user messages.
    fn node(n: u8, parent: Option<u8>, text: &str, cursor: Option<u8>, state: &str) -> TreeNode {
        TreeNode {
            message: Arc::new(Message {
                id: id(n),
                session: SessionId::from_random([0; 16]),
                run: None,
                role: if n % 2 == 1 { Role::User } else { Role::Assistant },
                status: if state == "x" { MessageStatus::Failed } else { MessageStatus::Completed },
                content: vec![Block::text(text)],
                usage: None,
                created_at: Time(0),
                agent: None,
                external_id: None,
            }),
            parent_id: parent.map(id),
            depth: u32::from(n),
            active: state == "*",
            abandoned: state == "x",
            cursor: cursor.map(id),
        }
    }

    fn sample_tree() -> Vec<TreeNode> {
        vec![
            node(1, None, "Plan a <trip> & \"pack\"", Some(4), "*"),
            node(2, Some(1), "To the sea?", Some(3), ""),
            node(3, Some(2), "No", Some(6), ""),
            node(6, Some(3), "Then the hills", None, ""),
            node(4, Some(1), "To the mountains", Some(7), "*"),
            node(5, Some(4), "Which ones?", Some(8), ""),
            node(8, Some(5), "These", None, ""),
            node(10, Some(5), "broken", None, "x"),
            node(7, Some(4), "How long?", Some(12), "*"),
            node(12, Some(7), "A week", None, "*"),
            node(9, None, "Something else", Some(14), ""),
            node(14, Some(9), "Gladly\nand at once", None, ""),
        ]
    }

    #[test]
    fn branches_stand_to_the_right_and_cursors_lead_straight_down() {
        let drawn = to_text(&sample_tree());
        assert_eq!(drawn.matches("  msg_").count(), 12, "each line ends with its message's id");
        let plain: Vec<&str> = drawn.lines().map(|line| line.split("  msg_").next().unwrap()).collect();
        insta::assert_snapshot!(plain.join("\n"), @r#"
        ● user   Plan a <trip> & "pack"
        ├─○ agent  To the sea?
        │ ○ user   No
        │ ○ agent  Then the hills
        ● agent  To the mountains
        ├─○ user   Which ones?
        │ ├─✗ agent  broken  rolled back
        │ ○ agent  These
        ● user   How long?
        ● agent  A week

        ○ user   Something else
        ○ agent  Gladly and at once
        "#);
        assert_eq!(to_text(&[]), "no messages yet\n");
    }

    #[test]
    fn the_image_is_well_formed_and_shows_every_message_once() {
        let image = to_svg(&sample_tree());
        assert_eq!(image.matches("class=\"dot").count(), 12);
        assert_eq!(image.matches("class=\"tip\"").count(), 1);
        assert!(image.contains("Plan a &lt;trip&gt; &amp; &quot;pack&quot;") && !image.contains("<trip>"));
        for tag in ["svg", "g", "text", "tspan", "style", "title"] {
            let opened =
                image.matches(&format!("<{tag}>")).count() + image.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, image.matches(&format!("</{tag}>")).count(), "<{tag}>");
        }
        assert!(to_svg(&[]).contains("no messages yet"));
    }

    #[test]
    fn a_very_long_conversation_is_drawn() {
        let mut nodes = vec![];
        for n in 0..20_000_u32 {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            let mut above = [0; 16];
            above[..4].copy_from_slice(&n.wrapping_sub(1).to_be_bytes());
            let mut node = node(1, None, "on", None, "*");
            Arc::make_mut(&mut node.message).id = MessageId::from_random(bytes);
            node.parent_id = (n > 0).then(|| MessageId::from_random(above));
            nodes.push(node);
        }
        assert_eq!(to_text(&nodes).lines().count(), 20_000);
    }
}
