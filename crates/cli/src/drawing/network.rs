//! The drawing of a network: its members and its router.

use std::fmt::Write as _;

use mainspring_core::network::{Member, Reduce, Stage};
use mainspring_core::{AgentDefinition, Network};

use super::svg::{STYLE_SHEET, escape_xml};

/// Sizes within the image, in SVG user units.
const MARGIN: usize = 28;
const BOX_WIDTH: usize = 250;
const BOX_HEIGHT: usize = 44;
const ROW_HEIGHT: usize = 62;
const TOP: usize = 62;
const ROUTER_WIDTH: usize = 420;
const GAP: usize = 110;

/// Draws a network as text.
pub(crate) fn network_text(definition: &AgentDefinition, network: &Network) -> String {
    let mut text = format!("{}\n", heading(definition, network));
    let width = network.members.iter().map(|member| member.name().chars().count()).max().unwrap_or(0);
    for member in &network.members {
        let _ = writeln!(text, "  ● {:width$}  {}{}", member.name(), member.agent, notes(member));
    }
    let routes = routes(definition, network);
    for (at, route) in routes.iter().enumerate() {
        let sign = if at + 1 == routes.len() { '└' } else { '├' };
        let _ = writeln!(text, "  {sign}─▶ {route}");
    }
    text
}

fn heading(definition: &AgentDefinition, network: &Network) -> String {
    let calls = match network.max_iter {
        0 => "any number of calls".to_owned(),
        calls => format!("at most {calls} calls"),
    };
    let members = match network.members.len() {
        1 => "1 member".to_owned(),
        count => format!("{count} members"),
    };
    format!("{} · {members} · {calls}", definition.name())
}

fn notes(member: &Member) -> String {
    let mut notes = String::new();
    if let Some(condition) = &member.enabled {
        let _ = write!(notes, "  if {condition}");
    }
    match member.steps {
        1 => {}
        0 => notes.push_str("  until it answers"),
        steps => drop(write!(notes, "  up to {steps} model calls")),
    }
    notes
}

fn stages(stages: &[Stage]) -> String {
    match stages {
        [] => "end".into(),
        stages => stages.iter().map(|stage| stage.names().join(" + ")).collect::<Vec<_>>().join(", then "),
    }
}

/// Describes the router, one line per part.
fn routes(definition: &AgentDefinition, network: &Network) -> Vec<String> {
    let mut lines = vec![];
    let router = network.router.clone().unwrap_or_default();
    if !router.sequence.is_empty() {
        lines.push(format!("in sequence: {}", stages(&router.sequence)));
    }
    for (at, rule) in router.rules.iter().enumerate() {
        lines.push(format!("rule {}: {} → {}", at + 1, rule.when, stages(&rule.to)));
    }
    let then = |lines: &[String]| if lines.is_empty() { "" } else { "then " };
    if let Some(code) = &router.code {
        lines.push(format!("{}the code {code}", then(&lines)));
    }
    let asks_model = router.model.is_some() || network.router.is_none();
    if asks_model {
        let own = router.model.unwrap_or_default();
        let model = own.model.or(own.profile).or_else(|| definition.model.clone());
        let model =
            model.or_else(|| definition.profile.clone()).unwrap_or_else(|| "the default model".into());
        lines.push(format!("{}{model} selects an agent, or ends", then(&lines)));
    }
    if network.reduce != Reduce::default() {
        let how = match &network.reduce {
            Reduce::Agent(name) => format!("a list for {name}"),
            other => format!("{other:?}").to_lowercase(),
        };
        lines.push(format!("parallel changes of state become: {how}"));
    }
    lines
}

/// Draws a network as a self-contained SVG image.
pub(crate) fn network_svg(definition: &AgentDefinition, network: &Network) -> String {
    let routes = routes(definition, network);
    let rows = network.members.len().max(routes.len().div_ceil(2)).max(1);
    let (width, height) = (MARGIN * 2 + ROUTER_WIDTH + GAP + BOX_WIDTH, TOP + rows * ROW_HEIGHT + MARGIN);
    let title = escape_xml(&heading(definition, network));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"A network of agents\">\n{STYLE_SHEET}\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>\n\
         <text class=\"head\" x=\"{MARGIN}\" y=\"30\">{title}</text>\n"
    );
    let middle = TOP + rows * ROW_HEIGHT / 2;
    for (at, route) in routes.iter().enumerate() {
        let y = middle + 24 * at - 12 * routes.len().saturating_sub(1);
        let short: String = route.chars().take(64).collect();
        let _ = writeln!(
            svg,
            "<text class=\"said\" x=\"{MARGIN}\" y=\"{y}\">{}<title>{}</title></text>",
            escape_xml(&short),
            escape_xml(route)
        );
    }
    let (from, to) = (MARGIN + ROUTER_WIDTH, MARGIN + ROUTER_WIDTH + GAP);
    for (at, member) in network.members.iter().enumerate() {
        let y = TOP + at * ROW_HEIGHT;
        let center = y + BOX_HEIGHT / 2;
        let _ = writeln!(
            svg,
            "<g class=\"on\"><path d=\"M{from} {middle}C{} {middle},{} {center},{to} {center}\"/>\
             <rect class=\"box\" x=\"{to}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"8\" \
             fill=\"none\" stroke=\"#3f6fd1\"/>\
             <text class=\"who agent\" x=\"{}\" y=\"{}\">{}</text>\
             <text class=\"key\" x=\"{}\" y=\"{}\">{}</text></g>",
            from + GAP / 2,
            to - GAP / 2,
            to + 12,
            y + 19,
            escape_xml(member.name()),
            to + 12,
            y + 35,
            escape_xml(&format!("{}{}", member.agent, notes(member)).chars().take(44).collect::<String>()),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn team() -> AgentDefinition {
        serde_json::from_value(json!({
            "id": "team", "profile": "main_reasoner",
            "network": {
                "members": [{"agent": "planner@1"}, {"agent": "worker@1", "name": "left", "enabled": "state.a < 2"}],
                "router": {"rules": [{"when": "calls == 0", "to": ["planner", ["planner", "left"]]}, {"when": "state.ok"}],
                           "model": {}},
            },
        }))
        .expect("a definition")
    }

    #[test]
    fn a_network_is_drawn_as_text() {
        let team = team();
        let network = team.network.clone().expect("a network");
        insta::assert_snapshot!(network_text(&team, &network), @r"
        team@1 · 2 members · at most 20 calls
          ● planner  planner@1
          ● left     worker@1  if state.a < 2
          ├─▶ rule 1: calls == 0 → planner, then planner + left
          ├─▶ rule 2: state.ok → end
          └─▶ then main_reasoner selects an agent, or ends
        ");
    }

    #[test]
    fn a_router_of_one_part_is_drawn_without_then() {
        let team = AgentDefinition { network: None, ..team() };
        let network = json!({"members": [{"agent": "planner@1"}]});
        let network: Network = serde_json::from_value(network).expect("a network");
        assert_eq!(routes(&team, &network), ["main_reasoner selects an agent, or ends"]);
    }

    #[test]
    fn an_image_shows_every_member_and_escapes_texts() {
        let team = team();
        let svg = network_svg(&team, team.network.as_ref().expect("a network"));
        assert!(svg.contains(">planner</text>") && svg.contains(">left</text>"), "{svg}");
        assert!(svg.contains("state.a &lt; 2") && !svg.contains("state.a < 2"), "{svg}");
    }
}
