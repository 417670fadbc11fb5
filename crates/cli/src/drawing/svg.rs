//! The drawing of a session's tree as an SVG image.

use std::fmt::Write as _;

use mainspring_client::TreeNode;
use mainspring_core::MessageStatus;

use super::{Row, excerpt, layout, role_label};

/// Sizes within the image, in SVG user units.
const ROW_HEIGHT: usize = 30;
const LANE_WIDTH: usize = 24;
const ROOT_GAP: usize = 14;
const LEFT_MARGIN: usize = 28;
const TOP_MARGIN: usize = 62;
const MIN_WIDTH: usize = 900;

/// Draws the tree as a self-contained SVG image that follows the viewer's colour scheme.
pub(crate) fn to_svg(nodes: &[TreeNode]) -> String {
    let rows = layout(nodes);
    let lanes = rows.iter().map(|row| row.lane + 1).max().unwrap_or(1);
    let labels_x = LEFT_MARGIN + lanes * LANE_WIDTH + 4;
    let gaps = rows.last().map_or(0, |row| row.root * ROOT_GAP);
    let (width, height) =
        (MIN_WIDTH.max(labels_x + 640), TOP_MARGIN + rows.len().max(1) * ROW_HEIGHT + 18 + gaps);
    let branches = rows.iter().filter(|row| row.parent.is_some() && !row.straight).count();
    let abandoned = rows.iter().filter(|row| row.node.abandoned).count();
    let count = |many: usize, one: &str, more: &str| format!("{many} {}", if many == 1 { one } else { more });
    let mut summary = vec![count(rows.len(), "message", "messages"), count(branches, "branch", "branches")];
    if abandoned > 0 {
        summary.push(format!("{abandoned} rolled back"));
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"The tree of a session\">\n{STYLE_SHEET}\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>\n\
         <text class=\"head\" x=\"{LEFT_MARGIN}\" y=\"30\">{}</text>\n",
        summary.join(" · ")
    );
    draw_legend(&mut svg, width);
    if rows.is_empty() {
        let _ = writeln!(
            svg,
            "<text class=\"said off\" x=\"{LEFT_MARGIN}\" y=\"{}\">no messages yet</text>",
            TOP_MARGIN + 14
        );
    }
    // Draws the active path on top of the others.
    for active in [false, true] {
        for (at, row) in rows.iter().enumerate().filter(|(_, row)| row.node.active == active) {
            draw_edge(&mut svg, &rows, at, row);
        }
    }
    let tip = rows.iter().filter(|row| row.node.active).map(|row| row.node.depth).max();
    for (at, row) in rows.iter().enumerate() {
        draw_label(
            &mut svg,
            row,
            (x(row.lane), y(&rows, at), labels_x),
            row.node.active && Some(row.node.depth) == tip,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn x(lane: usize) -> usize {
    LEFT_MARGIN + lane * LANE_WIDTH
}

/// Vertical position of a row, with a gap above every root.
fn y(rows: &[Row<'_>], row: usize) -> usize {
    TOP_MARGIN + row * ROW_HEIGHT + ROW_HEIGHT / 2 + rows[row].root * ROOT_GAP
}

/// Draws the line from the parent.
fn draw_edge(svg: &mut String, rows: &[Row<'_>], at: usize, row: &Row<'_>) {
    let Some(parent) = row.parent else { return };
    let (from, to) = ((x(rows[parent].lane), y(rows, parent)), (x(row.lane), y(rows, at)));
    let path = match row.straight {
        true => format!("M{} {}V{}", from.0, from.1, to.1),
        // Down beside the earlier branches, then across.
        false => {
            let bend = to.1 - ROW_HEIGHT;
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
    let _ = writeln!(svg, "<path class=\"{}\" d=\"{path}\"/>", css_class(row.node));
}

fn css_class(node: &TreeNode) -> &'static str {
    match (node.active, node.abandoned) {
        (true, _) => "on",
        (false, false) => "off",
        (false, true) => "gone",
    }
}

fn draw_label(svg: &mut String, row: &Row<'_>, (x, y, labels_x): (usize, usize, usize), tip: bool) {
    let (node, class, role) = (row.node, css_class(row.node), role_label(row.node));
    let status = match (node.abandoned, node.message.status) {
        (false, MessageStatus::Completed) => String::new(),
        (true, _) => "rolled back".into(),
        (false, status) => status.to_string(),
    };
    let text = escape_xml(&excerpt(&node.message.content, 76));
    let title = escape_xml(&excerpt(&node.message.content, 600));
    let _ = writeln!(svg, "<g class=\"{class}\"><title>{} {title}</title>", node.message.id);
    if tip {
        let _ = writeln!(svg, "<circle class=\"tip\" cx=\"{x}\" cy=\"{y}\" r=\"9.5\"/>");
    }
    let _ = writeln!(svg, "<circle class=\"dot {role}\" cx=\"{x}\" cy=\"{y}\" r=\"5.5\"/>");
    let base = y + 4;
    let _ = write!(
        svg,
        "<text class=\"who {role}\" x=\"{labels_x}\" y=\"{base}\">{role}</text>\
         <text class=\"said\" x=\"{}\" y=\"{base}\">{text}",
        labels_x + 48
    );
    if !status.is_empty() {
        let _ = write!(svg, "<tspan class=\"status\" dx=\"10\">{status}</tspan>");
    }
    svg.push_str("</text></g>\n");
}

fn draw_legend(svg: &mut String, image_width: usize) {
    let mut right = image_width - LEFT_MARGIN;
    for (class, name, width) in
        [("gone", "rolled back", 78), ("off", "inactive", 44), ("on", "active path", 74)]
    {
        right -= width;
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" d=\"M{} 26h22\"/><text class=\"key\" x=\"{right}\" y=\"30\">{name}</text>",
            right - 30
        );
        right -= 46;
    }
    let _ = writeln!(svg, "<path class=\"rule\" d=\"M{LEFT_MARGIN} 46H{}\"/>", image_width - LEFT_MARGIN);
}

pub(super) fn escape_xml(text: &str) -> String {
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

pub(super) const STYLE_SHEET: &str = "<style>
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
