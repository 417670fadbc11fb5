//! Drawings of a session's tree, as text and as an SVG image.
//!
//! Both walk the tree in the same order: of a message's children, the one that its cursor leads to comes last, straight
//! below; the others come first, to the right. So the active path and every abandoned path run straight down.

use std::collections::HashMap;
use std::fmt::Write as _;

use mainspring_client::TreeNode;
use mainspring_core::{Block, MessageId, MessageStatus, Role};

/// A message in the picture.
struct Row<'a> {
    node: &'a TreeNode,
    /// Column: the number of branches between this message and the first line.
    lane: usize,
    /// The row of the parent.
    above: Option<usize>,
    /// True when the message stands straight below its parent.
    straight: bool,
    /// True for the last child of the parent.
    last: bool,
    /// Index of the message's root.
    root: usize,
}

/// Lists the rows from top to bottom. Iterative, since a conversation may be long.
fn rows(nodes: &[TreeNode]) -> Vec<Row<'_>> {
    let mut beneath: HashMap<Option<MessageId>, Vec<&TreeNode>> = HashMap::new();
    for node in nodes {
        beneath.entry(node.parent_id).or_default().push(node);
    }
    let mut rows: Vec<Row<'_>> = vec![];
    let roots = beneath.remove(&None).unwrap_or_default().into_iter().rev();
    let count = roots.len();
    let root =
        |(at, node)| Row { node, lane: 0, above: None, straight: true, last: true, root: count - 1 - at };
    let mut stack: Vec<Row<'_>> = roots.enumerate().map(root).collect();
    while let Some(row) = stack.pop() {
        let (parent, lane, root, above) = (row.node, row.lane, row.root, rows.len());
        rows.push(row);
        let mut children = beneath.remove(&Some(parent.message.id)).unwrap_or_default();
        let leads =
            |node: &TreeNode| parent.cursor.map_or(!node.abandoned, |cursor| cursor == node.message.id);
        children.sort_by_key(|node| leads(node));
        let count = children.len();
        for (at, node) in children.into_iter().enumerate().rev() {
            let last = at + 1 == count;
            let straight = last && leads(node);
            let lane = lane + usize::from(!straight);
            stack.push(Row { node, lane, above: Some(above), straight, last, root });
        }
    }
    rows
}

/// One message of a tree drawn as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) message: MessageId,
    /// True for a root below another tree.
    pub(crate) apart: bool,
    /// The drawing, without colours.
    pub(crate) text: String,
}

/// Draws the tree as text, one line per message, with at most `most` characters of its content.
///
/// `●` is on the active path, `○` is not, `✗` was rolled back. An abandoned branch stands to the right of its branching
/// point; the message that a cursor leads to stands straight below.
pub(crate) fn lines(nodes: &[TreeNode], most: usize) -> Vec<Line> {
    let rows = rows(nodes);
    // Whether a lane continues below a row: a later row stands straight in the same lane.
    let mut goes_on = vec![vec![]; rows.len()];
    for (at, row) in rows.iter().enumerate() {
        let Some(above) = row.above else { continue };
        let lane = rows[above].lane;
        for passed in &mut goes_on[above + 1..at] {
            passed.push(lane);
        }
    }
    let draw = |(at, (row, lanes)): (usize, (&Row<'_>, &Vec<usize>))| {
        let mut text = String::new();
        for lane in 0..row.lane {
            let turns = !row.straight && lane + 1 == row.lane;
            let open = lanes.contains(&lane);
            text.push_str(match (turns, open || !row.last) {
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
        let (mark, who) = (mark(row.node), who(row.node));
        // Writing to a string cannot fail.
        let said = excerpt(&row.node.message.content, most);
        let _ = write!(text, "{mark} {who:5}  {said}{status}");
        Line { message: row.node.message.id, apart: row.above.is_none() && at > 0, text }
    };
    rows.iter().zip(&goes_on).enumerate().map(draw).collect()
}

/// Draws the tree as text, one line per message with its id.
pub(crate) fn text(nodes: &[TreeNode]) -> String {
    let mut text = String::new();
    for line in lines(nodes, 60) {
        let gap = if line.apart { "\n" } else { "" };
        let _ = writeln!(text, "{gap}{}  {}", line.text, line.message);
    }
    match text.is_empty() {
        true => "no messages yet\n".into(),
        false => text,
    }
}

fn mark(node: &TreeNode) -> char {
    match (node.active, node.abandoned) {
        (true, _) => '●',
        (false, false) => '○',
        (false, true) => '✗',
    }
}

fn who(node: &TreeNode) -> &'static str {
    let results = node.message.content.iter().any(|block| matches!(block, Block::ToolResult { .. }));
    match node.message.role {
        Role::Assistant => "agent",
        Role::User if results => "tool",
        Role::User => "user",
    }
}

/// Returns the beginning of a message's content, on one line.
fn excerpt(content: &[Block], most: usize) -> String {
    let shown = |block: &Block| match block {
        Block::Text { text } => text.clone(),
        Block::Thinking {} => "(thought)".into(),
        Block::Attachment { name, mime_type, .. } => format!("[{}]", name.as_ref().unwrap_or(mime_type)),
        Block::ToolUse { name, input, .. } => format!("→ {name} {input}"),
        Block::ToolResult { content, is_error, .. } => {
            format!("{}{}", if *is_error { "error: " } else { "" }, excerpt(content, most))
        }
        Block::Error { message, .. } => format!("({message})"),
    };
    let said = content.iter().map(shown).collect::<Vec<_>>().join(" ");
    let line = said.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(most) {
        Some((cut, _)) => format!("{}…", line[..cut].trim_end()),
        None if line.is_empty() => "(nothing)".into(),
        None => line,
    }
}

/// Sizes within the image, in SVG user units.
const ROW: usize = 30;
const LANE: usize = 24;
const GAP: usize = 14;
const LEFT: usize = 28;
const TOP: usize = 62;
const WIDTH: usize = 900;

/// Draws the tree as a self-contained SVG image that follows the viewer's colour scheme.
pub(crate) fn svg(nodes: &[TreeNode]) -> String {
    let rows = rows(nodes);
    let lanes = rows.iter().map(|row| row.lane + 1).max().unwrap_or(1);
    let labels = LEFT + lanes * LANE + 4;
    let gaps = rows.last().map_or(0, |row| row.root * GAP);
    let (width, height) = (WIDTH.max(labels + 640), TOP + rows.len().max(1) * ROW + 18 + gaps);
    let branches = rows.iter().filter(|row| row.above.is_some() && !row.straight).count();
    let abandoned = rows.iter().filter(|row| row.node.abandoned).count();
    let count = |many: usize, one: &str, more: &str| format!("{many} {}", if many == 1 { one } else { more });
    let mut summary = vec![count(rows.len(), "message", "messages"), count(branches, "branch", "branches")];
    if abandoned > 0 {
        summary.push(format!("{abandoned} rolled back"));
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"The tree of a session\">\n{STYLE}\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>\n\
         <text class=\"head\" x=\"{LEFT}\" y=\"30\">{}</text>\n",
        summary.join(" · ")
    );
    legend(&mut svg, width);
    if rows.is_empty() {
        let _ =
            writeln!(svg, "<text class=\"said off\" x=\"{LEFT}\" y=\"{}\">no messages yet</text>", TOP + 14);
    }
    // Draws the active path on top of the others.
    for active in [false, true] {
        for (at, row) in rows.iter().enumerate().filter(|(_, row)| row.node.active == active) {
            edge(&mut svg, &rows, at, row);
        }
    }
    let tip = rows.iter().filter(|row| row.node.active).map(|row| row.node.depth).max();
    for (at, row) in rows.iter().enumerate() {
        label(
            &mut svg,
            row,
            (x(row.lane), y(&rows, at), labels),
            row.node.active && Some(row.node.depth) == tip,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn x(lane: usize) -> usize {
    LEFT + lane * LANE
}

/// Vertical position of a row, with a gap above every root.
fn y(rows: &[Row<'_>], row: usize) -> usize {
    TOP + row * ROW + ROW / 2 + rows[row].root * GAP
}

/// Draws the line from the parent.
fn edge(svg: &mut String, rows: &[Row<'_>], at: usize, row: &Row<'_>) {
    let Some(above) = row.above else { return };
    let (from, to) = ((x(rows[above].lane), y(rows, above)), (x(row.lane), y(rows, at)));
    let way = match row.straight {
        true => format!("M{} {}V{}", from.0, from.1, to.1),
        // Down beside the earlier branches, then across.
        false => {
            let bend = to.1 - ROW;
            format!(
                "M{} {}V{bend}C{} {},{} {},{} {}",
                from.0,
                from.1.min(bend),
                from.0,
                bend + 18,
                to.0,
                bend + 8,
                to.0,
                to.1
            )
        }
    };
    let _ = writeln!(svg, "<path class=\"{}\" d=\"{way}\"/>", state(row.node));
}

fn state(node: &TreeNode) -> &'static str {
    match (node.active, node.abandoned) {
        (true, _) => "on",
        (false, false) => "off",
        (false, true) => "gone",
    }
}

fn label(svg: &mut String, row: &Row<'_>, (x, y, labels): (usize, usize, usize), tip: bool) {
    let (node, state, who) = (row.node, state(row.node), who(row.node));
    let status = match (node.abandoned, node.message.status) {
        (false, MessageStatus::Completed) => String::new(),
        (true, _) => "rolled back".into(),
        (false, status) => status.to_string(),
    };
    let said = escaped(&excerpt(&node.message.content, 76));
    let title = escaped(&excerpt(&node.message.content, 600));
    let _ = writeln!(svg, "<g class=\"{state}\"><title>{} {title}</title>", node.message.id);
    if tip {
        let _ = writeln!(svg, "<circle class=\"tip\" cx=\"{x}\" cy=\"{y}\" r=\"9.5\"/>");
    }
    let _ = writeln!(svg, "<circle class=\"dot {who}\" cx=\"{x}\" cy=\"{y}\" r=\"5.5\"/>");
    let base = y + 4;
    let _ = write!(
        svg,
        "<text class=\"who {who}\" x=\"{labels}\" y=\"{base}\">{who}</text>\
         <text class=\"said\" x=\"{}\" y=\"{base}\">{said}",
        labels + 48
    );
    if !status.is_empty() {
        let _ = write!(svg, "<tspan class=\"status\" dx=\"10\">{status}</tspan>");
    }
    svg.push_str("</text></g>\n");
}

fn legend(svg: &mut String, width: usize) {
    let mut right = width - LEFT;
    for (state, name, room) in [("gone", "rolled back", 78), ("off", "left", 32), ("on", "active path", 74)] {
        right -= room;
        let _ = writeln!(
            svg,
            "<path class=\"{state}\" d=\"M{} 26h22\"/><text class=\"key\" x=\"{right}\" y=\"30\">{name}</text>",
            right - 30
        );
        right -= 46;
    }
    let _ = writeln!(svg, "<path class=\"rule\" d=\"M{LEFT} 46H{}\"/>", width - LEFT);
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML cannot represent other control characters.
            char if char.is_control() || matches!(char, '\u{FFFE}' | '\u{FFFF}') => escaped.push(' '),
            char => escaped.push(char),
        }
    }
    escaped
}

const STYLE: &str = "<style>
.page{fill:#fff}
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#1d2430}
.head{font-weight:600;font-size:15px}.key,.status{font-size:11px;fill:#6a7483}
.who{font-weight:600;font-size:12px}.who.user{fill:#2f62b5}.who.agent{fill:#1c7c54}.who.tool{fill:#96691a}
path{fill:none;stroke-width:2;stroke:#b9c1cc}.on path,path.on{stroke:#3f6fd1;stroke-width:3}
path.gone{stroke:#d9a0a0;stroke-dasharray:3 4}.rule{stroke:#e6e9ee;stroke-width:1}
.dot{stroke-width:2;stroke:#fff}.dot.user{fill:#2f62b5}.dot.agent{fill:#1c7c54}.dot.tool{fill:#c08a2c}
.tip{fill:none;stroke:#3f6fd1;stroke-width:2}
.off text{opacity:.66}.off .dot.user{fill:#9db6dd}.off .dot.agent{fill:#93c5ae}.off .dot.tool{fill:#dfc698}
.gone text{opacity:.55}.gone .dot{fill:#fff;stroke:#c98686}g .status{fill:#b04a4a}
@media (prefers-color-scheme:dark){.page{fill:#14181f}text{fill:#e4e8ee}.key,.status{fill:#97a1af}
.who.user{fill:#86aef2}.who.agent{fill:#6fcf9f}.who.tool{fill:#e0b765}path{stroke:#4a5463}
.on path,path.on,.tip{stroke:#7ea2f0}path.gone{stroke:#7d4f4f}.rule{stroke:#262d38}.dot{stroke:#14181f}
.on .dot.user{fill:#86aef2}.on .dot.agent{fill:#6fcf9f}.on .dot.tool{fill:#e0b765}
.off .dot.user{fill:#44618f}.off .dot.agent{fill:#37725a}.off .dot.tool{fill:#7d6739}
.gone .dot{fill:#14181f;stroke:#a06060}g .status{fill:#e08f8f}}
</style>
";

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
            }),
            parent_id: parent.map(id),
            depth: u32::from(n),
            active: state == "*",
            abandoned: state == "x",
            cursor: cursor.map(id),
        }
    }

    fn grown() -> Vec<TreeNode> {
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
        let drawn = text(&grown());
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
        assert_eq!(text(&[]), "no messages yet\n");
    }

    #[test]
    fn the_image_is_well_formed_and_shows_every_message_once() {
        let image = svg(&grown());
        assert_eq!(image.matches("class=\"dot").count(), 12);
        assert_eq!(image.matches("class=\"tip\"").count(), 1);
        assert!(image.contains("Plan a &lt;trip&gt; &amp; &quot;pack&quot;") && !image.contains("<trip>"));
        for tag in ["svg", "g", "text", "tspan", "style", "title"] {
            let opened =
                image.matches(&format!("<{tag}>")).count() + image.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, image.matches(&format!("</{tag}>")).count(), "<{tag}>");
        }
        assert!(svg(&[]).contains("no messages yet"));
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
        assert_eq!(text(&nodes).lines().count(), 20_000);
    }
}
